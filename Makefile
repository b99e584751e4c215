# Each target does the set-up it needs, and no more: a virtual environment in .venv with the versions of constraints.txt.
# `make demo` installs what a user needs; `make test` and `make docs` add to it. They need Python 3.11 or newer and, for
# the compiled part, a C++ compiler. `make test-all` compiles torch-scatter as well.

PYTHON ?= $(shell for p in python3.11 python3; do "$$p" -c '' >/dev/null 2>&1 && echo "$$p" && break; done)
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
# Python compiles a module when it is first imported. pip would compile all of them, which takes half of its time.
INSTALL := $(PIP) install --no-compile -c constraints.txt
# pip with one line for each package; bash passes on the status of pip.
PROGRESS := | while read -r verb what rest; do case "$$verb" in \
	Collecting|Processing) echo "  $${what\#\#*/}" ;; Building) echo "  $$verb $$what $$rest" ;; Installing) echo "  $$verb ..." ;; esac; done
SHELL := bash
.SHELLFLAGS := -o pipefail -c
STAMP := $(VENV)/.stamp-user
DEV_STAMP := $(VENV)/.stamp-dev
SCATTER_STAMP := $(VENV)/.stamp-scatter
DOCS_STAMP := $(VENV)/.stamp-docs

# The tests of the rooms that ask for torch-scatter or the C++ part. What is named `[reference` runs without the part anyway,
# and large graphs take a minute each. Compiled and exported programs have neither, and hostile calls are made
# without both in the quick tests.
PLAIN_TESTS := tests/ops tests/graph tests/encoders -k 'not [reference and not too_large_to_be_exact' \
	--ignore=tests/graph/test_large.py --ignore=tests/ops/test_memory.py --ignore=tests/ops/test_registered.py
# Those that `make test-oldest` and `make test-newest` run, with nothing but what users install and pytest.
COMPATIBILITY_TESTS := tests/ops tests/graph tests/nn tests/models tests/data tests/checkpoints tests/app/prediction tests/peers \
	tests/encoders/test_contract.py tests/app/training/test_train.py tests/app/training/test_resume.py tests/app/test_cli.py

# Graphs here are small: a worker per core with one thread each beats one worker with all threads.
PYTEST := OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Images of Python set it. Every process would then compile torch and all tests again, which takes twenty seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-all test-rest test-oldest test-newest wheel sanitize lint docs gpu clean

help:
	@echo "make demo   set up for a user, then compare four encodings on molecules that ship with RDKit; writes runs/demo"
	@echo "make test   set up, then run the quick tests, which cover every public promise"
	@echo "make test-all   these and the rest: theory, fuzzing, packaging, notebooks, more examples, and without compiled parts"
	@echo "make test-oldest, make test-newest   quick tests with the oldest and newest versions that setup.cfg allows"
	@echo "make wheel  build a wheel and a source distribution in dist/, and test the wheel in a new environment"
	@echo "make sanitize  set up, then the C++ part's tests under AddressSanitizer, UBSan and ThreadSanitizer; QUICK=1: a minute"
	@echo "make lint   set up, then ruff, mypy, import-linter and the check of docstrings"
	@echo "make docs   set up, then the pages of docs/ and the API as HTML, into docs/_build/html"
	@echo "make gpu    set up, then the tests of devices and the throughput on DEVICE=cuda"
	@echo "make setup  only the set-up"
	@echo "make clean  remove caches and build products; keeps .venv and runs"
	@echo "Variables:  PYTHON=$(PYTHON) (makes .venv)  WORKERS=$(WORKERS) (test processes; 0 for none)"

demo: $(STAMP)
	$(BIN)/tg-lpe compare nci --encodings none eigenvectors walks GramTransformer --epochs 8 --seeds 0 --out runs/demo

test: $(DEV_STAMP)
	$(PYTEST)

test-all: test test-rest

test-rest: $(SCATTER_STAMP)
	$(PYTEST) --tests=rest --hypothesis-seed=0
	@echo "The tests of what uses torch-scatter or the C++ part, without both:"
	TG_LPE_NO_SCATTER=1 TG_LPE_NO_CPU_KERNELS=1 $(PYTEST) $(PLAIN_TESTS)

PYTHON_OLDEST ?= python3.10
PYTHON_NEWEST ?= $(PYTHON)

test-oldest: PYTHON_HERE := $(PYTHON_OLDEST)
test-oldest: CONSTRAINTS := -c constraints-oldest.txt
test-newest: PYTHON_HERE := $(PYTHON_NEWEST)

test-oldest test-newest: test-%:
	"$(PYTHON_HERE)" -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install -q $(CONSTRAINTS) -e '.[all]' hypothesis networkx pytest pytest-xdist yacs
	.venv-$*/bin/python -m pip list
	$(subst $(BIN),.venv-$*/bin,$(PYTEST)) $(COMPATIBILITY_TESTS)

# A wheel and a source distribution in dist/, and the tests with the wheel, beside which the package's files are not.
# Others run it where glibc is as new as here; the wheels of a release are built by .github/workflows/wheels.yml.
wheel:
	"$(PYTHON)" -m venv --clear .venv-wheel
	.venv-wheel/bin/python -m pip install -q build
	rm -rf dist && .venv-wheel/bin/python -m build
	.venv-wheel/bin/python -m pip install -q -c constraints.txt "$$(ls dist/*.whl)[all]" hypothesis networkx pytest pytest-xdist yacs
	rm -rf .venv-wheel/copy && mkdir .venv-wheel/copy && cp -r tests pyproject.toml .venv-wheel/copy
	cd .venv-wheel/copy && ../bin/python -c 'import tg_lpe.ops.cpu as c; print(c.__file__, c.is_available())'
	cd .venv-wheel/copy && $(subst $(BIN),../bin,$(PYTEST)) $(COMPATIBILITY_TESTS)

sanitize: $(DEV_STAMP)
	$(BIN)/python tests/sanitize.py $(if $(QUICK),--quick)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy tg_lpe
	$(BIN)/lint-imports --no-cache
	@! grep -rnE '"""(What|Those|Likewise|As) ' tg_lpe || { echo "A docstring begins with a verb."; exit 1; }

docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html"

DEVICE ?= cuda

# With QUICK=1 the figures of the script stay in a temporary folder.
gpu: $(DEV_STAMP)
	TG_LPE_TEST_DEVICE=$(DEVICE) $(PYTEST) tests/test_devices.py $(if $(QUICK),-k test_transform)
	$(BIN)/python benchmarks/throughput.py --device $(DEVICE) \
		$(if $(QUICK),--quick,--json benchmarks/results/gpu_throughput.json $(if $(DATA),--data $(DATA)))

clean:
	rm -rf build dist docs/_build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './$(VENV)*' -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +

setup: $(DEV_STAMP)

$(STAMP): setup.cfg setup.py constraints.txt $(wildcard tg_lpe/ops/csrc/*.cpp tg_lpe/ops/csrc/*.h)
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "The versions in constraints.txt need Python 3.11 or newer; name one with: make PYTHON=..."; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	@echo "Setting up $(VENV): packages of 1.6 GB (more with CUDA), and a C++ part to compile. It takes some minutes."
	@$(INSTALL) -q setuptools wheel
	@$(INSTALL) --no-build-isolation -e '.[all]' $(PROGRESS)
	@$(BIN)/python -c "import sys, tg_lpe.ops.cpu as c; sys.exit(not c.is_available())" || \
		echo "NOTE: tg_lpe's C++ part could not be built or loaded. Going on without it: the Gram encoder is slower."
	@touch $@

# A wheel of torch-scatter that pip kept from another torch installs but does not load, hence a sum rather than an import.
SCATTER_WORKS := $(BIN)/python -c "import torch, torch_scatter as s; s.scatter_add(torch.ones(2), torch.tensor([0, 0]))"

# Compiles torch-scatter's files side by side and without symbols for a debugger, a good part of the time. pip does
# so in a folder of its own, hence the full path.
SCATTER_CFG := $(CURDIR)/$(VENV)/build.cfg
SCATTER_INSTALL := CFLAGS="$$CFLAGS -g0" DIST_EXTRA_CONFIG="$(SCATTER_CFG)" $(INSTALL) -q --no-build-isolation

# The package is there already: named so, pip adds what the extra lists and does not build it again.
$(DEV_STAMP): $(STAMP)
	@echo "Adding what the tests need to $(VENV)"
	@$(INSTALL) 'tg-lpe[dev]' $(PROGRESS)
	@touch $@

$(SCATTER_STAMP): $(DEV_STAMP)
	@$(SCATTER_WORKS) 2>/dev/null || { \
		echo "Installing torch-scatter; the first time it is compiled, which takes some minutes."; \
		printf '[build_ext]\nparallel = %s\n' "$(WORKERS)" > "$(SCATTER_CFG)"; \
		$(SCATTER_INSTALL) torch-scatter && { $(SCATTER_WORKS) 2>/dev/null || \
		$(SCATTER_INSTALL) --no-deps --force-reinstall --no-cache-dir torch-scatter; } && \
		$(SCATTER_WORKS); } || { \
		$(PIP) uninstall -q -y torch-scatter 2>/dev/null; \
		echo; echo "NOTE: torch-scatter could not be installed (see above; it needs a C++ compiler and Python's headers)."; \
		echo "NOTE: Going on without it: every result is the same, some sums are slower."; echo; }
	@touch $@

$(DOCS_STAMP): $(STAMP)
	@echo "Adding what the pages need to $(VENV)"
	@$(INSTALL) 'tg-lpe[docs]' $(PROGRESS)
	@touch $@
