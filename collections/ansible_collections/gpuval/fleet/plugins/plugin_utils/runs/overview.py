"""Lists the runs of an inventory, and the nodes of a run to validate again."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.escape import one_line
from ..core.text import some_of, table
from . import cleanable, datasets, plans, publishing, state
from . import folder as run_folder

VERDICTS = ("PASS", "FAIL", "INCOMPLETE")
HEAD = ("run", "state", *VERDICTS, "nodes", "profile", "opened")
MAX_REASON = 400
AGE_UNITS = (("d", 86400), ("h", 3600), ("min", 60))
DAMAGED_ROW: dict[str, Any] = {
    "state": "damaged",
    "verdict": None,
    "counts": {},
    "nodes": None,
    "profile": "-",
    "opened_at": "",
    "age_seconds": None,
}


def rows(results: Path, inventory: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each run of the inventory, the newest first: id, state, counts of verdicts, nodes, age. For a damaged
    run.json the reason names the command that restores it."""
    run_rows = []
    for folder in run_folder.known_runs(results, inventory):
        run_id = folder.path.name
        try:
            run, verdict = folder.read_run(), run_folder.read_object(folder.verdict_file)
            if run["run_id"] != run_id:
                raise folder.damaged(folder.run_file, f"it is of run {run['run_id']}")
        except run_folder.RunError as error:
            run_rows.append({**DAMAGED_ROW, "run_id": run_id, "reason": str(error)})
            continue
        present_state, opened_at = folder.seen(), state.opened_at(run)
        run_rows.append(
            {
                "run_id": run["run_id"],
                "state": present_state.name,
                "reason": present_state.reason,
                "verdict": verdict.get("verdict") if run["finished_at"] else None,
                "counts": {word: verdict.get("counts", {}).get(word, 0) for word in VERDICTS} if verdict else {},
                "nodes": len(run["nodes"]),
                "profile": run["profile"],
                "opened_at": opened_at,
                "age_seconds": round(max(0.0, run_folder.seconds_since(opened_at))),
            }
        )
    return sorted(run_rows, key=lambda row: (str(row["opened_at"]), str(row["run_id"])), reverse=True)


def lines(run_rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of runs, with the reason for each run that failed."""
    table_lines = table([HEAD, *map(_cells, run_rows)])
    reasons = [f"{row['run_id']}: {one_line(row['reason'], MAX_REASON)}" for row in run_rows if row["reason"]]
    return [*table_lines, *reasons]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    status = f"{row['state']}: {row['verdict']}" if row["verdict"] and row["state"] == state.JUDGED else row["state"]
    counts = (str(row["counts"].get(word, "-")) for word in VERDICTS)
    profile, seconds, age = one_line(row["profile"], 40), row["age_seconds"], "-"
    if seconds is not None:
        unit, length = next(((unit, length) for unit, length in AGE_UNITS if seconds >= 2 * length), ("s", 1))
        age = f"{seconds // length:.0f} {unit} ago"
    return (row["run_id"], status, *counts, str(row["nodes"] or "-"), profile, age)


def rest(folder: run_folder.RunFolder, declares: Callable[[str], bool]) -> tuple[list[str], dict[str, Any]]:
    """Names of a run's nodes that did not pass, and the settings to validate them again. ``declares``: whether the
    inventory has a stage. Raises RunError for a run without verdict, or with stages that only its command chose."""
    run, verdict = folder.read_run(), publishing.judged(folder)
    if verdict is None or not publishing.is_final(run, verdict):
        raise run_folder.RunError(without_verdict(folder, run))
    names = [name for name in run["nodes"] if verdict["nodes"].get(name) != "PASS"]
    stages = {stage for node in run["nodes"].values() for stage in (*node["stages"], *node.get("gang_stages", ()))}
    work = sorted(name for name in stages - {plans.FACTS, plans.IMAGE} if not name.startswith(datasets.STAGE))
    lacking = [name for name in work if alone(run) or not declares(name)]
    if names and lacking:
        raise run_folder.RunError(
            f"run {run['run_id']} ran {some_of(lacking)}, which its command chose: repeat that command "
            f"with --limit @{folder.path / 'failed_nodes.txt'}"
        )
    return names, {} if run["profile"] == "custom" else {"gpuval_profile": run["profile"]}


def without_verdict(folder: run_folder.RunFolder, run: Mapping[str, Any]) -> str:
    """A line on the state of a run without verdict, and on what `make validate` does with the run."""
    present_state = folder.seen()
    line = f"run {run['run_id']} has no verdict, it is {present_state.line()}"
    if present_state.resume:  # the line names the command
        return line
    consequence = "resumes it" if run_folder.is_open(run) and run_folder.is_in_time(folder, run) else "starts another"
    return f"{line}: `make validate` {consequence}"


def interrupted(folder: run_folder.RunFolder) -> str:
    """A line on what happens to a run whose controller is being interrupted, as by Ctrl-C; empty if the run is over.
    Raises RunError for a damaged run.json."""
    run = folder.read_run()
    if not run_folder.is_open(run):
        return ""
    node_state = "its nodes are done"
    if run["finished_at"] is None and state.of(run)["name"] != state.COLLECTING:
        node_state = "its nodes go on working" if state.of(run).get("started_at") else "no node has begun"
    run_id, end = run["run_id"], cleanable.command(folder.results, run["run_id"])
    return f"run {run_id} is interrupted, {node_state}: the same command, with RUN={run_id}, resumes it, {end} ends it"


def passed_line(folder: run_folder.RunFolder) -> str:
    """A line on a run whose nodes all passed: whether it is PARTIAL, and which checks of the fleet did not pass."""
    report = run_folder.read_object(folder.path / "report.json")
    checks = report.get("fleet", {}).get("checks", ())
    lacking = dict.fromkeys(one["name"] for one in checks if one["verdict"] in ("fail", "missing"))
    line = "all nodes passed"
    if report.get("verdict") == "PARTIAL":
        line += ", and it is PARTIAL, of some nodes or stages: `make validate` covers all"
    if lacking:
        line += f"; checks of the fleet did not: {some_of(lacking)}: see {folder.path / 'report.html'}"
    return line


def alone(run: Mapping[str, Any]) -> bool:
    """Whether a run cannot accept any node, since it had only jobs or multi-node stages."""
    return run["profile"] == "custom" and "stages" in run["narrowed_by"]
