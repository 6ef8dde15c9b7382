# Every target prepares what it needs: Python >= 3.11 and make are enough to start.
# A stamp per extra records its installation, which is repeated only when
# pyproject.toml changes.

VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test slow optimised cluster lint house bench doc dist clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-9s %s\n", $$1, $$2}' Makefile
	@echo "A certain Python: make test PYTHON=/path/to/python"

demo: $(VENV)/.installed-plot  ## run the quick start
	SKLEARN_GN_COMPILATION_CACHE=1 MPLBACKEND=Agg $(BIN)/python \
		examples/plot_quickstart.py

test: $(VENV)/.installed-test  ## run the tests and doctests
	MPLBACKEND=Agg SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -n 2

slow: $(VENV)/.installed-test  ## run the tests that make test leaves out
	MPLBACKEND=Agg SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -n 2 -m slow

# The tests compile with little optimisation; these run what users run.
optimised: $(VENV)/.installed-test  ## run a part of the tests with full optimisation
	XLA_FLAGS= MPLBACKEND=Agg $(BIN)/python -m pytest -n 2 \
		tests/linalg/test_linear_algebra.py tests/softmax_head/test_newton.py \
		tests/bayes/test_layers.py

cluster: $(VENV)/.installed-test  ## run what needs several processes, or clusters of Dask and Ray
	MPLBACKEND=Agg $(BIN)/python -m pytest -n 0 -m cluster \
		tests/test_searches.py tests/softmax_head/test_devices.py tests/data

lint: $(VENV)/.installed-test  ## check style, format, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/mypy

house: $(VENV)/.installed-test  ## check that the figures of the house do not rise
	$(BIN)/python tools/house.py --hops --check

# The two variables choose and tune OpenBLAS kernels: timings are taken without them.
bench: $(VENV)/.installed-bench  ## run the shallow ReLU benchmark
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python -m benchmarks sggn

doc: $(VENV)/.installed-docs  ## build the documentation into doc/_build/html
	MPLBACKEND=Agg $(BIN)/python -m sphinx -W --keep-going -b html doc doc/_build/html

dist: $(VENV)/.installed-release  ## build wheel and source distribution into dist
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

clean:  ## remove what was built, but keep the environment
	rm -rf build dist doc/_build doc/auto_examples doc/generated
	rm -rf doc/sg_execution_times.rst .import_linter_cache .mypy_cache
	rm -rf .pytest_cache .ruff_cache
	find sklearn_gn tests benchmarks examples doc -name __pycache__ -prune \
		-exec rm -rf {} +

$(VENV)/.installed-%: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --editable ".[$*]"
	@touch $@

# PYTHON given: that one. Otherwise the first of these that is new enough.
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)

$(BIN)/pip:
	@for python in $(CANDIDATES); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then echo "$$python -m venv $(VENV)"; exec $$python -m venv $(VENV); fi; \
	done; \
	echo "error: sklearn_gn needs Python >= 3.11; tried: $(CANDIDATES)." >&2; \
	echo "Name another: make PYTHON=/path/to/python" >&2; \
	exit 1
