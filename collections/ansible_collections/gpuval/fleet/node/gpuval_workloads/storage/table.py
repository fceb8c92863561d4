"""What is measured on each target, and what time and how many written bytes each test may have. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..common.fio import FioWork

MIB = 1 << 20
#: A smaller file says more about caches than about the disk.
LEAST_FILE_BYTES = 16 * MIB
#: Of the bytes that a target may be written with: its file, which the first test writes and the last one once more.
FILE_SHARE = 0.25


@dataclass(frozen=True)
class Test:
    """A row of the table: fio's name of the pattern, block size, requests under way and processes; shares of the time
    and of the bytes that may be written."""

    name: str
    rw: str
    block: str
    depth: int
    jobs: int
    time_share: float
    write_share: float = 0.0
    arguments: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        return self.write_share > 0


#: In this order: what is read was written by the first.
TESTS = (
    Test("sequential_write", "write", "1M", 32, 1, 0.20, FILE_SHARE, ("--end_fsync=1",)),
    Test("sequential_read", "read", "1M", 32, 1, 0.12),
    Test("random_read_128k", "randread", "128k", 8, 1, 0.08),
    Test("random_read_single", "randread", "4k", 1, 1, 0.08),
    Test("random_read", "randread", "4k", 32, 4, 0.12),
    Test("random_write", "randwrite", "4k", 32, 4, 0.12, 0.25),
    Test("mixed", "randrw", "16k", 16, 2, 0.08, 0.15, ("--rwmixread=70",)),
)
#: Percentile, and how the metric's name has it.
PERCENTILES = {50.0: "p50_seconds", 99.0: "p99_seconds", 99.9: "p999_seconds"}
#: What is measured of each target, without the "storage_" in front: a test and one of its figures.
MEASURES = ("bytes_per_second", "requests_per_second", *PERCENTILES.values())
FIGURES = tuple(f"{test.name}_{measure}" for test in TESTS for measure in MEASURES)
VERIFY_SHARE = 0.20  # of the time: written, then read back


def file_bytes(
    limit_bytes: float, most_bytes: float, free_bytes: float, keep_free_bytes: float, sharers: int = 1
) -> int:
    """The size of a target's file: whole MiB, 0 where there is no room for a useful one beside those of the sharers."""
    size = int(min(FILE_SHARE * limit_bytes, most_bytes, (free_bytes - keep_free_bytes) / sharers)) // MIB * MIB
    return size if size >= LEAST_FILE_BYTES else 0


def work(test: Test, size_bytes: int, seconds: float, limit_bytes: float) -> FioWork:
    """The call of fio for a test on a file of this size, given the time and the bytes of its target."""
    time_options = ("--time_based=1",) if not test.writes else ()
    # Of a mix, io_size counts both directions; the part that is read costs no endurance.
    limit = int(test.write_share * limit_bytes) if test.writes else 0
    if test.name == "sequential_write":
        limit = size_bytes
    return FioWork(
        test.rw, test.block, test.depth, size_bytes, seconds * test.time_share, jobs(test),
        limit, ("--norandommap=1", "--invalidate=1", *time_options, *test.arguments),
    )  # fmt: skip


def jobs(test: Test) -> int:
    """As many processes as the test asks for, and the node has processors."""
    return min(test.jobs, os.cpu_count() or 1)


def verify_bytes(size_bytes: int, bytes_per_second: float, seconds: float, limit_bytes: float) -> int:
    """How much of the file is written and read back in the time for it, by the rate that was measured."""
    size = min(size_bytes, FILE_SHARE * limit_bytes, bytes_per_second * seconds * VERIFY_SHARE / 3)
    return max(MIB, int(size) // MIB * MIB)
