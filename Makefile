# make demo and make test set everything up by themselves on a machine with Python 3.11+, pip, make and npm.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench setup fix results clean

demo: $(READY)        ## train DTSH on CIFAR-10, print MAP, write hashlens-demo/
	$(BIN)/hashlens demo

test: $(READY)        ## formatting, lint, types and all tests
	$(MAKE) check
	$(BIN)/pytest --numprocesses auto --dist loadfile

check: $(READY)       ## formatting, lint and types
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

bench: $(READY)       ## ratios against the usual ways, in one process each
	$(BIN)/python -m benchmarks.bench
	$(BIN)/python -m benchmarks.search_bench

results: $(READY)     ## rebuild the tables in README from benchmarks/results
	$(BIN)/python -m benchmarks.tables --write

fix: $(READY)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) hashlens-demo runs
