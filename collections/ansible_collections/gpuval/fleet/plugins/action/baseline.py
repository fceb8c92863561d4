# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a baseline, or spreads alone, from the accepted nodes of a judged run, or compare two baselines."""

from __future__ import annotations

import re
from pathlib import Path

from ..plugin_utils.core.errors import SettingError
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.judge import baseline, baseline_changes, judging, make_baseline
from ..plugin_utils.judge.subjects import subjects_of
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.runs.action import RunAction

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: Among fewer nodes one bad node easily moves the median.
FEW = 5


class ActionModule(RunAction):
    def work(self, options, task_vars):
        result = _compare(options) if options["state"] == "compared" else self._make(options)
        self._display.display(*result["lines"])
        return result

    def _make(self, options):
        if not NAME.fullmatch(options["name"]):
            raise SettingError(f"baseline_name {options['name']!r}: letters, digits, '.', '_' and '-' only, at most 63")
        folder = self.folder(options)
        run, report = folder.read_run(), run_folder.read_report(folder)
        into = project_path(options["directory"])
        subjects = subjects_of(run, judging.read_evidence(folder, run))
        version = baseline.next_version(into, options["name"])
        document = make_baseline.make(
            subjects, report, name=options["name"], version=version, created_at=run_folder.now(),
            spreads_only=options["state"] == "spreads",
        )  # fmt: skip
        path = into / baseline.file_name(document)
        if not self.check_mode:
            run_folder.write_json(path, document)
        return {"changed": True, "path": str(path), "version": version, "lines": _lines(document, path, into)}


def _compare(options):
    if not (options["before"] and options["after"]):
        raise SettingError("two files are compared: give baseline_before and baseline_after")
    before, after = (baseline.read(Path(options[key])) for key in ("before", "after"))
    changes = baseline_changes.diff(before, after)
    lines = [f"from {before.title} to {after.title}:", *baseline_changes.lines(changes)]
    return {"changed": False, "lines": lines, "clear": sum(one.clear for one in changes)}


def _lines(document, path, into):
    """What the baseline is made from, how repeatable it is, and what changed since the last version."""
    made = document["made_from"]
    left_out = ", ".join(f"{count} {verdict}" for verdict, count in made["left_out"].items())
    spreads = [spread for sku in document.get("spreads", ()) for spread in sku["part_spreads"]]
    what = (
        f"spreads of {len(spreads)} figures, without their values,"
        if spreads
        else f"{len(document['figures'])} figures"
    )
    lines = [
        f"{path}: {what} of {made['nodes']} accepted nodes of run {made['run_id']}"
        + (f" ({left_out} left out)" if left_out else "")
    ]
    if made["nodes"] < FEW:
        lines.append(f"made from fewer than {FEW} nodes: one odd node weighs heavily in it")
    if spreads:
        return [*lines, f"use them with gpuval_baseline={path}: such a run is PARTIAL, and cannot be {made['run_id']}"]
    lines += baseline_changes.repeatability(document)
    earlier = into / baseline.file_name({**document, "version": document["version"] - 1})
    if earlier.exists():
        lines.append(f"since version {document['version'] - 1}:")
        lines += baseline_changes.lines(baseline_changes.diff(baseline.read(earlier), baseline.Baseline.of(document)))
    return lines
