# `make demo` and `make test` need only Python 3.11+ and a package index: they make their own environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PLUGINS := $(foreach p,$(dir $(wildcard plugins/*/pyproject.toml)),-e $(p))
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Tests run each program of XLA a few times: to compile it well takes longer. `make test-slow` compiles as users do.
QUICKLY := --xla_backend_optimization_level=0

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-peers test-site recipes lint format docs docs-serve clean

help:  ## What each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/installed: pyproject.toml $(wildcard plugins/*/pyproject.toml)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kerastf needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev,plots]' $(PLUGINS)
	touch $@

demo: $(VENV)/installed  ## Train a small GPT on embedded text, sample, save, load, draw
	$(BIN)/kerastf demo

test: lint  ## The fast suite
	XLA_FLAGS='$(QUICKLY)' $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m 'not slow and not peers and not site'

test-slow: $(VENV)/installed  ## Long trainings, and properties on more examples
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -m 'not slow' tests/test_contracts.py -k xla
	KERASTF_THOROUGH=1 $(BIN)/python -m pytest -m 'not slow' $$(grep -l 'amounts import' tests/test_*.py)

test-peers: $(VENV)/installed  ## Beside Hugging Face and PyTorch, in an environment of their own
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip install --quiet -e '.[dev,peers]' $(PLUGINS)
	$(VENV)-peers/bin/python -m pytest -m peers

# Lighthouse 13 wants a newer node than Debian's; what comes goes into .node, which git ignores.
test-site: docs  ## The built site in Chromium, with axe and lighthouse (from npm)
	$(BIN)/python -m pip install --quiet playwright
	if command -v npm; then npm install --prefix .node --no-audit --no-fund --silent axe-core@4.14.0 lighthouse@12.8.2; fi
	$(BIN)/python -m pytest -m site tests/test_browser.py

recipes: $(VENV)/installed  ## Train a small model of every family, and print what each reached
	$(BIN)/python recipes/all.py

lint: $(VENV)/installed  ## ruff and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed  ## Put the code into form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed  ## Build the site, strictly
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/installed  ## Serve the site, rebuilt as pages change
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

clean:  ## Remove what the other targets made
	rm -rf $(VENV) $(VENV)-peers .node site demo runs build dist *.egg-info
