"""The tests that run on each file system or disk, with their shares of time and of written bytes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
#: Minimum size of a file: a smaller one measures caches more than the disk.
LEAST_FILE_BYTES = 16 * MIB
#: The file's share of the bytes that may be written to a target: the first and the last test write the whole file.
FILE_SHARE = 0.25


@dataclass(frozen=True)
class Test:
    """A test of a file system or disk: fio's access pattern (``rw``), block size, queue depth, processes; shares of the
    time and of the bytes that may be written."""

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


#: The tests in order: the first writes the data that others read.
TESTS = (
    Test("sequential_write", "write", "1M", 32, 1, 0.20, FILE_SHARE, ("--end_fsync=1",)),
    Test("sequential_read", "read", "1M", 32, 1, 0.12),
    Test("random_read_128k", "randread", "128k", 8, 1, 0.08),
    Test("random_read_single", "randread", "4k", 1, 1, 0.08),
    Test("random_read", "randread", "4k", 32, 4, 0.12),
    Test("random_write", "randwrite", "4k", 32, 4, 0.12, 0.25),
    Test("mixed", "randrw", "16k", 16, 2, 0.08, 0.15, ("--rwmixread=70",)),
)
#: Percentiles, and their form in a metric's name.
PERCENTILES = {50.0: "p50_seconds", 99.0: "p99_seconds", 99.9: "p999_seconds"}
#: Figures of each test, which follow the test's name in a metric's name.
MEASURES = ("bytes_per_second", "requests_per_second", *PERCENTILES.values())
FIGURES = tuple(f"{test.name}_{measure}" for test in TESTS for measure in MEASURES)
VERIFY_SHARE = 0.20  # share of the time to write and read back


def file_bytes(limit_bytes: float, most_bytes: float, free_bytes: float, keep_bytes: float, sharers: int = 1) -> int:
    """Return the size of a target's file in bytes, whole MiB; 0 if space is too little for a useful file of each of so
    many ``sharers``, the nodes that use the file system."""
    size = int(min(FILE_SHARE * limit_bytes, most_bytes, (free_bytes - keep_bytes) / sharers)) // MIB * MIB
    return size if size >= LEAST_FILE_BYTES else 0


def verify_bytes(size_bytes: int, bytes_per_second: float, seconds: float, limit_bytes: float) -> int:
    """Return how many bytes to write and read back as verification: what the time allows at the measured rate."""
    size = min(size_bytes, FILE_SHARE * limit_bytes, bytes_per_second * seconds * VERIFY_SHARE / 3)
    return max(MIB, int(size) // MIB * MIB)
