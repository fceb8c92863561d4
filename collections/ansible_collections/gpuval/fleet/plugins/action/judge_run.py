# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hold a run's evidence against the criteria and write report.json."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils import (
    baseline,
    criteria,
    report_file,
    run_copy,
    run_publishing,
    runs,
    schemas,
    verdict,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import RUN_OPTIONS, ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence import Evidence, take_record
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.stood import Stood
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store_access import object_key


class ActionModule(ControllerAction):
    OPTIONS = {
        **RUN_OPTIONS,
        "criteria": {"type": "list", "elements": "path", "default": []},
        "baseline": {"type": "path", "default": ""},
        "finish": {"type": "bool", "default": True},
    }

    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True, "verdict": None}
        folder = self.folder(options)
        run = folder.read_run()
        files, held, remarks = run_copy.judged_by(folder, options["criteria"], options["baseline"])
        for remark in remarks:
            self._display.warning(remark)
        checks = criteria.load([*criteria.shipped_files(), *files])
        held_against = baseline.read(Path(held)) if held else None
        if options["finish"] and not folder.is_copy and run["finished_at"] is None:
            run = {**run, "finished_at": runs.now()}
            folder.write_run(run)
        stood = Stood.of(run_publishing.standings(folder))
        report = verdict.judge(
            run, read_evidence(folder, run), checks, judged_at=runs.now(), held_against=held_against, stood=stood
        )
        if not folder.is_copy:
            run_publishing.keep_criteria(folder, options["criteria"], options["baseline"], stood.documents())
        schemas.validate("report", report, what="report.json")
        write_file(folder.path / "report.json", report_file.lines(report))
        return {"changed": True, "verdict": report["verdict"], "counts": report["counts"]}


def read_evidence(folder, run):
    """The evidence collected in results/, checked once more: files there may have been touched."""
    problems = runs.read_json(folder.problems_file) if folder.problems_file.exists() else []
    evidence = Evidence(launches=folder.read_launches(), problems=problems)
    for node, expected in run["nodes"].items():
        for stage in expected["stages"]:
            path = folder.evidence_file(node, stage)
            if path.exists():
                take_record(evidence, run, object_key(run["folder"], "records", stage, node), path.read_bytes())
    return evidence
