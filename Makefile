# Two commands: `make quickstart` (a real RL run on a CPU) and `make test` (everything). No GPU is needed for either.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Everything in the locks is pinned, dependencies included, so nothing is left to resolve.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps

PARALLEL := --numprocesses auto --maxprocesses 4

.PHONY: quickstart test test-fast lint bench clean

quickstart: $(VENV)/.run
	$(BIN)/python -m examples.tiny.quickstart

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -q -m "not run and not gpu" $(PARALLEL) --durations 30
	$(BIN)/python -m pytest -q -m "run and not gpu" --durations 20 # one at a time: a run fills two cores

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m "not slow and not run and not gpu" $(PARALLEL)

bench: $(VENV)/.run
	$(BIN)/python bench/run_all.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pace trace_alloc

$(VENV)/.run: requirements/cpu.txt setup.py pyproject.toml upstream.txt upstream.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the CPU build of vLLM needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing pinned packages into $(VENV) (some minutes the first time)"
	$(PIP_INSTALL) $$(grep -E '^(setuptools|wheel|packaging|ninja|numpy)==' requirements/cpu.txt)
	@grep -v '^#' requirements/cpu.txt | xargs -P 2 -n 16 $(PIP_INSTALL) --no-compile --no-build-isolation # two at a time
	@$(BIN)/python -c 'import torch' || { echo "torch can't be imported: without a GPU it must be a CPU build. Point" \
	    "PIP_EXTRA_INDEX_URL to PyTorch's CPU index, remove $(VENV) and try again."; exit 1; }
	@$(BIN)/python -W ignore -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # some packages ship templates
	$(PIP_INSTALL) --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	$(PIP_INSTALL) -r requirements/dev.txt
	touch $@

clean:
	rm -rf build dist *.egg-info runs .cache
