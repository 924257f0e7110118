# Every target installs its prerequisites; `make` alone lists the targets.
# PYTHON=python3.12 chooses the interpreter of the virtual environment, ARGS="..." is passed to the target's command.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
QUICK_STAMP := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-test)
DOCS_STAMP := $(VENV)/.installed-docs
unexport PYTHONDONTWRITEBYTECODE  # if it is set, each process of the tests compiles all of cdcd again
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: help demo test test-quick nightly long check docs bench waiters copy-kills bench-spark spark-matrix mirror-matrix readers verify-load cuts profile faults soak matrix oracle fuzz chart campaign clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## the demo on real servers: make demo ARGS="--rows N --seconds S --keep"
	$(BIN)/cdcd demo $(ARGS)

# They use several processors each, and are run by: make faults ARGS=--few
OF_FAULTS := fault_01_failpoints fault_02_random_kills fault_36_late_requests oracle
# No test of these starts a server. They have a run of their own, because each worker imports all tests of its run.
PURE := tests/unit tests/property tests/chart tests/spark/unit
WITH_SERVERS := $(BIN)/pytest --numprocesses 5 --dist loadfile --no-loadscope-reorder \
	$(patsubst %,--ignore=tests/faults/test_%.py,$(OF_FAULTS))
junit = $(if $(REPORTS),--junitxml=$(REPORTS)/$(1).xml)

test: $(STAMP) ## the suite on real servers, the cases for each change: make test ARGS="tests/unit -k lsn" REPORTS=folder
ifeq ($(strip $(ARGS)),)
	@code=0; \
	$(BIN)/pytest --numprocesses 2 --dist worksteal $(call junit,pure) $(PURE) || code=$$?; \
	$(WITH_SERVERS) $(patsubst %,--ignore=%,$(PURE)) $(call junit,servers) || exit $$?; \
	[ $$code = 0 ] || echo "make test: of the tests without servers some failed, see above" >&2; \
	exit $$code
else
	$(WITH_SERVERS) $(ARGS)
endif

test-quick: $(QUICK_STAMP) ## the tests that need no server, in a minute; installs neither Spark nor Java: make test-quick ARGS="-k lsn"
	$(BIN)/pytest --quiet --numprocesses 4 --dist worksteal tests/unit $(ARGS)

# With more processes a machine of 2 processors is so busy that the waits of tests end. The files of the faults run
# afterwards, one after another; with ARGS only what these name.
nightly: $(STAMP) ## the suite with all its cases: make nightly ARGS="tests/spark"
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -m 'not long' \
		$(if $(ARGS),$(ARGS),$(patsubst %,--ignore=tests/faults/test_%.py,$(OF_FAULTS)))
	$(if $(ARGS),,$(BIN)/pytest -m 'not long' $(patsubst %,tests/faults/test_%.py,$(OF_FAULTS)))

long: $(STAMP) ## the tests that take many minutes, with their peak memory: make long ARGS="-k huge"
	$(BIN)/pytest -s -m long $(ARGS)

check: $(STAMP) ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint cdcd
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/pytest -q tests/unit/test_imports.py

docs: $(DOCS_STAMP) ## the documentation as a site with search, in build/site; a warning or a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

bench: $(STAMP) ## throughput, latency, cost: make bench ARGS="--cases 'insert-*' --pairs 3" (--help, --list)
	$(BIN)/python -m tests.bench $(ARGS)

waiters: $(STAMP) ## many clients wait for LSNs: when the answers come: make waiters ARGS="--waiters 1000 --seconds 30"
	$(BIN)/python -m tests.bench.waiters $(ARGS)

copy-kills: $(STAMP) ## a large table copied while it changes, with ten kills: make copy-kills ARGS="--rows N --kills N"
	$(BIN)/python -m tests.bench.killed_copy $(ARGS)

spark-matrix: $(STAMP) ## the tests of the reading side with each series of Spark: make spark-matrix ARGS="--series 4.2"
	$(BIN)/python -m tests.spark.matrix $(ARGS)

mirror-matrix: $(STAMP) ## mirrors in each format and SCD type under each fault, with each Spark: make mirror-matrix ARGS="--series 4.2"
	$(BIN)/python -m tests.spark.mirror_matrix $(ARGS)

readers: $(STAMP) ## the total over two tables is the same to each reader of a mirror, while all is killed: make readers MINUTES=10 SEED=7
	$(BIN)/python -m tests.spark.readers $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

verify-load: $(STAMP) ## `cdcd verify` under load with DDL, without a false alarm: make verify-load MINUTES=60 SEED=7, or ARGS="--rows N --mirror delta", ARGS="--planted N"
	$(BIN)/python -m tests.verify $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

cuts: $(STAMP) ## Spark's batches end on commits, while cdcd is killed: make cuts MINUTES=10 SEED=7
	$(BIN)/python -m tests.spark.cuts $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench-spark: $(STAMP) ## the cost of reading the topics: make bench-spark ARGS="--rows N --rounds N --from-avro", or ARGS=--memory
	$(BIN)/python -m tests.bench.spark $(ARGS)

profile: $(STAMP) ## a CPU profile of a drain, by py-spy: make profile ARGS="--case insert-1 --output FILE"
	@test -x $(BIN)/py-spy || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m tests.bench.profile $(ARGS)

faults: $(STAMP) ## kills, lost connections and crashes under load: make faults ROUNDS=1000 SEED=7 (default: a fixed selection)
	$(BIN)/python -m tests.faults $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: $(STAMP) ## faults all the time; memory and descriptors may not grow: make soak MINUTES=60 SEED=7
	$(BIN)/python -m tests.faults.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

campaign: $(STAMP) ## seeds of many faults at once under transfers, lists and registers: make campaign SEEDS=20 FIRST=1 MINUTES=30
	$(BIN)/python -m tests.campaign $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

matrix: $(STAMP) ## every version and option against test_decoding: make matrix ARGS="--majors 17,18 --seed N"
	$(BIN)/python -m tests.matrix $(ARGS)

oracle: $(STAMP) ## every type through the topics, judged by PostgreSQL: make oracle ARGS="--majors 14,18 --values N"
	$(BIN)/python -m tests.oracle $(ARGS)

fuzz: $(STAMP) ## any bytes against a decoder, or a C extension and its fallback: make fuzz ARGS="--target reading --asan --runs N"
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]' || \
		echo "make fuzz: atheris is not installed, so coverage does not guide the inputs" >&2
	$(BIN)/python -m tests.fuzz $(ARGS)

chart: $(STAMP) ## lint and render the Helm chart (needs Go)
	PATH="$(CURDIR)/$(BIN):$$PATH" bash tests/chart/run

clean: ## remove the files that the other targets created here (not the artefact cache in the user's cache folder)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find cdcd tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed-test: REQUIRED := --editable '.[test]'
$(STAMP): REQUIRED := --editable '.[dev]'
# The site needs nothing of cdcd: with it, pip would compile the C extensions again.
$(DOCS_STAMP): REQUIRED = $$($(BIN)/python -c 'import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
$(STAMP) $(VENV)/.installed-test: $(shell find cdcd -name '*.pyx' -o -name '*.px[di]')
$(STAMP) $(VENV)/.installed-test $(DOCS_STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "cdcd needs Python 3.11 or later: none found; set PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cdcd needs Python 3.11 or later; $(PYTHON) is older" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "cannot create the virtual environment (Debian: apt install python3-venv)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(REQUIRED)
	@touch $@
