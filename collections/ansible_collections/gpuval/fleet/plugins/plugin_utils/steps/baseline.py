"""Make a baseline, or spreads alone, from the accepted nodes of a judged run, or compare two baselines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..core.errors import SettingError
from ..core.step_options import PathText
from ..judge import baseline as baseline_file
from ..judge import compare, make_baseline
from ..runs import folder as run_folder
from ..runs.action import RunAction, RunOptions

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: Among fewer nodes one bad node easily moves the median.
FEW = 5


@dataclass(frozen=True, kw_only=True)
class BaselineOptions(RunOptions):
    state: Literal["present", "spreads", "compared"] = "present"
    name: str = "site"
    directory: Path = Path("baselines")
    before: PathText = ""
    after: PathText = ""


def baseline(action: RunAction, options: BaselineOptions) -> dict[str, Any]:
    result = _compare(options) if options.state == "compared" else _make(action, options)
    action.display.display(*result["lines"])
    return result


def _make(action, options):
    if not NAME.fullmatch(options.name):
        raise SettingError(f"baseline_name {options.name!r}: letters, digits, '.', '_' and '-' only, at most 63")
    report, into = run_folder.read_report(action.folder(options)), options.directory
    version = baseline_file.next_version(into, options.name)
    document = make_baseline.make(
        report, name=options.name, version=version, created_at=run_folder.now(),
        spreads_only=options.state == "spreads",
    )  # fmt: skip
    path = into / baseline_file.file_name(document)
    if not action.check_mode:
        run_folder.write_json(path, document)
    return {"changed": True, "path": str(path), "version": version, "lines": _lines(document, path, into)}


def _compare(options):
    if not (options.before and options.after):
        raise SettingError("two files are compared: give baseline_before and baseline_after")
    before, after = (baseline_file.read(Path(getattr(options, key))) for key in ("before", "after"))
    changes = compare.diff(before, after)
    lines = [f"from {before.title} to {after.title}:", *compare.lines(changes)]
    return {"changed": False, "lines": lines, "clear": sum(one.is_clear for one in changes)}


def _lines(document, path, into):
    """What the baseline is made from, how repeatable it is, and what changed since the last version."""
    base = document["made_from"]
    left_out = ", ".join(f"{count} {verdict}" for verdict, count in base["left_out"].items())
    spreads = [spread for sku in document.get("spreads", ()) for spread in sku["part_spreads"]]
    summary = (
        f"spreads of {len(spreads)} figures, without their values,"
        if spreads
        else f"{len(document['figures'])} figures"
    )
    lines = [
        f"{path}: {summary} of {base['nodes']} accepted nodes of run {base['run_id']}"
        + (f" ({left_out} left out)" if left_out else "")
    ]
    if base["nodes"] < FEW:
        lines.append(f"made from fewer than {FEW} nodes: one odd node weighs heavily in it")
    if spreads:
        return [*lines, f"use them with gpuval_baseline={path}: such a run is PARTIAL, and cannot be {base['run_id']}"]
    lines += compare.repeatability(document)
    earlier = into / baseline_file.file_name({**document, "version": document["version"] - 1})
    if earlier.exists():
        lines.append(f"since version {document['version'] - 1}:")
        lines += compare.lines(compare.diff(baseline_file.read(earlier), baseline_file.Baseline.of(document)))
    return lines
