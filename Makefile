PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install
install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -U "pip>=25.1"
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[tokenizer]' --group test --group lint
	touch $@
