# Every recipe sets up .venv by itself; the second call of any of them is quick.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
# Tests with real processes wait more than they compute. By file: jobs that the tests of a file share are started once.
WORKERS ?= 3

# Sink workers and bus processes are fresh interpreters: without bytecode each of them would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow test-sinks test-gpu lint format bench docs coverage clean

help:  ## list the recipes
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

venv: $(READY)  ## set up .venv: accelbus, torch, TensorBoard, tools

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "accelbus needs Python 3.11 or newer; say which one: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing into $(VENV) (once; torch is large)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## train on real images with two ranks, then show that nothing was lost
	OMP_NUM_THREADS=1 ACCELBUS_FINISH_TIMEOUT=60 $(BIN)/torchrun --standalone --nproc-per-node=2 examples/train_digits.py
	$(BIN)/accelbus status -v
	@echo
	@echo "The curves:  $(BIN)/tensorboard --logdir runs"

test: $(READY)  ## run the tests, with one round trip per tracker; ARGS="tests/unit -x" narrows them down
	$(BIN)/python -m pytest -m "not sinks and not slow and not gpu" -n $(WORKERS) --dist loadfile $(ARGS)

test-slow: $(READY)  ## run the tests that train: whole examples, four ranks, checkpoints over restarts
	$(BIN)/python -m pytest -m "slow and not sinks and not gpu" -n 2 --dist loadfile $(ARGS)

test-sinks: $(READY)  ## run the full contract suite against every tracker's real library
	$(BIN)/python -m pytest -m sinks -n $(WORKERS) --dist loadfile $(ARGS)

test-gpu: $(READY)  ## run the tests that need an accelerator
	$(BIN)/python -m pytest -m gpu $(ARGS)

lint: $(READY)  ## ruff, formatting, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(READY)  ## let ruff fix and format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(READY)  ## measure; ARGS="log_call --quick" for one question, quickly
	$(BIN)/python -m bench $(ARGS)

docs: $(READY)  ## write the generated pages, check links, run every example
	$(BIN)/python docs/settings_table.py
	$(BIN)/python docs/arrivals_table.py
	$(BIN)/python -m pytest tests/docs $(ARGS)

coverage: $(READY)  ## tests with branch coverage, subprocesses included
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

clean:  ## remove what can be made again, runs excepted
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
