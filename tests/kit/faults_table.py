"""The table of docs/reference/faults.md, from what became of every node of the faulty fleet."""

import re
from dataclasses import dataclass

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.entries import headline

MARK = "<!-- made by tests/integration/test_faults.py with GPUVAL_FAULTS_TABLE -->"
WIDEST = 240


@dataclass(frozen=True)
class Row:
    node: str
    fault: str
    verdict: str
    class_: str
    message: str
    others: str


def rows_of(faults, report):
    """What the report tells of the nodes of one run, and how many without a fault passed beside each."""
    entries = {entry["name"]: entry for entry in report["nodes"]}
    healthy = [entries[fault.node]["verdict"] for fault in faults if fault.fault == "none"]
    others = f"{healthy.count('PASS')} of {len(healthy)} PASS"
    return [_row_of(fault, entries[fault.node], others) for fault in faults]


def _row_of(fault, entry, others):
    check = headline(entry)
    return Row(
        fault.node, fault.fault, entry["verdict"], entry["class"] or "", check["reason"] if check else "", others
    )


def plain(text):
    """Without what differs from run to run, and safe in a table."""
    text = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b", "RUN", text)
    text = re.sub(r"\b10\.\d+\.\d+\.\d+\b", "ADDRESS", text)
    text = re.sub(r"SHA256:\S+", "SHA256:...", text)
    text = re.sub(r"\b(SHA-256|the plan names|machine id) [0-9a-f]+(\.\.\.)?", r"\1 ...", text)
    text = re.sub(r"/\S*/testbed/(known_hosts):\d+", r".../\1", text)
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 4]} ..."


def table(rows):
    lines = [
        "| fault | its node | class | message | nodes without a fault |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row.fault != "none":
            class_ = f"`{row.class_}`" if row.class_ else ""
            lines.append(f"| {plain(row.fault)} | {row.verdict} | {class_} | {plain(row.message)} | {row.others} |")
    return "\n".join(lines) + "\n"


def write(path, rows):
    """Replace the table below the mark, and keep what stands above it."""
    above = path.read_text().partition(MARK)[0] if path.exists() else "# Faults\n\n"
    path.write_text(f"{above}{MARK}\n\n{table(rows)}")
