# make tune   set-up and the main job: tunes four shapes on this machine and shows the gain over its BLAS
#             (make tune TUNE_SECONDS=600: most seconds to spend; SPEC=file: another job)
# make test   set-up and every check: ruff, mypy, import-linter, pytest
# make serve  set-up and the service with its dashboard
# make lint   the static checks alone
# make clean  remove what was built (the tuned results in ROOFTILE_HOME stay)
#
# PYTHON=... chooses the interpreter the environment is made from (3.11 or newer).

PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
PROJECTS := pyproject.toml client/pyproject.toml
SPEC ?= bench/specs/make_tune.json

.DEFAULT_GOAL := help
.PHONY: help tune serve test lint clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' $(firstword $(MAKEFILE_LIST))

tune: $(VENV)/.rooftile-run
	@$(BIN)/rooftile tune --spec $(SPEC) $(if $(TUNE_SECONDS),--seconds $(TUNE_SECONDS))

serve: $(VENV)/.rooftile-run
	@$(BIN)/rooftile serve

test: lint
	$(BIN)/pytest -q -n 2 -m "not alone"
	$(BIN)/pytest -q -m alone

lint: $(VENV)/.rooftile-test
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The wheel of zig is used only where there is no compiler: it takes 400 MB.
$(VENV)/.rooftile-run: $(PROJECTS) | $(VENV)/.rooftile-venv
	@echo "Installing Rooftile into .venv (once; some minutes on a slow line)"
	@if command -v gcc >/dev/null || command -v clang >/dev/null || command -v cc >/dev/null; then \
	    $(PIP) install -e client -e .; \
	else \
	    echo "No C compiler on PATH: installing the one of the ziglang wheel (400 MB)"; \
	    $(PIP) install -e client -e '.[zig]'; \
	fi
	@touch $@

$(VENV)/.rooftile-test: $(VENV)/.rooftile-run
	@echo "Installing what the tests need into .venv (once)"
	@$(PIP) install -e client -e '.[test]'
	@touch $@

# A stamp of its own, so that an interrupted creation is done again.
$(VENV)/.rooftile-venv:
	@if ! command -v $(PYTHON) >/dev/null; then \
	    echo "$(PYTHON) was not found; install Python 3.11 or newer or say make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	    echo "$$($(PYTHON) --version) is too old: Rooftile needs 3.11 or newer; say make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$(PYTHON) cannot make environments; on Debian or Ubuntu: apt install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 1; fi
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
