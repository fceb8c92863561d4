"""Judge a run's evidence by its criteria, and write report.json."""

import gc
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from ..core import commands
from ..core.paths import version
from ..core.step_options import PathText
from ..core.text import first_lines
from ..gang import document, judging, keys
from ..judge import actions, baseline, criteria
from ..records.evidence import NOT_COLLECTED, UNREAD
from ..report import differences, write_file
from ..report import judged as judged_report
from ..runs import applied_criteria, earlier_faults, publishing
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..runs.action import RunAction, RunOptions

#: Max lines on checks that another release judged differently.
MAX_CHANGES = 40


class JudgeRunOptions(RunOptions):
    baseline: PathText = ""
    finish: bool = True
    criteria: Sequence[PathText] = ()


def judge_run(action: RunAction, options: JudgeRunOptions) -> dict[str, Any]:
    if action.check_mode:
        return {"changed": False, "skipped": True, "verdict": None}
    gc.disable()  # millions of objects live until the end of the judgement
    try:
        return _judge(action, options)
    finally:
        gc.enable()


def _judge(action, options):
    folder = action.folder(options)
    run = folder.read_run()
    files, baseline_path, remarks = applied_criteria.judged_by(folder, options.criteria, options.baseline)
    earlier, damaged = earlier_faults.read(folder, run, actions.shipped()["window_days"])
    for remark in [*remarks, *damaged]:
        action.display.warning(remark)
    checks = criteria.beside_shipped(files)
    baseline_read = baseline.read(Path(baseline_path), run["run_id"]) if baseline_path else None
    judged = publishing.judged(folder)
    frozen = publishing.is_final(run, judged)
    abandoned = run_folder.is_abandoned(folder, run)
    gangs = document.read(folder)
    problems = chain(*(one.read_problems() for one in (folder, *document.round_folders(folder, gangs))))
    open_ends = (problem["reason"] for problem in problems if problem["stage"])
    unread = any(reason.startswith((UNREAD, NOT_COLLECTED)) for reason in open_ends)
    if ((options.finish and not unread) or abandoned) and not folder.is_imported and run["finished_at"] is None:
        run = {**run, "finished_at": run_folder.now()}
        if abandoned:  # an abandoned run counts as judged once it is reported
            run["state"] = {**run["state"], "name": run_state.COLLECTING}
        folder.write_run(run)
        keys.forget_all(folder)  # keys of an interrupted round, which is not resumed
    is_given = folder.is_imported and bool(options.criteria or options.baseline)  # imported runs do not keep criteria
    facts = judging.present_facts(
        folder, run, earlier=earlier, declared=earlier_faults.declared_in(folder.results),
        verdict_before=judged, is_frozen=frozen,
        is_attended=bool(run_folder.goes_on(folder, run) and folder.seen().attended),
        given=applied_criteria.document_of(folder, options.criteria, options.baseline) if is_given else None,
    )  # fmt: skip
    inputs = judging.read_inputs(
        folder, run, checks, gangs=gangs, baseline=baseline_read, facts=facts, results=folder.results
    )
    made = judged_report.judge(inputs, commands.in_remedy)
    report = made.report
    if not folder.is_imported:  # an imported run keeps its controller's criteria
        applied_criteria.keep_criteria(folder, options.criteria, options.baseline, made.standings)
    _display_changes(action, folder, report)
    write_file(folder.path / "report.json", made.lines())
    judging.keep_facts(folder, made.facts)
    if not folder.is_imported or judged is None:  # an imported run keeps its controller's verdict
        publishing.keep_verdict(folder, report, actions.excused_changes(report))
    return {"changed": True, "verdict": report["verdict"], "counts": report["counts"]}


def _display_changes(action, folder, report):
    """Display which checks have another verdict than in an earlier report, made by another release."""
    path, facts = folder.path / "report.json", None
    with suppress(run_folder.RunError):
        facts = judging.kept_facts(folder)
    if not path.exists() or (facts and facts.version == version()):
        return
    kept = f"gpuval {facts.version}" if facts else "an earlier release"
    if changes := differences.changed_verdicts(path, report):
        lines = first_lines(changes, MAX_CHANGES)
        action.display.display(f"{kept} judged this run before; verdicts differ:", *lines)
