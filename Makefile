# make demo: three scenes in two minutes, and a page of them.   make test: run every check.
# Parts of it: lint types sanitize, and of the tests: unit (to run all the time), sweeps, commands, peers, agents.
# make torch VERSION=2.15.0: the tests that need PyTorch, with another version of it.
# make docs: the site, in build/site.   make coverage: which lines the tests of PART (by default unit) run.   make fuzz MINUTES=5: hostile inputs for every reader.
# All set everything up by themselves in .venv and do nothing twice.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := $(shell find src native -name '*.py' -o -name '*.[ch]pp' -o -name '*.toml') pyproject.toml CMakeLists.txt
NATIVE := $(wildcard native/src/*.[ch]pp native/src/*/*.[ch]pp native/tests/*.[ch]pp)
CHECKED := src tests examples benchmarks tools reproduce
# Without MAKEFLAGS: ninja would take make's job slots for its own and complain.
INSTALL := MAKEFLAGS= $(BIN)/pip install -q --no-build-isolation
TORCH := torch==2.13.0
JOBS ?= 2
MINUTES ?= 5
PART ?= unit
VERSION ?= 2.15.0
# Neighbours stay in one process as long as they can: they share what they trace and compile.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=25 --durations-min=1
# Every process would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test format lint types sanitize pytest unit sweeps commands peers agents torch coverage hooks fuzz bench clean

demo: .venv/.demo
	$(BIN)/loadmaster demo

# What can be checked without running Python is checked side by side: most of it is one core's work.
test:
	$(MAKE) -j $(JOBS) lint types sanitize
	$(MAKE) pytest

.venv/.tools: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q 'scikit-build-core>=0.11' 'nanobind>=2.7' 'cmake>=3.26' 'ninja>=1.11'
	@touch $@

.venv/.demo: .venv/.tools $(SOURCES)
	$(INSTALL) -e '.[exact,tflite]'
	@touch $@

.venv/.dev: .venv/.tools $(SOURCES)
	$(INSTALL) -e '.[dev]'
	@touch $@

# PyTorch's CPU build, if pip would take that one here, and never CUDA's packages: tests skip what is not there.
.venv/.torch: .venv/.tools tools/cpu_build.py | .venv/.dev
	@if $(BIN)/pip install --dry-run --quiet --report - --no-deps $(TORCH) 2>/dev/null | $(BIN)/python tools/cpu_build.py \
	  && $(BIN)/pip install -q $(TORCH) && $(BIN)/pip install -q $(TORCH) 'transformers>=5,<6'; \
	then :; else echo "pip has no CPU build of PyTorch, or no transformers, here: tests that need them are skipped"; fi
	@touch $@

format: .venv/.dev
	$(BIN)/ruff check -q --fix $(CHECKED)
	$(BIN)/ruff format -q $(CHECKED)
	$(BIN)/clang-format -i $(NATIVE)

lint: .venv/.dev
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)

# Strict for the package; benchmarks and tools must fit it, and may leave types out.
types: .venv/.dev
	$(BIN)/mypy

# Optimization for debugging and line numbers alone: it compiles in two thirds of -O1's time, and runs nearly as fast.
build/sanitize/.tested: .venv/.tools $(NATIVE) CMakeLists.txt
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-Og -g1 -DNDEBUG' \
	  -DLOADMASTER_PYTHON=OFF -DLOADMASTER_TESTS=ON -DLOADMASTER_SANITIZE=ON
	MAKEFLAGS= $(BIN)/cmake --build build/sanitize
	$(BIN)/ctest --test-dir build/sanitize -j $(JOBS) --output-on-failure
	@touch $@

sanitize: build/sanitize/.tested

# All parts in one session: it ends when the last of them does, and no worker waits for another part.
pytest: .venv/.dev .venv/.torch
	$(PYTEST)

# tests/conftest.py says which test belongs to which part.
unit sweeps commands peers agents: .venv/.dev .venv/.torch
	$(PYTEST) -m $@

# What has to do with PyTorch, with another version of it (2.11 or later; '*' is the newest) in an environment of its own: pip may bring CUDA's packages.
OTHER := build/torch-$(subst *,newest,$(VERSION))

torch: $(OTHER)/.torch
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/execute tests/program/importers \
	  --ignore-glob '*jax*'

$(OTHER)/.torch: pyproject.toml $(SOURCES)
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip install -q 'torch==$(VERSION)' 'transformers>=5,<6' hypothesis pytest pytest-xdist
	MAKEFLAGS= $(OTHER)/bin/pip install -q -C build-dir=$(OTHER)/core '.[exact,onnx,tflite]'
	@touch $@

coverage: .venv/.dev .venv/.torch
	$(PYTEST) -m $(PART) --cov --cov-report=term --cov-report=html:build/coverage

# The documentation site, in build/site; a link that leads nowhere is an error.
docs: .venv/.docs
	$(BIN)/python tools/site.py build/pages
	$(BIN)/mkdocs build --strict --quiet

.venv/.docs: .venv/.tools
	$(BIN)/pip install -q 'mkdocs>=1.6,<2'
	@touch $@

hooks: .venv/.dev
	$(BIN)/pre-commit install

# Hostile inputs for every reader; what reaches the native core also with that under the sanitizers.
fuzz: .venv/.dev
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --jobs $(JOBS) --sanitize

bench: .venv/.dev
	$(BIN)/loadmaster bench simulate

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
