"""Reads faults of machines and GPUs from verdict.json of this controller's earlier runs."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from ..core import schemas
from ..records import environment
from ..records.failure_classes import NODE, subject_of
from . import folder as run_folder
from . import origin

#: Prefix of the identity of a node that is known only by its name in the inventory.
BY_NAME = "name "


def read(
    folder: run_folder.RunFolder, run: Mapping[str, Any], window_days: int
) -> tuple[dict[tuple[str, str], set[str]], list[str]]:
    """Returns {(fault class, machine or GPU): ids of runs that ended with this fault}, and remarks on unusable files.
    Counts runs opened up to `window_days` before `run`. Names of nodes count only within one inventory."""
    begin = datetime.fromisoformat(run["created_at"])
    since = begin - timedelta(days=window_days)
    run_ids_by_fault: dict[tuple[str, str], set[str]] = defaultdict(set)
    remarks = []
    for earlier_run in run_folder.known_runs(folder.results):
        run_id, path = earlier_run.path.name, earlier_run.verdict_file
        if run_id == run["run_id"] or not path.exists() or path.stat().st_mtime < since.timestamp():
            continue
        try:
            document = run_folder.read_json(path)
            schemas.validate("verdict", document, what=str(path))
            opened = datetime.fromisoformat(document.get("created_at") or document["judged_at"])
            counts = bool(document.get("finished_at")) and since <= opened < begin
        except (OSError, ValueError, TypeError) as error:
            remarks.append(f"{path} is damaged ({error}): actions do not escalate by run {run_id}")
            continue
        if not counts:
            continue
        same_inventory = origin.is_same(earlier_run.inventory, folder.inventory)
        for faults in document.get("faults", {}).values():
            for fault in faults:
                speaks_of = fault.get("subject") or subject_of(fault["class"])
                if speaks_of == NODE and (same_inventory or not fault["of"].startswith(BY_NAME)):
                    run_ids_by_fault[fault["class"], fault["of"]].add(run_id)
    return run_ids_by_fault, remarks


def gpus_of(folder: run_folder.RunFolder, run: Mapping[str, Any], names: Collection[str]) -> dict[str, frozenset[str]]:
    """{node: lower-case UUIDs of the GPUs that it had in earlier runs of the inventory}, for these names of nodes."""
    gpus: dict[str, set[str]] = {name: set() for name in names}
    for earlier in run_folder.runs_of(folder.results, folder.inventory) if names else ():
        opened = run_folder.read_object(earlier.run_file).get("created_at", "")
        for name in names if opened < run["created_at"] else ():
            facts = run_folder.read_object(earlier.evidence_file(name, "facts"))
            gpus[name].update(uuid.lower() for uuid in environment.texts(facts.get("environment"), "gpus[].uuid"))
    return {name: frozenset(uuids) for name, uuids in gpus.items()}


def declared_in(results: Path) -> Callable[[str, str], str]:
    """A function of a run id and a machine: the GPU count and SKU that this run expected of it, as text of settings;
    empty if the run expected none or saw no fault of the machine."""

    @cache
    def documents(run_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        folder = run_folder.find(results, run_id)
        faults = run_folder.read_object(folder.verdict_file).get("faults", {})
        return faults, run_folder.read_object(folder.run_file).get("nodes", {})

    def declared(run_id: str, machine: str) -> str:
        faults, nodes = documents(run_id)
        name = next((name for name, found in faults.items() if any(one["of"] == machine for one in found)), "")
        node = nodes.get(name, {})
        settings = [("gpuval_gpu_count", node.get("gpu_count")), ("gpuval_sku", node.get("sku"))]
        return " and ".join(f"{key} {value}" for key, value in settings if value and value != "auto")

    return declared
