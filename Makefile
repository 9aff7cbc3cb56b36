# The one door. `make bench` and `make test` are all a newcomer needs.
PYTHON ?= python3
PIP_ARGS ?=
# Further arguments for pytest, such as PYTEST_ARGS="-k opt350m".
PYTEST_ARGS ?=
# A folder with checkouts of Megatron-LM, metaseq, DeepSpeedExamples and NeMo-Megatron-Launcher, for make real.
CHECKOUTS ?=
# For make matrix: repetitions, the seed of their moments, and the page to write.
REPEAT ?= 1
SEED ?= 1
MATRIX ?= fault-matrix.jsonl
# Many tests wait (for a time limit, for Slurm to notice a dead node), so there are more workers than cores.
TEST_WORKERS ?= 8
CONSTRAINTS ?= constraints.txt
# Images of containers set it. Then each of the hundreds of sessions that the tests start compiles the whole package anew.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install -q -c $(CONSTRAINTS) $(PIP_ARGS)

.PHONY: help bench matrix test tested nodes docs lint fast unit coverage real slurm-up slurm-down clean

help:
	@echo "make bench       train the smallest OPT recipe at a tiny scale on this machine and print its verdicts"
	@echo "make test        lint and run the whole test suite; as root with apt also against a real Slurm"
	@echo "make fast        lint and run the tests that need no Slurm"
	@echo "make unit        run the unit tests; with CONSTRAINTS=constraints-oldest.txt on the oldest dependencies"
	@echo "make coverage    run the unit tests and count the branches they take; too few are an error"
	@echo "make lint        formatting, lint, types, the floors of the house, and prose"
	@echo "make matrix      let faults strike on that Slurm, REPEAT times; SEED decides when, and MATRIX names the file for their lines"
	@echo "make docs        build the docs site into site/; it fails where a link leads nowhere"
	@echo "make real        build the frameworks whose checkouts are in the folder CHECKOUTS, and train with each of them"
	@echo "make slurm-up    bring up a real Slurm of 8 emulated nodes on this machine (root, Debian)"
	@echo "make slurm-down  take it down again"

bench: $(VENV)/.bench
	@echo "make bench: a training of half a minute, then its verdicts"
	$(VENV)/bin/pytest suites/training -k opt125m --scale smoke --cluster local $(PYTEST_ARGS)

# Two things at a time: many tests wait, and lint needs a single core. What pytest ended with is kept for .ci/run.
test:
	@echo "make test: all tests, in a quarter of an hour on two cores; lint runs beside them"
	@$(MAKE) --no-print-directory -j2 $(VENV)/.dev nodes
	@$(MAKE) --no-print-directory -j2 lint tested

tested: $(VENV)/.dev
	@$(VENV)/bin/pytest tests -n $(TEST_WORKERS) --dist worksteal $(PYTEST_ARGS); \
	    status=$$?; echo $$status >$(VENV)/tested; exit $$status

# With LLMBENCH_REQUIRE_SLURM set, as in CI, a Slurm that does not come up is a failure; else its tests are skipped.
nodes:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    tools/slurm/up.sh || [ -z "$$LLMBENCH_REQUIRE_SLURM" ] || exit 1; \
	    echo "(this Slurm stays up; make slurm-down ends it)"; \
	else \
	    echo "no root or no apt: the tests that need a real Slurm will be skipped"; \
	fi

fast: $(VENV)/.dev lint
	$(VENV)/bin/pytest tests -n $(TEST_WORKERS) --dist worksteal -m "not slurm" $(PYTEST_ARGS)

# One test at a time: an old pytest-benchmark warns of workers, and warnings are errors.
unit: $(VENV)/.dev
	$(VENV)/bin/pytest tests/unit -n0 $(PYTEST_ARGS)

# Tests of what ranks do are in processes of their own, which are not counted: counting takes twice the time as it is.
coverage: $(VENV)/.dev
	$(VENV)/bin/coverage run -m pytest tests/unit -n0 --ignore tests/unit/workloads --ignore tests/unit/benchmarks $(PYTEST_ARGS)
	$(VENV)/bin/coverage report

lint: $(VENV)/.dev
	$(VENV)/bin/ruff format --check -q .
	$(VENV)/bin/ruff check -q .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/python tools/reference.py --check
	$(VENV)/bin/python tools/prose.py
	$(VENV)/bin/python tools/ceiling.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# Without CHECKOUTS it builds nothing, and tests what is built. One test at a time: each has ranks on all cores.
real: $(VENV)/.dev
	@[ -z "$(CHECKOUTS)" ] || PIP_ARGS="$(PIP_ARGS)" tools/frameworks/build.sh all --checkouts "$(CHECKOUTS)"
	$(VENV)/bin/pytest tests/real -n0 $(PYTEST_ARGS)

# It sets nodes down and kills daemons: nobody else may use that Slurm.
matrix: $(VENV)/.dev
	$(VENV)/bin/python -m benchmarks.faults --repeat $(REPEAT) --seed $(SEED) --lines $(MATRIX)

slurm-up:
	tools/slurm/up.sh

slurm-down:
	tools/slurm/down.sh

clean:
	rm -rf $(VENV) site reports build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$$($(PYTHON) --version) is too old: make PYTHON=python3.11 (or newer)"; exit 1; }
	@echo "make: a virtual environment in $(VENV), where nothing touches your Python"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.bench: $(VENV)/bin/python pyproject.toml $(CONSTRAINTS)
	@echo "make: pip installs the package and PyTorch into $(VENV), once; it takes one to five minutes, and prints nothing"
	@$(PIP) -e ".[torch]"
	@touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml $(CONSTRAINTS)
	$(PIP) -e ".[docs]"
	@touch $@

# Plugins that would change every other test have a folder of their own, for the tests that want them.
# Python compiles what is imported: most of what PyTorch and others bring never is.
$(VENV)/.dev: $(VENV)/bin/python pyproject.toml $(CONSTRAINTS) Makefile
	@echo "make: pip installs all that the tests need into $(VENV), once; it takes two to ten minutes, and prints nothing"
	@$(PIP) --no-compile --no-deps --upgrade --target $(VENV)/guests pytest-forked pytest-replay pytest-rerunfailures pytest-retry & \
	    guests=$$!; $(PIP) --no-compile -e ".[dev]" && wait $$guests
	@touch $@ $(VENV)/.bench
