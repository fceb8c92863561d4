"""Imports a run of another controller from the store into the results folder, where all commands can read it."""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...module_utils.store import Store
from ..core import schemas
from ..gang import document as gang_document
from ..gang import rounds
from ..runs import applied_criteria, publishing
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..store import stored_runs
from ..store.stored_runs import MAX_DOCUMENT_BYTES

#: Prefix of the reason why an imported run has no results of its multi-node stages.
UNREAD = "the results of the gangs cannot be read"


def import_run(store: Store, run: dict[str, Any], results: Path, inventory: Sequence[str]) -> run_folder.RunFolder:
    """Import a run's nodes, launches, criteria, baseline and verdict from the store; the step collect_run imports its
    evidence. Does so again if the earlier import lacked the run's end, its controller's verdict or results of gangs.
    Raises RunError, or StoreError, and then changes nothing."""
    folder = run_folder.find_or_place(results, run["run_id"], inventory)
    if folder.run_file.exists() and not folder.is_imported:
        raise run_folder.RunError(f"{folder.path} is a run of this controller: no other run replaces it")
    known = run_folder.read_object(folder.import_file)  # a damaged file reads as {}, and is written again
    if known and {**known, **_origin_of(store, run)} != known:
        raise run_folder.RunError(
            f"{folder.path} has another run of this id (bucket {known.get('bucket')}, folder {known.get('folder')}, "
            f"opened {known.get('created_at')}): remove it, or give another gpuval_results_dir"
        )
    if known.get("is_whole") and run_folder.read_object(folder.run_file) == _judged_elsewhere(run):
        return folder
    launches, problems = _read_watch(store, run)
    criteria = _read_criteria(store, run)
    verdict = _read(store, run, f"report/{publishing.VERDICT_FILE}", "verdict")
    stages = [(name, stage) for name, node in run["nodes"].items() for stage in node.get("gang_stages", ())]
    is_whole = bool(run["finished_at"] and verdict)  # the verdict of a run's own controller comes after its end
    gangs: dict[str, Any] | None = None
    round_runs: dict[str, Any] = {}
    try:
        if stages:
            gangs, round_runs = _read_gangs(store, run)
    except stored_runs.Damaged as error:  # why multi-node stages are not judged
        is_whole, reason = False, f"{UNREAD}: {error}"
        problems = [*problems, *({"node": name, "stage": stage, "reason": reason} for name, stage in stages)]
    run_folder.keep_inventory(folder, results, inventory)
    for name, round_run in round_runs.items():
        below = gang_document.round_folder(folder, name)
        if round_run is None:
            below.run_file.unlink(missing_ok=True)
        else:
            _write(store, below, *round_run)
    _write_or_delete(folder.gangs_file, gangs)
    _write_or_delete(folder.criteria_file, criteria)
    _write_or_delete(folder.verdict_file, verdict)
    _write(store, folder, run, launches, problems, is_whole=is_whole)
    if run_folder.latest_run(results) is None or run_folder.own(results, "") is None:
        run_folder.remember(folder)
    return folder


def _write_or_delete(path: Path, document: dict[str, Any] | None) -> None:
    if document is None:
        path.unlink(missing_ok=True)
    else:
        run_folder.write_json(path, document)


def _write(
    store: Store,
    folder: run_folder.RunFolder,
    run: dict[str, Any],
    launches: Mapping[str, dict[str, Any]],
    problems: Sequence[Mapping[str, Any]],
    *,
    is_whole: bool = False,
) -> None:
    """Write an imported run's files, run.json last, so that an interrupted import starts again. Evidence stays."""
    run_folder.write_json(folder.import_file, {**_origin_of(store, run), "is_whole": is_whole})
    folder.collected_file.unlink(missing_ok=True)
    shutil.rmtree(folder.state / "launches", ignore_errors=True)
    for name, launch in launches.items():
        folder.write_launch(name, launch)
    run_folder.write_json(folder.problems_file, problems)
    folder.write_run(_judged_elsewhere(run))


def _judged_elsewhere(run: dict[str, Any]) -> dict[str, Any]:
    """The run.json of an imported run, as judged and without workers, so that no command here resumes or ends it."""
    state = {**run_state.of(run), "name": run_state.JUDGED, "workers": []}
    return {**{key: value for key, value in run.items() if key != "origin"}, "state": state}


def _origin_of(store: Store, run: dict[str, Any]) -> dict[str, str]:
    return {"bucket": store.connection.bucket, "folder": run["folder"], "created_at": run["created_at"]}


def _read(
    store: Store, run: dict[str, Any], name: str, schema: str, max_bytes: int = MAX_DOCUMENT_BYTES
) -> dict[str, Any] | None:
    """Read the run's document ``name`` from the store and check its ``schema``; None without one. Raises RunError."""
    key = f"{run['folder']}/{name}"
    raw = store.get_if_there(key, max_bytes=max_bytes)
    document = None if raw is None else stored_runs.read_document(raw, schema, key, max_bytes)
    if document and document.get("run_id", run["run_id"]) != run["run_id"]:
        raise run_folder.RunError(f"{key} in the store is that of another run")
    return document


def _read_watch(store: Store, run: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Read a run's launches, by node, and the problems of its evidence from the store. Raises RunError."""
    document = _read(store, run, publishing.WATCH_FILE, "watch") or {"nodes": {}, "problems": []}
    launches = {}
    for name, node in document["nodes"].items():
        if name in run["nodes"] and node["launch"]:
            try:
                schemas.validate("launch", node["launch"], what=f"launch of {name}")
            except schemas.Invalid as error:
                raise run_folder.RunError(f"{run['folder']}/{publishing.WATCH_FILE} in the store: {error}") from error
            launches[name] = node["launch"]
    return launches, document["problems"]


def _read_criteria(store: Store, run: dict[str, Any]) -> dict[str, Any] | None:
    criteria = _read(store, run, applied_criteria.CRITERIA_FILE, "judging", applied_criteria.MAX_JUDGING_BYTES)
    if criteria is None:
        return None
    baseline = criteria["baseline"]
    for file in [*criteria["criteria"], *([baseline] if baseline else [])]:
        if hashlib.sha256(file["text"].encode()).hexdigest() != file["sha256"]:
            raise run_folder.RunError(
                f"{run['folder']}/{applied_criteria.CRITERIA_FILE} in the store: {file['name']} is damaged"
            )
    return criteria


def _read_gangs(store: Store, run: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the results of a run's multi-node stages: (gangs.json, {round name: (run.json, launches, problems)}). Each
    round of tests is a run of its own; None for one that the store lacks. Raises RunError."""
    key = gang_document.key_of(run)
    document = _read(store, run, f"{gang_document.FOLDER}/{gang_document.FILE}", "gangs")
    if document is None:
        raise stored_runs.Damaged(
            f"the store has no {key}: none was formed before the run ended, or its controller could not write it"
        )
    if problem := gang_document.problem_of(document, run["nodes"]):
        raise stored_runs.Damaged(f"{key} in the store: {problem}")
    return document, {item["name"]: _read_round(store, run, item) for item in document["rounds"]}


def _read_round(store: Store, run: dict[str, Any], round_entry: dict[str, Any]) -> tuple[Any, ...] | None:
    key_prefix = f"{run['folder']}/{gang_document.FOLDER}/{round_entry['name']}"
    round_run = stored_runs.read_run(store, key_prefix)
    if round_run is None:
        return None
    members = {node for nodes in round_entry["gangs"].values() for node in nodes}
    run_id = rounds.run_id_of(run["run_id"], round_entry["name"])
    if round_run["run_id"] != run_id or not round_run["nodes"].keys() <= members:
        raise stored_runs.Damaged(f"{key_prefix}/{publishing.RUN_FILE} in the store is that of another round")
    return (round_run, *_read_watch(store, round_run))
