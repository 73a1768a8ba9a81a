# Every target sets itself up: `make demo` and `make test` work on a fresh clone.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE := $(shell find extensions -name '*.c' -o -name '*.cpp' -o -name '*.h')

.PHONY: demo test bench lint build clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/python demos/quickstart.py

test: $(VENV)/.installed
	JITMAGIC_VERIFY=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

bench: $(VENV)/.bench
	$(BIN)/python -m tests.bench $(BENCH_ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

build: $(VENV)/.installed

# torch first and by itself: the extensions are built against it, and a range would fetch a CUDA build.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) "setuptools>=77" wheel ninja
	$(PIP) "$(TORCH)" numpy
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml setup.py $(NATIVE)
	$(PIP) --no-build-isolation --editable ".[test]"
	$(BIN)/python -m compileall -q jitmagic  # as pip does for what is not editable
	touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(PIP) jax
	touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(PIP) "ruff>=0.12,<0.18" "mypy>=1.15,<3"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info jitmagic/*.so
