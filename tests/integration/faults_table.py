"""The table of docs/faults.md, from what became of every node of the faulty fleet."""

import re
from dataclasses import dataclass

MARK = "<!-- made by tests/integration/test_faults.py with GPUVAL_FAULTS_TABLE -->"
WIDEST = 240


@dataclass(frozen=True)
class Row:
    node: str
    fault: str
    verdict: str
    message: str


def row_of(fault, entry):
    """What the report tells of a node; `entry` is its part of report.json."""
    decisive = [
        check
        for check in entry["checks"]
        if check["severity"] == "required" and check["verdict"] in ("fail", "missing")
    ]
    message = decisive[0]["reason"] if decisive else ""
    return Row(fault.node, fault.fault, entry["verdict"], message)


def plain(text):
    """Without what differs from run to run, and safe in a table."""
    text = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b", "RUN", text)
    text = re.sub(r"\b10\.\d+\.\d+\.\d+\b", "ADDRESS", text)
    text = re.sub(r"SHA256:\S+", "SHA256:...", text)
    text = re.sub(r"/\S*/testbed/", ".../", text)
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 4]} ..."


def table(rows):
    healthy = [row for row in rows if row.fault == "none"]
    others = f"{sum(row.verdict == 'PASS' for row in healthy)} of {len(healthy)} PASS"
    lines = [
        "| fault | its node | message | nodes without a fault |",
        "|---|---|---|---|",
    ]
    for row in rows:
        if row.fault != "none":
            lines.append(f"| {plain(row.fault)} | {row.verdict} | {plain(row.message)} | {others} |")
    return "\n".join(lines) + "\n"


def write(path, rows):
    """Replace the table below the mark, and keep what stands above it."""
    above = path.read_text().partition(MARK)[0] if path.exists() else "# Faults\n\n"
    path.write_text(f"{above}{MARK}\n\n{table(rows)}")
