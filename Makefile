# Everything runs in one environment of its own, .venv, with every version pinned in
# constraints.txt. It is made on first use and again when pyproject.toml or constraints.txt change.

PYTHON ?= python3
WORKERS ?= 3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# One thread per process: the test workers share the cores among themselves.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all tests lint format docs pictures notebooks benchmarks bench-speed lock licences sbom dist dist-check clean

help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

install: $(STAMP) ## Make the environment

# The stamp goes first and comes back last, so an interrupted installation starts from nothing.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "lapace needs Python 3.11 or newer, and '$(PYTHON)' is not. Name another one:" \
	    "make PYTHON=python3.12 ..."; exit 1; }
	@test -e $@ || { echo "Making the environment $(VENV) ..."; $(PYTHON) -m venv --clear $(VENV); }
	@rm -f $@
	@echo "Installing, which takes a minute or two ..."
	@$(INSTALL) hatchling editables
	@$(INSTALL) --no-build-isolation -e '.[all,dice,dev,docs]'
	@touch $@

demo: $(STAMP) ## Explain one refusal of a made-up loan, in about a minute
	@rm -rf demo-output
	$(BIN)/lapace demo -o demo-output

lint: $(STAMP) ## Style, types, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Let ruff tidy the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

PYTEST := $(ONE_THREAD) MPLBACKEND=Agg $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: lint tests ## Style, types and the tests a contributor runs; ARGS="tests/core -x" narrows them

test-all: lint ## These and the long ones: browser, Ray, nginx, kills, notebooks, docs, experiments
	$(PYTEST) $(ARGS)

tests: $(STAMP) ## The tests of `make test` alone
	$(PYTEST) -m "not full" $(ARGS)

docs: $(STAMP) ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

pictures: $(STAMP) ## Make the pictures of the README and the pages anew
	$(ONE_THREAD) $(BIN)/python docs/pages.py

notebooks: $(STAMP) ## Run the notebooks and keep their outputs
	$(ONE_THREAD) $(BIN)/python docs/notebooks/run.py

benchmarks: $(STAMP) ## The paper's experiments; ARGS="--quick" runs a short version
	$(BIN)/python -m benchmarks $(ARGS)

bench-speed: $(STAMP) ## How fast everything is, beside targets and other methods; ARGS="single peers" runs parts
	$(ONE_THREAD) $(BIN)/python -m benchmarks.speed $(ARGS) --write benchmarks/results/speed.md

# What is installed, from where, under which licence: tools in an environment of their own.
SUPPLY := .venv-supply/bin

$(SUPPLY)/uv: .ci/supply.txt
	@$(PYTHON) -m venv --clear .venv-supply
	@$(SUPPLY)/python -m pip install -qq --disable-pip-version-check -r .ci/supply.txt
	@touch $@

lock: $(SUPPLY)/uv ## Write requirements.txt: what a user installs, with hashes
	$(SUPPLY)/uv pip compile pyproject.toml --extra all -c constraints.txt --universal -q \
	  --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock" \
	  -o requirements.txt

licences: $(STAMP) ## Print the licence of everything that is installed
	@$(BIN)/python .ci/licences.py

sbom: $(STAMP) $(SUPPLY)/uv ## Write sbom.json: a bill of materials of the environment (CycloneDX)
	$(SUPPLY)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o sbom.json $(VENV)

dist: $(STAMP) ## Build the source archive, and the wheel from it, into dist/
	rm -rf dist && $(BIN)/python -m build --no-isolation

dist-check: dist ## Install the wheel with all extras into an empty environment, from the index, and run the example
	rm -rf dist/env && $(PYTHON) -m venv dist/env
	dist/env/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt "$$(ls dist/*.whl)[all]"
	cd dist && env/bin/python ../docs/pages.py --check README.md

clean: ## Remove everything made here, the environment too
	rm -rf $(VENV) .venv-supply sbom.json site dist build demo-output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
