"""Runs nccl-tests or rccl-tests: bandwidth, time and correctness of each collective over all GPUs of the node.

The table is read by its header, never by position: versions and options (-I, -S, -C, per-iteration reports) add
columns. The bandwidth is that of the largest size; "Avg bus bandwidth" mixes all sizes and is ignored. #wrong N/A means
that results were not checked, which is not 0. Formats: NVIDIA/nccl-tests, src/util.cu.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from ..common.tool_output import number, plain, whole
from .answer import (
    FAIL,
    INAPPLICABLE,
    NODE,
    PASS,
    SKIPPED,
    UNANSWERED,
    ToolAnswer,
    ToolFault,
    ToolFigure,
    ToolTask,
    settle,
)

BINARIES = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "sendrecv": "sendrecv_perf",
}
SMALLEST = "8"
#: Largest sizes to try: a run that does not end in time with one, as on PCIe, is repeated with the next. The tool
#: itself lowers the size to what the memory holds, and reports that.
LARGEST = ("8G", "1G", "128M")

NEAR = 20

_TIME = ("time", "cputime", "cpu_time")
_WITHOUT_UNIT = ("type", "redop", "root", "#wrong", "error", "timestamp")
_UNITS = {
    "(B)": 1.0, "(KB)": 1e3, "(MB)": 1e6, "(elements)": 1.0,
    "(ns)": 1e-9, "(us)": 1e-6, "(ms)": 1e-3, "(s)": 1.0,
    "(MB/s)": 1e6, "(GB/s)": 1e9, "(TB/s)": 1e12, "(MiB/s)": 2.0**20, "(GiB/s)": 2.0**30,
}  # fmt: skip
_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2})\s+(\d{2}:\d{2}:\d{2})")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b", re.MULTILINE)
_OUT_OF_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)\b", re.MULTILINE)
_LIMITS = re.compile(r"^#.*\bmaxBytes\s+(\d+)\s+step:\s*(\d+)\((factor|bytes)\)", re.MULTILINE)
_REDUCED = re.compile(r"^#\s*Reducing maxBytes to (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class CollectiveMeasurement:
    """A measurement of a collective at one size. ``wrong``: number of wrong elements (None: not counted).
    ``is_checked``: results were checked, by a count or the deviation that older versions print."""

    seconds: float | None
    bus_bytes_per_second: float | None
    wrong: int | None
    is_checked: bool = True


@dataclass(frozen=True)
class CollectiveRow:
    size_bytes: int
    out_of_place: CollectiveMeasurement | None
    in_place: CollectiveMeasurement | None

    @property
    def main(self) -> CollectiveMeasurement | None:
        return self.out_of_place or self.in_place


@dataclass(frozen=True)
class CollectivesTable:
    """The table that a run of nccl-tests printed. ``complete``: with its summary; ``problem``: why it is invalid."""

    rows: tuple[CollectiveRow, ...] = ()
    ranks: int | None = None
    complete: bool = False
    out_of_bounds: int | None = None
    reported_failed: bool = False
    mangled_rows: int = 0
    most_bytes: int | None = None
    step: tuple[int, str] = (2, "factor")
    problem: str = ""

    @property
    def largest(self) -> CollectiveRow | None:
        return max(self.rows, key=lambda row: row.size_bytes, default=None)

    @property
    def blocks(self) -> list[CollectiveMeasurement]:
        return [block for row in self.rows for block in (row.out_of_place, row.in_place) if block]

    @property
    def wrong(self) -> int:
        return max(sum(block.wrong or 0 for block in self.blocks), self.out_of_bounds or 0)

    @property
    def unchecked(self) -> int:
        return sum(block.wrong is None for block in self.blocks) + self.mangled_rows


@dataclass(frozen=True)
class _Columns:
    """The columns of the table: names, unit factors, index of each block's first column, titles of the blocks."""

    names: tuple[str, ...]
    factors: tuple[float | None, ...]
    starts: tuple[int, ...]
    titles: tuple[str, ...]


def parse(text: str) -> CollectivesTable:
    """Return the table in the output of one run of nccl-tests. Never raises."""
    text = plain(text)
    lines = text.splitlines()
    columns: _Columns | None = None
    rows: list[CollectiveRow | None] = []
    for index, line in enumerate(lines):
        if line.lstrip().startswith("#"):
            columns = _header(lines, index) or columns
            continue
        fields = _TIMESTAMP.sub(r"\1T\2", line).split()
        if columns is None or not fields or not fields[0].isdecimal():
            continue
        rows.append(_row(fields, columns))
    summary = _OUT_OF_BOUNDS.search(text)
    limits, reduced = _LIMITS.search(text), _REDUCED.findall(text)
    ranks = set(_RANK.findall(text))
    problem = ""
    if columns is None:
        problem = "it printed no table"
    elif any(columns.factors[start] is None for start in columns.starts):
        problem = "its table's units are not known"
    return CollectivesTable(
        rows=() if problem else tuple(filter(None, rows)),
        ranks=len(ranks) or None,
        complete=summary is not None,
        out_of_bounds=int(summary[1]) if summary else None,
        reported_failed=bool(summary and summary[2] == "FAILED"),
        mangled_rows=rows.count(None),
        most_bytes=int(reduced[-1]) if reduced else int(limits[1]) if limits else None,
        step=(int(limits[2]), limits[3]) if limits else (2, "factor"),
        problem=problem,
    )


def _header(lines: list[str], index: int) -> _Columns | None:
    """Return the columns of the header ``lines[index]``, with units from the line below; None if it is no header."""
    line = lines[index].replace("#", " ", 1)
    names = line.split()
    if "size" not in names or "busbw" not in names or not any(name in _TIME for name in names):
        return None
    starts = tuple(column for column, name in enumerate(names) if name in _TIME)
    # Warnings of NCCL may stand between the header's rows.
    below, above = (
        next((near for near in nearby if near.lstrip().startswith("#")), "")
        for nearby in (lines[index + 1 : index + 1 + NEAR], lines[max(0, index - NEAR) : index][::-1])
    )
    units = list(re.finditer(r"\([^)\s]*\)", below.replace("#", " ", 1)))
    unit_by_end = {unit.end(): unit.group() for unit in units}
    measured = [match for match in re.finditer(r"\S+", line) if match.group() not in _WITHOUT_UNIT]
    if len(units) == len(measured):  # in order; else a unit ends at the column of its name
        unit_by_end = {match.end(): unit.group() for match, unit in zip(measured, units)}
    ends = {match.end() for match in measured}
    factors = tuple(
        _UNITS.get(unit_by_end.get(match.end(), "")) if match.end() in ends else None
        for match in re.finditer(r"\S+", line)
    )
    titles = re.findall(r"out-of-place|in-place", above) or ["out-of-place", "in-place"]
    return _Columns(tuple(names), factors, starts, tuple(titles))


def _row(fields: list[str], columns: _Columns) -> CollectiveRow | None:
    """Return a row of nccl-tests' table from the words of a line; None if the line is cut off, or mixed up."""
    starts, names, blocks = columns.starts, columns.names, {}
    if len(fields) == len(names) - 1 and "redop" in names:
        redop = names.index("redop")  # some versions leave it empty for collectives that reduce nothing
        if number(fields[redop]) is not None:
            fields = [*fields[:redop], "", *fields[redop:]]
    if len(fields) != len(names):
        return None
    for title, start, end in zip(columns.titles, starts, [*starts[1:], len(names)]):
        # Of columns with equal names the first counts.
        cells = dict(zip(names[start:end][::-1], list(zip(fields, columns.factors))[start:end][::-1]))
        if number(fields[start]) is None and fields[start] != "N/A":
            return None
        wrong, deviation = (cells.get(name, ("", None))[0] for name in ("#wrong", "error"))
        wrong_count = whole(wrong.rstrip("*"))
        seconds, rate = (_scaled(*cells.get(name, ("", None))) for name in (names[start], "busbw"))
        is_checked = wrong_count is not None or number(deviation) is not None
        blocks[title] = CollectiveMeasurement(seconds, rate, wrong_count, is_checked)
    size = names.index("size")
    size_bytes = whole(fields[size])
    if size_bytes is None or not blocks:
        return None
    size_bytes = int(size_bytes * (columns.factors[size] or 1.0))
    return CollectiveRow(size_bytes, blocks.get("out-of-place"), blocks.get("in-place"))


def _scaled(text: str, factor: float | None) -> float | None:
    value = number(text)
    return None if value is None or factor is None else value * factor


def judge(table: CollectivesTable, collective: str, ranks: int | None, prefix: str) -> ToolAnswer:
    """Return the answer that a table proves for a collective of ``ranks`` ranks; ``prefix`` begins figures' names."""
    largest = table.largest
    if table.problem or largest is None:
        return ToolAnswer.none(table.problem or "its table has no rows")
    faults = []
    if table.wrong or table.reported_failed:
        sizes = [
            f"{row.size_bytes:,}" for row in table.rows
            if any(block and block.wrong for block in (row.out_of_place, row.in_place))
        ]  # fmt: skip
        where = f", of {', '.join(sizes[:4])} bytes" if sizes else ""
        faults.append(ToolFault(NODE, f"{collective}: {table.wrong} wrong elements{where}"))
    counts = [ToolFigure(f"{prefix}_error_count", table.wrong, "count")]
    if faults:
        return ToolAnswer(FAIL, faults=faults, figures=[*counts, *_figures(table, collective, prefix)])
    if not table.complete:
        return ToolAnswer.none("its output is cut short, the summary is missing")
    if ranks is not None and table.ranks is not None and table.ranks != ranks:
        return ToolAnswer.none(f"{ranks} ranks were asked for, it used {table.ranks}")
    step, kind = table.step
    following = largest.size_bytes * step if kind == "factor" else largest.size_bytes + step
    if table.most_bytes is not None and following <= table.most_bytes:
        reached = f"the largest size in its table is {largest.size_bytes:,}"
        return ToolAnswer.none(f"asked for {table.most_bytes:,} bytes, {reached}")
    rate = largest.main.bus_bytes_per_second if largest.main else None
    if largest.main is None or rate is None:
        return ToolAnswer.none("no bandwidth at its largest size")
    # The smallest sizes round to 0; a bandwidth below 0 is impossible.
    is_impossible = any(
        (block.bus_bytes_per_second or 0) < 0 or (block.seconds is not None and block.seconds <= 0)
        for block in table.blocks
    )
    at_largest = [block for block in (largest.out_of_place, largest.in_place) if block]
    if any(block.bus_bytes_per_second == 0 for block in at_largest) or is_impossible:
        figures = f"{rate / 1e9:g} GB/s at its largest size, or a time of 0 or less"
        return ToolAnswer.none(f"its figures are impossible: {figures}")
    is_checked = any(block.is_checked for block in table.blocks)
    return ToolAnswer(
        PASS if is_checked else SKIPPED,
        reason="" if is_checked else "it checked no result (#wrong N/A): run it with -c 1",
        summary=f"{collective} {rate / 1e9:.1f} GB/s",
        figures=[*counts, *_figures(table, collective, prefix)],
        curves=[_curve(table, f"{prefix}_{collective}_bus_bytes_per_second")],
    )


def _figures(table: CollectivesTable, collective: str, prefix: str) -> list[ToolFigure]:
    figures = [ToolFigure(f"{prefix}_unchecked_count", table.unchecked, "count")]
    if table.ranks is not None:
        figures.append(ToolFigure(f"{prefix}_ranks_count", table.ranks, "count"))
    largest = table.largest
    if not table.complete or largest is None:
        return figures
    blocks = {"": largest.main, "_in_place": largest.in_place if largest.out_of_place else None}
    for suffix, block in blocks.items():
        if block and block.bus_bytes_per_second is not None:
            name = f"{prefix}_{collective}{suffix}_bus_bytes_per_second"
            figures.append(ToolFigure(name, block.bus_bytes_per_second, "bytes/s"))
    figures.append(ToolFigure(f"{prefix}_{collective}_largest_bytes", largest.size_bytes, "bytes"))
    smallest = min((row for row in table.rows if row.size_bytes > 0), key=lambda row: row.size_bytes, default=None)
    if smallest and smallest.main and smallest.main.seconds is not None:
        figures.append(ToolFigure(f"{prefix}_{collective}_latency_seconds", smallest.main.seconds, "seconds"))
    return figures


def _curve(table: CollectivesTable, name: str) -> tuple[str, str, list[int], list[float]]:
    measured = [(row.size_bytes, row.main.bus_bytes_per_second) for row in table.rows if row.main]
    rates = {size: rate for size, rate in measured if rate is not None}
    return name, "bytes/s", sorted(rates), [rates[size] for size in sorted(rates)]


def run(job: ToolTask) -> ToolAnswer:
    """Run all programs of nccl-tests on this node, one after another, over all GPUs."""
    searched = {collective: job.search.find(binary) for collective, binary in BINARIES.items()}
    path_by_collective = {collective: path for collective, path in searched.items() if path}
    if job.gpus is None:
        return ToolAnswer.none("how many GPUs the node has is not known: set gpuval_gpu_count")
    if job.gpus < 2:
        return ToolAnswer(INAPPLICABLE, reason="collectives need 2 GPUs")
    answers = []
    largest = list(LARGEST)
    for tools_done, (collective, path) in enumerate(path_by_collective.items()):
        while True:
            answer, timed_out = _measure(job, collective, path, largest[0], len(path_by_collective) - tools_done)
            if not timed_out or len(largest) == 1 or job.seconds_left() < 1:
                break
            largest.pop(0)
        answers.append(answer)
    merged = merge(answers, job.tool, job.gpus)
    merged.not_run = [binary for collective, binary in BINARIES.items() if collective not in path_by_collective]
    return merged


def _measure(job: ToolTask, collective: str, path: Path, largest: str, tools_left: int) -> tuple[ToolAnswer, bool]:
    """Run one of ``tools_left`` collectives up to ``largest`` (``8G``); return its answer, and whether it timed out."""
    seconds = job.seconds_left() * 2 / (tools_left + 1)
    if seconds < 1:
        return ToolAnswer.none(f"{collective}: no time was left for it"), False
    arguments: list[str | Path] = [path, "-b", SMALLEST, "-e", largest, "-f", "2", "-g", str(job.gpus)]
    ended = job.call(arguments, seconds, name=f"{job.tool}_{collective}")
    answer = settle(ended, judge(parse(ended.output), collective, job.gpus, job.tool))
    if answer.verdict not in (PASS, FAIL):
        answer.reason = f"{collective}: {answer.reason}"
    return answer, ended.timed_out and answer.verdict != FAIL


def merge(answers: list[ToolAnswer], prefix: str, ranks: int) -> ToolAnswer:
    """Return one answer for the answers of several collectives: errors and unchecked results are summed."""
    figures: dict[str, ToolFigure] = {}
    for figure in (figure for answer in answers for figure in answer.figures):
        earlier = figures.get(figure.name)
        if earlier is None:
            figures[figure.name] = figure
        elif figure.name == f"{prefix}_ranks_count":
            figures[figure.name] = min(earlier, figure, key=lambda count: count.value)
        else:
            figures[figure.name] = replace(figure, value=earlier.value + figure.value)
    faults = [fault for answer in answers for fault in answer.faults]
    reasons = [answer.reason for answer in answers if answer.reason]
    good = [answer for answer in answers if answer.verdict == PASS]
    merged = ToolAnswer(
        PASS,
        reason="; ".join(reasons),
        summary=f"{len(good)} of {len(answers)} collectives over {ranks} GPUs: {', '.join(a.summary for a in good)}",
        faults=faults,
        figures=list(figures.values()),
        curves=[curve for answer in answers for curve in answer.curves],
    )
    if faults:
        merged.verdict = FAIL
    elif answers and {answer.verdict for answer in answers} <= {PASS, SKIPPED} and len(good) < len(answers):
        merged.verdict = SKIPPED
    elif len(good) < len(answers) or not answers:
        merged.verdict = UNANSWERED
    return merged
