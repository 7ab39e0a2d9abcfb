# Two commands: `make trial` runs the main job, `make test` runs every test. Both make the environment if needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Processes that run tests. Two leave a third of two cores idle: many tests wait for a process, a lock or a time limit.
WORKERS ?= 3

.PHONY: trial test nightly test-affected lint docs clean
.DELETE_ON_ERROR:

trial: $(READY)
	$(BIN)/seatrial run --level 0

# In the order of tests/conftest.py, which begins with the longest files: by their number of tests these would come last.
# A worker that crashes ends the run: with one in its place, xdist 3.8 waits for ever (its issue 1378).
# Processes of peers import thousands of files: not to keep what they compile would cost each of them seconds.
test: export PYTHONDONTWRITEBYTECODE =
test: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(PYTEST_ARGS)

# The tests that take too long for every change: whole runs of other projects' libraries, and the whole products of
# cells, losses and seeds. `make test` lists them at its end; .ci/nightly runs them.
nightly: PYTEST_ARGS = -m nightly
nightly: test

# Only the tests that a change since their last run can affect; exits 5 when there is none.
test-affected: $(READY)
	$(BIN)/python -m pytest -q --affected $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

# The generated pages, then the site.
docs: $(READY)
	$(BIN)/python -m seatrial.cli.docs docs
	$(BIN)/mkdocs build --quiet --clean
	@echo build/site/index.html

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) lacks venv; install it (Debian: python3-venv)"; exit 2; }
	@echo "making the environment in $(VENV) (about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq 'uv>=0.10' || true  # without it pip does the rest, in four times the time
	@# Each of the processes that collect tests would compile all sources; the installer waits for the network.
	@$(BIN)/python -m compileall -q src & $(BIN)/python -m tests.peers.making --editable '.[stack,dev,docs]' && wait
	@touch $@

clean:
	rm -rf $(VENV) .venv-peers runs build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
