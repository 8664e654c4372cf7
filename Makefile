# make audit | make test | make check | make bench: each sets up all that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
EXTRAS := test,dev,ray,slurm,lightning,huggingface
export OMP_NUM_THREADS ?= 1

.PHONY: audit test check bench clean

audit: $(VENV)/installed
	$(BIN)/faudit audit

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --editable ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
