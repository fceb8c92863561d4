"""Make a baseline, or spreads alone, from the accepted nodes of a judged run, or compare two baselines."""

import re
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


def baseline(
    action: RunAction,
    options: RunOptions,
    *,
    state: Literal["present", "spreads", "compared"] = "present",
    name: str = "site",
    directory: Path = Path("baselines"),
    before: PathText = "",
    after: PathText = "",
) -> dict[str, Any]:
    if state == "compared":
        if not (before and after):
            raise SettingError("a comparison needs two files: set baseline_before and baseline_after")
        old, new = baseline_file.read(Path(before)), baseline_file.read(Path(after))
        changes = compare.diff(old, new)
        lines = [f"from {old.title} to {new.title}:", *compare.lines(changes)]
        result = {"changed": False, "lines": lines, "clear": sum(change.is_clear for change in changes)}
    else:
        if not NAME.fullmatch(name):
            raise SettingError(f"baseline_name {name!r}: letters, digits, '.', '_' and '-' only, at most 63")
        report, version = run_folder.read_report(action.folder(options)), baseline_file.next_version(directory, name)
        document = make_baseline.make(
            report, name=name, version=version, created_at=run_folder.now(), spreads_only=state == "spreads"
        )
        path = directory / baseline_file.file_name(document)
        if not action.check_mode:
            run_folder.write_json(path, document)
        lines = _lines(document, path, directory)
        result = {"changed": True, "path": str(path), "version": version, "lines": lines}
    action.display.display(*lines)
    return result


def _lines(document, path, directory):
    """Lines on a baseline: its sources, its repeatability, and its changes since the last version."""
    base = document["made_from"]
    left_out = ", ".join(f"{count} {verdict}" for verdict, count in base["left_out"].items())
    spreads = [spread for sku in document.get("spreads", ()) for spread in sku["part_spreads"]]
    only_spreads = f"spreads of {len(spreads)} figures, without their values,"
    summary = only_spreads if spreads else f"{len(document['figures'])} figures"
    lines = [f"{path}: {summary} of {base['nodes']} accepted nodes of run {base['run_id']}"]
    lines[0] += f" ({left_out} left out)" if left_out else ""
    if base["nodes"] < FEW:
        lines.append(f"made from fewer than {FEW} nodes: one odd node weighs heavily in it")
    if spreads:
        return [*lines, f"use them with gpuval_baseline={path}: such a run is PARTIAL, and cannot be {base['run_id']}"]
    lines += compare.repeatability(document)
    earlier = directory / baseline_file.file_name({**document, "version": document["version"] - 1})
    if earlier.exists():
        lines.append(f"since version {document['version'] - 1}:")
        lines += compare.lines(compare.diff(baseline_file.read(earlier), baseline_file.Baseline(document)))
    return lines
