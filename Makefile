# Two commands on a fresh machine: `make train` and `make test`. Everything they need goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q install -c constraints.txt

.PHONY: help train test test-fast lint types bench recipes wheel clean

help:
	@echo "make train      train a small CNN on scans of digits (under a minute of training on 2 CPU cores)"
	@echo "make test       the whole suite; make test-fast: the quick part, a minute"
	@echo "make recipes    every recipe that runs on a CPU, in full, held against its expect: block"
	@echo "make bench      the benchmarks (ten minutes), results in benchmarks/results"
	@echo "make lint types wheel clean"

train: $(VENV)/.run
	$(BIN)/mpt train conf=digits_cnn

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check mpt_cli tests benchmarks

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.sweep

recipes: $(VENV)/.dev
	$(BIN)/mpt reproduce --all -j 2

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel -q

clean:
	rm -rf $(VENV) dist build runs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[tensorflow,plots]"
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e ".[dev]"
	@touch $@
