# make demo: a small simulated acquisition through the whole pipeline, held against its truth.
# make test: all checks and tests that need no GPU and no root.
# Both make the environment (.venv) first. PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
SEED ?= 1
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo

.PHONY: help demo test check format env clean

help:
	@sed -n 's/^# //p' Makefile

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard scripts/*.py)
	@$(PYTHON) -c 'import sys; sys.exit("linumpy needs Python 3.11 or newer, found " + sys.version) if sys.version_info < (3, 11) else 0'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[nextflow,demo,test]'
	touch $@

demo: env
	@$(BIN)/python -m linumpy.demo --folder $(DEMO) --seed $(SEED)

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(DEMO) .nextflow .nextflow.log* work
