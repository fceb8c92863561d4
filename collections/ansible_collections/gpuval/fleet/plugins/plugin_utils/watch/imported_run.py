"""Another controller's run, copied from the store into a results folder, so that it can be judged here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...module_utils.store import Store
from ..core import schemas
from ..gang import document as gang_document
from ..gang import rounds
from ..runs import applied_criteria, publishing
from ..runs import folder as run_folder
from ..store import stored_runs

#: Prefix of the reason why a copy has no results of the run's gangs.
UNREAD = "the results of the gangs cannot be read"


def bring(store: Store, run: dict[str, Any], results: Path, inventory: Sequence[str] = ()) -> run_folder.RunFolder:
    """Make or renew the copy: expected nodes, launches, criteria and baseline. Raises RunError.

    collect_run brings records, logs and series.
    """
    folder = run_folder.find_or_place(results, run["run_id"], inventory)
    if folder.run_file.exists() and not folder.is_copy:
        raise run_folder.RunError(f"{folder.path} is a run of this controller: a copy does not replace it")
    if folder.run_file.exists():
        _check_same(folder, run, store)
    run_folder.keep_inventory(folder, results, inventory)
    run_folder.write_json(folder.copied_file, _source(store, run))
    folder.write_run(run)
    _launches(store, run, folder)
    _judging(store, run, folder)
    _verdict(store, run, folder)
    _gangs(store, run, folder)
    if run_folder.latest_run(results) is None or run_folder.own(results, "") is None:
        run_folder.remember(folder)
    return folder


def _source(store: Store, run: dict[str, Any]) -> dict[str, str]:
    return {"bucket": store.connection.bucket, "folder": run["folder"], "created_at": run["created_at"]}


def _check_same(folder: run_folder.RunFolder, run: dict[str, Any], store: Store) -> None:
    known = run_folder.read_object(folder.copied_file)  # empty where it is damaged: it is written again
    if known and known != _source(store, run):
        raise run_folder.RunError(
            f"{folder.path} is a copy of another run of this id (bucket {known.get('bucket')}, folder "
            f"{known.get('folder')}, opened {known.get('created_at')}): remove it, or give another gpuval_results_dir"
        )


def _read(store: Store, run: dict[str, Any], name: str, schema: str, max_bytes: int) -> dict[str, Any] | None:
    key = f"{run['folder']}/{name}"
    raw = store.get_if_there(key, max_bytes=max_bytes)
    return None if raw is None else stored_runs.read_document(raw, schema, key, max_bytes)


def _launches(store: Store, run: dict[str, Any], folder: run_folder.RunFolder) -> None:
    document = _read(store, run, publishing.WATCH_FILE, "watch", stored_runs.MAX_DOCUMENT_BYTES)
    if document is None:
        return
    if document["run_id"] != run["run_id"]:
        raise run_folder.RunError(f"{run['folder']}/{publishing.WATCH_FILE} in the store is that of another run")
    for name, node in document["nodes"].items():
        if name not in run["nodes"]:
            continue
        if node["launch"] is None:
            folder.launch_file(name).unlink(missing_ok=True)
            continue
        try:
            folder.write_launch(name, node["launch"])
        except schemas.Invalid as error:
            raise run_folder.RunError(f"{run['folder']}/{publishing.WATCH_FILE} in the store: {error}") from error
    ours = (
        problem
        for problem in folder.read_problems()
        if problem not in document["problems"] and not problem["reason"].startswith((UNREAD, gang_document.ABORTED))
    )
    run_folder.write_json(folder.problems_file, [*document["problems"], *ours])


def _gangs(store: Store, run: dict[str, Any], folder: run_folder.RunFolder) -> None:
    """The results of the run's gangs, and the copies of their rounds, which are runs of their own.

    What cannot be read becomes the reason why nothing of the gangs is judged.
    """
    asked = {name: node["gang_stages"] for name, node in run["nodes"].items() if node.get("gang_stages")}
    file = folder.gangs_file
    if not asked:
        file.unlink(missing_ok=True)
        return
    try:
        document = _read(
            store, run, f"{gang_document.FOLDER}/{gang_document.FILE}", "gangs", stored_runs.MAX_DOCUMENT_BYTES
        )
        if document is not None:
            _check_gangs(run, document)
            for item in document["rounds"]:
                _round(store, run, folder, item)
    except stored_runs.Damaged as error:
        file.unlink(missing_ok=True)
        _problem(folder, asked, f"{UNREAD}: {error}")
        return
    if document is None:
        file.unlink(missing_ok=True)
        key = gang_document.key_of(run)
        _problem(folder, asked, f"{UNREAD}: the store has no {key}: none was formed before the run ended, "
                 "or its controller could not write it")  # fmt: skip
    else:
        gang_document.write(folder, document)


def _check_gangs(run: dict[str, Any], document: dict[str, Any]) -> None:
    problem = gang_document.problem_of(document, run["nodes"])
    if problem:
        raise stored_runs.Damaged(f"{gang_document.key_of(run)} in the store: {problem}")


def _round(store: Store, run: dict[str, Any], folder: run_folder.RunFolder, item: dict[str, Any]) -> None:
    """The copy of a round; none of one that is not in the store."""
    below = gang_document.round_folder(folder, item["name"])
    place = f"{run['folder']}/{gang_document.FOLDER}/{item['name']}"
    found = stored_runs.read_run(store, place)
    if found is None:
        below.run_file.unlink(missing_ok=True)
        return
    members = {node for nodes in item["gangs"].values() for node in nodes}
    if found["run_id"] != rounds.run_id_of(run["run_id"], item["name"]) or not found["nodes"].keys() <= members:
        raise stored_runs.Damaged(f"{place}/{publishing.RUN_FILE} in the store is that of another round")
    run_folder.write_json(below.copied_file, _source(store, found))
    below.write_run(found)
    _launches(store, found, below)


def _problem(folder: run_folder.RunFolder, asked: dict[str, list[str]], reason: str) -> None:
    """Record for each node and stage why nothing of their gangs is judged."""
    folder.add_problems(
        [{"node": name, "stage": stage, "reason": reason} for name, stages in asked.items() for stage in stages]
    )


def _verdict(store: Store, run: dict[str, Any], folder: run_folder.RunFolder) -> None:
    """The verdict of the run's own controller, with the digests of the evidence that it judged."""
    name = f"report/{publishing.VERDICT_FILE}"
    document = _read(store, run, name, "verdict", stored_runs.MAX_DOCUMENT_BYTES)
    if document is None:
        publishing.verdict_file(folder).unlink(missing_ok=True)
    elif document["run_id"] != run["run_id"]:
        raise run_folder.RunError(f"{run['folder']}/{name} in the store is that of another run")
    else:
        run_folder.write_json(publishing.verdict_file(folder), document)


def _judging(store: Store, run: dict[str, Any], folder: run_folder.RunFolder) -> None:
    limit = applied_criteria.MAX_JUDGING_BYTES
    document = _read(store, run, applied_criteria.CRITERIA_FILE, "judging", limit)
    if document is None:
        applied_criteria.criteria_file(folder).unlink(missing_ok=True)
        return
    baseline = document["baseline"]
    for file in [*document["criteria"], *([baseline] if baseline else [])]:
        if hashlib.sha256(file["text"].encode()).hexdigest() != file["sha256"]:
            raise run_folder.RunError(
                f"{run['folder']}/{applied_criteria.CRITERIA_FILE} in the store: {file['name']} is damaged"
            )
    run_folder.write_json(applied_criteria.criteria_file(folder), document)
