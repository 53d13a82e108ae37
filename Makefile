# Two commands on a fresh machine: `make train` and `make test`. Everything they need goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q install -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help train test test-fast test-e2e test-long test-nightly test-cluster fuzz audit test-keras test-gpu-program lint types bench recipes docs docs-serve pictures wheel release-check clean

help:
	@echo "make train      train a small CNN on scans of digits (under a minute of training on 2 CPU cores)"
	@echo "make test       the suite without the long tests; make test-fast: the quick part"
	@echo "make test-e2e   whole runs: a kill and its resume, recipes, the commands of the documentation"
	@echo "make test-long  all that make test leaves out; make test-nightly: that, programs for GPUs, python -O"
	@echo "make fuzz       5,000 hostile words, recipes and directories each; nightly 2,000"
	@echo "make audit      known vulnerabilities of what is pinned (asks a service on the network)"
	@echo "make test-keras the quick part on the oldest Keras that pyproject allows, and on the newest there is"
	@echo "make test-cluster  sweeps on a real Slurm of two nodes and a real Ray, started here (by root, where Slurm is there or can be installed)"
	@echo "make test-gpu-program  programs compiled for GPUs that are not here (an environment of 3 GB to download)"
	@echo "make recipes    every recipe that runs on a CPU, in full, held against its expect: block"
	@echo "make bench      the benchmarks (ten minutes), results in benchmarks/results"
	@echo "make docs       the site into site/, strictly; make docs-serve shows it; make pictures: its pictures, from real runs"
	@echo "make release-check  sdist and wheel, their metadata, and the first five minutes on each Python found here"
	@echo "make lint types wheel clean"

train: $(VENV)/.run
	$(BIN)/mpt train conf=digits_cnn

# What is tested on JAX as well, in a session of its own: Keras has one backend in a process.
ON_JAX := tests/training/test_engine.py tests/training/test_injected_patterns.py tests/plan/test_program_on_cpu.py \
	tests/precision/test_optimizer_steps.py tests/precision/test_skips_whole.py tests/precision/test_finite.py \
	tests/precision/gradients/test_custom_gradient.py tests/precision/test_documented_words.py
ON_JAX_NIGHTLY := tests/training tests/precision tests/diagnose tests/plan tests/test_docstring_examples.py \
	tests/front/test_diagnosed_models.py tests/front/test_python_runs.py

test: $(VENV)/.dev
	$(PYTEST) -m "not long"
	KERAS_BACKEND=jax $(PYTEST) -m "not long" $(ON_JAX)

test-fast: $(VENV)/.dev
	$(PYTEST) -m "not slow"

test-e2e: $(VENV)/.dev
	$(PYTEST) -m long tests/end_to_end tests/checkpoints/test_resume_cli.py tests/cli

test-long: $(VENV)/.dev
	$(PYTEST) -m long
	KERAS_BACKEND=jax $(PYTEST) -m "long or not long" $(ON_JAX_NIGHTLY)
	MPT_DEVICES=2 $(PYTEST) -m "long or not long" tests/precision/two_devices
	MPT_DEVICES=2 KERAS_BACKEND=jax $(PYTEST) -m "long or not long" tests/precision/two_devices
	MPT_DEVICES=4 KERAS_BACKEND=jax $(PYTEST) tests/precision/two_devices/test_overflow_on_devices.py

test-nightly: test-long test-gpu-program test-cluster
	FUZZ_CASES=2000 $(PYTEST) tests/fuzz
	$(BIN)/python -O -m pytest -n 2 --dist worksteal -m "not slow and not long"

audit: $(VENV)-audit/bin/pip-audit
	$< --strict --no-deps --disable-pip -r constraints.txt

fuzz: $(VENV)/.dev
	FUZZ_CASES=5000 $(PYTEST) tests/fuzz

test-keras: $(VENV)-oldest/.dev $(VENV)-newest/.dev
	$(VENV)-oldest/bin/python -m pytest -n 2 --dist worksteal -m "not slow"
	$(VENV)-newest/bin/python -m pytest -n 2 --dist worksteal -m "not slow"

test-gpu-program: $(VENV)-gpu/.dev
	KERAS_BACKEND=jax JAX_PLATFORMS=cpu $(VENV)-gpu/bin/python -m pytest -n 2 --dist worksteal tests/plan -m "long or not long"

# Slurm comes from the system's packages; where it is not there and can't be installed, its tests say so.
test-cluster: $(VENV)-cluster/.dev
	-@command -v slurmctld slurmdbd || { test $$(id -u) = 0 && apt-get install -qq -y slurm-wlm slurmdbd munge mariadb-server; }
	CLUSTER=1 KERAS_BACKEND=jax $(VENV)-cluster/bin/python -m pytest -rs -m long tests/sweep/test_on_slurm.py tests/sweep/test_on_ray.py \
		tests/sweep/test_launchers.py

lint: $(VENV)/.dev
	$(BIN)/ruff check mpt_cli tests benchmarks docs .ci
	$(BIN)/ruff format --check mpt_cli tests benchmarks docs .ci

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.short_runs

recipes: $(VENV)/.dev
	$(BIN)/mpt reproduce --all -j 2

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

docs-serve: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

pictures: $(VENV)/.dev
	$(BIN)/python docs/pictures.py

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel -q

release-check: $(VENV)/.dev
	$(BIN)/python .ci/release_check.py

clean:
	rm -rf $(VENV) $(VENV)-audit $(VENV)-oldest $(VENV)-newest $(VENV)-gpu $(VENV)-cluster dist build site runs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[tensorflow]"
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e ".[dev,docs]"
	@touch $@

$(VENV)-audit/bin/pip-audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip --disable-pip-version-check -q install pip-audit

# JAX with the compiler for NVIDIA's GPUs, and no TensorFlow; it needs no GPU.
$(VENV)-gpu/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip --disable-pip-version-check -q install -c constraints.txt -e ".[gpu-plan]" pytest pytest-xdist hypothesis
	@touch $@

$(VENV)-cluster/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip --disable-pip-version-check -q install -c constraints.txt -e ".[jax,slurm,ray,optuna]" pytest pytest-xdist hypothesis
	@touch $@

# Keras of another version with all the rest as it is pinned; the two share nothing with each other nor with .venv.
$(VENV)-oldest/.dev: KERAS := keras==3.12.*
$(VENV)-newest/.dev: KERAS := keras
$(VENV)-oldest/.dev $(VENV)-newest/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -v "^keras==" constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/pip --disable-pip-version-check -q install --upgrade -c $(@D)/constraints.txt -e ".[dev]" "$(KERAS)"
	@touch $@
