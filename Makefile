# make demo [TEXT=path]   raw text -> shards -> a GPT on several ranks -> a few-shot report
# make demo-finetune      raw text -> a pretrained GPT -> a classifier, beside the same from random weights
# make test               the tests that CI runs
# make docs               the documentation, into site/index.html
# `make setup` creates .venv with pinned versions of everything; the other targets run it first if necessary.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo demo-finetune ladder test test-machines test-versions test-slow test-ray test-gpu gpu-report test-cluster chaos check docs bench image clean

setup: $(STAMP)

PIP := $(BIN)/python -m pip install --disable-pip-version-check --root-user-action ignore
# torch is installed first and alone, so that no other package pulls in a different build of it.
$(STAMP): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	@echo "setup: installs packages into $(VENV): 3.1 GB with the CPU build of torch, 6.2 GB with the CUDA build, which pip takes on x86_64"
	@echo "setup: unless PIP_EXTRA_INDEX_URL names torch's CPU index (docs/versions.md); 2 to 10 minutes, pip names each package"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --constraint .ci/constraints.txt torch
	$(PIP) --constraint .ci/constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.demo $(if $(TEXT),"$(TEXT)")

demo-finetune: $(STAMP)
	$(BIN)/python -m examples.demo_finetune

# Fits a scaling law on real text and tests it on one more run: up to three hours on two idle cores. TINY=1: minutes.
ladder: $(STAMP)
	$(BIN)/python -m examples.ladder $(if $(TINY),--tiny)

# Up to 8 ranks on the CPU, even on a machine with GPUs, which may have fewer than 8. WORKERS processes share the tests:
# more than the cores of a small machine, since tests of several ranks wait much of their time.
WORKERS ?= 3
test: $(STAMP)
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow and not gpu and not cluster' -n $(WORKERS)

# What passes is written down by commit: call it again to continue.
test-slow: $(STAMP)
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'slow and not cluster' -n $(WORKERS) \
	    -p tests.helpers.resume --resume "runs/test-slow-$$(git rev-parse --short HEAD || echo none)"

# The numeric tests as processors with fewer instructions run them. SMALL=1: only the tests that CI runs.
test-machines: $(STAMP)
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m tests.machines --workers $(WORKERS) $(if $(SMALL),--small)

# The golden curves and a cut of the tests on several Pythons and engines, each in an environment below runs/versions, and
# the table of docs/versions.md. LANE="3.13 pinned": only that one. Call again to resume.
test-versions: $(STAMP)
	$(BIN)/python -m tests.versions --directory runs/versions --workers $(WORKERS) $(if $(LANE),--lane "$(LANE)")

# Ray is installed into an environment of its own, which sees the packages of $(VENV) too.
RAY_BIN := $(VENV)/ray/bin
test-ray: $(STAMP)
	test -x $(RAY_BIN)/python || $(BIN)/python -m venv $(VENV)/ray
	$(BIN)/python -c 'import site; print(*site.getsitepackages(), sep="\n")' > "$$($(RAY_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pretrain.pth"
	$(RAY_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt ray
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(RAY_BIN)/python -m pytest -m ray

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu -n $(WORKERS) tests/gpu

# These tests, and figures of one GPU beside those that are planned and rehearsed: runs/gpu-report/report.md. A call takes
# SECONDS; call again to resume.
SECONDS ?= 540
gpu-report: $(STAMP)
	$(BIN)/python -m tests.gpu.report --directory runs/gpu-report --seconds $(SECONDS)

# Needs root: the tests start Slurm on this machine, from the packages of
# apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
test-cluster: $(STAMP)
	$(BIN)/python -m pytest -m cluster tests/cluster

# FAULTS random faults (200) in one run on such a Slurm, for hours. SLICE of them per call; call again to resume.
FAULTS ?= 200
SLICE ?= $(FAULTS)
chaos: $(STAMP)
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m tests.cluster.chaos --directory runs/chaos --faults $(FAULTS) --slice $(SLICE)

check: $(STAMP) docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Builds the site of docs/ into site/index.html. A link or anchor without a target is an error. Not --quiet, which
# drops warnings before --strict counts them.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 CUDA_VISIBLE_DEVICES= $(BIN)/python -m mkdocs build --strict

bench: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.train_step

# The image of launch/images for DEVICE (cuda or cpu) as IMAGE. Where neither docker nor buildah works, only its recipes
# are linted, which needs nothing but Python.
DEVICE ?= cuda
IMAGE ?= pretrain:$(DEVICE)
OF_IMAGE = build --build-arg DEVICE=$(DEVICE) --file launch/images/Dockerfile --tag $(IMAGE) .
image:
	$(PYTHON) -m tools.lint_images
	@if docker info > /dev/null 2>&1; then docker $(OF_IMAGE); elif command -v buildah > /dev/null; then \
	    buildah $(OF_IMAGE); else \
	    echo "image: neither docker nor buildah works here, so the recipes are linted and no image is built"; fi

clean:
	rm -rf $(VENV) build site *.egg-info
