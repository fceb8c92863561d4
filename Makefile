# gpuval: accept or reject GPU nodes. `make help` lists what there is.

INVENTORY ?= inventories/local
ARGS ?=
PYTHON ?= python3

VENV := .venv
NODE_VENV := .venv-node
BIN := $(CURDIR)/$(VENV)/bin
PLAY := $(BIN)/ansible-playbook -i $(INVENTORY)

# Workloads on this machine need an environment of their own; elsewhere the nodes bring it.
LOCAL_NODE := $(if $(filter inventories/local inventories/local/%,$(INVENTORY)),$(NODE_VENV)/.ready)

export PATH := $(BIN):$(PATH)
export MOLECULE_EPHEMERAL_DIRECTORY ?= $(CURDIR)/.gpuval/molecule
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup prepare validate status report clean test molecule lint build-collection distclean

help: ## Show this list
	@printf 'Usage: make TARGET [INVENTORY=inventories/local] [ARGS="--limit node-1 -e gpuval_profile=quick"]\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready $(NODE_VENV)/.ready ## Create the environments of the controller and of this machine as a node

prepare: $(VENV)/.ready ## Start the store and see that the model is in it
	$(PLAY) gpuval.fleet.prepare $(ARGS)

validate: $(VENV)/.ready $(LOCAL_NODE) ## Validate every node of INVENTORY and end with FINAL ACCEPTANCE
	$(PLAY) gpuval.fleet.validate $(ARGS)

status: $(VENV)/.ready ## Show where the latest run stands
	$(PLAY) gpuval.fleet.status $(ARGS)

report: $(VENV)/.ready ## Judge and report the latest run again
	$(PLAY) gpuval.fleet.report $(ARGS)

clean: $(VENV)/.ready ## Remove what runs put on nodes and controller; results are kept
	$(PLAY) gpuval.fleet.clean $(ARGS)

test: $(VENV)/.tests $(NODE_VENV)/.ready ## Run all tests (ARGS goes to pytest)
	$(BIN)/python -m pytest $(ARGS)

molecule: $(VENV)/.tests $(NODE_VENV)/.ready ## Run the molecule scenario: the local flow, shortened
	molecule test

lint: $(VENV)/.tests ## Check style: ruff, yamllint, ansible-lint, validate-modules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint --strict .
	$(BIN)/ansible-lint --offline
	$(BIN)/python tests/validate_modules.py

build-collection: $(VENV)/.ready ## Build the collection's archive into dist/
	$(BIN)/ansible-galaxy collection build --force --output-path dist collections/ansible_collections/gpuval/fleet

distclean: ## Remove the environments; results and the store are kept
	rm -rf $(VENV) $(NODE_VENV) dist

$(VENV)/.ready: requirements/controller.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -r requirements/controller.txt
	@touch $@

$(VENV)/.tests: requirements/development.txt $(VENV)/.ready
	$(BIN)/pip install --quiet -r requirements/development.txt
	@touch $@

$(NODE_VENV)/.ready: requirements/node.txt
	$(PYTHON) -m venv $(NODE_VENV)
	$(NODE_VENV)/bin/pip install --quiet -r requirements/node.txt
	@touch $@
