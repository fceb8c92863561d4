"""Another controller's run, imported once from the store into the results: from then on it is like any other."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
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

#: Prefix of the reason why an imported run has no results of its gangs.
UNREAD = "the results of the gangs cannot be read"
NO_CRITERIA = (
    "the store has no criteria of the run beside the shipped ones: if its controller had gpuval_criteria or "
    "gpuval_baseline, set them here too"
)


def import_run(
    store: Store, run: dict[str, Any], results: Path, inventory: Sequence[str], warn: Callable[[str], object]
) -> run_folder.RunFolder:
    """Bring expected nodes, launches, criteria, baseline and verdict: once, and anew of a run that had not ended or
    could not be read wholly. Raises RunError.

    collect_run brings records, logs and series.
    """
    folder = run_folder.find_or_place(results, run["run_id"], inventory)
    if folder.run_file.exists() and not folder.is_imported:
        raise run_folder.RunError(f"{folder.path} is a run of this controller: no other one replaces it")
    known = run_folder.read_object(folder.import_file)  # empty where it is damaged: it is written again
    if known and known != _source(store, run):
        raise run_folder.RunError(
            f"{folder.path} has another run of this id (bucket {known.get('bucket')}, folder {known.get('folder')}, "
            f"opened {known.get('created_at')}): remove it, or give another gpuval_results_dir"
        )
    imported = _judged_elsewhere(run)
    is_whole = not any(problem["reason"].startswith(UNREAD) for problem in folder.read_problems())
    if run["finished_at"] and is_whole and run_folder.read_object(folder.run_file) == imported:
        return folder
    folder.run_file.unlink(missing_ok=True)  # it comes last: an import that is broken off is begun again
    for name in (".state", "nodes", "gangs"):
        shutil.rmtree(folder.path / name, ignore_errors=True)
    run_folder.keep_inventory(folder, results, inventory)
    run_folder.write_json(folder.import_file, _source(store, run))
    _import_launches(store, run, folder)
    if criteria := _read(store, run, applied_criteria.CRITERIA_FILE, "judging", applied_criteria.MAX_JUDGING_BYTES):
        _check_digests(run, criteria)
        run_folder.write_json(applied_criteria.criteria_file(folder), criteria)
    else:
        warn(NO_CRITERIA)
    if verdict := _read(store, run, f"report/{publishing.VERDICT_FILE}", "verdict"):
        run_folder.write_json(publishing.verdict_file(folder), verdict)
    _import_gangs(store, run, folder)
    folder.write_run(imported)
    if run_folder.latest_run(results) is None or run_folder.own(results, "") is None:
        run_folder.remember(folder)
    return folder


def _judged_elsewhere(run: dict[str, Any]) -> dict[str, Any]:
    """The run as no command here ends, resumes or concludes it."""
    state = {**run_state.of(run), "name": run_state.JUDGED, "workers": []}
    return {**{key: value for key, value in run.items() if key != "origin"}, "state": state}


def _source(store: Store, run: dict[str, Any]) -> dict[str, str]:
    return {"bucket": store.connection.bucket, "folder": run["folder"], "created_at": run["created_at"]}


def _read(
    store: Store, run: dict[str, Any], name: str, schema: str, max_bytes: int = MAX_DOCUMENT_BYTES
) -> dict[str, Any] | None:
    """A document of the run; None where the store has none. Raises RunError."""
    key = f"{run['folder']}/{name}"
    raw = store.get_if_there(key, max_bytes=max_bytes)
    document = None if raw is None else stored_runs.read_document(raw, schema, key, max_bytes)
    if document and document.get("run_id", run["run_id"]) != run["run_id"]:
        raise run_folder.RunError(f"{key} in the store is that of another run")
    return document


def _import_launches(store: Store, run: dict[str, Any], folder: run_folder.RunFolder) -> None:
    document = _read(store, run, publishing.WATCH_FILE, "watch") or {"nodes": {}, "problems": []}
    for name in document["nodes"].keys() & run["nodes"].keys():
        try:
            if launch := document["nodes"][name]["launch"]:
                folder.write_launch(name, launch)
        except schemas.Invalid as error:
            raise run_folder.RunError(f"{run['folder']}/{publishing.WATCH_FILE} in the store: {error}") from error
    run_folder.write_json(folder.problems_file, document["problems"])


def _check_digests(run: dict[str, Any], criteria: dict[str, Any]) -> None:
    baseline = criteria["baseline"]
    for file in [*criteria["criteria"], *([baseline] if baseline else [])]:
        if hashlib.sha256(file["text"].encode()).hexdigest() != file["sha256"]:
            raise run_folder.RunError(
                f"{run['folder']}/{applied_criteria.CRITERIA_FILE} in the store: {file['name']} is damaged"
            )


def _import_gangs(store: Store, run: dict[str, Any], folder: run_folder.RunFolder) -> None:
    """The results of the run's gangs. What cannot be read becomes the reason why nothing of the gangs is judged."""
    stages = [(name, stage) for name, node in run["nodes"].items() for stage in node.get("gang_stages", ())]
    try:
        if stages:
            gang_document.write(folder, _read_gangs(store, run, folder))
    except stored_runs.Damaged as error:
        reason = f"{UNREAD}: {error}"
        folder.add_problems([{"node": name, "stage": stage, "reason": reason} for name, stage in stages])


def _read_gangs(store: Store, run: dict[str, Any], folder: run_folder.RunFolder) -> dict[str, Any]:
    """The document of the gangs, after their rounds, which are runs of their own, were imported. Raises RunError."""
    key = gang_document.key_of(run)
    document = _read(store, run, f"{gang_document.FOLDER}/{gang_document.FILE}", "gangs")
    if document is None:
        raise stored_runs.Damaged(
            f"the store has no {key}: none was formed before the run ended, or its controller could not write it"
        )
    if problem := gang_document.problem_of(document, run["nodes"]):
        raise stored_runs.Damaged(f"{key} in the store: {problem}")
    for item in document["rounds"]:
        _import_round(store, run, folder, item)
    return document


def _import_round(store: Store, run: dict[str, Any], folder: run_folder.RunFolder, item: dict[str, Any]) -> None:
    below = gang_document.round_folder(folder, item["name"])
    place = f"{run['folder']}/{gang_document.FOLDER}/{item['name']}"
    round_run = stored_runs.read_run(store, place)
    if round_run is None:
        return
    members = {node for nodes in item["gangs"].values() for node in nodes}
    run_id = rounds.run_id_of(run["run_id"], item["name"])
    if round_run["run_id"] != run_id or not round_run["nodes"].keys() <= members:
        raise stored_runs.Damaged(f"{place}/{publishing.RUN_FILE} in the store is that of another round")
    run_folder.write_json(below.import_file, _source(store, round_run))
    _import_launches(store, round_run, below)
    below.write_run(_judged_elsewhere(round_run))
