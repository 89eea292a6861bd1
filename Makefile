# spark-jms. `make` alone lists what there is. Every target sets up what it needs, once.
#
# Variables: PYTHON (makes the virtual environment; default python3), VENV (.venv), JMSQ_CACHE (.cache),
#            ARGS (more arguments for pytest, the demo or the benchmarks), JAVA_HOME (tried first when looking for Java).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --warn-undefined-variables

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
JMSQ_CACHE ?= $(CURDIR)/.cache
override JMSQ_CACHE := $(abspath $(JMSQ_CACHE))
export JMSQ_CACHE

PY := $(abspath $(VENV))/bin/python
JAVA_FILE := $(JMSQ_CACHE)/java-home
INSTALLED := $(VENV)/.jmsq-installed
INSTALLED_BENCH := $(VENV)/.jmsq-installed-bench
INSTALLED_DOCS := $(VENV)/.jmsq-installed-docs
# The newest Spark, for which Delta has no jars yet, has an environment of its own.
NEWEST_SPARK := 4.3.0
NEWEST := $(JMSQ_CACHE)/spark-$(NEWEST_SPARK)
INSTALLED_NEWEST := $(NEWEST)/.jmsq-installed
CLASSES := $(JMSQ_CACHE)/spark-classes.jsa
# Set-up prints one line a step; what the commands of a step print is in these files.
LOGS := $(JMSQ_CACHE)/logs
STEP := $(PY) -I spark_jms/setup/step.py

# Spark's workers run the python3 of the PATH unless told; a foreign SPARK_HOME would be another Spark than the pinned one.
export PYSPARK_PYTHON := $(PY)
export PYSPARK_DRIVER_PYTHON := $(PY)
export PYTHONUNBUFFERED := 1
unexport SPARK_HOME
# Tests start some thousand processes: without the compiled modules, each of them compiles this project anew.
unexport PYTHONDONTWRITEBYTECODE

# Commands that start Spark run with the Java that set-up found.
SPARK_RUN := JAVA_HOME="$$(cat '$(JAVA_FILE)')" $(PY)
# For two cores. Tests without Spark wait two thirds of their time, for timers, a disk or another process, so four run at
# once. They run first: they fail faster, and some of them check time limits that JVMs beside them would stretch.
FOUR_AT_ONCE := --numprocesses 4 --dist worksteal
TWO_AT_ONCE := --numprocesses 2 --dist worksteal
FAST_TESTS := $(wildcard tests/unit tests/contract tests/simulation)
SPARK_TESTS := tests/process tests/spark
# Thousands of seeds in virtual time need CPU time and nothing else. At the lowest priority they use the processors while the
# tests of the other stages wait, and delay none of them. They are a process group, so a stage that fails ends all of them.
SIMULATIONS := nice -n 19 $(PY) -m pytest -q $(TWO_AT_ONCE) -m "not soak" tests/simulation

.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET, where TARGET is one of"} \
	  /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(INSTALLED) java jars ## virtual environment, Java, Delta's jars: once (offline afterwards)

.PHONY: demo
demo: setup classes ## a year of flights through queues and topics, with a kill in the middle and a computed account
	@$(SPARK_RUN) -m spark_jms.demo $(ARGS)

.PHONY: notebook
notebook: setup ## the notebooks, in your browser
	@test -x '$(VENV)/bin/jupyter-notebook' || $(STEP) "Python packages of the notebooks" '$(LOGS)/notebooks.log' -- \
	  $(PIP_INSTALL) -e '.[notebooks]'
	@cd notebooks && $(SPARK_RUN) -m notebook $(ARGS)

.PHONY: test
test: $(INSTALLED) java ## everything CI runs: set-up, lint, every test layer (about 35 minutes)
	@said=$$(mktemp); set -m; $(SIMULATIONS) $(ARGS) >"$$said" 2>&1 & simulations=$$!; set +m; \
	  trap 'kill -- "-$$simulations" 2>/dev/null || true; rm -f "$$said"' EXIT; \
	  $(MAKE) stages; \
	  echo "== simulations"; wait "$$simulations" || failed=$$?; cat "$$said"; exit "$${failed:-0}"

.PHONY: stages
stages:
	@$(MAKE) '$(INSTALLED_DOCS)'  # alone: it installs beside what the others run
	@$(MAKE) --jobs=3 --output-sync=target jars postgresql chromium lint classes docs
	@echo "== tests without Spark" && \
	  $(SPARK_RUN) -m pytest -q $(FOUR_AT_ONCE) -m "not simulation and not spark and not soak" tests $(ARGS)
	@echo "== tests with Spark" && $(SPARK_RUN) -m pytest -q $(TWO_AT_ONCE) -m "spark and not soak" $(SPARK_TESTS) $(ARGS)
	@if $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then $(MAKE) newest; \
	  else echo "== Spark $(NEWEST_SPARK) needs Python 3.11: not tested"; fi

.PHONY: newest
newest: $(INSTALLED_NEWEST) java ## the tests of Spark that need no Delta, on the newest Spark
	@echo "== tests with Spark $(NEWEST_SPARK)" && export PYSPARK_PYTHON='$(NEWEST)/bin/python' && \
	  JAVA_HOME="$$(cat '$(JAVA_FILE)')" PYSPARK_DRIVER_PYTHON="$$PYSPARK_PYTHON" "$$PYSPARK_PYTHON" -m pytest -q $(TWO_AT_ONCE) \
	  -p no:cacheprovider -m "spark and not delta and not soak" tests/spark/spark $(ARGS)

.PHONY: check
check: lint ## format, lint, types, architecture, fast tests (under 3 minutes; needs no Java)
	@JMSQ_SEEDS="$${JMSQ_SEEDS:-100}" $(PY) -m pytest -q $(TWO_AT_ONCE) $(FAST_TESTS) $(ARGS)

.PHONY: lint
lint: $(INSTALLED) spark_jms/store ## format, lint, types, architecture
	@echo "== ruff" && $(PY) -m ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	@$(PY) -m ruff check --quiet .
	@echo "== mypy" && $(PY) -m mypy --no-error-summary
	@echo "== import-linter" && $(abspath $(VENV))/bin/lint-imports --no-logo
	@echo "== house" && $(PY) -m tests.harness.house

.PHONY: format
format: $(INSTALLED) ## format the code and apply ruff's safe fixes
	@$(PY) -m ruff check --quiet --fix . || true
	@$(PY) -m ruff format .

.PHONY: bench
bench: setup $(INSTALLED_BENCH) ## benchmarks, side by side with Spark's Kafka connector and Delta's own streaming
	@$(SPARK_RUN) benchmarks/run.py $(ARGS)

.PHONY: soak
soak: setup postgresql ## the tests that take minutes to hours
	@$(SPARK_RUN) -m pytest -q -m soak tests $(ARGS)

SEEDS ?= 2000
.PHONY: sim
sim: $(INSTALLED) ## SEEDS=n new seeds of the replicated store's simulator (2000)
	@$(PY) -m tests.models.regions --seeds $(SEEDS) $(ARGS)

.PHONY: options
options: $(INSTALLED) ## docs/OPTIONS.md and the explanation in conf/jms-module.yaml, from the tables of settings
	@$(PY) -m spark_jms.settings.document

# From scratch each time: what a page shows depends on other files, whose changes the builder does not follow.
.PHONY: docs
docs: $(INSTALLED_DOCS) mermaid ## the documentation as a site, in build/docs/html; a warning is an error
	@rm -rf build/docs && mkdir -p build/docs/pages
	@echo "== docs" && $(PY) -m sphinx -q -W --keep-going --jobs 2 -c docs/site -d build/docs/doctrees build/docs/pages build/docs/html

.PHONY: docs-serve
docs-serve: docs ## shows it on http://127.0.0.1:8000
	@$(PY) -m http.server 8000 --bind 127.0.0.1 --directory build/docs/html $(ARGS)

.PHONY: recording
recording: $(INSTALLED) ## the pictures of the README, from real runs
	@$(PY) docs/images/record.py

.PHONY: planted
planted: $(INSTALLED) ## plants bugs, one at a time, and prints what catches each: simulator, queue model or a test
	@$(PY) -m tests.models.planted.planting $(ARGS)
	@$(PY) -m pytest -q $(TWO_AT_ONCE) tests/simulation/test_planted_in_queues.py \
	  tests/simulation/test_planted_in_servers.py

.PHONY: clean
clean: ## remove what builds and tests leave behind (keeps .venv and the cached jars)
	@rm -rf build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
	  spark-warehouse metastore_db derby.log
	@find . \( -path ./.git -o -path './$(VENV)' -o -path ./.cache \) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

# ---- set-up, one stamp a step ---------------------------------------------------------------------------------------

$(PY):
	@bash spark_jms/setup/venv.sh '$(PYTHON)' '$(VENV)' '$(LOGS)/venv.log'

# Python compiles a module when it is first imported, which most modules of these packages never are. PySpark comes as a
# source of 450 MB, of which pip makes a wheel before it installs it: without compression in half the time.
PIP_INSTALL := $(PY) -m pip install --no-compile --progress-bar off --disable-pip-version-check -c constraints.txt
$(INSTALLED): setup.py constraints.txt | $(PY) spark_jms/store
	@$(STEP) "Python packages into $(VENV)" '$(LOGS)/packages.log' \
	  --count '^ *(Collecting|Downloading|Installing)' --of "$$((2 * $$(grep -c == constraints.txt)))" -- bash -c "\
	  $(PIP_INSTALL) --config-settings=--build-option=--compression=stored pyspark && $(PIP_INSTALL) -e '.[dev,demo]'"
	@touch $@

# Tools that do not follow spark_jms/store.py find the folder by this link; git ignores it.
spark_jms/store:
	@ln -s ../store $@

$(INSTALLED_NEWEST): setup.py constraints.txt | $(PY) spark_jms/store
	@bash spark_jms/setup/venv.sh '$(PYTHON)' '$(NEWEST)' '$(LOGS)/newest-venv.log'
	@sed -e 's/^pyspark==[0-9.]*/pyspark==$(NEWEST_SPARK)/' -e '/^delta_spark==/d' constraints.txt > '$(NEWEST)/constraints.txt'
	@$(STEP) "Python packages with Spark $(NEWEST_SPARK)" '$(LOGS)/newest.log' -- bash -c "\
	  pip() { '$(NEWEST)/bin/python' -m pip install --no-compile --progress-bar off --disable-pip-version-check \
	    -c '$(NEWEST)/constraints.txt' \"\$$@\"; }; \
	  pip --config-settings=--build-option=--compression=stored pyspark && pip -e '.[test]'"
	@touch $@

$(INSTALLED_BENCH): $(INSTALLED)
	@$(STEP) "Python packages of the benchmarks" '$(LOGS)/bench.log' -- $(PIP_INSTALL) -e '.[bench]'
	@touch $@

$(INSTALLED_DOCS): $(INSTALLED)
	@$(STEP) "Python packages of the site" '$(LOGS)/docs.log' -- $(PIP_INSTALL) -e '.[docs]'
	@touch $@

# Asked every time (it takes a moment): a Java that is gone, or another JAVA_HOME, is noticed.
.PHONY: java
java: $(INSTALLED)
	@$(PY) -m spark_jms.setup java --install --write '$(JAVA_FILE)'

# For the tests of the JDBC store; where it cannot be installed they are skipped, and say why.
.PHONY: postgresql
postgresql: $(INSTALLED)
	@$(PY) -m spark_jms.setup postgresql --install || \
	  echo "== PostgreSQL is not here: the tests that need it are skipped, and say so" >&2

# For the test of the console in a real browser; where it cannot be installed the test is skipped, and says why.
.PHONY: chromium
chromium: postgresql  # one after the other: apt takes a lock
	@command -v chromium >/dev/null || $(STEP) "Chromium" '$(LOGS)/chromium.log' -- \
	  bash -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium" || \
	  echo "== Chromium is not here: the test that needs it is skipped, and says so" >&2

# Draws the diagrams of the site; where it cannot be had, they are shown as text.
MERMAID := mermaid-11.17.2.tgz
.PHONY: mermaid
mermaid: $(INSTALLED)
	@test -s '$(JMSQ_CACHE)/mermaid.min.js' || $(STEP) "Mermaid" '$(LOGS)/mermaid.log' -- bash -euc "cd '$(JMSQ_CACHE)'; \
	  npm pack --silent $(MERMAID:mermaid-%.tgz=mermaid@%); tar xzOf $(MERMAID) package/dist/mermaid.min.js > mermaid.part; \
	  rm $(MERMAID); mv mermaid.part mermaid.min.js" || \
	  echo "== Mermaid is not here: the site shows diagrams as text" >&2

.PHONY: jars
jars: java
	@$(SPARK_RUN) -m spark_jms.setup jars

# For the JVMs of the tests and of the demo, which start faster with it. Another Java or another PySpark ignores it.
.PHONY: classes
classes: $(CLASSES)
$(CLASSES): $(INSTALLED) | jars
	@JAVA_HOME="$$(cat '$(JAVA_FILE)')" $(STEP) "Archive of Spark's classes, for faster starts" '$(LOGS)/classes.log' \
	  --count '^step: ' --of 5 -- $(PY) -m tests.harness.processes.class_archive || \
	  echo "== There is no archive: the tests with Spark and the demo take longer" >&2
