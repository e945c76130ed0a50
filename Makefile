# Needs only make and Python 3.11 or newer with venv. Everything else lands in .venv.
# `make demo` installs the package alone, `make test` the tools too (torch among them, for the probes).

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# Tried in this order; `make PYTHON=/path/to/python3.12 demo` overrides.
PYTHON ?= python3.13 python3.12 python3.11 python3
PY_DIRS := gpuwatch probes tests bench

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check format bench faults wheel clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.base-stamp ## watch this machine's GPUs, or without one a recorded job; needs no torch
	@$(BIN)/gpuwatch tui || [ $$? -le 3 ] # 1 to 3 are verdicts about the job, printed where there is no terminal

test: $(VENV)/.dev-stamp ## run the tests; needs no GPU
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev-stamp ## format, lint, types and import rules: all that a change must pass besides the tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy $(PY_DIRS)
	@$(BIN)/lint-imports

format: $(VENV)/.dev-stamp ## rewrite the code in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.base-stamp ## print what the daemon and the screen cost on this machine
	@$(BIN)/python bench/run.py $(ARGS)

faults: $(VENV)/.dev-stamp ## run labelled jobs on this machine's GPU, record them, score the diagnosis on them
	@$(BIN)/python -m probes.faults.run --out faults-out $(ARGS)
	@$(BIN)/python -m bench.accuracy faults-out

wheel: $(VENV)/.base-stamp ## build dist/gpuwatchd-*.whl, to install on a GPU server
	@$(PIP) wheel --no-deps --wheel-dir dist .
	@ls dist/gpuwatchd-*.whl

clean: ## remove .venv and everything else that make built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find gpuwatch probes tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted install is taken up again; a .venv without a working pip is rebuilt.
$(VENV)/.base-stamp: pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(new-venv); }
	@echo "installing gpuwatch into $(VENV)"
	@$(PIP) install -e .
	@touch $@

$(VENV)/.dev-stamp: $(VENV)/.base-stamp
	@echo "installing the development tools into $(VENV) (torch is large: the first time takes minutes)"
	@$(PIP) install -e '.[dev]'
	@touch $@

define new-venv
for python in $(PYTHON); do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	"$$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || { no_venv=$$python; continue; }; \
	echo "creating $(VENV) with $$("$$python" --version)"; \
	rm -rf $(VENV); \
	exec "$$python" -m venv $(VENV); \
done; \
if [ -n "$$no_venv" ]; then \
	echo "make: $$no_venv has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; \
else \
	echo "make: no Python 3.11 or newer among: $(PYTHON); install one or run: make PYTHON=/path/to/python3.12" >&2; \
fi; \
exit 1
endef
