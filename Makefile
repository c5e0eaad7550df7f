# Each target is also listed in README.md or CONTRIBUTING.md. PYTHON selects the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
URL ?= http://127.0.0.1:8000
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: run demo test test-vllm test-systemd test-demo test-gpu bench proof lint docs clean help

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make run URL=http://127.0.0.1:8000   install into .venv and monitor that server
run: $(INSTALLED)
	$(BIN)/vllm-canary run --url $(URL)

## make demo          two-minute demonstration against a simulated server with a GPU that overheats
demo: $(INSTALLED)
	$(BIN)/vllm-canary demo

# Four workers even on fewer cores: many tests spend their time waiting.
## make test          tests that need only Python (some need gcc or root and are skipped with the reason)
test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -q -n 4 -m "not vllm and not systemd and not demo and not gpu"

## make test-vllm     tests on a real vLLM server on CPU (installs it once into the user's cache: 3.4 GB)
test-vllm: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -v -s -m vllm tests/vllm

## make test-systemd  tests in a booted systemd (root, Debian; needs debootstrap and systemd-container)
test-systemd: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -v -s -m systemd tests/systemd

## make test-demo     the demo, with its chapters and figures checked (two and a half minutes)
test-demo: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -v -s -m demo tests/cli/test_demo.py

## make test-gpu      tests on a real NVIDIA GPU, under four minutes (skipped with the reason where there is none)
test-gpu: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -v -s -m gpu tests/gpu_smoke

## make bench         accuracy and cost of measuring; writes docs/benchmarks.md
bench: $(INSTALLED_DEV)
	$(BIN)/python benchmarks/run.py

## make proof         proofs that take minutes to an hour on a real vLLM server; writes docs/proof.md and docs/quality-measured.md
proof: $(INSTALLED_DEV)
	tests/vllm/install.sh
	$(BIN)/python -m pytest -v -s -m vllm tests/vllm/test_main_job.py
	$(BIN)/python benchmarks/queue_shape.py
	$(BIN)/python benchmarks/drift_vllm.py
	$(BIN)/python benchmarks/quality.py
	$(BIN)/python benchmarks/quality_vllm.py

## make lint          formatting, ruff, mypy and the import rules
lint: $(INSTALLED_DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

## make docs          regenerate the reference pages from the code
docs: $(INSTALLED_DEV)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info

# On Debian and Ubuntu, venv is a separate package: print that instead of a traceback.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "vllm-canary needs Python 3.11 or newer; set PYTHON, for example PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv"; exit 2; }

$(INSTALLED): $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(INSTALLED_DEV): $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(INSTALLED)
