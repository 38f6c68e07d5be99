# make demo | make test | make test-browser | make check | make models | make clean. Needs Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two processes, as two cores do best and memory allows; what is in a file shares what it compiles.
TESTS = $(BIN)/python -m pytest tests --ignore=tests/browser -n 2 --dist loadfile
CONSTRAINTS := constraints.txt
# Of make test-range: the other ends of what pyproject.toml allows.
OLDEST_TORCH := 2.11.0
NEWER_PYTHON ?= python3.12
# Of make fuzz.
N ?= 200
PATHS ?= compile,lazy
SEED ?= 0

.DEFAULT_GOAL := help
.PHONY: help demo test test-browser test-fast test-range check fuzz models architectures ops gradients checks overhead recording bench-clusters regions measure clean

help:
	@echo "make demo    install into $(VENV), then show what galley does"
	@echo "make test    install, then run the tests"
	@echo "make test-browser   open the pages in Chromium: \$$CHROMIUM, chromium on the PATH, or playwright's"
	@echo "make test-range     fast tests with torch $(OLDEST_TORCH), then with NEWER_PYTHON=$(NEWER_PYTHON) and the newest jax"
	@echo "make check   install, then lint, format check, types, fast tests"
	@echo "make fuzz    random programs against eager: N= programs, PATHS=compile|lazy, SEED=, see docs/fuzz.md"
	@echo "make models         measure the models of benchmarks/zoo.py, write docs/models.md"
	@echo "make architectures  compare many of transformers' with eager, write docs/architectures.md"
	@echo "make ops            judge every operator of op_db by eager, write docs/ops.md"
	@echo "make gradients      judge the gradients of every operator of op_db by eager, write docs/gradients.md"
	@echo "make checks         time the checks of indices, for docs/ops.md"
	@echo "make overhead       time a call of a tiny network against inductor's"
	@echo "make bench-clusters compare clustering with torch's and time it, write docs/clusters.md"
	@echo "make regions        time planted regions both ways, judge the model by them, write docs/regions.md"
	@echo "make measure        the zoo with decide=measure against eager and XLA, write docs/measure.md"
	@echo "make recording      time what recording a lazy step costs against torch_xla 2.9"
	@echo "make clean   remove $(VENV) and caches"
	@echo "PYTHON=python3.12 make ... uses another Python for the environment"

demo: $(VENV)/test.stamp
	$(BIN)/galley demo

test: $(VENV)/test.stamp
	$(TESTS)

test-browser: $(VENV)/browser.stamp
	$(BIN)/python -m pytest tests/browser

test-fast: $(VENV)/test.stamp
	$(TESTS) -m "not slow"

# Environments of their own: each is several GB where torch comes with CUDA.
test-range:
	mkdir -p build
	sed 's/^torch==.*/torch==$(OLDEST_TORCH)/' constraints.txt > build/oldest.txt
	$(MAKE) test-fast VENV=$(VENV)-oldest CONSTRAINTS=build/oldest.txt
	sed '/^jax/d; /^numpy/d' constraints.txt > build/newest.txt
	$(MAKE) test-fast VENV=$(VENV)-newest CONSTRAINTS=build/newest.txt PYTHON=$(NEWER_PYTHON)

check: $(VENV)/dev.stamp
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/pyright --pythonpath $(BIN)/python src
	$(TESTS) -m "not slow"

fuzz: $(VENV)/test.stamp
	$(BIN)/python -m tests.fuzz.run --count $(N) --paths $(PATHS) --seed $(SEED)

models: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.models

architectures: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.architectures

ops: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.ops

gradients: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.gradients

checks: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.checks --write
	$(BIN)/python -m benchmarks.ops --render

overhead: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.overhead

bench-clusters: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.clusters

recording: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.recording

regions: $(VENV)/test.stamp
	$(BIN)/galley calibrate
	$(BIN)/python -m benchmarks.regions

measure: $(VENV)/test.stamp
	$(BIN)/galley calibrate
	$(BIN)/python -m benchmarks.measure

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps, so that pip runs again only when what it read has changed.
$(VENV)/python.stamp:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "galley: no $(PYTHON) here; install Python 3.11 or newer, or name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "galley: needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version); name one: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/%.stamp: $(VENV)/python.stamp pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[$*]'
	@touch $@
