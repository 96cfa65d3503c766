# Two commands do everything: `make demo` runs Catchment, `make test` proves it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
SCALE  ?= 1
# One more than the cores, because tests wait for processes that they start, and for the disk.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Processes that tests start keep compiled bytecode, whatever the caller's environment says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types format bench docs proto wheel soak clean java chromium

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/runtime java ## Run Catchment on embedded defaults and show what it did
	@$(BIN)/catchment demo

# glibc spends a fifth of the suite's time on DuckLake's many small allocations. A larger cache per
# thread reduces that.
test: export GLIBC_TUNABLES := glibc.malloc.tcache_count=1000
# Tests create and delete many small files. If memory has room for them, a run takes 7 % less CPU.
test: export TMPDIR := $(shell bin/scratch-folder)
test: $(VENV)/dev $(VENV)/spark chromium ## Run the whole test suite, on one worker per core plus one, at most four
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

check: lint types test ## Lint, check types and test, as continuous integration does

lint: $(VENV)/dev ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev ## Check types
	$(BIN)/mypy src tests benchmarks examples docs

format: $(VENV)/dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev java ## Run the benchmarks against peers; SCALE=0.1 for a quick look
	$(BIN)/python -m benchmarks.moving --scale $(SCALE)
	$(BIN)/python -m benchmarks.queue --scale $(SCALE)
	$(BIN)/python -m benchmarks.legacy --scale $(SCALE)
	$(BIN)/python -m benchmarks.server --scale $(SCALE)
	$(BIN)/python -m benchmarks.tenants --scale $(SCALE)
	$(BIN)/python -m benchmarks.moves --scale $(SCALE)

soak: $(VENV)/dev java ## Run the long campaigns
	$(BIN)/python -m pytest -m soak tests

docs: $(VENV)/dev ## Generate docs/reference/ and deploy/catchment.toml from the code
	$(BIN)/python docs/generate.py

proto: $(VENV)/dev ## Generate the protocol's modules from its .proto files
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/catchment/flight_protocol/*.proto

wheel: $(VENV)/dev ## Build the wheel into dist/
	$(BIN)/python -m hatchling build --target wheel

clean: ## Remove generated files; keep catchment-data/
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

# This makes every start of Spark faster, which pays off in a test run.
$(VENV)/spark: $(VENV)/runtime | java
	@$(BIN)/catchment doctor --prepare --home $(VENV)/examined >$(VENV)/doctor.log 2>&1 || { cat $(VENV)/doctor.log; exit 1; }
	@touch $@

$(VENV)/dev: $(VENV)/runtime
	@$(PIP) --editable '.[dev]'
	@touch $@
