"""Join runs to one acceptance: write acceptance.json and a letter, and fail unless every expected node is PASS."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...module_utils.image_archive import sha256_of
from ..acceptance.decision import AcceptanceInputs, decide
from ..acceptance.letter import letter_html
from ..core import schemas
from ..core.paths import version
from ..core.text import listed, meant, some_of
from ..evidence_bundle import RUN, contents, signing_keys, statement
from ..judge import repairs
from ..records import report_file
from ..report.summary import final_block
from ..runs import folder as run_folder
from ..runs import origin
from ..runs import state as run_state
from ..runs.action import RunAction
from ..runs.folder import RunError

FILE, LETTER = "acceptance.json", "acceptance.html"
#: Max seconds by which the end of a run may lie in the future, since clocks of controllers differ.
MAX_AHEAD_SECONDS = 60.0
MAX_WINDOW_DAYS = 3650


def accept_runs(
    action: RunAction,
    *,
    runs: Any,
    results_dir: Path = Path("results"),
    state_dir: Path = Path(".gpuval"),
    window_days: int = repairs.LOOK_BACK_DAYS,
    declared: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """``runs``: ids with commas between, first of a run of all nodes; ``state_dir``: has keys that verify bundles;
    ``window_days``: how long ago a run that accepts a node may have ended; ``declared``: value of gpuval_repairs."""
    named, at, hosts = listed(runs), run_folder.now(), action.task_vars["ansible_play_hosts_all"]
    if not named or not 1 <= window_days <= MAX_WINDOW_DAYS:
        raise RunError(f"accept needs RUNS=a,b,... (accept_runs), and accept_window_days from 1 to {MAX_WINDOW_DAYS}")
    if action.task_vars.get("ansible_limit"):
        raise RunError("accept takes no --limit: all nodes of the inventory are expected")
    known = {folder.path.name: folder for folder in run_folder.known_runs(results_dir, imported=True)}
    for run_id in named:
        if run_id not in known:
            raise RunError(f"RUNS: no run {run_id}: {run_folder.hint(run_id, [*known])}; `make runs` lists them")
        run_folder.ensure_of(known[run_id], action.inventory)
    since = repairs.days_before(min(known[run_id].read_run()["finished_at"] or at for run_id in named))
    ended = repairs.read_runs(results_dir, since, action.inventory)
    _ensure_judged({run.run_id: run.head for run in ended}, known, named, since, action.inventory)
    inputs = AcceptanceInputs(
        runs=ended, named=named, inventory=origin.shown(action.inventory), hosts=hosts, since=since, accepted_at=at,
        repairs=repairs.parse_repairs(declared), window_days=window_days, version=version(),
    )  # fmt: skip
    names = {*hosts, *(sighting.name for sighting in inputs.sightings)}
    if strangers := [repair.node for repair in inputs.repairs if repair.node not in names]:
        raise RunError(f"{repairs.SETTING}: no run has {some_of(strangers)}{meant(strangers[0], inputs.expected)}")
    document = decide(inputs)
    for run in document["runs"]:
        run.update(_bundle_of(run, known[run["run_id"]].path / contents.FOLDER, state_dir))
    schemas.validate("acceptance", document, what=FILE)
    path = known[named[0]].path.parent / FILE
    is_new = {**run_folder.read_object(path), "accepted_at": at, "since": since} != document
    changed = is_new or not path.with_name(LETTER).exists()
    if changed and not action.check_mode:
        if is_new:
            run_folder.write_json(path, document)
        _write_letter(path, known)
    action.display.display(*final_block(document).split("\n"))
    message = f"FINAL ACCEPTANCE: {document['verdict']}; read {path}"
    return {"changed": changed, "failed": document["verdict"] != "PASS", "acceptance_file": str(path), "msg": message}


def _bundle_of(run, folder, state_dir):
    """The `bundle` field of a run in acceptance.json, if ``folder`` has its sealed evidence bundle. Raises RunError."""
    report = folder / RUN / "report.json"
    if not (
        (folder / statement.STATEMENT).is_file() and report.is_file() and sha256_of(report) == run["report_sha256"]
    ):
        return {}
    checked = statement.check(folder, signing_keys.read_known_keys(state_dir))
    if checked.problems:
        raise RunError(f"{folder} is damaged: {some_of(checked.problems)}: `make evidence RUN={run['run_id']}`")
    signatures = [{"keyid": keyid, "state": state} for keyid, state in checked.signatures.items()]
    return {"bundle": {"root_digest": checked.root_digest, "signatures": signatures}}


def _write_letter(path, known):
    """Write acceptance.html for the acceptance.json at ``path``. ``known``: {run id: its folder}."""
    document = run_folder.read_object(path)
    run_ids = {document["first_run"], *(run["run_id"] for run in document["runs"] if run["accepts"])}
    reports = {one: report_file.unpacked(report_file.read(known[one].path / "report.json")) for one in run_ids}
    run_folder.write_bytes(path.with_name(LETTER), letter_html(document, sha256_of(path), reports).encode())


def _ensure_judged(heads, known, named, since, inventory):
    """Raise RunError if a needed run has no usable report. ``heads``: {run id: `run` of its report}."""
    for run_id, folder in known.items():
        run = run_folder.read_object(folder.run_file)
        began = run.get("created_at", "") >= since and run_state.of({"finished_at": None, **run}).get("started_at")
        is_needed = run_id in named or (began and origin.is_same(folder.inventory, inventory))
        if is_needed and (problem := _problem_of(heads.get(run_id))):
            raise RunError(f"run {run_id} {problem.format(report=f'`make report RUN={run_id}`')}")
    first = min((heads[run_id] for run_id in named), key=lambda head: head["created_at"])
    if {*first["narrowed_by"]} - {"busy"} or first.get("shortened"):
        reason = "the first of RUNS, left out nodes or work: name a whole run of all nodes"
        raise RunError(f"run {first['run_id']}, {reason}")


def _problem_of(head):
    """What an acceptance lacks of a report, whose `run` is ``head``; empty if nothing."""
    if head is None:
        return "has no final report, and every run counts: wait for its end, or {report}"
    if "criteria" not in head:
        return "names no criteria: {report} adds their digest"
    is_ahead = run_folder.seconds_since(head["finished_at"]) < -MAX_AHEAD_SECONDS
    if is_ahead or head["created_at"] > head["finished_at"]:
        times = f"from {head['created_at']} to {head['finished_at']}"
        return f"lasts {times}, which cannot be: set the clock of its controller, and validate again"
    return ""
