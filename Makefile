# Needs python3 (3.11 or newer), make and git; everything else is installed into .venv by the first target that needs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
# What is about packages that the lowest environment has not: the frameworks, the site, the peers.
NOT_LOWEST := src/emabank/integrations tests/integrations tests/compat tests/test_site.py tests/test_benchmarks.py tests/on_ranks/sharded_frameworks.py
# Peers without what they bring: timm wants torchvision, and tests and benchmarks need one file of it.
PEERS := timm diffusers
SAY_SO = @echo "Installing packages into $(VENV), torch first; this takes minutes the first time.";
INSTALL = $(SAY_SO) $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e

.DEFAULT_GOAL := help
.PHONY: help demo test test-cluster test-commands test-lowest test-paper torture docs lint format bench gate experiments clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 19

demo: $(VENV)/study.stamp ## train on digits with wrong labels and compare weight averages (about a minute)
	$(BIN)/emabank demo
	@echo 'Run `. $(BIN)/activate` to use the command emabank in this shell.'

test: lint ## all checks before a change goes in: lint, types, import rules, tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-cluster: $(VENV)/cluster.stamp ## runs on a real Ray and a real Slurm, which the tests start (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cluster tests/cluster

test-commands: $(VENV)/dev.stamp ## run the commands of README and docs as they are (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m commands tests/test_pages.py

test-lowest: $(LOWEST)/lowest.stamp ## the library and the study with the lowest versions they support (own environment)
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 $(addprefix --ignore=,$(NOT_LOWEST)) \
		-m "not slow and not cluster and not commands and not paper and not torture" \
		-W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning # of old packages under a newer Python

test-paper: $(VENV)/dev.stamp ## the paper's networks on the real data in EMABANK_DATA, few images (a quarter of an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m paper tests/study/test_paper_scale.py

torture: $(VENV)/dev.stamp ## faults by the hundred, hostile files, fuzzing and long runs (an hour or more; figures in torture/)
	OMP_NUM_THREADS=1 TORTURE_RESULTS=torture $(BIN)/python -m pytest -m torture tests/torture

docs: $(VENV)/docs.stamp ## build the site into site/, strictly: links, anchors, a description of every public name
	$(BIN)/python docs/gather.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html, or with search: $(BIN)/python -m http.server --directory site"

lint: $(VENV)/dev.stamp ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/bench.stamp ## time an update against other libraries and the memory limit (minutes, idle machine)
	$(BIN)/python benchmarks/update.py

gate: $(VENV)/bench.stamp ## show what became more than 10 % slower (minutes, idle machine)
	$(BIN)/python benchmarks/gate.py --measure

experiments: $(VENV)/study.stamp ## averages for the heat equation (2 minutes); experiments/README.md has the other one
	$(BIN)/python experiments/heat_equation.py --out runs/heat_equation

clean: ## remove the environments, caches, site and demo
	rm -rf $(VENV) $(LOWEST) torture site emabank-demo build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of packages, so that a second `make` installs only what pyproject or the pins changed.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "The pinned packages need Python 3.11 or \
	newer, and $(PYTHON) is older; name another: make PYTHON=python3.11 ... (README: what works with 3.10)")'
	$(PYTHON) -m venv $(VENV)

# Of the tools only pytest is at its lower bound: the others are not what is tested here.
$(LOWEST)/lowest.stamp: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	@echo "Installing the lowest versions into $(LOWEST), torch first; this takes minutes the first time."; \
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints-lowest.txt -e ".[study]" \
		tensorboard pytest pytest-xdist hypothesis scikit-learn scipy selenium
	@touch $@

$(VENV)/study.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[study]"
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[study,dev,docs,bench,lightning,transformers,accelerate]"
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt --no-deps $(PEERS)
	@touch $@

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[docs]"
	@touch $@

$(VENV)/bench.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[study,bench,transformers]"
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt --no-deps $(PEERS)
	@touch $@

$(VENV)/cluster.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[study,dev,slurm,ray]"
	@touch $@
