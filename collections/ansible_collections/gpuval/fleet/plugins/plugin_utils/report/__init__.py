"""The report in the forms that people and other programs read, all written from ``report.json``'s content alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils import files
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.console import final_block
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.failed_nodes import failed_nodes_text
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.junit import junit_xml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.markdown import markdown_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.perf import perf_csv

__all__ = ["final_block", "json_text", "write_file", "write_report"]


def write_report(report: Mapping[str, Any], directory: Path) -> dict[str, Path]:
    """Write every form of the report into ``directory`` and return the paths by file name.

    Each file is replaced at once, so that a reader never sees half of it; report.json comes last.
    """
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.md": markdown_report(report),
        "junit.xml": junit_xml(report),
        "perf.csv": perf_csv(report),
        "failed_nodes.txt": failed_nodes_text(report),
        "report.json": json_text(report),
    }
    paths = {}
    for name, text in texts.items():
        paths[name] = directory / name
        write_file(paths[name], text)
    return paths


def json_text(report: Mapping[str, Any]) -> str:
    """The report as JSON with a line for each node: fast to write for a thousand nodes, and still good to grep."""
    pieces = ["{\n"]
    for key, value in report.items():
        if key not in ("nodes", "fleet"):
            pieces.append(f"{_dump(key)}: {_dump(value)},\n")
    pieces.append('"nodes": [')
    for number, node in enumerate(report["nodes"]):
        pieces += [",\n" if number else "\n", _dump(node)]
    pieces += ["\n],\n" if report["nodes"] else "],\n", f'"fleet": {_dump(report["fleet"])}\n', "}\n"]
    return "".join(pieces)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write_file(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in UTF-8 with one rename."""
    files.replace(path, text.encode("utf-8"), 0o644)
