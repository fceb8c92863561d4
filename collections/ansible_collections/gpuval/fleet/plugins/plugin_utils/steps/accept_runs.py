"""Join runs to one acceptance, write acceptance.json and print its block; fails unless every expected node is PASS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..acceptance.decision import AcceptanceInputs, decide
from ..core import schemas
from ..core.paths import version
from ..core.text import listed, meant, some_of
from ..judge import repairs
from ..report.summary import final_block
from ..runs import folder as run_folder
from ..runs import origin
from ..runs import state as run_state
from ..runs.action import RunAction
from ..runs.folder import RunError

FILE = "acceptance.json"
#: Seconds by which clocks of controllers may differ.
MAX_AHEAD_SECONDS = 60.0


def accept_runs(
    action: RunAction,
    *,
    runs: Any,
    results_dir: Path = Path("results"),
    window_days: int = repairs.LOOK_BACK_DAYS,
    declared: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    named, at, hosts = listed(runs), run_folder.now(), action.task_vars["ansible_play_hosts_all"]
    if not named or window_days < 1:
        raise RunError("accept needs RUNS=a,b,... (accept_runs), and accept_window_days of 1 or more")
    known = {folder.path.name: folder for folder in run_folder.known_runs(results_dir, imported=True)}
    for run_id in named:
        if run_id not in known:
            raise RunError(f"RUNS: no run {run_id}: {run_folder.hint(run_id, [*known])}; `make runs` lists them")
        run_folder.ensure_of(known[run_id], action.inventory)
    since = repairs.days_before(at, max(window_days, repairs.LOOK_BACK_DAYS))
    ended = repairs.read_runs(results_dir, since, action.inventory)
    _ensure_judged({run.run_id: run.head for run in ended}, known, named, since, action.inventory)
    inputs = AcceptanceInputs(
        runs=ended, named=named, inventory=origin.shown(action.inventory), hosts=hosts, since=since, accepted_at=at,
        repairs=repairs.parse_repairs(declared), window_days=window_days, version=version(),
    )  # fmt: skip
    if strangers := [
        one.node for one in inputs.repairs if one.node not in {*hosts, *(s.name for s in inputs.sightings)}
    ]:
        raise RunError(f"{repairs.SETTING}: no run has {some_of(strangers)}{meant(strangers[0], inputs.expected)}")
    document = decide(inputs)
    schemas.validate("acceptance", document, what=FILE)
    path = known[named[0]].path.parent / FILE
    changed = {**run_folder.read_object(path), "accepted_at": at, "since": since} != document
    if changed and not action.check_mode:
        run_folder.write_json(path, document)
    action.display.display(*final_block(document).split("\n"))
    message = f"FINAL ACCEPTANCE: {document['verdict']}; read {path}"
    return {"changed": changed, "failed": document["verdict"] != "PASS", "acceptance_file": str(path), "msg": message}


def _ensure_judged(heads, known, named, since, inventory):
    """Raise RunError for a run that the acceptance cannot judge by, but needs: ``heads`` are the reports' by run id."""
    for run_id, folder in known.items():
        run = run_folder.read_object(folder.run_file)
        began = run.get("created_at", "") >= since and run_state.of({"finished_at": None, **run}).get("started_at")
        head, ended = heads.get(run_id), run.get("finished_at") or ""
        if run_id not in named and not (began and origin.is_same(folder.inventory, inventory)):
            continue
        rules = (
            (
                head is None and bool(ended) and ended < since,
                f"ended before {since}: leave it out, or raise accept_window_days",
            ),
            (
                head is None,
                f"has no final report, and every run counts: wait for its end, or `make report RUN={run_id}`",
            ),
            (
                head is not None and "criteria" not in head,
                f"names no criteria: `make report RUN={run_id}` adds their digest",
            ),
            (
                head is not None
                and run_folder.seconds_since(max(head["created_at"], head["finished_at"])) < -MAX_AHEAD_SECONDS,
                "ends in the future: set the clock of its controller, and validate again",
            ),
            (
                head is not None and head["created_at"] > head["finished_at"],
                "ends before it begins: set the clock of its controller, and validate again",
            ),
        )
        for applies, problem in rules:
            if applies:
                raise RunError(f"run {run_id} {problem}")
    first = min((heads[run_id] for run_id in named), key=lambda head: head["created_at"])
    if first["narrowed_by"] or first.get("shortened"):
        raise RunError(
            f"run {first['run_id']}, the first of RUNS, left out nodes or work: name a whole run of all nodes"
        )
