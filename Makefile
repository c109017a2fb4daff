# What a contributor does. `make` lists it.
VENV ?= .venv
BIN := $(VENV)/bin
# without a GPU, on a machine with the internet: make setup INDEX='--extra-index-url https://download.pytorch.org/whl/cpu'
INDEX ?=

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup:  ## an environment with what most tests need (a minute)
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[test]' $(INDEX)

try:  ## a first test: attention over each small cache equals that over keys and values (10 seconds)
	$(BIN)/python -m pytest -q -n 0 tests/cache/test_every_form.py -k attention

dev:  ## all that the tests, the checks and the documentation need
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]' $(INDEX)

test:  ## the tests (4 minutes on two cores)
	$(BIN)/python -m pytest

check:  ## lint, format, types and layers; `make fix` mends the first two
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

fix:  ## mend what the linter and the formatter can
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs:  ## the site in build/site: no broken link, anchor or flag
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve:  ## the site at http://127.0.0.1:8000, anew with every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

ci:  ## all of it in a fresh environment, as for every change
	.ci/run

.PHONY: help setup try dev test check fix docs docs-serve ci
