"""The health file (``gpuval.health/1``): the last verdict on each node over all runs, for job gates and Prometheus."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...module_utils.redaction import SecretRedactor
from ..core import files, schemas
from ..core.escape import one_line
from ..judge.entries import headline
from ..runs import failed_checks
from ..runs import folder as run_folder
from ..runs.folder import RunError
from .prometheus import health_text

SCHEMA = "gpuval.health/1"
TURN_SECONDS = 30.0
#: The message for a node whose FAIL was removed by a run of some stages.
REPAIRED = "the failed checks passed in a run of some stages: validate all stages"
_hidden = SecretRedactor()


def update(path: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    """Update the health file ``path`` and ``<path>.prom`` with an ended run's report. Returns {node name: entry}.
    Raises RunError for a damaged or locked file, and OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    late = RunError(f"another command has locked {path} for {TURN_SECONDS:.0f} s: end it, then `make report`")
    with files.locked(path.with_name(f".{path.name}.lock"), TURN_SECONDS, late):
        before = read(path)
        nodes = merged(before, report)
        document = {"schema": SCHEMA, "updated_at": run_folder.now(), "nodes": nodes}
        schemas.validate("health", document, what=str(path))
        if nodes != before:
            files.replace(path, run_folder.json_bytes(document), 0o644)
        files.replace(path.with_name(f"{path.name}.prom"), health_text(nodes).encode(), 0o644)
    return nodes


def read(path: Path) -> dict[str, Any]:
    """Read a health file: {node name: entry}, empty without one. Raises RunError for a damaged file, and OSError."""
    if not path.exists():
        return {}
    try:
        document: dict[str, Any] = run_folder.read_json(path)
        schemas.validate("health", document, what="it")
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}): restore or remove it, then `make report`") from error
    return dict(document["nodes"])


def merged(earlier: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """The health entries by node, updated with a run's report. A FAIL stays until the checks that failed pass."""
    run = report["run"]
    entries = dict(earlier)
    for node in report["nodes"]:
        name, before = node["name"], earlier.get(node["name"])
        if before and before["finished_at"] > run["finished_at"]:
            continue
        failed = bool(before and before["verdict"] == failed_checks.FAIL)
        full = failed_checks.is_whole(run, node)
        decision = failed_checks.decide(frozenset(before["open"]) if before else None, node, failed=failed, full=full)
        if before and decision.stays:
            entries[name] = {**before, "open": sorted(decision.open)}
            continue
        if (verdict := failed_checks.verdict_after(node, run, before and before["verdict"], failed=failed)) is None:
            continue
        action, reason = (node.get("action") or {"name": None})["name"], (headline(node) or {"reason": ""})["reason"]
        if node["verdict"] == failed_checks.PASS:
            action, reason = (action, "") if verdict == failed_checks.PASS else ("retest", REPAIRED)
        entries[name] = {
            "verdict": verdict,
            "run_id": run["run_id"],
            "finished_at": run["finished_at"],
            "class": one_line(node["class"], 96) if node.get("class") else None,
            "action": action,
            "reason": one_line(_hidden(reason), 240),
            "open": sorted(decision.open),
        }
    return entries
