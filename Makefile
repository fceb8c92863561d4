# gpuval: accept or reject GPU nodes. `make help` lists the main targets.

INVENTORY ?= inventories/local
ARGS ?=
PYTHON ?= python3

# They break make's functions and the shebangs of an environment.
$(if $(word 2,$(CURDIR)),$(error the path of the checkout has spaces: move $(CURDIR) to a path without))

VENV := .venv
NODE_VENV := .venv-node
COLLECTION := collections/ansible_collections/gpuval/fleet
BIN := $(abspath $(VENV))/bin
# Commas separate several existing paths; everything else is one source: a path with spaces, a list of hosts such as `gpu-1,`.
comma := ,
sources := $(subst $(comma), ,$(INVENTORY))
several := $(if $(filter 1,$(words $(INVENTORY))),$(if $(filter %$(comma),$(INVENTORY))$(filter-out $(wildcard $(sources)),$(sources)),,$(sources)))
PLAY := $(BIN)/ansible-playbook $(if $(several),$(several:%=-i '%'),-i '$(INVENTORY)') $(if $(RUN),-e gpuval_run_id='$(RUN)')

# It answers without Ansible where it can, and remembers the settings that a playbook found.
LOOK := $(BIN)/python tools/look.py $(PLAY)

# A variable given to make that nothing here reads is a mistyped one.
given := $(strip $(foreach name,$(.VARIABLES),$(if $(findstring command,$(origin $(name))),$(name))))
OWN := BIN COLLECTION CURDIR LC_ALL LOOK MAKEFILE_LIST OWN PATH PLAY PYTEST READY
known = $(sort $(shell grep -oE '[$$][(][A-Z][A-Z0-9_]*[)]' $(firstword $(MAKEFILE_LIST)) | tr -d '$$()'))
unknown := $(if $(given),$(filter-out $(known) MAKEFLAGS,$(given)))
$(if $(unknown),$(error no such variable: $(unknown). Known are $(filter-out $(OWN),$(known)); settings go into ARGS="-e NAME=VALUE"))
$(if $(INVENTORY),,$(error INVENTORY= is empty: give the path of an inventory))

# So is a target that is not here; what stands before it in the command would run first.
targets = $(sort $(shell grep -oE '^[a-z-]+:' $(firstword $(MAKEFILE_LIST)) | tr -d :))
mistyped := $(firstword $(filter-out .% $(if $(MAKECMDGOALS),$(targets)),$(MAKECMDGOALS)))
meant = $(shell $(PYTHON) -c 'import difflib, sys; print(*difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1))' '$(mistyped)' $(targets))
$(if $(mistyped),$(error no such target: $(mistyped)$(patsubst %, (is it %?),$(meant)): `make help` shows the main ones, `make help-all` all))

# What a target cannot do without: $(call need,NODE,a node of the inventory)
need = $(if $($(1)),,$(error make $@ needs $(1)=, $(2)))

# Ansible would take the rest for a playbook, and print its usage.
$(if $(filter =,$(ARGS)),$(error ARGS has spaces around `=`: write -e NAME=VALUE))

# An extra variable as JSON, where it is given: $(call extra,history_node,$(NODE))
extra = $(if $(2),-e '{"$(1)": "$(2)"}')

# Whether a variable stands in the command: shells have variables of some of these names, too.
typed = $(findstring command,$(origin $(1)))

# A path from the root; make's own function takes each word of it for one.
path = $(if $(1),$(if $(filter /%,$(firstword $(1))),,$(CURDIR)/)$(1))

# A playbook has no terminal: it writes the command, which is run after it.
reach = way=$$(mktemp) && trap 'rm -f "$$way"' EXIT && $(LOOK) gpuval.fleet.reach -e run_reach=$(1) \
	$(call extra,run_reach_node,$(NODE)) $(call extra,run_reach_stage,$(STAGE)) -e run_reach_file=$$way $(ARGS) && sh "$$way"

# ARGS comes last, so it may say otherwise: -n 0, --durations 0. Compiled files are kept, whatever the shell says: without
# them each worker takes 12 s of CPU to compile the tests, and each process of a node 0.1 s.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --durations 15
# A run whose worker died ends: with another in its place pytest-xdist can wait for ever.
WORKERS := -n 3 --max-worker-restart 0

# Workloads on this machine need an environment of their own; elsewhere the nodes bring it.
READY := $(if $(filter inventories/local inventories/local/%,$(INVENTORY)),ready,$(VENV)/.ready)

export PATH := $(BIN):$(PATH)
# Ansible refuses any other encoding.
$(if $(filter C POSIX,$(LC_ALL)),$(eval export LC_ALL := C.UTF-8))
export MOLECULE_EPHEMERAL_DIRECTORY ?= $(CURDIR)/.gpuval/molecule
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1

# Lists the targets whose line matches, by group.
list = printf 'Usage: make TARGET [INVENTORY=inventories/local] [ARGS="--limit node-1 -e gpuval_profile=quick"]\n'; \
	awk '/^\#\#@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*$(1)/ {split($$0, part, /:.*\#\# /); printf "  %-18s %s\n", part[1], part[2]}' \
	$(MAKEFILE_LIST)

.DEFAULT_GOAL := help
.PHONY: help help-all setup inventory environment doctor provision deprovision notebook keys probe network build load models prepare validate job mad rerun status runs report baseline calibrate baseline-diff history window shell follow logs deliver evidence verify hostfile in-cluster recurring deepspeed fabric clean bundle release \
	compiled-tests test test-all molecule sanity lint lint-ansible lint-code reference docs docs-serve locks container build-collection distclean

# Targets with `## ` are in `make help`, those with `### ` in `make help-all` only.
help: ### Show the main targets
	@$(call list,[^#]## )
	@printf '\n`make help-all` lists every target.\n'

help-all: ### Show all targets
	@$(call list,## )

##@ Use

setup: $(if $(BUNDLE),from-bundle,ready) ## Create the environments of controller and local node (BUNDLE=path SHA256=digest: offline)

# Not the rules of the environments: those would go to the internet.
.PHONY: from-bundle
from-bundle:
	$(PYTHON) tools/bundle.py install $(BUNDLE) --python $(PYTHON) $(if $(SHA256),--sha256 $(SHA256))
	$(PLAY) gpuval.fleet.unbundle $(ARGS)

inventory: $(VENV)/.ready ## Write an inventory: of nodes over SSH (NODES="gpu[01-16]", SSH_USER=, KEY=), of a cluster (KUBECONFIG=, CONTEXT=, SELECTOR=; SLURM=1, PARTITION=); GPUS=, STORE=, OUTPUT=
	@$(BIN)/python tools/inventory.py $(if $(NODES),--nodes '$(NODES)') $(if $(SSH_USER),--user '$(SSH_USER)') \
		$(if $(KEY),--key '$(KEY)') $(if $(GPUS),--gpus '$(GPUS)') $(if $(OUTPUT),--output '$(OUTPUT)') \
		$(if $(call typed,KUBECONFIG),--kubeconfig '$(KUBECONFIG)') $(if $(call typed,CONTEXT),--context '$(CONTEXT)') \
		$(if $(call typed,SELECTOR),--selector '$(SELECTOR)') $(if $(call typed,STORE),--store '$(STORE)') \
		$(if $(call typed,PARTITION),--partition '$(PARTITION)') $(if $(filter 1 true yes,$(SLURM)),--slurm 1)

doctor: $(VENV)/.ready ## Check controller and inventory before anything starts (ARGS="--tags nodes": also probe the nodes)
	$(PLAY) gpuval.fleet.doctor $(ARGS)

provision: $(VENV)/.ready ### Create a DigitalOcean Kubernetes cluster or node pools, and an inventory of them (ARGS="-e @site.yml --check": plan and cost; LIST=1: list VPCs, clusters and sizes)
	$(PLAY) gpuval.fleet.provision $(if $(filter 1 true yes,$(LIST)),-e provision_list=true) $(ARGS)

deprovision: $(VENV)/.ready ### Delete the clusters and node pools with the tag of provision_name
	$(PLAY) gpuval.fleet.deprovision $(ARGS)

prepare: $(VENV)/.ready ### Check the nodes, start the store and upload the model
	$(PLAY) gpuval.fleet.prepare $(ARGS)

validate: $(READY) ## Validate every node of INVENTORY and print FINAL ACCEPTANCE
	$(LOOK) gpuval.fleet.validate $(ARGS)

job: $(READY) ### Run your own job on every node, after the facts (JOB=jobs/shell.yml)
	$(call need,JOB,a file of gpuval.job/1)
	$(PLAY) gpuval.fleet.job -e '{"gpuval_jobs": ["$(call path,$(JOB))"]}' $(ARGS)

mad: $(VENV)/.ready ### Run models of a MAD repository in their own images on every node (REPO=folder or git address, TAGS=pyt,bert)
	$(call need,REPO,a folder or a git address)
	$(PLAY) gpuval.fleet.mad -e '{"gpuval_mad_repository": "$(REPO)"}' $(call extra,gpuval_mad_tags,$(TAGS)) $(ARGS)

rerun: $(READY) ### Validate again the nodes that did not pass in the latest run of INVENTORY
	@way=$$(mktemp -d) && trap 'rm -rf "$$way"' EXIT && $(PLAY) gpuval.fleet.runs -e runs_rerun=$$way $(ARGS) && \
		{ test ! -s "$$way/nodes" || $(PLAY) gpuval.fleet.validate --limit "@$$way/nodes" -e "@$$way/settings.json" $(ARGS); }

report: $(VENV)/.ready ## Judge and report the latest run again (RUN=id: another run)
	$(PLAY) gpuval.fleet.report $(ARGS)

accept: $(VENV)/.ready ### Accept all nodes by several runs: the first one, and those after repairs (RUNS=a,b,...)
	$(call need,RUNS,the ids of runs with commas between them)
	$(PLAY) gpuval.fleet.accept $(call extra,accept_runs,$(RUNS)) $(ARGS)

deliver: $(VENV)/.ready ### Make the customer's copy of the latest run, with unique ids (IDS=mapping.txt), and send it
	$(PLAY) gpuval.fleet.deliver $(call extra,gpuval_node_ids,$(call path,$(IDS))) $(ARGS)

evidence: $(VENV)/.ready ### Make the evidence bundle of the latest run: all that its judgement read (RUN=id: another run, RENAMED=1: a second one without names of the site)
	$(PLAY) gpuval.fleet.evidence $(call extra,evidence_renamed,$(RENAMED)) $(ARGS)

clean: $(VENV)/.ready ## Remove what runs left on nodes and controller; keep results (FORCE=1: end a run whose controller lives)
	$(PLAY) gpuval.fleet.clean $(call extra,cleanup_force,$(FORCE)) $(ARGS)

environment: $(VENV)/.ready ## Install on SSH nodes what workloads without an image need: PyTorch, DeepSpeed (WHEELS=folder: offline)
	$(PLAY) gpuval.fleet.environment $(call extra,environment_wheels,$(call path,$(WHEELS))) $(ARGS)

probe: $(VENV)/.ready ### Find the reachable nodes, and pin their host keys
	$(PLAY) gpuval.fleet.probe $(ARGS)

network: $(VENV)/.ready ### Apply the declared network to the nodes, and measure it
	$(PLAY) gpuval.fleet.network $(ARGS)

build: $(VENV)/.ready ### Build the container images and upload them to the store, or push them and name them in INVENTORY (REGISTRY=host/path)
	$(PLAY) gpuval.fleet.build $(call extra,container_image_registry,$(if $(call typed,REGISTRY),$(REGISTRY))) $(ARGS)

load: $(VENV)/.ready ### Load the container images onto the nodes
	$(PLAY) gpuval.fleet.load $(ARGS)

models: $(VENV)/.ready ### Upload model and datasets to the store, with checksums (LIST=1: list those in the store)
	$(PLAY) gpuval.fleet.models $(if $(filter 1 true yes,$(LIST)),-e model_preload_list=true) $(ARGS)

keys: $(VENV)/.ready ### Create the SSH keys of the run's multi-node work and copy them to the nodes (SIGNING=1: the key that signs evidence, ROTATE=1: a new one)
	$(if $(ROTATE),$(call need,SIGNING,as ROTATE=1 replaces the key that signs evidence: SIGNING=1))
	$(PLAY) gpuval.fleet.keys $(if $(filter 1 true yes,$(SIGNING)),-e ssh_keys_signing=true) \
		$(if $(filter 1 true yes,$(ROTATE)),-e ssh_keys_rotate=true) $(ARGS)

verify: $(VENV)/.ready ### Check signatures, digests and the judgement of an evidence bundle, offline (FOLDER=, KEY=public.pem,..., SIGN=1: sign it, too)
	$(call need,FOLDER,the folder of an evidence bundle)
	$(PLAY) gpuval.fleet.verify $(call extra,verify_folder,$(call path,$(FOLDER))) $(call extra,verify_keys,$(KEY)) \
		$(if $(filter 1 true yes,$(SIGN)),-e verify_sign=true) $(ARGS)

deepspeed: $(VENV)/.ready ### Train on all nodes together: collectives, then DeepSpeed with its own launcher
	$(PLAY) gpuval.fleet.deepspeed $(ARGS)

fabric: $(VENV)/.ready ### Find the bad node, link or switch by rounds of pairs over all nodes
	$(PLAY) gpuval.fleet.fabric $(ARGS)

hostfile: $(VENV)/.ready ### Write a hostfile (ADDRESS slots=N) of the nodes that passed in the latest run (FILE=path)
	$(PLAY) gpuval.fleet.hostfile $(call extra,run_hostfile,$(call path,$(FILE))) $(ARGS)

in-cluster: $(VENV)/.ready ### Run the controller in the cluster: Job, ServiceAccount, Role, inventory, secrets (RECURRING=1: a CronJob, REMOVE=1: remove it, ARGS=--check: show it)
	$(PLAY) gpuval.fleet.$(if $(filter 1 true yes,$(RECURRING)),recurring -e run_recurring_apply=true,in_cluster) \
		$(if $(filter 1 true yes,$(REMOVE)),-e kubernetes_controller_state=absent) $(ARGS)

recurring: $(VENV)/.ready ### Write schedules that validate idle nodes: systemd timer, crontab, scrontab, CronJob (OUTPUT=folder)
	$(PLAY) gpuval.fleet.recurring $(call extra,run_recurring_output,$(call path,$(OUTPUT))) $(ARGS)

window: $(VENV)/.ready ### Change how many nodes of the run work (N=20, 0 is all) and load images (TRANSFERS=8) at once
	$(call need,N,how many nodes work at once)
	@$(LOOK) gpuval.fleet.window -e run_window_nodes=$(N) -e run_window_transfers=$(TRANSFERS) $(ARGS)

baseline: $(VENV)/.ready ### Make a baseline from the accepted nodes of the latest run (NAME=site)
	$(PLAY) gpuval.fleet.baseline $(if $(NAME),-e baseline_name=$(NAME)) $(ARGS)

calibrate: $(VENV)/.ready ### Keep the spreads of the latest run, no figures, for fleets that are too small to show theirs (NAME=site)
	$(PLAY) gpuval.fleet.baseline -e baseline_state=spreads -e baseline_name=$(or $(NAME),spreads) $(ARGS)

baseline-diff: $(VENV)/.ready ### Compare two baseline files (BEFORE=, AFTER=)
	$(call need,BEFORE,a baseline file)$(call need,AFTER,a baseline file)
	$(PLAY) gpuval.fleet.compare_baselines $(call extra,baseline_before,$(call path,$(BEFORE))) $(call extra,baseline_after,$(call path,$(AFTER))) $(ARGS)

##@ Look

status: $(VENV)/.ready ## Show the state of the latest run (NODE=, WATCH=1, ALL=1, LINES=1)
	@$(LOOK) gpuval.fleet.status $(if $(NODE),-e 'status_nodes=$(NODE)') $(if $(WATCH),-e status_watch=true) \
		$(if $(ALL),-e status_all=true) $(if $(filter 1 true yes,$(LINES)),-e status_lines=true) $(ARGS)

runs: $(VENV)/.ready ### List the runs of INVENTORY: state, nodes by verdict, age
	@$(LOOK) gpuval.fleet.runs $(ARGS)

history: $(VENV)/.ready ## Show a node, part, SKU or the fleet over all runs (NODE=, SERIAL=, SKU=, METRIC=, SINCE=, OUTPUT=)
	@$(PLAY) gpuval.fleet.history $(call extra,history_node,$(NODE)) $(call extra,history_serial,$(SERIAL)) \
		$(call extra,history_sku,$(SKU)) $(call extra,history_metric,$(METRIC)) $(call extra,history_since,$(SINCE)) \
		$(call extra,history_output,$(call path,$(OUTPUT))) $(ARGS)

notebook: $(VENV)/.notebook ### Plot the history by node, rack, firmware and time into a notebook (METRIC=, SKU=, SINCE=, OUTPUT=fleet.ipynb)
	$(PLAY) gpuval.fleet.history $(call extra,history_sku,$(SKU)) $(call extra,history_since,$(SINCE)) \
		$(call extra,history_output,$(CURDIR)/.gpuval/history.parquet) $(ARGS)
	GPUVAL_HISTORY=$(CURDIR)/.gpuval/history.parquet GPUVAL_METRIC=$(METRIC) \
		$(BIN)/jupyter execute --output='$(call path,$(or $(OUTPUT),fleet.ipynb))' notebooks/fleet.ipynb

logs: $(VENV)/.ready ## Collect all logs and host evidence of the latest run
	$(PLAY) gpuval.fleet.logs $(ARGS)

follow: $(VENV)/.ready ## Follow the log of the running stage on NODE=, or of STAGE=
	$(call need,NODE,a node of the run)
	@$(call reach,follow)

shell: $(VENV)/.ready ## Open a shell on NODE=; on a cluster in its running stage or STAGE=
	$(call need,NODE,a node of the run)
	@$(call reach,shell)

##@ Develop

# Once for all workers, each of which would take 11 s of CPU to compile them; `make test` shows what is wrong with a test.
compiled-tests: $(VENV)/.tests
	@$(PYTEST) --collect-only -qq >/dev/null 2>&1 || true

test: tests-ready ## Run the quick tests (ARGS goes to pytest)
	$(PYTEST) $(WORKERS) -m "not slow" $(ARGS)

test-all: tests-ready ## Run all tests (ARGS="-m slow": those that `make test` leaves out)
	$(PYTEST) $(WORKERS) $(ARGS)

lint: lint-ansible lint-code ## Check style and structure: ruff, names, import-linter, mypy, yamllint, ansible-lint, validate-modules, changelog, workflows

lint-ansible: $(VENV)/.tests
	PATH="$(CURDIR)/tests/kit/bin:$$PATH" $(BIN)/ansible-lint --offline

lint-code: $(VENV)/.tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) -q tests/unit/collection/test_names.py
	PYTHONPATH=collections:$(COLLECTION)/node $(BIN)/lint-imports --no-cache
	MYPYPATH=collections $(BIN)/mypy $(COLLECTION)/plugins/plugin_utils
	MYPYPATH=$(COLLECTION)/node $(BIN)/mypy $(COLLECTION)/node/gpuval_runner $(COLLECTION)/node/gpuval_workloads
	$(BIN)/yamllint --strict .
	$(BIN)/python tests/validate_modules.py
	cd $(COLLECTION) && $(BIN)/antsibull-changelog lint
	$(BIN)/zizmor --quiet --offline --min-severity medium .github/workflows

sanity: $(VENV)/.tests ### Run ansible-test's sanity tests in their own environments (ARGS goes to ansible-test)
	$(BIN)/python tests/sanity.py $(ARGS)

molecule: $(VENV)/.tests $(NODE_VENV)/.ready ### Run the molecule scenario: the local flow, shortened (ARGS="-s fleet": another one)
	molecule test $(ARGS)

reference: $(VENV)/.ready ### Write docs/reference/ from argument specs, schemas, criteria and SKUs
	$(BIN)/python tools/reference.py

docs: $(VENV)/.docs ### Build the documentation into site/, with an example report (offline)
	$(BIN)/mkdocs build --strict $(ARGS)

docs-serve: $(VENV)/.docs ### Serve the documentation at http://127.0.0.1:8000 and rebuild it on every change
	$(BIN)/mkdocs serve $(ARGS)

locks: $(VENV)/.ready ### Lock requirements/*.txt by hash into requirements/locked/ (by uv)
	$(PYTHON) tools/lock.py

distclean: ### Remove the environments; keep results and store
	rm -rf $(VENV) $(NODE_VENV) $(VENV).lock $(NODE_VENV).lock dist site

##@ Release

bundle: $(VENV)/.ready ## Pack wheels, collections, images, model and source for a site without internet (BUNDLE=path)
	$(PLAY) gpuval.fleet.bundle $(call extra,bundle_output,$(call path,$(BUNDLE))) $(ARGS)

release: $(VENV)/.ready ### Rehearse a release on this machine (DRY_RUN=1; STEPS="archive install": only these); the forge makes it by a tag
	$(BIN)/python tools/release.py $(if $(filter 1 true yes,$(DRY_RUN)),--dry-run) $(STEPS)

container: $(VENV)/.ready ### Build the image that is controller and node in one, localhost/gpuval/validate:dev-VENDOR (VENDOR=nvidia, amd or cpu)
	$(BIN)/python tools/publish_images.py $(or $(VENDOR),nvidia) --image training --image validate --registry localhost/gpuval --tag dev

build-collection: $(VENV)/.ready ### Build the collection's archive into dist/
	$(BIN)/ansible-galaxy collection build --force --output-path dist $(COLLECTION)

# Hashes, PyTorch's build and the site's indexes: tools/install.py. It sets the mark last: an installation that was cut off begins again.
install = @$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "gpuval needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1): install one, then make setup PYTHON=python3.11" >&2; \
	exit 1; } && $(PYTHON) tools/install.py $@ $(1)

# Both environments at once; when one fails, the other is completed, and its packages need not come again.
side_by_side = +@$(MAKE) --silent $(if $(findstring jobserver,$(MAKEFLAGS)),,--jobs 2) $(1) || { \
	for mark in $(1); do test -e $$mark || echo "$${mark%/*} is not ready, for the reason above" >&2; done; exit 1; }

.PHONY: ready tests-ready
ready:
	$(call side_by_side,$(VENV)/.ready $(NODE_VENV)/.ready)

tests-ready:
	$(call side_by_side,$(VENV)/.tests $(NODE_VENV)/.gangs)

$(VENV)/.ready: requirements/locked/controller.txt requirements/locked/uv.txt
	$(call install,controller)

$(VENV)/.tests: requirements/locked/development.txt $(VENV)/.ready
	$(call install,development)

$(VENV)/.notebook: requirements/locked/notebook.txt $(VENV)/.ready
	$(call install,notebook)

$(VENV)/.docs: requirements/locked/docs.txt $(VENV)/.ready
	$(call install,docs)

$(NODE_VENV)/.ready: requirements/locked/node.txt requirements/locked/uv.txt
	$(call install,node)

# Apart: one machine is no gang.
$(NODE_VENV)/.gangs: requirements/locked/gangs.txt $(NODE_VENV)/.ready
	$(call install,gangs)
