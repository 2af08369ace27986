# Every target first does the set-up it needs: `make demo` works in a fresh clone.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint quick goldens nightly torture bench dist budget lock clean services

VENV := .venv
PY := $(VENV)/bin/python
JOBS ?= 2
# Some tests mostly wait: three at a time keep two cores busy.
TEST_JOBS ?= 3
SEEDS ?= 500
ROUNDS ?= 20
P ?=
# `make check`: ALL=1 runs all quick tests, SINCE=v0.1.0 those that can notice changes since then,
# nearest first, within the time limit of tests/changes.py.
ALL ?=
SINCE ?=

INSTALLED := $(VENV)/.installed
WARM := $(VENV)/.warm
CLASSES := $(VENV)/share/surecast/spark-classes.jsa

# Keep compiled bytecode, whatever the shell's setting: tests start many Python processes.
unexport PYTHONDONTWRITEBYTECODE

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(WARM)  ## create .venv with the pinned dependencies and compile the kernels

demo: setup  ## run a real cluster: a cut link, a killed server, then an audit and a figure
	$(VENV)/bin/surecast demo

test: $(INSTALLED)  ## all tests, within the limits of tests/budget.toml; P=chain: tests whose path contains it
	@$(MAKE) --no-print-directory -j3 $(WARM) $(CLASSES) services
ifeq ($(P),)
	$(PY) -m pytest -n $(TEST_JOBS) --budget
else
	$(PY) -m pytest -n $(TEST_JOBS) --part $(P)
endif

budget: $(INSTALLED)  ## rewrite tests/budget.toml from the last `make test`
	$(PY) -m tests.budget

check: setup  ## check format, lint and types, and run the quick tests that can notice what changed (ALL=1: all)
	@$(MAKE) --no-print-directory -j2 lint quick

# `lint` uses one core, the tests the other one and then both.
lint:
	$(PY) -m ruff format --check src tests bench scripts
	$(PY) -m ruff check src tests bench scripts
	$(PY) -m mypy
	$(VENV)/bin/basedpyright --pythonpath $(PY)

quick:
	HYPOTHESIS_PROFILE=quick $(PY) -m pytest -n $(TEST_JOBS) -q -m "not slow" $(if $(ALL),,$$($(PY) -m tests.changes $(SINCE)))

goldens: setup  ## compare what each node sends in 200 seeds of each swarm with stored digests
	$(PY) -m tests.goldens

nightly: $(INSTALLED)  ## run the long tests that `make test` leaves out: examples, Spark clusters, kills under Spark
	@$(MAKE) --no-print-directory -j3 $(WARM) $(CLASSES) services
	$(PY) -m pytest -n $(JOBS) -m nightly

torture: setup  ## search for counterexamples, run the swarms, then faults in real processes and under Spark
	HYPOTHESIS_PROFILE=explore $(PY) -m pytest -n $(JOBS) -q -m "not slow" $(addprefix tests/,columns core parts protocols sim)
	for swarm in $$($(VENV)/bin/python -m surecast_lab.swarm.scenarios); do \
	    $(VENV)/bin/surecast sim $$swarm --seeds $(SEEDS) --ledger bench/torture.jsonl || exit 1; \
	done
	$(PY) -m surecast_lab.swarm.process_torture --rounds $(ROUNDS)
	$(PY) -m surecast_lab.swarm.upgrade_rounds --protocol nakcast --rounds 10
	$(PY) -m surecast_lab.swarm.stall --seconds 30
	$(PY) -m surecast_lab.swarm.sink_rounds --rounds $(ROUNDS)
	$(PY) -m surecast_lab.swarm.spark_rounds --minutes 10

bench: setup  ## run the benchmarks; appends to bench/results.jsonl
	$(PY) bench/run.py

dist: $(INSTALLED)  ## wheel and source distribution in dist/, their content checked
	$(PY) scripts/dist.py

lock:  ## rewrite requirements.lock from pyproject.toml
	scripts/lock.sh

clean:  ## remove all files made by set-up, tests and runs
	rm -rf $(VENV) out build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

$(INSTALLED): requirements.lock pyproject.toml scripts/setup.sh scripts/java.sh scripts/packages.sh
	scripts/setup.sh
	@touch $@

services:
	scripts/services.sh

# The tests start Spark many times: this takes 40 seconds, and makes each start 5 seconds faster.
$(CLASSES): $(INSTALLED) scripts/warm_spark.py scripts/java_classes.py
	$(PY) -m scripts.warm_spark

# Compiling the kernels takes seconds; after this, no test, run or server waits for it.
$(WARM): $(INSTALLED) $(wildcard src/surecast/columns/*.py) src/surecast/where/kernels.py
	$(PY) -m surecast.columns.warm
	$(PY) -c "import surecast.where.kernels"
	@touch $@
