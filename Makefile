# gpuval: accept or reject GPU nodes. `make help` lists what there is.

INVENTORY ?= inventories/local
ARGS ?=
PYTHON ?= python3

VENV := .venv
NODE_VENV := .venv-node
BIN := $(CURDIR)/$(VENV)/bin
PLAY := $(BIN)/ansible-playbook -i $(INVENTORY)

# A playbook has no terminal: it writes the command, which is run after it.
reach = way=$$(mktemp) && trap 'rm -f "$$way"' EXIT && $(PLAY) gpuval.fleet.reach -e run_reach=$(1) \
	-e run_reach_node=$(NODE) -e run_reach_stage=$(STAGE) -e run_reach_file=$$way $(ARGS) && sh "$$way"

# ARGS comes last, so it may say otherwise: -n 0, --durations 0.
PYTEST := $(BIN)/python -m pytest --durations 15

# Workloads on this machine need an environment of their own; elsewhere the nodes bring it.
LOCAL_NODE := $(if $(filter inventories/local inventories/local/%,$(INVENTORY)),$(NODE_VENV)/.ready)

export PATH := $(BIN):$(PATH)
export MOLECULE_EPHEMERAL_DIRECTORY ?= $(CURDIR)/.gpuval/molecule
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup keys probe network build load models prepare validate status report baseline baseline-diff history window shell follow logs deliver hostfile deepspeed fabric clean bundle \
	test test-all molecule lint reference build-collection distclean

help: ## Show this list
	@printf 'Usage: make TARGET [INVENTORY=inventories/local] [ARGS="--limit node-1 -e gpuval_profile=quick"]\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(if $(BUNDLE),from-bundle,$(VENV)/.ready $(NODE_VENV)/.ready) ## Create the environments of controller and local node (BUNDLE=path: without internet)

# Not the rules of the environments: those would go to the internet.
.PHONY: from-bundle
from-bundle:
	$(PYTHON) tools/bundle.py install $(BUNDLE) --python $(PYTHON)
	$(PLAY) gpuval.fleet.unbundle $(ARGS)

keys: $(VENV)/.ready ## Make the key pair of the run's multi-node work and put it on the nodes
	$(PLAY) gpuval.fleet.keys $(ARGS)

probe: $(VENV)/.ready ## See which nodes can be reached, and pin their host keys
	$(PLAY) gpuval.fleet.probe $(ARGS)

network: $(VENV)/.ready ## Bring the nodes' network to what is declared, and measure it
	$(PLAY) gpuval.fleet.network $(ARGS)

build: $(VENV)/.ready ## Build the container images and put them into the store
	$(PLAY) gpuval.fleet.build $(ARGS)

load: $(VENV)/.ready ## Bring the container images to the nodes
	$(PLAY) gpuval.fleet.load $(ARGS)

models: $(VENV)/.ready ## Bring the model into the store, with its checksums
	$(PLAY) gpuval.fleet.models $(ARGS)

prepare: $(VENV)/.ready ## Start the store and see that the model is in it
	$(PLAY) gpuval.fleet.prepare $(ARGS)

validate: $(VENV)/.ready $(LOCAL_NODE) ## Validate every node of INVENTORY and end with FINAL ACCEPTANCE
	$(PLAY) gpuval.fleet.validate $(ARGS)

status: $(VENV)/.ready ## Show where the latest run stands, from the store alone (NODE=, WATCH=1, ALL=1, LINES=1)
	$(PLAY) gpuval.fleet.status $(if $(NODE),-e 'status_nodes=$(NODE)') $(if $(WATCH),-e status_watch=true) \
		$(if $(ALL),-e status_all=true) $(if $(filter 1 true yes,$(LINES)),-e status_lines=true) $(ARGS)

report: $(VENV)/.ready ## Judge and report the latest run again
	$(PLAY) gpuval.fleet.report $(ARGS)

baseline: $(VENV)/.ready ## Make a baseline from the accepted nodes of the latest run (NAME=site)
	$(PLAY) gpuval.fleet.baseline $(if $(NAME),-e baseline_name=$(NAME)) $(ARGS)

baseline-diff: $(VENV)/.ready ## What changed from one baseline file to another (BEFORE=, AFTER=)
	$(PLAY) gpuval.fleet.compare_baselines -e baseline_before=$(abspath $(BEFORE)) -e baseline_after=$(abspath $(AFTER)) $(ARGS)

history: $(VENV)/.ready ## A node, part, SKU or the fleet over all runs (NODE=, SERIAL=, SKU=, METRIC=, SINCE=, OUTPUT=)
	@$(PLAY) gpuval.fleet.history -e '{"history_node": "$(NODE)", "history_serial": "$(SERIAL)", "history_sku": "$(SKU)", \
		"history_metric": "$(METRIC)", "history_since": "$(SINCE)", "history_output": "$(if $(OUTPUT),$(abspath $(OUTPUT)))"}' $(ARGS)

window: $(VENV)/.ready ## Change how many nodes of the run work at once (N=20, 0 is all), and bring images (TRANSFERS=8)
	$(PLAY) gpuval.fleet.window -e run_window_nodes=$(N) -e run_window_transfers=$(TRANSFERS) $(ARGS)

shell: $(VENV)/.ready ## A shell on NODE=; on a cluster in its running stage, or in STAGE=
	@$(call reach,shell)

follow: $(VENV)/.ready ## The log of the stage that runs on NODE=, or of STAGE=, as it grows
	@$(call reach,follow)

logs: $(VENV)/.ready ## Collect all logs and host evidence of the latest run, also after a failure
	$(PLAY) gpuval.fleet.logs $(ARGS)

deliver: $(VENV)/.ready ## Make what the customer gets of the latest run, under unique ids (IDS=mapping.txt), and send it
	$(PLAY) gpuval.fleet.deliver $(if $(IDS),-e gpuval_node_ids=$(abspath $(IDS))) $(ARGS)

hostfile: $(VENV)/.ready ## Write ADDRESS slots=N of the nodes of the latest run that passed (FILE=path)
	$(PLAY) gpuval.fleet.hostfile $(if $(FILE),-e run_hostfile=$(abspath $(FILE))) $(ARGS)

deepspeed: $(VENV)/.ready ## Train on all nodes together: collectives, then DeepSpeed by its own launcher
	$(PLAY) gpuval.fleet.deepspeed $(ARGS)

fabric: $(VENV)/.ready ## Find the bad node, link or switch: rounds of pairs over all nodes
	$(PLAY) gpuval.fleet.fabric $(ARGS)

clean: $(VENV)/.ready ## Remove what runs put on nodes and controller; results are kept
	$(PLAY) gpuval.fleet.clean $(ARGS)

test: $(VENV)/.tests $(NODE_VENV)/.gangs ## Run the quick tests, some of every part (ARGS goes to pytest)
	$(PYTEST) -n 2 -m "not slow" $(ARGS)

test-all: $(VENV)/.tests $(NODE_VENV)/.gangs ## Run all tests (ARGS="-m slow": those that `make test` leaves out)
	$(PYTEST) -n 3 $(ARGS)

molecule: $(VENV)/.tests $(NODE_VENV)/.ready ## Run the molecule scenario: the local flow, shortened (ARGS="-s fleet": another one)
	molecule test $(ARGS)

lint: $(VENV)/.tests ## Check style and structure: ruff, import-linter, yamllint, ansible-lint, validate-modules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=collections $(BIN)/lint-imports --no-cache
	$(BIN)/yamllint --strict .
	$(BIN)/ansible-lint --offline
	$(BIN)/python tests/validate_modules.py

reference: $(VENV)/.ready ## Write docs/reference/ from argument specs, schemas, criteria and SKUs
	$(BIN)/python tools/reference.py

bundle: $(VENV)/.ready ## Pack wheels, collections, images, model and source for a site without internet (BUNDLE=path)
	$(PLAY) gpuval.fleet.bundle $(if $(BUNDLE),-e bundle_output=$(abspath $(BUNDLE))) $(ARGS)

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

# Apart: one machine is no gang.
$(NODE_VENV)/.gangs: requirements/gangs.txt $(NODE_VENV)/.ready
	$(NODE_VENV)/bin/pip install --quiet -r requirements/gangs.txt
	@touch $@
