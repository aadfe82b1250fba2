# make demo: a small simulated acquisition through the whole pipeline, compared with its truth.
# make test: linters, types and the quick tests, one run of the whole pipeline among them.
# make test-all: the same with the slow tests; all that needs no GPU and no root.
# make test-repeat: the tests of make test N=20 times, every other time on a busy machine.
# make test-faults: kills, full and failing disks, hostile files, load; some of it Debian, as root.
# make docs: the documentation as a site, docs/_build/html/index.html; warnings are errors.
# make test-docs: links, examples and generated pages of the documentation.
# make test-slurm: the pipeline through a SLURM of its own on this machine; Debian, as root.
# make test-containers: the CPU image made from nothing, and the pipeline in it; Debian, as root.
# make test-matrix: the quick tests with each Python, oldest and newest dependencies (MATRIX: options).
# make kernels: compile the CUDA kernels that wheels built afterwards carry; needs CuPy, no GPU.
# make hooks: install the git hooks (.pre-commit-config.yaml).
# All make the environment (.venv) first. PYTHON chooses the interpreter (3.11 or newer),
# SEED the acquisition that the demo simulates, and the examples of make test-all.

PYTHON ?= python3
SEED ?= $(shell date +%j%H%M)
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo
VALIDATOR := $(VENV)/rocrate

.PHONY: help demo test test-all test-repeat test-faults test-slurm test-containers docs docs-env \
	test-docs test-matrix kernels check hooks format env clean

help:
	@sed -n 's/^# //p' Makefile

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard scripts/*.py)
	@$(PYTHON) -c 'import sys; sys.exit("linumpy needs Python 3.11 or newer, found " + sys.version) if sys.version_info < (3, 11) else 0'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[nextflow,demo,test]'
	touch $@

# RO-Crate's validator does not go together with the rest.
$(VALIDATOR)/.installed: tests/records/roc-validator.txt $(VENV)/.installed
	test -x $(VALIDATOR)/bin/python || $(PYTHON) -m venv $(VALIDATOR)
	$(VALIDATOR)/bin/python -m pip install --quiet --disable-pip-version-check \
		--requirement tests/records/roc-validator.txt
	touch $@

# A new seed each time: the accuracy is that of an acquisition nobody has seen before.
demo: env
	@echo "Simulating an acquisition, seed $(SEED) ..."
	@$(BIN)/linum_phantom.py $(DEMO)/acquisition --preset small --seed $(SEED) --overwrite
	@$(BIN)/linum_nextflow.py run main.nf -profile test -ansi-log false \
		--input $(DEMO)/acquisition/raw --truth $(DEMO)/acquisition/truth \
		--output $(DEMO)/results --subject_name demo --overwrite
	@echo
	@$(BIN)/linum_summarize_run.py $(DEMO)/results

kernels: env
	$(BIN)/python -m linumpy.core.compile_kernels

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/deptry linumpy scripts benchmarks
	$(BIN)/lint-imports --no-cache

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# The same examples of each property every time.
test: check
	$(PYTEST) -m 'not slow' --hypothesis-profile=fixed

# Others every time; the seed stands in the command that make prints.
test-all: check $(VALIDATOR)/.installed
	$(PYTEST) --hypothesis-seed=$(SEED) --durations=40

# make test N times, every other time beside processes that keep all cores busy.
N ?= 20
test-repeat: check
	$(BIN)/python tests/repeat.py $(N) $(PYTEST) -m 'not slow' --hypothesis-profile=fixed

# Tests that take minutes, or root; they say why where they are skipped.
test-faults: env
	$(PYTEST) -raP tests/faults/check_*.py

# What SLURM's packages are missing is installed; its daemons are gone afterwards.
test-slurm: env
	@if reason=$$($(BIN)/python tests/slurm/cluster.py); then \
		$(BIN)/python -m pytest tests/slurm/check_pipeline.py; \
	else echo "make test-slurm is skipped: $$reason"; fi

test-containers: env
	BIN=$(BIN) containers/test.sh

test-docs: env
	$(BIN)/python -m pytest tests/project/test_docs_links.py tests/faults/test_page.py \
		tests/gpu/test_docs.py tests/pipeline/test_params.py

docs-env: $(VENV)/.docs

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[docs]'
	touch $@

docs: docs-env
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --fresh-env --quiet \
		--doctree-dir docs/_build/doctrees docs docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

# Makes environments of its own, below .cache/matrix.
test-matrix:
	$(PYTHON) tests/project/matrix.py $(MATRIX)

hooks: env
	$(BIN)/prek install

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(DEMO) .nextflow .nextflow.log* work
