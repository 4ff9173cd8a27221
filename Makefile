# `make` lists the targets. Needs make and Python 3.11 or newer; uses uv where it is installed.

PYTHON ?= python3
PYTEST_ARGS ?=
UP_ARGS ?=
CHAOS_ARGS ?=
HISTORIES_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JAVA_CACHE := .cache/kafka.aot
TORCH := .cache/torch
TORCH_PYTHON ?=
# One worker per core; tests that share a broker stay on one of them.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadgroup
CHECKED := $(wildcard libs services cli tests bench)
UV := $(shell command -v uv 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help install demo up down demo-up check test test-torch chaos histories rules lint docs reference format schemas golden kept-log bench picture tools wheel lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## install everything into .venv, as pinned in requirements.lock

# Our own venv; uv from PATH, else the version in requirements.lock, checked against its hashes. A
# distribution named yardmaster, as this one was once, would share the import package.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Yardmaster needs Python 3.11 or newer as '$(PYTHON)'; name another with: make install PYTHON=/path/to/python3" >&2; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  rm -rf $(VENV); \
	  if [ -n "$(UV)" ]; then "$(UV)" venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV); \
	  else $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt install python3-venv. Or install uv." >&2; exit 1; }; fi; }
	@if [ -z "$(UV)" ]; then \
	  awk '/^uv==/ { p = 1 } p { print } p && !/\\$$/ { exit }' requirements.lock > $(VENV)/uv.txt && \
	  $(BIN)/python -m pip install --quiet --require-hashes --no-deps -r $(VENV)/uv.txt; fi
	@uv="$(UV)"; uv="$${uv:-$(BIN)/uv}"; \
	"$$uv" pip install --python $(BIN)/python --require-hashes -r requirements.lock && \
	{ "$$uv" pip uninstall --quiet --python $(BIN)/python yardmaster 2>/dev/null || true; } && \
	"$$uv" pip install --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

demo: install ## run a small cluster in one process and watch it schedule
	$(BIN)/yard demo

up: install ## start Kafka, Redis and every service as its own process; UP_ARGS="--local --agents 4"
	$(BIN)/yard up $(UP_ARGS)

down: ## stop the cluster of make up and its tasks; UP_ARGS=--purge removes its data
	$(BIN)/yard down $(UP_ARGS)

demo-up: install ## play the demo on the cluster of make up
	$(BIN)/yard demo --running

check: lint ## run lint, types, unit, golden and conformance tests, without a broker
	$(PYTEST) tests/unit tests/golden tests/conformance $(PYTEST_ARGS)

test: install $(JAVA_CACHE) ## run every test; PYTEST_ARGS="-k name" selects some
	JAVA_TOOL_OPTIONS="-XX:AOTCache=$(CURDIR)/$(JAVA_CACHE) -Xlog:aot*=off" $(PYTEST) $(PYTEST_ARGS)

test-torch: install ## run the tests with PyTorch; TORCH_PYTHON=python3 names a Python that has it
	deploy/ci/torch.sh $(TORCH) $(TORCH_PYTHON)
	TORCH_PYTHON=$(CURDIR)/$(TORCH)/venv/bin/python $(PYTEST) -n 0 -m torch tests/torch $(PYTEST_ARGS)

chaos: install ## break a loaded cluster for 10 minutes, then audit it; CHAOS_ARGS="--seed 7" repeats a run
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

histories: install ## play random histories of the scheduler, 10,000 for each kind of policy; HISTORIES_ARGS="--policy quota --seeds 17" repeats one
	$(BIN)/python -m tests.histories $(HISTORIES_ARGS)

rules: install ## delete each rule of the policy quota from a copy of the code; a scenario must fail
	$(BIN)/python -m tests.conformance.deleted_rules

# A broker starts with half the work where Java knows Kafka's classes from an earlier run.
$(JAVA_CACHE):
	$(BIN)/python deploy/ci/java_cache.py $@

lint: install ## check style, types and imports between packages; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CHECKED)
	$(BIN)/lint-imports

tools: ## build helm, kustomize, promtool and a control plane of Kubernetes; tests that need one are skipped without it
	nice deploy/ci/go_tool.sh build

docs: install ## build the documentation into build/docs; fails on a broken link
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict

reference: install ## generate the parts of reference pages that come from the program again
	$(BIN)/python -m docs.generated

format: install ## repair style with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: install ## generate JSON Schema and the AsyncAPI document again
	$(BIN)/python -m yardmaster_schemas.generate

golden: install ## rewrite the expected traces and records of tests/golden; commit a diff only when you understand it
	YARDMASTER_GOLDEN=rewrite $(BIN)/python -m pytest tests/golden $(PYTEST_ARGS)

kept-log: install ## keep a log of the newest rules in tests/data/logs; until 0.1, after each change of events or digests
	$(BIN)/python -m tests.support.keep_logs

bench: install ## run the benchmarks; writes bench/results/*.json
	$(BIN)/python -m bench

picture: install ## run the demo and draw its timeline, docs/pictures/demo.svg
	rm -rf build/demo && mkdir -p build/demo
	TMPDIR=$(CURDIR)/build/demo $(BIN)/yard demo --keep
	$(BIN)/python -m docs.pictures.timeline_svg build/demo/yard-demo-*/data/log.db docs/pictures/demo.svg

lock: ## resolve the two lock files again; UPGRADE=--upgrade takes newer versions
	@uv="$(UV)"; uv="$${uv:-$(BIN)/uv}"; \
	"$$uv" pip compile --quiet --universal --generate-hashes --python-version 3.11 $(UPGRADE) \
	  --no-emit-index-url --no-emit-find-links --no-emit-package yardmaster-scheduler \
	  --custom-compile-command 'make lock' --output-file requirements.lock \
	  --all-extras --group dev pyproject.toml > /dev/null; \
	"$$uv" pip compile --quiet --universal --generate-hashes --python-version 3.11 $(UPGRADE) \
	  --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command 'make lock' --output-file requirements-torch.lock \
	  --group torch-test > /dev/null
	@sed -i.bak '/^# The following packages were excluded/,$$d' requirements.lock && rm requirements.lock.bak

wheel: install ## build the wheel of the distribution into dist; gateways serve the same files
	@uv="$(UV)"; "$${uv:-$(BIN)/uv}" build --quiet --wheel --python $(BIN)/python --no-build-isolation --out-dir dist .

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) .cache .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . \( -name '*.egg-info' -o -name dist -o -name build \) -type d -prune -exec rm -rf {} +
