# `make help` lists what there is to do.

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

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: .venv/.demo ## train on 1 master + 3 workers on this machine, then prove every pod's shards
	@rm -rf build/demo && mkdir -p build
	@TORCHTALLY_OUTPUT=build/demo scripts/run_local.py -f examples/fashion-mnist.yaml 2>&1 | tee -i build/demo.log
	@scripts/verify_shards.py build/demo.log

.PHONY: test
test: .venv/.dev ## all tests but the e2e; those that need a Docker engine are skipped without one
	@scripts/tools.py helm helm-docs
	python -m pytest --ignore=tests/e2e --ignore=tests/tasks -m 'not rare' $(ARGS)

.PHONY: faults
faults: .venv/.dev ## the table of faults on this machine: what befalls pods, and what comes of it
	@rm -f build/faults/local.*
	@python -m pytest tests/local/test_local_faults.py $(ARGS) && status=0 || status=$$?; \
		cat build/faults/local.md; exit $$status

.PHONY: tasks
tasks: .venv/.dev ## the table of tasks: each whole, by run_local and by docker run (the image with all extras)
	@scripts/tools.py helm
	@python -m pytest tests/tasks $(ARGS) && status=0 || status=$$?; cat build/tasks/tasks.md; exit $$status

.PHONY: bench
bench: .venv/.bench ## measure throughput, start-up, sampler and verifier beside others: bench/results/, 25 minutes
	@scripts/tools.py helm
	@python -m bench

.PHONY: bench-compare
bench-compare: .venv/.bench ## what the latest results changed by more than noise (BASE=bench/results/….json)
	@python -m bench.compare $(BASE)

.PHONY: bench-cluster
bench-cluster: .venv/.bench ## seconds to a job's first step on the e2e's cluster, by phase: ours, by hand (ARGS='--rounds 3')
	scripts/e2e.sh -- python -m bench.cluster $(ARGS)

.PHONY: image
image: ## build torchtally:$DEVICE (DEVICE=cpu|cuda, EXTRAS=compile,keras,mlflow,spark, INDEX_URL=, WHEELS=, CA=, BASE=: docker/image.sh)
	docker/image.sh build

.PHONY: image-again
image-again: ## build that image once more, from nothing, and fail if it is another
	docker/image.sh again

.PHONY: image-report
image-report: .venv/.dev ## what the image weighs, by layer and by package (IMAGE=torchtally:cpu)
	@docker/report.py --check $(IMAGE)

.PHONY: push
push: ## push that image: REGISTRY=ghcr.io/me
	docker/image.sh push

.PHONY: e2e
e2e: .venv/.dev ## test chart and image on a kind cluster (E2E_CONTEXT=, E2E_IMAGE=, E2E_KEEP=: scripts/e2e.sh)
	scripts/e2e.sh $(ARGS)

.PHONY: e2e-faults
e2e-faults: .venv/.dev ## the whole table of faults on such a cluster: build/faults/cluster.md (ARGS='-k out-of-memory')
	scripts/e2e.sh -k test_fault -m '' $(ARGS)

.PHONY: lint
lint: .venv/.dev ## ruff, mypy, shellcheck, hadolint, actionlint, helm lint, and that all that is generated is fresh
	@scripts/tools.py helm actionlint
	ruff check
	ruff format --check
	lint-imports --no-logo
	mypy --package torchtally
	mypy scripts
	mypy docker/report.py
	mypy bench
	git ls-files -z | xargs -0 grep -lZE '^#!.*\b(ba)?sh$$' -- | xargs -0 shellcheck
	hadolint docker/Dockerfile
	actionlint
	helm lint --strict $(CHART)
	helm lint --strict $(CHART) --values $(CHART)/ci/kind-values.yaml
	uv lock --quiet --project trainer --check
	docker/lock.sh --check
	$(MAKE) --no-print-directory docs-site

.PHONY: lock
lock: .venv/.dev ## after a change of trainer/pyproject.toml: lock it, and write the image's requirements
	uv lock --project trainer
	docker/lock.sh

.PHONY: audit
audit: .venv/.dev ## whether a locked package has a known vulnerability (asks PyPI)
	@for file in docker/requirements-*.txt; do \
		uvx pip-audit==2.10.1 --strict --disable-pip --require-hashes --progress-spinner=off --requirement $$file; \
	done

.PHONY: mutations
mutations: .venv/.dev ## whether the chart's tests notice that a line of its templates is gone (ARGS='--sample 100')
	@scripts/tools.py helm
	@python tests/chart/mutate.py $(ARGS)

.PHONY: examples
examples: .venv/.dev ## render examples/ from the chart
	@scripts/tools.py helm
	helm template demo $(CHART) --skip-tests --values $(CHART)/ci/kind-values.yaml >examples/fashion-mnist.yaml
	helm template demo $(CHART) --skip-tests >examples/fashion-mnist-gpu.yaml

.PHONY: docs
docs: ## write the chart's README from its values
	@scripts/tools.py helm-docs
	helm-docs --chart-search-root charts --sort-values-order file

.PHONY: docs-site
docs-site: .venv/.dev ## build the documentation's site in build/docs; a broken link or anchor fails it
	@rm -rf build/docs
	sphinx-build --quiet --fail-on-warning --keep-going --builder html docs build/docs

.PHONY: clean
clean: ## remove what all this made, .venv and .tools with it
	rm -rf .venv .tools build output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo does without the development tools; with them installed, it takes what is there.
.venv/.demo: $(LOCK)
	scripts/env.sh --no-dev --extra cluster --inexact
	@touch $@

.venv/.dev: $(LOCK)
	scripts/env.sh --all-extras
	@touch $@ .venv/.demo

.venv/.bench: $(LOCK)
	scripts/env.sh --all-extras --group bench
	@touch $@ .venv/.demo .venv/.dev
