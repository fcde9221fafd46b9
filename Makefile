# `make demo` and `make test` do all set-up; `make setup` does just that. Needs Python ≥ 3.11 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint slow bench docs clean

setup: .venv/.ready

.venv/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "arcta needs Python 3.11 or newer; $(PYTHON) is older. Run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	$(BIN)/arcta demo --out demo --force

test: setup
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

slow: setup
	$(BIN)/python -m pytest -m slow

bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-bench.txt
	$(BIN)/python benchmarks/step.py --out benchmarks/results/step.json
	$(BIN)/python benchmarks/tricks.py --out benchmarks/results/tricks.json
	$(BIN)/python benchmarks/accuracy.py --out benchmarks/results/accuracy.json
	$(BIN)/python benchmarks/scale.py --out benchmarks/results/scale.json
	$(BIN)/python benchmarks/refine.py --out benchmarks/results/refine.json
	$(BIN)/python benchmarks/quickstart.py --out benchmarks/results/quickstart.json
	$(BIN)/python benchmarks/floor.py --out benchmarks/results/floor.json
	$(BIN)/python benchmarks/seasons.py --out benchmarks/results/seasons.json
	$(BIN)/python benchmarks/page.py

# The site, into site/, in a virtual environment of its own; DOCS_BIN names one that has mkdocs already.
DOCS_BIN ?= .venv-docs/bin

docs: $(if $(filter .venv-docs/bin,$(DOCS_BIN)),.venv-docs/.ready)
	$(DOCS_BIN)/mkdocs build --strict

.venv-docs/.ready: requirements-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

clean:
	rm -rf .venv .venv-docs site demo .pytest_cache .ruff_cache .hypothesis
