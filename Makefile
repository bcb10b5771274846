# Every target sets up .venv first, and again when pyproject.toml or constraints.txt change.
# Requirements: make, and Python 3.11 or newer with venv. To choose a Python: make demo PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
INSTALLED := $(VENV)/.installed
FOR_TESTS := $(VENV)/.installed-for-tests

# Two processes with one thread each: on two cores this is faster than one process with two threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test chromium check format docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## translate German, draw the attention, train a translator from scratch and test it
	@$(BIN)/regard demo

test: $(FOR_TESTS) chromium ## run the whole test suite
	$(PYTEST)

# Tests of the page need a browser: an installed one, or Debian's Chromium if this user may install packages.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "Installing Chromium for the tests of the page" && \
		apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq chromium >/dev/null 2>&1; } || \
		echo "WITHOUT CHROMIUM: THE PAGE IS NOT TESTED. Install it (Debian: apt-get install chromium) and run this again." >&2

check: $(FOR_TESTS) ## formatting, lint, types and the quick tests, in under two minutes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) tests/unit tests/worked_numbers -m "not slow"

format: $(FOR_TESTS) ## format the code and fix lint errors
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(FOR_TESTS) ## write the generated pages of docs/
	$(BIN)/python docs/generate.py

clean: ## remove .venv and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build

# The demo needs the package and two extras; the rest needs the extra for development, too.
$(INSTALLED): EXTRAS := plot,serve
$(FOR_TESTS): EXTRAS := dev
$(INSTALLED) $(FOR_TESTS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Regard needs Python 3.11 or newer, and $(PYTHON) is not; run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Regard and its dependencies into $(VENV) (some minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $(INSTALLED) $@
