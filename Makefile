# Two commands do everything: `make demo` runs Catchment, `make test` proves it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
SCALE  ?= 1
# One more than cores: tests wait for the processes that they start, and for the disk.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Processes that tests start are compiled once, whatever the caller's shell says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types format bench docs proto wheel soak clean java chromium

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/runtime java ## Run Catchment on embedded defaults and show what it did
	@$(BIN)/catchment demo

# A fifth of the suite's time is glibc's for DuckLake's many small pieces of memory; it keeps more of them at hand so.
test: export GLIBC_TUNABLES := glibc.malloc.tcache_count=1000
# Tests make and delete small files all the time. With them in memory, where there is room, a run took 7 % less CPU.
test: export TMPDIR := $(shell bin/scratch-folder)
test: $(VENV)/dev $(VENV)/spark chromium ## Run the whole test suite, with a worker for each core and one more, but four at most
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

check: lint types test ## Lint, check types, test: what continuous integration runs

lint: $(VENV)/dev ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev ## Check types
	$(BIN)/mypy src tests benchmarks examples docs

format: $(VENV)/dev ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev java ## Measure against peers, in one run; SCALE=0.1 for a quick look
	$(BIN)/python -m benchmarks.moving --scale $(SCALE)
	$(BIN)/python -m benchmarks.queue --scale $(SCALE)
	$(BIN)/python -m benchmarks.legacy --scale $(SCALE)
	$(BIN)/python -m benchmarks.server --scale $(SCALE)
	$(BIN)/python -m benchmarks.tenants --scale $(SCALE)
	$(BIN)/python -m benchmarks.moves --scale $(SCALE)

soak: $(VENV)/dev java ## Run the long campaigns
	$(BIN)/python -m pytest -m soak tests

docs: $(VENV)/dev ## Write docs/reference/ again from the code
	$(BIN)/python docs/generate.py

proto: $(VENV)/dev ## Make the protocol's modules again from its .proto files
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/catchment/server/protocol/*.proto

wheel: $(VENV)/dev ## Build the wheel into dist/
	$(BIN)/python -m hatchling build --target wheel

clean: ## Remove everything that was generated, but not catchment-data/
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/out tests/browser/out dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@bin/ensure-java

chromium:
	@bin/ensure-chromium

$(VENV)/runtime: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) …" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Catchment needs Python 3.11 or newer.")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@touch $@

# Every start of Spark is faster then, which pays where there are many.
$(VENV)/spark: $(VENV)/runtime | java
	@$(BIN)/catchment doctor --prepare --home $(VENV)/examined >$(VENV)/doctor.log 2>&1 || { cat $(VENV)/doctor.log; exit 1; }
	@touch $@

$(VENV)/dev: $(VENV)/runtime
	@$(PIP) --editable '.[dev]'
	@touch $@
