"""Close a run on the controller before its nodes are cleaned, and report what the clean removed and left."""

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from ansible.errors import AnsiblePromptInterrupt, AnsiblePromptNoninteractive

from ...module_utils.store import StoreError
from ..core.paths import project_path
from ..core.step_options import PathText, StoreOptions
from ..gang import document, keys, rounds
from ..mad import jobs as mad_jobs
from ..runs import cleanable, origin
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..runs.action import RunAction, RunOptions
from ..ssh.run_keys import RunKeys
from ..store import file_recovery
from ..store.access import open_store, put_run
from ..watch import cleaning
from ..watch.scheduler import scheduler_of

#: Seconds to wait for an answer to a prompt: a program with a terminal never gives one.
ANSWER_SECONDS = 60


class CleanRunOptions(RunOptions):
    state: Literal["closed", "reported"] = "closed"
    placement: str = "ssh"
    kubeconfig: PathText = ""
    context: str = ""
    namespace: str = ""
    clean_store: bool = False
    force: bool = False
    all_runs: bool = False
    run_ids: Sequence[str] = ()
    nodes: Sequence[str] = ()
    store: StoreOptions


def clean_run(action: RunAction, options: CleanRunOptions) -> dict[str, Any]:
    if options.state == "reported":
        return _report(action, options)
    results, run_id = options.results_dir, options.run_id
    store = origin.store_of(options.store)
    place = scheduler_of(options.placement)(action, options).place(options.namespace)
    places = (place, options.namespace)  # runs of earlier versions name their kubeconfig
    run_sets = cleanable.find(results, action.inventory, places, store)
    action.display.display(*run_sets.notes())
    requested = run_sets.active if options.all_runs else []
    latest = run_folder.latest_run(results, action.inventory)  # finds a run even without run.json
    if not run_id and not run_sets.latest and (latest is None or latest.is_imported):
        _ensure_may_end(action, options, results, requested)
        _name_active(action, results, run_sets.active)
        nothing = {"run_ids": [], "marked_by": [], "round_ids": [], "active": run_sets.active, "nodes": []}
        return {"changed": False, **nothing, "msg": "there is no run to close"}
    folder = run_folder.resolve(results, run_id or run_sets.latest, action.inventory, opened=True)
    run_id = folder.path.name
    _ensure_may_end(action, options, results, [run_id, *requested])
    active = [other for other in run_sets.active if other != run_id]
    access = open_store(options.store)
    details = {"run_ids": [run_id], "marked_by": [run_id], "round_ids": [], "active": active, "nodes": []}
    if folder.is_imported or not folder.is_known:
        return {"changed": False, **details, "msg": f"run {run_id} is not known here"}
    try:
        if not action.check_mode:
            file_recovery.recover(folder, access, action.display.warning)
        run = folder.read_run()
    except run_folder.RunError as error:  # nodes are cleaned even if run.json is damaged
        action.display.warning(str(error))
        if not action.check_mode:
            _forget_keys(folder)
        details |= {"round_ids": round_ids_of(folder), "nodes": holders(folder)}
        return {"changed": False, **details, "msg": f"run {run_id} is damaged"}
    run_folder.ensure_of(folder, action.inventory)
    namespace = run.get("origin", {}).get("namespace", place)
    if namespace not in places:
        raise run_folder.RunError(
            f"run {run_id} is placed in {namespace or 'SSH hosts'}, not {place}: clean with the settings that it had"
        )
    changed, state = run["finished_at"] is None, folder.seen()
    if changed and not state.never_started:
        phrase = "a clean would end" if action.check_mode else "this clean ends"
        action.display.display(f"{phrase} {_described(folder, state)}")
    if not action.check_mode:
        _end(action, folder, run, access)
    _name_active(action, results, active)
    if not active and not action.check_mode:  # an active run may still build its images
        opened = datetime.fromisoformat(run_state.opened_at(run)).timestamp()
        changed |= mad_jobs.remove_leftovers(project_path(options.store["state_dir"]), opened + 1) > 0
    run_ids = [run_id]
    if not options.run_id:  # clean also what earlier runs left
        run_ids += [other for other in run_sets.left if other not in (run_id, *active)]
    closed = [run_folder.find(results, other) for other in run_ids]
    for closed_folder in [] if action.check_mode else closed:  # nodes lose keys with their runs' folders
        changed |= _forget_keys(closed_folder)
    earlier = [] if options.run_id else [one for one in run_sets.all if one not in (run_id, *active)]
    deleted = 0
    for cleaned_id in (run_id, *earlier) if options.clean_store and not action.check_mode else ():
        with contextlib.suppress(run_folder.RunError):  # an earlier run may have no usable run.json
            deleted += access.delete_run(run_folder.find(results, cleaned_id).read_run()["folder"])
    return {
        "changed": changed or deleted > 0,
        "run_ids": run_ids,
        "marked_by": [run_id, *earlier],
        "round_ids": [round_id for other in closed for round_id in round_ids_of(other)],
        "active": active,
        "nodes": sorted({node for other in closed for node in holders(other)}),
        "deleted_objects": deleted,
    }


def _ensure_may_end(action, options, results, run_ids):
    """Ask whether to end runs whose controller lives. Raises RunError if that is declined, or cannot be asked."""
    for run_id in {} if options.force or action.check_mode else dict.fromkeys(run_ids):
        folder = run_folder.find(results, run_id)
        try:
            run, state = folder.read_run(), folder.seen()
        except run_folder.RunError:  # run.json is damaged
            continue
        if not (state.attended and run_folder.is_open(run)):
            continue
        described = _described(folder, state)
        try:
            answer = action.display.prompt_until(f"End {described}? [y/N]", seconds=ANSWER_SECONDS).strip().lower()
        except AnsiblePromptInterrupt:
            answer = b""
        except AnsiblePromptNoninteractive:
            force = cleanable.command(results, run_id).removesuffix("`") + " FORCE=1`"
            raise run_folder.RunError(f"{described} works on it: press Ctrl-C there, or {force} ends it") from None
        if answer not in (b"y", b"yes"):
            raise run_folder.RunError(f"run {run_id} goes on, and nothing was cleaned")


def _name_active(action, results, active):
    for run_id in active:
        command = cleanable.command(results, run_id)
        action.display.warning(f"the embedded store goes on, since it serves run {run_id}: to end that, {command}")


def _end(action, folder, run, access):
    """End a run, so that its controller stops, no controller resumes it, and readers of the store see its end."""
    state, ended = folder.seen(), run["finished_at"] is None
    run = {**run, "finished_at": run["finished_at"] or run_folder.now()}
    if state.attended is False and state.name not in (run_state.JUDGED, run_state.FAILED):
        run["state"] = {**run["state"], "name": run_state.FAILED, "reason": run_state.CLEANED}
        ended = True
    if not ended:
        return
    folder.write_run(run)
    if access.running():  # a reader that has only the store sees that the run has ended
        try:
            put_run(access.store(), run)
        except StoreError as error:
            action.display.warning(f"the store still has run {run['run_id']} as unfinished: {error}")
    for below, of_round in rounds_of(folder):
        if of_round["finished_at"] is None:
            below.write_run({**of_round, "finished_at": run["finished_at"]})


def _report(action, options):
    played = action.task_vars["ansible_play_hosts_all"]
    outcomes = {name: _outcome(action.task_vars["hostvars"], name) for name in played}
    if options.run_ids:
        outcomes = cleaning.spare(outcomes, options.nodes)
    outcomes |= cleaning.absent(options.nodes, played, action.task_vars["groups"]["all"])
    results, at = options.results_dir, run_folder.now()
    busy = cleanable.at_work(results, options.run_ids, played) if options.run_ids else {}
    goes_on = {run_id: (nodes, cleanable.command(results, run_id)) for run_id, nodes in busy.items()}
    summary = cleaning.summarize(options.run_ids, outcomes, trial=action.check_mode, goes_on=goes_on)
    # Clean nodes, and runs with only clean nodes, need no further clean, even if the inventory lacks them later.
    clean = dict.fromkeys((name for name, outcome in outcomes.items() if outcome["state"] == cleaning.CLEAN), at)
    runs = [run_folder.find(results, run_id) for run_id in options.run_ids] or run_folder.known_runs(results)
    opened_here = [folder for folder in runs if folder.run_file.exists() and not folder.is_imported]
    for folder in [] if action.check_mode else opened_here:
        run_folder.write_json(folder.cleaned_file, {**folder.read_cleaned(), **clean})
        if not summary.open and cleaning.LEFT_OUT not in summary.counts:
            folder.mark_cleaned()
    action.display.display(*summary.lines)
    return {
        "changed": False,
        "failed": bool(summary.open),
        "counts": summary.counts,
        "not_clean": summary.open,
        "msg": f"not clean: {', '.join(summary.open)}" if summary.open else summary.lines[0],
    }


def _outcome(hostvars, name):
    result = hostvars[name].get("cleanup_node") or {}
    if "outcome" in result:
        return result["outcome"]
    if result.get("failed") and not result.get("unreachable"):  # cleaning the node took too long
        return cleaning.answered(result)
    return cleaning.unreached(str(result.get("msg") or "the clean of this node did not take place"))


def _described(folder, state):
    """A run in words, for prompts: its id, its state and since when, the number of nodes at work, its controller."""
    nodes = len(cleanable.launched(folder))
    work = f", at work with {nodes} node{'' if nodes == 1 else 's'}" if nodes else ""
    controller = "without a controller" if state.attended is False else f"controller {state.who() or 'not known'}"
    return f"run {folder.path.name}, {state.name} since {state.since}{work}, {controller}"


def rounds_of(folder):
    """(folder, run.json) of each readable round of a run's multi-node tests. On nodes a round has its own run id."""
    run_rounds = []
    for below in document.known_folders(folder):
        with contextlib.suppress(run_folder.RunError):  # damaged or incomplete: no controller continues it
            run_rounds.append((below, below.read_run()))
    return run_rounds


def round_ids_of(folder):
    """Run ids that a run's multi-node rounds, even damaged ones, have on nodes, where they left tokens and keys."""
    named = {below.path.name for below in document.known_folders(folder)}
    with contextlib.suppress(run_folder.RunError):  # damaged: only the folders name rounds
        named |= {item["name"] for item in (document.read(folder) or {"rounds": ()})["rounds"]}
    return [rounds.run_id_of(folder.path.name, name) for name in sorted(named) if rounds.ROUND_NAME.fullmatch(name)]


def holders(folder):
    """Names of nodes on which a run may have left something, even if the inventory no longer has them."""
    cleaned = folder.read_cleaned()
    return [name for name, launch in folder.read_launches().items() if cleaning.may_hold(launch, cleaned.get(name))]


def _forget_keys(folder):
    """Remove the keys of a run and of its rounds. Returns whether the run had any."""
    keys.forget_all(folder)
    return RunKeys(folder.state / "ssh").remove()
