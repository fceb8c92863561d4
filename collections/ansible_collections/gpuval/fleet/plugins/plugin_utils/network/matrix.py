"""The matrix of links between nodes as documents and as lines for the console. Pure, except for writing files."""

import csv
import io
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...module_utils.network.peers import LinkAnswer
from ..core.escape import csv_cell, one_line
from ..runs import folder as run_folder
from .findings import Finding, Fleet

SCHEMA = "gpuval.network-matrix/1"
COLUMNS = (
    "from",
    "to",
    *(name for name in LinkAnswer.__dataclass_fields__ if name not in ("message", "size_tried")),
)
SHOWN = 12


def document(
    fleet: Fleet, findings: Sequence[Finding], *, run_id: str | None, uncovered: Sequence[Sequence[str]]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "created_at": run_folder.now(),
        "run_id": run_id,
        "measured": "TCP handshakes to the port of SSH, `ping` packets, from every node to its peers at the same time",
        "nodes": {
            name: {
                "answered": not answers.reason,
                "zone": fleet.zones.get(name, ""),
                "reason": answers.reason,
                "interfaces": answers.interfaces,
            }
            for name, answers in fleet.answers.items()
        },
        "ports": list(fleet.ports),
        "links": rows(fleet),
        "endpoints": [
            {"node": name, "endpoint": service_name, **service}
            for name, answers in fleet.answers.items()
            for service_name, service in answers.services.items()
        ],
        "zone_pairs_without_link": [list(pair) for pair in uncovered],
        "findings": [finding.to_json() for finding in findings],
    }


def rows(fleet: Fleet) -> list[dict[str, Any]]:
    """Return a row with COLUMNS for each measured link between two nodes."""
    return [
        {
            "from": source,
            "to": target,
            **{column: getattr(asked, column) for column in COLUMNS[2:-1]},
            "ports": dict(sorted(asked.ports.items(), key=lambda entry: int(entry[0]))),
        }
        for (source, target), asked in fleet.pairs().items()
    ]


def table(fleet: Fleet) -> str:
    """Return the measured links between nodes as CSV."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows(fleet):
        ports = " ".join(f"{port}={state}" for port, state in row["ports"].items())
        writer.writerow([csv_cell(value) for value in [*(row[name] for name in COLUMNS[:-1]), ports]])
    return stream.getvalue()


def lines(fleet: Fleet, findings: Sequence[Finding], folders: Sequence[Path]) -> list[str]:
    """Return lines for the console: one with figures, one for each finding, and one with the paths of the files."""
    pairs = fleet.pairs()
    reached = {pair: asked for pair, asked in pairs.items() if asked.reached}
    answered = sum(not answers.reason for answers in fleet.answers.values())
    head = f"network: {answered} of {len(fleet.answers)} node(s) answered, {len(reached)} of {len(pairs)} link(s) work"
    times = {pair: seconds for pair, asked in reached.items() if (seconds := asked.tcp_minimum_seconds) is not None}
    if times:
        (source, target), most_seconds = max(times.items(), key=lambda entry: entry[1])
        head += (
            f"; TCP handshake {statistics.median(times.values()) * 1000:.3g} ms at the median, "
            f"{most_seconds * 1000:.3g} ms at most ({source} -> {target})"
        )
    sizes = sorted({asked.path_mtu_bytes for asked in reached.values() if asked.path_mtu_bytes})
    if sizes:
        head += f"; path MTU {' and '.join(map(str, sizes))}"
    texts = (f"{finding.level.upper()} {one_line(finding.message, 300)}. {finding.remedy}" for finding in findings)
    lines = [head, *(f"- {text}" for text in itertools.islice(texts, SHOWN))]
    if len(findings) > SHOWN:
        lines.append(f"- and {len(findings) - SHOWN} more findings")
    if folders:
        lines.append(f"{folders[0]}/matrix.json and matrix.csv have all of them")
    return lines


def write(folder: Path, matrix: dict[str, Any], text: str) -> None:
    run_folder.write_json(folder / "matrix.json", matrix)
    run_folder.write_bytes(folder / "matrix.csv", text.encode())
