# To list the targets, run `make help`.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
TOOLS_DIR ?= $(CURDIR)/.tools/bin
export PYTHON TOOLS_DIR
export PATH := $(CURDIR)/.venv/bin:$(TOOLS_DIR):$(CURDIR)/.tools/uv/bin:$(PATH)

LOCK := trainer/pyproject.toml trainer/uv.lock
CHART := charts/torchtally

# More than there are cores, because many tests wait.
TEST_PROCESSES ?= $(shell expr 3 \* $$(getconf _NPROCESSORS_ONLN))
TEST_OPTIONS = -m 'not nightly' --numprocesses $(TEST_PROCESSES)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: .venv/.demo ## train with 1 master and 3 workers on this machine, then verify the shards of every pod
	@rm -rf build/demo && mkdir -p build && : > build/demo.log
	@export TORCHTALLY_OUTPUT=build/demo TORCHTALLY_PROGRESS_SECONDS=0.5; \
	scripts/run_local.py -f examples/fashion-mnist.yaml --log build/demo.log > build/demo.out 2>&1 & run=$$!; \
	scripts/torchtally_jobs.py watch build/demo.log & watch=$$!; \
	trap 'kill $$run $$watch 2> /dev/null && wait || true' EXIT; \
	wait $$run || { status=$$?; kill $$watch || :; wait; cat build/demo.out >&2; exit $$status; }; \
	wait $$watch
	@printf '\nVerifying the samples from build/demo.log alone:\n'
	@scripts/verify_shards.py build/demo.log
	@scripts/torchtally_jobs.py report build/demo.log build/demo/report.html

.PHONY: scripts
scripts: .venv/.scripts ## install what torchtally_jobs, verify_shards, observe and run_local need, without PyTorch: . .venv/bin/activate

.PHONY: test
test: .venv/.dev ## run all tests except those of the image and of a cluster; without a Docker engine, skip those that need one
	@tools/install.py helm
	python -m pytest $(addprefix --ignore=tests/,e2e image tasks) $(TEST_OPTIONS) $(ARGS)

.PHONY: test-image
test-image: .venv/.dev ## run the tests of the image (TORCHTALLY_IMAGE=torchtally:cpu)
	python -m pytest tests/image $(TEST_OPTIONS) $(ARGS)

.PHONY: test-newest-torch test-oldest-torch
test-newest-torch: PYTORCH = --upgrade torch torchvision
test-oldest-torch: PYTORCH = torch==2.10.0 torchvision==0.25.0
test-newest-torch: test-another-torch ## the same, with the newest PyTorch in place of the locked one, which comes back afterwards
test-oldest-torch: test-another-torch ## the same, with the oldest PyTorch that trainer/pyproject.toml allows

.PHONY: test-another-torch
test-another-torch: .venv/.dev
	rm .venv/.dev
	uv pip install --python .venv $(PYTORCH)
	python -m pytest $(addprefix --ignore=tests/,e2e image tasks) $(TEST_OPTIONS) $(ARGS)

.PHONY: test-minio
test-minio: .venv/.dev ## run the tests of an object store with MinIO, which Go builds, in place of moto
	@tools/install.py minio
	TEST_S3=minio python -m pytest tests/trainer -k 's3 or object_store' $(ARGS)

TORCH ?= 2.0.1

.PHONY: test-torch
test-torch: .venv/.dev ## run the observer's tests with another PyTorch and no NumPy (TORCH=2.0.1 WHEELS=: a folder of wheels)
	uv venv --quiet --allow-existing --python 3.11 build/torch-$(TORCH)
	uv pip install --quiet --python build/torch-$(TORCH) torch==$(TORCH) \
		$(if $(WHEELS),--find-links $(WHEELS),--index https://download.pytorch.org/whl/cpu)
	OBSERVED_PYTHON=build/torch-$(TORCH)/bin/python OBSERVED_TORCH=$(TORCH) \
		python -m pytest tests/observer/test_versions.py $(ARGS)

.PHONY: faults
faults: .venv/.dev ## run the fault tests on this machine and print a table of faults and outcomes; SEEDS=100: faults that as many seeds draw
ifdef SEEDS
	@python -m pytest tests/local/test_drawn_faults.py --seeds $(SEEDS) --numprocesses 2 $(ARGS)
else
	@rm -f build/faults/local.*
	@python -m pytest tests/local/test_local_faults.py $(ARGS) && status=0 || status=$$?; \
		cat build/faults/local.md; exit $$status
endif

.PHONY: tasks
tasks: .venv/.dev ## run each task in full with run_local and with docker run (the image with all extras), and print a table
	@tools/install.py helm
	@python -m pytest tests/tasks $(ARGS) && status=0 || status=$$?; cat build/tasks/tasks.md; exit $$status

.PHONY: bench
bench: .venv/.bench ## compare throughput, start-up, sampler and verifier with alternatives: bench/results/, up to 30 minutes
	@tools/install.py helm
	@python -m bench

.PHONY: bench-compare
bench-compare: .venv/.bench ## print the changes of the latest results that exceed noise (BASE=bench/results/….json)
	@python -m bench.compare $(BASE)

.PHONY: bench-cluster
bench-cluster: .venv/.bench ## compare the time to the first step, by phase, with a handwritten job on the e2e cluster (ARGS='--rounds 3')
	tools/e2e.sh -- python -m bench.cluster $(ARGS)

.PHONY: bench-gpu-pack
bench-gpu-pack: .venv/.bench ## fill build/bench-gpu with the data and wheels of `make bench-gpu`, which needs no network then
	@python -m bench.pack

.PHONY: bench-gpu
bench-gpu: ## compare throughput on one GPU within 10 minutes: bench/results/gpu/ (ARGS=cpu rehearses on CPUs)
	@tools/bench_gpu.sh $(ARGS)

.PHONY: image
image: ## build torchtally:$DEVICE (DEVICE=cpu|cuda, EXTRAS=compile,keras,mlflow,parquet,s3,spark,tensorboard,wandb,webdataset, INDEX_URL=, WHEELS=, CA=, BASE=: see docker/image.sh)
	docker/image.sh build

.PHONY: image-again
image-again: ## rebuild that image without the cache, and fail if the result differs
	docker/image.sh again

.PHONY: image-report
image-report: .venv/.dev ## print the size of the image by layer and by package, and check its limits (IMAGE=torchtally:cpu)
	@tools/image_size.py --check $(IMAGE)

.PHONY: push
push: ## push that image to a registry (REGISTRY=ghcr.io/me)
	docker/image.sh push

.PHONY: e2e
e2e: .venv/.dev ## test chart and image on a kind cluster (E2E_CONTEXT=, E2E_IMAGE=, E2E_KEEP=: see tools/e2e.sh)
	tools/e2e.sh $(ARGS)

.PHONY: e2e-faults
e2e-faults: .venv/.dev ## run all fault tests on such a cluster and write build/faults/cluster.md (ARGS='-k out-of-memory'), or, with ARGS='--seeds 20', faults that as many seeds draw
	tools/e2e.sh -k $(if $(findstring --seeds,$(ARGS)),test_drawn,test_fault) -m '' $(ARGS)

.PHONY: lint
lint: .venv/.dev ## run ruff, mypy, import-linter, shellcheck, hadolint, actionlint, Vale, and Helm's lint and unit tests, and check that generated files are up to date
	@tools/install.py helm actionlint
	ruff check
	ruff format --check
	lint-imports --no-logo
	mypy --package torchtally
	mypy scripts
	mypy tools
	mypy bench
	git ls-files -z | xargs -0 grep -lZE '^#!.*\b(ba)?sh$$' -- | xargs -0 shellcheck
	hadolint docker/Dockerfile
	actionlint
	if command -v vale > /dev/null && { test -d tools/vale/Google || vale sync; }; then \
		vale README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs bench/README.md $(CHART)/README.md; \
		else echo "lint: Google's style is not checked: install Vale (https://vale.sh), which fetches its rules from GitHub"; fi
	helm lint --strict $(CHART)
	helm lint --strict $(CHART) --values $(CHART)/ci/kind-values.yaml
	if helm plugin list | grep -q ^unittest; then helm unittest --strict $(CHART); \
		else echo "lint: the chart's unit tests are skipped: tools/install.py helm-unittest installs Helm's plugin for them"; fi
	tools/chart_values.py --check
	uv lock --quiet --project trainer --check
	tools/lock.sh --check
	$(MAKE) --no-print-directory docs-site

.PHONY: lock
lock: .venv/.dev ## update trainer/uv.lock and the image's requirements after a change of trainer/pyproject.toml
	uv lock --project trainer
	tools/lock.sh

.PHONY: audit
audit: ## check the locked packages, and those in an IMAGE=, for known vulnerabilities (OSV_DB=: see docs/contributing/testing.md)
	@tools/install.py osv-scanner
	@tools/audit.py $(if $(IMAGE),--image $(IMAGE)) $(if $(OSV_DB),--database $(OSV_DB))

.PHONY: mutations
mutations: .venv/.dev ## check that the chart's tests fail without any single line of its templates (ARGS='--sample 100')
	@tools/install.py helm
	@python tests/chart/mutate.py $(ARGS)

.PHONY: examples
examples: .venv/.dev ## render examples/ from the chart
	@tools/install.py helm
	helm template demo $(CHART) --skip-tests --values $(CHART)/ci/kind-values.yaml >examples/fashion-mnist.yaml
	helm template demo $(CHART) --skip-tests >examples/fashion-mnist-gpu.yaml

.PHONY: docs
docs: .venv/.dev ## write what has a source: parts of docs/, and what values.yaml says into the chart's README and schema
	tools/reference.py
	tools/chart_values.py
	tools/step_picture.py

.PHONY: schema
schema: ## write Kubernetes' definitions of the parts of a pod into the chart's values.schema.json (needs Go)
	@tools/kubernetes_schema.py

.PHONY: vega
vega: .venv/.dev ## write the JavaScript of a run's page from the locked package vl-convert-python
	@tools/vega.py

.PHONY: docs-site
docs-site: .venv/.dev ## build the documentation's site in build/docs; a broken link or anchor fails it
	@rm -rf build/docs
	sphinx-build --quiet --fail-on-warning --keep-going --builder html docs build/docs

.PHONY: clean
clean: ## delete all generated files, including .venv and .tools
	rm -rf .venv .tools build output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs no development tools, but uses an environment that has them.
.venv/.scripts: $(LOCK)
	tools/env.sh --no-dev --inexact
	@touch $@

.venv/.demo: $(LOCK)
	tools/env.sh --no-dev --extra train --extra vision --inexact
	@touch $@

.venv/.dev: $(LOCK)
	tools/env.sh --all-extras --no-extra spark
	@touch $@ .venv/.demo

.venv/.bench: $(LOCK)
	tools/env.sh --all-extras --no-extra spark --group bench
	@touch $@ .venv/.demo .venv/.dev
