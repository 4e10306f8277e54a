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
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: .venv/.demo ## train on 1 master + 3 workers on this machine, then prove every pod's shards
	@rm -rf build/demo && mkdir -p build
	@TORCHTALLY_OUTPUT=build/demo scripts/run_local.py -f examples/fashion-mnist.yaml 2>&1 | tee -i build/demo.log
	@scripts/verify_shards.py build/demo.log

.PHONY: test
test: .venv/.dev ## all tests but the e2e; those that need a Docker engine are skipped without one
	@scripts/tools.py helm helm-docs kubeconform
	python -m pytest --ignore=tests/e2e $(ARGS)

.PHONY: image
image: ## build torchtally:$DEVICE (DEVICE=cpu|cuda, INDEX_URL=, WHEELS=, CA=, BASE=: docker/image.sh)
	docker/image.sh build

.PHONY: push
push: ## push that image: REGISTRY=ghcr.io/me
	docker/image.sh push

.PHONY: e2e
e2e: .venv/.dev ## test chart and image on a kind cluster (E2E_CONTEXT=, E2E_IMAGE=, E2E_KEEP=: scripts/e2e.sh)
	scripts/e2e.sh $(ARGS)

.PHONY: lint
lint: .venv/.dev ## ruff, mypy, shellcheck, hadolint, actionlint, helm lint, and that all that is generated is fresh
	@scripts/tools.py helm actionlint
	ruff check
	ruff format --check
	mypy --package torchtally
	mypy scripts
	git ls-files -z | xargs -0 grep -lZE '^#!.*\b(ba)?sh$$' -- | xargs -0 shellcheck
	hadolint docker/Dockerfile
	actionlint
	helm lint --strict $(CHART)
	helm lint --strict $(CHART) --values $(CHART)/ci/kind-values.yaml
	uv lock --quiet --project trainer --check
	docker/lock.sh --check

.PHONY: lock
lock: .venv/.dev ## after a change of trainer/pyproject.toml: lock it, and write the image's requirements
	uv lock --project trainer
	docker/lock.sh

.PHONY: examples
examples: .venv/.dev ## render examples/ from the chart
	@scripts/tools.py helm
	helm template demo $(CHART) --skip-tests --values $(CHART)/ci/kind-values.yaml >examples/fashion-mnist.yaml
	helm template demo $(CHART) --skip-tests >examples/fashion-mnist-gpu.yaml

.PHONY: docs
docs: ## write the chart's README from its values
	@scripts/tools.py helm-docs
	helm-docs --chart-search-root charts --sort-values-order file

.PHONY: clean
clean: ## remove what all this made, .venv and .tools with it
	rm -rf .venv .tools build output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo does without the development tools; with them installed, it takes what is there.
.venv/.demo: $(LOCK)
	scripts/env.sh --no-dev --inexact
	@touch $@

.venv/.dev: $(LOCK)
	scripts/env.sh
	@touch $@ .venv/.demo
