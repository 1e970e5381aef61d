# Needs only python3 (3.11 or newer), make and g++; every target creates .venv if it is missing.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
# The folders of one pass, ROOM; mypy reads the first two through the links in treadle/, which give modules their names.
FOLDERS := $(if $(ROOM),$(wildcard planner/passes/$(ROOM) codegen/$(ROOM) treadle/passes/$(ROOM) treadle/runtime/$(ROOM)))
PACKAGES := $(patsubst treadle/treadle/%,treadle/%,$(addprefix treadle/,$(FOLDERS)))
TESTS := $(wildcard $(addprefix tests/,$(FOLDERS)))
# What one process compiles, the next reads, also where the caller has turned that off: hundreds of processes import treadle.
export PYTHONDONTWRITEBYTECODE :=
# What has no slow test need not be imported to find that out.
SLOW = $(shell grep -rl --include='test_*.py' 'mark\.slow' tests | sort)
.PHONY: help install demo check test test-slow golden lint lock format bench bench-collective bench-lab bench-memory bench-swap bench-fusion bench-compression bench-sparse bench-ranks bench-aggregation bench-server bench-checkpoint bench-tiling bench-index gpu gpu-wheels wheel picture docs schemas clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: treadle needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	@sed -n '/^pip==/,/[^\\]$$/p' constraints.txt > .venv/pip.txt
	@$(BIN)/python .ci/direct > .venv/direct.txt
	$(PIP) install --require-hashes --upgrade -r .venv/pip.txt
	@$(PIP) install --require-hashes --no-deps -r constraints-cpu.txt 2>/dev/null || echo "pip finds no CPU build of PyTorch for this Python; taking its default build, on Linux gigabytes with the libraries of CUDA"
	$(PIP) install --require-hashes -c constraints.txt -r .venv/direct.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

install: $(STAMP) ## make .venv with treadle and everything its tests need

demo: $(STAMP) ## plan, check and train a reduced GPT-2 on 4 processes; writes build/demo/report.html
	@mkdir -p build
	$(BIN)/treadle plan job examples/gpt2_dp/job.yaml -o build/demo

check: $(STAMP) ## lint, types and quick tests of one pass, as in make check ROOM=swap
	@test -n "$(FOLDERS)" || { echo "error: no pass is called '$(ROOM)'; have: $(notdir $(patsubst %/room.py,%,$(wildcard planner/passes/*/room.py)))" >&2; exit 2; }
	$(BIN)/ruff check $(FOLDERS) $(TESTS)
	$(BIN)/ruff format --check $(FOLDERS) $(TESTS)
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow' $(TESTS)

test: $(STAMP) ## run the quick tests (under 8 minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' --durations=10 --durations-min=5

test-slow: $(STAMP) ## run the tests that take more than 5 s: whole tours, full-size models, real processes
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(SLOW)

golden: $(STAMP) ## rewrite tests/golden with what the code makes now; then read git diff
	$(BIN)/python -m pytest -q -m golden --update-golden

lint: $(STAMP) ## ruff, mypy --strict on the three packages, import contracts, known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/python .ci/audit & audit=$$!; $(BIN)/lint-imports --no-logo & imports=$$!; \
		$(BIN)/mypy; types=$$?; wait $$audit && wait $$imports && exit $$types

lock: ## rewrite constraints.txt, versions and hashes, after a change of pyproject.toml; needs uv
	uv pip compile --quiet pyproject.toml --all-extras --group dev --universal --python-version 3.11 --generate-hashes \
		--no-annotate --custom-compile-command 'make lock' -o constraints.txt

format: $(STAMP) ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## print every comparison of docs/benchmarks.md; hours
	$(BIN)/python -m benchmarks

bench-memory: $(STAMP) ## memory plans of whole networks, with MONeT's figures, peers and PyTorch; about 2 hours
	$(BIN)/python -m benchmarks memory

bench-swap: $(STAMP) ## swap plans, with SwapAdvisor's figures and five baselines, the search, its speed; about an hour
	$(BIN)/python -m benchmarks swap

bench-collective: $(STAMP) ## synthesis against published figures, plans against templates, execution, XML timing
	$(BIN)/python -m benchmarks collective

bench-lab: $(STAMP) ## collectives between the hosts of network labs, against gloo and templates, and predictions; about an hour; needs root or user namespaces
	$(BIN)/python -m benchmarks collective.lab collective.predictions

bench-fusion: $(STAMP) ## fused schedules: published figures, planning, every reachable one executed, races, counters, registers; about an hour
	$(BIN)/python -m benchmarks fusion

bench-compression: $(STAMP) ## compression plans: published clusters in simulation, training between the hosts of a lab, accuracy; about an hour; needs root or user namespaces
	$(BIN)/python -m benchmarks compression

bench-sparse: $(STAMP) ## sparse gradients: published figures in simulation, balance, training between the hosts of a lab; about an hour; needs root or user namespaces
	$(BIN)/python -m benchmarks sparse

bench-ranks: $(STAMP) ## orders of hosts: search and bounds, collectives and training between the hosts of a lab; needs root or user namespaces
	$(BIN)/python -m benchmarks ranks

bench-aggregation: $(STAMP) ## two-level sums: accuracy of groups, sums between the hosts of a lab, a link that slows down; needs root or user namespaces
	$(BIN)/python -m benchmarks aggregation

bench-server: $(STAMP) ## parameter servers: published tables, engines, chunks, between the hosts of a lab, random jobs under sanitizers; about an hour; needs root or user namespaces
	$(BIN)/python -m benchmarks server

bench-checkpoint: $(STAMP) ## checkpoints in memory: published figures, iterations with and without, faults at random moments of a training between the hosts of a lab; about an hour; needs root or user namespaces
	$(BIN)/python -m benchmarks checkpoint

bench-tiling: $(STAMP) ## tilings: greedy, sweeps and exact; bytes and time of programs, next to Dask's own chunks; a transformer between the hosts of a lab next to placements by hand; needs root or user namespaces
	$(BIN)/python -m benchmarks tiling

bench-index: $(STAMP) ## learned indexes: MAPLE next to ALEX, a B+tree and std::map, phases, insert against lookup latency, switches and knobs; about an hour
	$(BIN)/python -m benchmarks index

# The machine with the card may have no network: no .venv is made for it.
gpu: ## every check that needs a GPU, with what this machine has, in under 8 minutes; DRY=1 does what needs none
	@PYTHONPATH=. $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu $(if $(DRY),--dry)

gpu-wheels: $(STAMP) ## gather the wheels that make gpu needs on a machine without a network (CPython 3.12, x86-64): build/gpu/wheels
	$(BIN)/python -m benchmarks.gpu.wheels

wheel: $(STAMP) ## build dist/*.whl
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .

picture: ## docs/report.png, a screenshot of the page of make demo; needs Chromium
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=1 --user-data-dir=build/chromium --window-size=1180,1440 --screenshot=docs/report.png file://$(CURDIR)/build/demo/report.html

wheelhouse: wheel ## fill dist/wheelhouse with the wheel and its dependencies, from which the Dockerfile builds offline
	rm -rf dist/wheelhouse
	sed '/--hash/d; s/ \\$$//' constraints.txt > .venv/versions.txt
	$(PIP) download -c .venv/versions.txt -d dist/wheelhouse "dist/treadle-$$($(BIN)/python -c 'import treadle; print(treadle.__version__)')-py3-none-any.whl[all]"

docs: $(STAMP) ## rewrite what README and docs quote with what their commands print; about 10 minutes
	$(BIN)/python -m tests.quotes

schemas: $(STAMP) ## rewrite docs/schemas from the document types
	$(BIN)/python -m treadle.planner.documents.schemas docs/schemas

clean: ## remove what the targets made
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
