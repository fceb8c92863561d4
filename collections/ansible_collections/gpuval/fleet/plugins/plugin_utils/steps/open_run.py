"""Open a run: freeze the expected nodes and their stages, or resume the run that a dead controller left."""

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.template import trust_as_template
from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes

from ..core import extensions
from ..core.errors import SettingError
from ..core.escape import NODE_NAME
from ..core.host_values import templar_of
from ..core.paths import project_path, version
from ..core.stages import depth_of
from ..core.step_options import PathText, StoreOptions
from ..gang import rounds
from ..gang.forming import LEAST
from ..judge import baseline, criteria, declared, expected_fingerprints, sku_catalogue
from ..runs import applied_criteria, cabling_plan, labels, node_ids, opening, origin, plans
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..runs.action import RunAction, RunOptions
from ..store import file_recovery, guard
from ..store.access import open_store
from ..watch.scheduler import scheduler_of

# Read at import: the workers that Ansible forks for tasks inherit the cached files.
criteria.beside_shipped(())
sku_catalogue.shipped()


class OpenRunOptions(RunOptions):
    baseline: PathText = ""
    #: Whether this controller may resume a run that only the store has.
    from_store: bool = False
    folder: str = ""
    runs_folder: str = ""
    placement: str = "ssh"
    kubeconfig: PathText = ""
    context: str = ""
    namespace: str = ""
    profile: str
    gang_stages: Sequence[str] = ()
    gangs_alone: bool = False
    only_idle: bool = False
    accepts: bool = True
    profile_stages: Sequence[str]
    workloads: Mapping[str, Any]
    deadline_seconds: float
    limit: str = ""
    ids: Any = None
    run_tags: Sequence[str] = ()
    skip_tags: Sequence[str] = ()
    criteria: Sequence[PathText] = ()
    store: StoreOptions


def open_run(action: RunAction, options: OpenRunOptions) -> dict[str, Any]:
    results = options.results_dir
    action.remember_place(options)
    # Read now, so that a broken file ends the command before the run.
    criteria.beside_shipped(options.criteria)
    if options.baseline:
        baseline.read(Path(options.baseline))
    hosts = action.task_vars["ansible_play_hosts_all"]
    if len(hosts) < LEAST:
        _ensure_no_gang_asked(options, len(hosts))
    together = options.gang_stages if len(hosts) >= LEAST else []
    # One node runs no multi-node stages; if --limit chose it, the run therefore proves less.
    left_alone = bool(options.limit and options.gang_stages and not together)
    profile = plans.with_datasets(options.profile_stages, together, options.workloads, in_pods=bool(options.namespace))
    select = functools.partial(
        plans.select, profile, declarations=options.workloads, run_tags=options.run_tags, skip_tags=options.skip_tags
    )
    stages, gang_stages = select(together)
    if options.gangs_alone and not gang_stages:
        raise run_folder.RunError(f"the tags leave no stage of gangs to run: {', '.join(options.gang_stages)}")
    reasons = {
        "limit": bool(options.limit),
        "stages": options.gangs_alone or left_alone or not options.accepts,
        "tags": [*stages, *gang_stages] != [*profile, *together],
    }
    narrowed = [reason for reason, applies in reasons.items() if applies]
    place = scheduler_of(options.placement)(action, options).place(options.namespace)
    places = (place, options.namespace)  # runs of earlier versions name their kubeconfig
    hostvars, ids = action.task_vars["hostvars"], node_ids.NodeIdReader(project_path)
    read_plan = functools.cache(lambda path: cabling_plan.read(project_path(path), hostvars))
    nodes = {name: _expected(name, hostvars[name], stages, gang_stages, ids, options.ids, read_plan) for name in hosts}
    with contextlib.nullcontext() if action.check_mode else run_folder.turn(results):
        newest = run_folder.runs_of(results, action.inventory, opened=True)[:1]
        is_named = options.run_id not in ("", run_folder.LATEST)
        for folder in [run_folder.find(results, options.run_id)] if is_named else newest:  # the run to resume, if any
            if options.from_store and is_named and not (folder.is_known or action.check_mode):
                restored = run_folder.find_or_place(results, options.run_id, action.inventory)
                run_folder.keep_inventory(restored, results, action.inventory)
                file_recovery.bring_back(restored, _folder_of(options, options.run_id), open_store(options.store))
            elif folder.is_known and not (folder.is_imported or action.check_mode):
                file_recovery.recover(folder, open_store(options.store), action.display.warning)
        run_id = opening.choose_run_id(
            results, options.run_id, nodes, options.profile, narrowed, action.inventory, extensions.digests(), places
        )
        folder = run_folder.find_or_place(results, run_id, action.inventory)
        if folder.is_imported:
            raise run_folder.RunError(
                f"{folder.path} is another controller's run, imported by `make report`: give another gpuval_run_id, or "
                "none, to validate here"
            )
        frozen_run = folder.read_run() if folder.is_known else None
        if frozen_run:
            run_folder.ensure_of(folder, action.inventory)
            opening.ensure_placed(frozen_run, places)
        run_document = _wanted(run_id, options, [*profile, *options.gang_stages], narrowed, nodes)
        # trusted, since the templates come from the collection's own roles
        template = templar_of(action, action.task_vars).template
        less = opening.shortened(
            [*stages, *gang_stages], action.task_vars, lambda text: template(trust_as_template(text))
        )
        run_document |= {"shortened": less} if less else {}
        if not together and options.gang_stages:
            run_document["gang_stages"] = select(options.gang_stages)[1]
        if frozen_run is None or not any(node.get("gang_stages") for node in frozen_run["nodes"].values()):
            rounds.check_run_id(results, run_document)
        is_part = frozen_run is None and options.limit and not action.check_mode
        standings, part_of = applied_criteria.standings_before(results, run_document) if is_part else ([], "")
        run_document |= {"part_of": part_of} if part_of else {}
        run, joined = opening.merge(frozen_run, run_document, gangs_formed=folder.gangs_file.exists())
        changed = run != frozen_run
        attended = folder.seen() if frozen_run else None
        if not action.check_mode:
            run = _opened(action, folder, run, options, place)
        if left_alone:
            action.display.warning(
                f"--limit leaves {', '.join(hosts)} alone: {', '.join(options.gang_stages)} need two nodes and "
                "are left out; choose others of its kind beside it"
            )
        if not action.check_mode:  # freeze what the run is judged by
            _files, baseline_path, remarks = applied_criteria.judged_by(folder, options.criteria, options.baseline)
            for remark in remarks:
                action.display.warning(remark)
            if baseline_path:
                baseline.read(Path(baseline_path), run["run_id"])
            applied_criteria.keep_criteria(folder, options.criteria, options.baseline, standings)
    summary = _summary(run, frozen_run, joined, attended)
    action.display.display(summary)
    return {
        "changed": changed,
        "run": run,
        "resumed": frozen_run is not None,
        "joined": joined if frozen_run else [],
        "results": str(folder.path),
        "opened": "" if action.check_mode else str(folder.path),  # the callback plugin `acceptance` reads it
        "msg": summary,
    }


def _opened(action, folder, run, options, place):
    """Add state and origin to a run document and write it to run.json. Returns the run."""
    worker = run_state.this_process(os.getppid(), run_folder.now())
    its_origin = {
        "inventory": origin.kept(action.inventory, options.results_dir),
        "store": origin.store_of(options.store),
        "namespace": place,
    }
    state = run_state.opened(run, worker, worker["since"])
    run = {**run, "origin": run.get("origin") or its_origin, "state": state}
    run_folder.keep_inventory(folder, options.results_dir, action.inventory)
    folder.write_run(run)
    lacking = guard.shortage(options.results_dir)
    if lacking > 0:
        action.display.warning(
            f"the disk of gpuval_results_dir lacks {human_bytes(lacking)}: free space at {options.results_dir}, or "
            "set it to a folder on another disk"
        )
    return run


def _ensure_no_gang_asked(options, count):
    """Raise RunError if options ask for multi-node work in a run of too few hosts."""
    stages, advice = options.gang_stages, "choose more (gpuval_hosts, --limit), or"
    if options.gangs_alone:
        raise run_folder.RunError(
            f"{', '.join(stages)}: {count} host, and a gang has two or more: {advice} use `make validate`"
        )
    jobs = [stage for stage in stages if stage not in extensions.found("stages")]
    if jobs and (not options.limit or {*options.profile_stages} <= {plans.FACTS, plans.IMAGE}):
        raise run_folder.RunError(
            f"{', '.join(jobs)}: nodes: gang needs two hosts or more, and this run has {count}: {advice} leave the job "
            "out of gpuval_jobs"
        )
    if tags := [tag for tag in options.run_tags if tag in {*stages} - {*jobs}]:
        raise run_folder.RunError(
            f"--tags {','.join(tags)}: {count} host, and a gang has two or more: {advice} leave the tag out"
        )


def _folder_of(options, run_id):
    return run_folder.check_folder(options.folder or f"{options.runs_folder}/{run_id}")


def _wanted(run_id, options, stages, narrowed, nodes):
    """A new run.json without state and origin. `narrowed`: reasons; `nodes`: {name: entry of run.json}."""
    workloads = options.workloads
    run_document = {
        "schema": "gpuval.run/1",
        "version": version(),
        "run_id": run_id,
        "folder": _folder_of(options, run_id),
        "bucket": options.store["bucket"],
        "profile": options.profile,
        "depth": depth_of(options.profile),
        "created_at": run_folder.now(),
        "finished_at": None,
        "deadline_seconds": options.deadline_seconds,
        "narrowed_by": narrowed,
        "workloads": {stage: str(workloads[stage].get("workload", stage)) for stage in stages if stage in workloads},
        "setups": expected_fingerprints.of_stages(workloads, stages),
        "nodes": nodes,
    }
    further = {"extensions": extensions.digests(), "only_idle": options.only_idle}
    return {**run_document, **{key: value for key, value in further.items() if value}}


def _expected(name, hostvars, stages, gang_stages, ids, default_ids, read_plan):
    """A node's entry in run.json, from its host variables. `ids`, `read_plan`: read node ids and a cabling plan."""
    if not NODE_NAME.fullmatch(name):
        raise run_folder.RunError(
            f"the inventory name {name!r} cannot be a file name: letters, digits, '.', '_' and '-' only"
        )
    count = hostvars.get("gpuval_gpu_count")
    try:
        count = None if count in (None, "") else int(count)
    except (TypeError, ValueError):
        raise run_folder.RunError(f"{name}: gpuval_gpu_count {count!r} is not a whole number") from None
    expected = {"stages": stages, "sku": str(hostvars.get("gpuval_sku") or "auto"), "gpu_count": count}
    try:
        optional_fields = {
            "gang_stages": gang_stages,
            "versions": declared.parse_versions(hostvars.get("gpuval_versions")),
            "declared": declared.of_host(hostvars) | cabling_plan.of_host(name, hostvars, read_plan),
            "nics": declared.parse_nics(hostvars.get("gpuval_nic_count"), hostvars.get("gpuval_nic_rate")),
            "labels": labels.of_host(hostvars),
        }
    except SettingError as error:
        raise run_folder.RunError(f"{name}: {error}") from None
    optional_fields["id"] = ids(hostvars.get("gpuval_node_ids", default_ids)).get(name)
    return {**expected, **{key: value for key, value in optional_fields.items() if value}}


def _summary(run, frozen_run, joined, attended):
    summary = f"run {run['run_id']}: {len(run['nodes'])} node(s), profile {run['profile']}"
    if frozen_run is None:
        return summary
    if attended.attended:
        return f"{summary}; {attended.name} already, controller {attended.who()}: this console attaches to it"
    if joined:
        return f"{summary}; joined by {', '.join(joined)}"
    if run_folder.is_unreported(run):
        return f"{summary}, resumed at its collection: its nodes are done"
    return f"{summary}, resumed where it stopped (-e gpuval_run_id=new starts another one)"
