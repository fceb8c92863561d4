# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hold a run's evidence against the criteria and write report.json."""

from __future__ import annotations

import gc
from itertools import chain
from pathlib import Path

from ..plugin_utils.core import commands, schemas
from ..plugin_utils.gang import document, judging, keys
from ..plugin_utils.judge import actions, baseline, criteria
from ..plugin_utils.judge.peer_groups import PeerHistory
from ..plugin_utils.records import report_file
from ..plugin_utils.records.evidence import NOT_COLLECTED, UNREAD
from ..plugin_utils.report import write_file
from ..plugin_utils.report.summary import summary_lines
from ..plugin_utils.runs import applied_criteria, earlier_faults, publishing
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.runs import state as run_state
from ..plugin_utils.runs.action import RunAction


class ActionModule(RunAction):
    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True, "verdict": None}
        gc.disable()  # none of millions of objects is garbage before the end
        try:
            return self._judge(options)
        finally:
            gc.enable()

    def _judge(self, options):
        folder = self.folder(options)
        run = folder.read_run()
        files, held, remarks = applied_criteria.judged_by(folder, options["criteria"], options["baseline"])
        earlier, damaged = earlier_faults.read(folder, run, actions.shipped().window_days)
        for remark in [*remarks, *damaged]:
            self._display.warning(remark)
        checks = criteria.beside_shipped(files)
        baseline_read = baseline.read(Path(held), run["run_id"]) if held else None
        judged = publishing.judged(folder)
        frozen = publishing.is_final(run, judged)
        abandoned = not folder.is_copy and run_folder.is_abandoned(folder, run)
        gangs = document.read(folder)
        problems = chain(*(one.read_problems() for one in (folder, *document.round_folders(folder, gangs))))
        open_ends = (problem["reason"] for problem in problems if problem["stage"])
        unread = any(reason.startswith((UNREAD, NOT_COLLECTED)) for reason in open_ends)
        if ((options["finish"] and not unread) or abandoned) and not folder.is_copy and run["finished_at"] is None:
            run = {**run, "finished_at": run_folder.now()}
            if abandoned:  # it counts as judged with its report
                run["state"] = {**run["state"], "name": run_state.COLLECTING}
            folder.write_run(run)
            keys.forget_all(folder)  # of a round that broke off: it is not resumed
        history = PeerHistory.of(applied_criteria.standings(folder))
        report = judging.report_on(
            folder, run, checks, gangs=gangs, baseline=baseline_read, history=history, judged=judged, frozen=frozen,
            earlier=actions.found_earlier(earlier, earlier_faults.declared_in(folder.path.parent)),
        )  # fmt: skip
        actions.assign(report, earlier)
        commands.in_remedies(report)
        report["summary"] = summary_lines(report)
        if not folder.is_copy:
            applied_criteria.keep_criteria(folder, options["criteria"], options["baseline"], history.documents())
        written = report_file.packed(report)
        schemas.validate("report", written, what="report.json")
        write_file(folder.path / "report.json", report_file.lines(written))
        if not folder.is_copy:
            publishing.keep_verdict(folder, report)
        return {"changed": True, "verdict": report["verdict"], "counts": report["counts"]}
