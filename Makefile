# Two commands do everything on a fresh machine: `make train` and `make test`.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
DOCS ?= build/site
BIN := $(VENV)/bin
# What training needs; a GPU needs cu112 or cu117 in place of cpu. The other targets add to it.
EXTRAS ?= cpu,gluoncv,data
TOOLS := pretrained,results,docs,test,notebooks,tensorboard,export
COMMA := ,
# What Python 3.13 and later install without its metadata, which ask for numpy 1 (see setup.py)
BARE := $(patsubst cpu,mxnet==1.9.1,$(patsubst gluoncv,gluoncv==0.10.5.post0,$(patsubst cu%,mxnet-cu%==1.9.1, \
  $(filter cpu cu% gluoncv,$(subst $(COMMA), ,$(EXTRAS))))))
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup train test test-all workers lint weights format zoo benchmark input results ablation edge floor \
  yardstick wire clients onnx operators handover horovod notebooks matrix arm64 container asan wheel docs \
  clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /make \1	/p' $(MAKEFILE_LIST)

setup: $(VENV)/.setup ## create .venv and install the pinned dependencies of every target

# Each step adds packages to the same environment.
$(VENV)/.created: .ci/check-python
	@sh .ci/check-python "$(PYTHON)"
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.train: $(VENV)/.created setup.py constraints.txt
	$(INSTALL) -e '.[$(EXTRAS)]'
	$(INSTALL) --no-deps $(BARE)
	@touch $@

# The C++ kernels are built before they are needed; without a compiler MXNet's own are used.
$(VENV)/.kernels: $(VENV)/.train $(wildcard gluon_amp/kernels/src/*)
	$(BIN)/gluon-amp build || true
	@touch $@

$(VENV)/.docs: $(VENV)/.train
	$(INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.setup: $(VENV)/.train $(VENV)/.kernels
	$(INSTALL) -e '.[$(TOOLS)]'
	@touch $@

train: $(VENV)/.train $(VENV)/.kernels ## train in float16 (ARGS='--num-epochs 2 --batch-size 32' appends options)
	$(BIN)/python scripts/train_imagenet.py --dtype float16 --batch-size 256 $(ARGS)

# Two processes with one thread each; the tests of a file share what they prepare. Without ARGS, those
# that depend on the CPU run again as on one without AVX512_BF16 and on one without AVX512, if it has them, and in
# native bfloat16 if that is what it emulates.
test test-all workers: export OMP_NUM_THREADS = 1
test test-all workers: PYTEST = $(BIN)/python -m pytest --numprocesses 2 --dist loadfile
test: QUICK = and not slow
test: setup ## run the tests but those marked slow (ARGS='-k name' appends options)
	$(PYTEST) -m "not slow" $(ARGS)
	$(REPEAT)

test-all: setup ## run all tests, those marked slow too (ARGS='-k name' appends options)
	$(PYTEST) $(ARGS)
	$(REPEAT)

workers: setup ## train as several workers and devices in every dtype (a few minutes)
	$(PYTEST) tests/training/workers/test_several.py $(ARGS)

REPEAT = $(if $(ARGS),,for kind in `$(BIN)/python -m tests.cpu_kinds`; do \
	env $$kind $(PYTEST) -m "cpu_kind $(QUICK)" || exit 1; done)

lint: setup ## check style, types, private names, layers, C++ sources and the pins of constraints.txt
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m experiments.pins
	$(BIN)/python -m experiments.open_sources
	$(BIN)/python -m pytest tests/test_house.py -k imports_a_private_name

weights: setup ## count the files and lines of each part, and what an import loads
	$(BIN)/python -m experiments.weights $(ARGS)

format: setup ## rewrite the code in the style of this repository
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

zoo: setup ## cast every network of the Model Zoo and 56 of GluonCV's (half an hour)
	$(BIN)/python -m experiments.zoo_coverage $(ARGS)

benchmark: setup ## time float16, bfloat16, float32, contrib.amp (a quarter of an hour; see docs/speed.md)
	$(BIN)/python scripts/benchmark.py --suite all --output docs/benchmarks $(ARGS)

input: setup ## time decoding and augmentation beside ImageRecordIter (a minute)
	$(BIN)/python -m experiments.input_benchmark --output docs/benchmarks/input.md $(ARGS)

results: setup ## train the digits in three dtypes over seeds, into results/digits (40 minutes)
	$(BIN)/python scripts/results_table.py $(ARGS)

# One thread for each run, as sums depend on the number of threads.
ablation edge floor operators wire yardstick: export OMP_NUM_THREADS = 1
ablation: setup ## train without masters, scaling and pins, into results (5 minutes)
	$(BIN)/python -m experiments.ablation --output results $(ARGS)

edge: setup ## train at learning rates up to divergence in each dtype, into results
	$(BIN)/python -m experiments.edge $(ARGS)

floor: setup ## compare float32 with itself disturbed and with each dtype, into results/floor (22 minutes)
	$(BIN)/python -m experiments.floor_of_chance --parallel 2 $(ARGS)

yardstick: setup ## compare losses and gradients of each dtype with float64, into results (a few minutes)
	$(BIN)/python -m experiments.yardstick $(ARGS)

wire: setup ## add gradients of many workers in 16 bits, and simulate 1,024, into results (10 minutes)
	$(BIN)/python -m experiments.wire $(ARGS)

clients: setup ## train clients of MXNet in four dtypes, each in a venv of its own (35 minutes)
	$(BIN)/python -m experiments.clients $(ARGS)

horovod: setup ## build Horovod in .horovod, train with two workers, kill one and resume (a quarter of an hour)
	$(BIN)/python -m experiments.horovod $(ARGS)

onnx: setup ## export every network of the zoos to ONNX and compare (an hour)
	$(BIN)/python -m experiments.onnx_table --output docs/results $(ARGS)

operators: setup ## call every operator, twice backward, and write docs/results/operators.md, check docs/mxnet_faults.md (10 minutes)
	$(BIN)/python -m experiments.operators --output docs/results $(ARGS)

handover: setup ## install PyTorch in .handover, hand networks over to it and compare (10 minutes)
	$(BIN)/python -m experiments.handover $(ARGS)

notebooks: setup ## execute the notebooks (ARGS=--short: quickly, and write nothing)
	$(BIN)/python -m experiments.run_notebooks $(ARGS)

matrix: ## install, train and run the tests on Python 3.8 to 3.14 (hours; ARGS='--only 3.8')
	$(PYTHON) -m experiments.matrix $(ARGS)

arm64: setup ## train the README's network on an emulated Linux arm64 (root, qemu-user-static; minutes)
	$(BIN)/python -m experiments.arm64 $(ARGS)

container: setup ## run the lines of the Dockerfile in a bare Debian, and train there (root; minutes)
	$(BIN)/python -m experiments.container $(ARGS)

asan: setup ## test the C++ operators under AddressSanitizer (a quarter of an hour)
	$(BIN)/python -m experiments.address_sanitizer $(ARGS)

wheel: setup ## build the wheel with compiled kernels, in a Debian 11 of its own, into dist (a few minutes)
	$(BIN)/python -m experiments.wheel $(ARGS)

# The variable silences an advertisement of Material's; --quiet would switch --strict off.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs ## build the site of README, guide, notebooks and API, in build/site (open index.html)
	$(BIN)/python -m mkdocs build --strict --site-dir $(abspath $(DOCS))

clean: ## remove .venv and what the tools left behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
