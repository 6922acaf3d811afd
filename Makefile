# Every verb sets itself up: Python 3.11 or newer, make and pip are all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
# Cases of each kind of file in `make fuzz`.
N ?= 2000
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Cases of `make test`: another slice of the long tests every ten commits.
ROTATION ?= $(shell expr $$(git rev-list --count HEAD 2>/dev/null || echo 0) / 10)
# One process per core, one file per process, long files first. Bytecode is kept, whatever the environment says:
# hundreds of processes would compile the package anew.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-fast test-all laws laws-scale mutants fuzz faults faults-scale house check bench bench-full bench-decode docs course pictures site clean

help:  ## list the verbs
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1@/' | column -t -s@

demo: $(VENV)/.installed  ## train a language model on this CPU in three minutes
	$(BIN)/archwright train demo

test-fast: $(VENV)/.installed-dev  ## run the quick tests of every room (about a minute)
	$(PYTEST) -m "not slow and not release"

test: $(VENV)/.installed-dev  ## run the quick tests and a slice of the others (8 minutes; repeat: ROTATION=N)
	@echo "rotation $(ROTATION); the same tests again: make test ROTATION=$(ROTATION)"
	$(PYTEST) --rotation $(ROTATION) $(ARGS)

test-all: $(VENV)/.installed-dev  ## run all tests, and a thousand and sixty random compositions (over an hour)
	$(PYTEST) --durations 20 $(ARGS)
	$(MAKE) laws
	$(MAKE) laws-scale

laws: $(VENV)/.installed-dev  ## try a thousand random architectures against every law (over a quarter of an hour)
	COMPOSITIONS=1000 $(BIN)/python -m pytest tests/laws tests/test_tiny_presets.py -s

laws-scale: $(VENV)/.installed-dev  ## train sixty random architectures by 2 and 4 processes as by one (4 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.scale.laws

mutants: $(VENV)/.installed-dev  ## plant faults in copies and see which tests notice (ARGS="--only NAME | --count")
	$(BIN)/python -m tests.planted.run $(ARGS)

fuzz: $(VENV)/.installed-dev  ## change N files of every kind, and read them: make fuzz N=2000 (10 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --number $(N) --keep build/fuzz

faults: $(VENV)/.installed-dev  ## kill verbs 200 times, fail them 100 times, and run them again (10 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --kills 200 --errors 100 --keep build/faults

faults-scale: $(VENV)/.installed-dev  ## kill processes of one run 200 times, of 1, 2 and 4, and let it go on (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.scale --kills 200 --keep build/faults-scale $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.exits --runs 20 --each 2

house: $(VENV)/.installed-dev  ## count what makes code hard to read (ARGS="TEXT": where)
	$(BIN)/python -m tests.house $(ARGS)

check: $(VENV)/.installed-dev  ## lint, format, types, order of the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(PEERS)/.installed  ## time training and recurrent layers beside transformers, litgpt and others (20 minutes)
	$(PEERS)/bin/python bench/train_speed.py
	$(PEERS)/bin/python bench/mixers.py --parts layers

bench-full: $(PEERS)/.installed  ## the same for longer, and all other benches (three quarters of an hour)
	$(PEERS)/bin/python bench/train_speed.py --blocks 31 --minutes 40
	$(PEERS)/bin/python bench/masks.py
	$(PEERS)/bin/python bench/mixers.py
	$(PEERS)/bin/python bench/cold_start.py
	$(PEERS)/bin/python bench/optimizers.py
	$(PEERS)/bin/python bench/generate.py

bench-decode: $(PEERS)/.installed  ## time greedy decoding beside transformers, litgpt and llama.cpp (over an hour)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check llama-cpp-python gguf \
		|| echo "llama.cpp takes no part: its package does not build here"
	$(PEERS)/bin/python bench/decode.py --compiled --blocks 5

docs: $(VENV)/.installed-dev  ## make the generated data and pages again
	$(BIN)/python -m docs._make.hf_defaults
	$(BIN)/python -m docs._make.listings
	$(BIN)/python -m docs._make.catalogue
	$(BIN)/python -m docs._make.architectures
	$(BIN)/python -m docs._make.lecture

course: $(VENV)/.installed-dev  ## run the pages of docs/course and draw their figures (ARGS="norms": one page)
	OMP_NUM_THREADS=1 $(BIN)/python -m docs._make.course $(ARGS)
	$(BIN)/python -m docs._make.figures $(ARGS)

pictures: $(VENV)/.installed  ## photograph the README's pages: make pictures STUDY=studies/NAME RUN=runs/demo (needs Chromium)
	$(BIN)/python -m docs._make.pictures $(STUDY) $(RUN)

site: $(VENV)/.installed-dev  ## build the documentation as a site in build/site, and look for dead links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html; with a server, which searching needs: $(BIN)/mkdocs serve"

clean:  ## remove what make has made
	rm -rf $(VENV) $(PEERS) build *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "archwright needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch first: with its version settled, nothing else may ask for another build of it.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) torch
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) -e '.[dev]'
	@touch $@

# Peers stand apart: some ask for older versions of what others need, which pip tells and which does no harm.
$(PEERS)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt transformers litgpt x-transformers
	@touch $@
