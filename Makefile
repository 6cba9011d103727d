# make demo and make test set everything up by themselves on a machine with Python 3.11+, pip, make and npm.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e
TRAIN := $(VENV)/.train
DEV := $(VENV)/.dev

.PHONY: demo test test-long check bench setup fix results docs docs-test clean

demo: $(TRAIN)        ## train DTSH on CIFAR-10, print MAP, write hashlens-demo/
	$(BIN)/hashlens demo

test: check           ## formatting, lint, types and all tests
	$(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test-long: $(DEV)     ## the tests that `make test` leaves out, because they start many processes
	HASHLENS_LONG=1 $(BIN)/pytest tests/test_ranks.py tests/codes/test_ray.py tests/index/test_conformance.py

check: $(DEV)         ## formatting, lint and types
	$(BIN)/ruff format --check src tests benchmarks docs examples
	$(BIN)/ruff check src tests benchmarks docs examples
	$(BIN)/mypy

bench: $(DEV)         ## speed ratios, each measured in one process with its peer
	$(BIN)/python -m benchmarks.bench
	$(BIN)/python -m benchmarks.search_bench
	$(BIN)/python -m benchmarks.start

results: $(DEV)       ## rebuild the tables in README and docs from benchmarks/results
	$(BIN)/python -m benchmarks.tables --write

docs: $(DEV)          ## the site, in site/: strict, offline
	rm -rf site  # pages that are no longer there
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs site
	@echo "site/index.html"

docs-test: docs       ## links of the site, every page in a browser, the long examples, the wheel
	HASHLENS_LONG=1 $(BIN)/pytest tests/pages tests/test_package.py

fix: $(DEV)           ## format, and fix what the linter can
	$(BIN)/ruff check --fix src tests benchmarks docs examples
	$(BIN)/ruff format src tests benchmarks docs examples

setup: $(DEV)

KERNELS := $(wildcard src/hashlens/kernels/*.[ch])  # installing compiles them

$(TRAIN): pyproject.toml constraints.txt $(KERNELS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[train]'
	touch $(TRAIN)

$(DEV): pyproject.toml constraints.txt $(KERNELS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]'
	touch $(DEV) $(TRAIN)

clean:
	rm -rf $(VENV) hashlens-demo runs site docs/generated
