# Every target sets itself up: `make demo` and `make test` work on a fresh clone.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE := $(shell find extensions jitmagic/include -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.py')

.PHONY: demo check rules test compat browser asan bench ecosystem docs lint build wheels clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/python demos/quickstart.py

# Before every commit: nothing is compiled. Both take a core about equally long.
check: $(VENV)/.lint
	$(MAKE) --jobs=2 --output-sync=target lint rules

rules: $(VENV)/.test
	$(BIN)/python -m pytest -q tests/test_layering.py tests/codegen/test_goldens.py \
	    tests/codegen/test_triton_text.py tests/loops/test_text.py

# Two threads of torch in each of the workers: they must not spin while they wait. Files in their
# order: the last folder's are short, so the workers end together.
# Where nothing keeps what was compiled, each worker rewrites all test files, and each child process
# that imports jitmagic compiles it, in 1 s.
test: $(VENV)/.test
	env -u PYTHONDONTWRITEBYTECODE JITMAGIC_VERIFY=1 GOMP_SPINCOUNT=0 $(BIN)/python -m pytest \
	    -n auto --maxprocesses 8 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

# The tests with another torch, in a copy of the tracked files with a venv of its own, since the
# extensions fit one torch: `make compat TORCH=torch==2.14.1`; COMPAT=all runs every test.
COMPAT ?= fast
COMPAT_FAST := tests/test_compat.py tests/autograd tests/guards tests/frame
COMPAT_IN := build/compat-$(patsubst torch==%,%,$(TORCH))
COMPAT_PIP := $(COMPAT_IN)/venv/bin/python -m pip install --quiet --disable-pip-version-check
compat:
	test -d $(COMPAT_IN)/venv || $(PYTHON) -m venv $(COMPAT_IN)/venv
	$(COMPAT_PIP) "setuptools>=77" wheel "$(TORCH)" numpy
	git ls-files -z | xargs -0 cp --parents --update -t $(COMPAT_IN)
	cd $(COMPAT_IN) && venv/bin/python -m pip install --quiet --no-build-isolation --editable \
	    ".[test]" "$(TORCH)"
	cd $(COMPAT_IN) && env -u PYTHONDONTWRITEBYTECODE PYTHONPATH= JITMAGIC_VERIFY=1 \
	    GOMP_SPINCOUNT=0 venv/bin/python -m pytest -n auto --maxprocesses 8 --dist loadscope \
	    $(if $(filter all,$(COMPAT)),,$(COMPAT_FAST)) $(PYTEST_ARGS)

# Both extensions and all generated kernels under AddressSanitizer and UndefinedBehaviorSanitizer, in
# a copy of the tracked files. CPython leaks on purpose at its exit, so leaks are not looked for; an
# allocation that is too large fails as it does elsewhere, which tests look at.
ASAN := build/asan
SANITIZED := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so) \
	$$(gcc -print-file-name=libstdc++.so)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 JITMAGIC_CACHE_DIR=$(CURDIR)/$(ASAN)/cache \
	JITMAGIC_VERIFY=1 PATH="$(CURDIR)/.ci/sanitized:$$PATH" PYTHONPATH=
asan: $(VENV)/.test
	mkdir -p $(ASAN)
	git ls-files -z jitmagic extensions tests demos setup.py pyproject.toml README.md | \
	    xargs -0 cp --parents --update -t $(ASAN)
	cd $(ASAN) && JITMAGIC_SANITIZE=1 $(abspath $(BIN))/python setup.py -q build_ext --inplace
	cd $(ASAN) && $(SANITIZED) $(abspath $(BIN))/python -m pytest -q \
	    tests/frame tests/runtime tests/kernel
	cd $(ASAN) && $(SANITIZED) $(abspath $(BIN))/python -m tests.fuzz --seed 0 --count 48

bench: $(VENV)/.bench
	$(BIN)/python -m tests.bench $(BENCH_ARGS)

# Libraries around torch (transformers, lightning, ...), eager beside jitmagic and torch.compile.
ecosystem: $(VENV)/.ecosystem
	$(BIN)/python -m tests.ecosystem $(ECOSYSTEM_ARGS)

# Reports in JupyterLab, in headless Chromium, which must be installed (Debian: chromium).
browser: $(VENV)/.browser
	JITMAGIC_BROWSER=1 $(BIN)/python -m pytest -q tests/browser

# The site, in build/site: every code block in it is run.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/mkdocs.yml

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

build: $(VENV)/.installed

# In dist/: a wheel for each (Python, torch), an sdist, and an index page for --find-links:
#     make wheels WHEELS="python3.11:torch==2.13.0 python3.12:torch==2.11.0"
WHEELS ?= $(PYTHON):$(TORCH)
wheels:
	$(PYTHON) extensions/wheels.py dist $(WHEELS)

# torch first and by itself: the extensions are built against it, and a range would fetch a CUDA build.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) "setuptools>=77" wheel
	$(PIP) "$(TORCH)" numpy
	touch $@

# setup.py prints a line per compiled unit, which pip would hide; pip links what is compiled then.
$(VENV)/.installed: $(VENV)/.torch pyproject.toml setup.py $(NATIVE)
	$(BIN)/python setup.py -q build_ext --inplace
	$(PIP) --no-build-isolation --editable .
	$(BIN)/python -m compileall -q -j 0 jitmagic  # as pip does for what is not editable
	touch $@

$(VENV)/.test: $(VENV)/.installed
	$(PIP) --no-build-isolation --editable ".[test]"
	touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) jax
	touch $@

# timm without its torchvision, which fits one build of torch only: the cases do not need it.
$(VENV)/.ecosystem: $(VENV)/.test
	$(PIP) --no-build-isolation --editable ".[ecosystem]" "$(TORCH)"
	$(PIP) --no-deps "timm>=1.0.20,<2"
	touch $@

$(VENV)/.browser: $(VENV)/.test
	$(PIP) --no-build-isolation --editable ".[browser]"
	touch $@

$(VENV)/.docs: $(VENV)/.test
	$(PIP) "mkdocs-material>=9.6,<10" "mkdocstrings[python]>=0.29,<2"
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(PIP) "ruff>=0.12,<0.18" "mypy>=1.15,<3"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info jitmagic/*.so
