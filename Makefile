# Every target does the set-up it needs by itself: `make demo` works in a fresh clone.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint quick goldens nightly torture bench budget lock clean services

VENV := .venv
PY := $(VENV)/bin/python
JOBS ?= 2
# Some tests wait more than they work: three at a time keep two cores busy.
TEST_JOBS ?= 3
SEEDS ?= 500
ROUNDS ?= 20
P ?=
# `make check`: ALL=1 runs all quick tests, SINCE=v0.1.0 those that can notice changes since then.
ALL ?=
SINCE ?=

INSTALLED := $(VENV)/.installed
WARM := $(VENV)/.warm
CLASSES := $(VENV)/share/surecast/spark-classes.jsa

# Our processes start often, and so do the tests: what was compiled is kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(WARM)  ## .venv with the pinned dependencies, kernels compiled

demo: setup  ## the main job end to end: real servers, a cut line, a killed server, an audit, a figure
	$(VENV)/bin/surecast demo

test: $(INSTALLED)  ## every test, within tests/budget.toml; P=chain: those of one protocol, package or verb
	@$(MAKE) --no-print-directory -j3 $(WARM) $(CLASSES) services
ifeq ($(P),)
	$(PY) -m pytest -n $(TEST_JOBS) --budget
else
	$(PY) -m pytest -n $(TEST_JOBS) --part $(P)
endif

budget: $(INSTALLED)  ## rewrite tests/budget.toml from what the last `make test` measured
	$(PY) -m tests.budget

check: setup  ## format, lint, types, quick tests that can notice what changed (ALL=1: all quick tests)
	@$(MAKE) --no-print-directory -j2 lint quick

# These use one core, the tests the other one and then both.
lint:
	$(PY) -m ruff format --check src tests bench scripts
	$(PY) -m ruff check src tests bench scripts
	$(PY) -m mypy
	$(VENV)/bin/basedpyright --pythonpath $(PY)

quick:
	$(PY) -m pytest -n $(TEST_JOBS) -q -m "not slow" $(if $(ALL),,$$($(PY) -m tests.changes $(SINCE)))

goldens: setup  ## 200 seeds of each swarm: what leaves each node is what it was
	$(PY) -m tests.goldens

nightly: $(INSTALLED)  ## the long runs that `make test` leaves out: examples, Spark clusters, kills under Spark
	@$(MAKE) --no-print-directory -j3 $(WARM) $(CLASSES) services
	$(PY) -m pytest -n $(JOBS) -m nightly

torture: setup  ## new examples, swarms, then real processes, under all faults and stalls; Spark's drivers and regions killed
	HYPOTHESIS_PROFILE=explore $(PY) -m pytest -n $(JOBS) -q -m "not slow" $(addprefix tests/,columns core parts protocols sim)
	for swarm in $$($(VENV)/bin/python -m surecast_lab.swarm.scenarios); do \
	    $(VENV)/bin/surecast sim $$swarm --seeds $(SEEDS) --ledger bench/torture.jsonl || exit 1; \
	done
	$(PY) -m surecast_lab.swarm.process_torture --rounds $(ROUNDS)
	$(PY) -m surecast_lab.swarm.upgrade_rounds --protocol nakcast --rounds 10
	$(PY) -m surecast_lab.swarm.stall --seconds 30
	$(PY) -m surecast_lab.swarm.sink_rounds --rounds $(ROUNDS)
	$(PY) -m surecast_lab.swarm.spark_rounds --minutes 10

bench: setup  ## measure; appends to bench/results.jsonl
	$(PY) bench/run.py

lock:  ## rewrite requirements.lock from pyproject.toml
	scripts/lock.sh

clean:  ## remove what set-up, tests and runs made
	rm -rf $(VENV) out build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

$(INSTALLED): requirements.lock pyproject.toml scripts/setup.sh scripts/java.sh scripts/packages.sh
	scripts/setup.sh
	@touch $@

services:
	scripts/services.sh

# The tests start Spark again and again: this takes 40 seconds, and each start then 5 less.
$(CLASSES): $(INSTALLED) scripts/warm_spark.py scripts/java_classes.py
	$(PY) -m scripts.warm_spark

# Compiling the kernels takes seconds; done here once, no test, run or server ever waits for it.
$(WARM): $(INSTALLED) $(wildcard src/surecast/columns/*.py)
	$(PY) -m surecast.columns.warm
	@touch $@
