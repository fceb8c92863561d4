"""What a command and everything below it costs the controller: processor time, memory, processes by name."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_SECONDS = 1.0
#: How long connections in the background may outlive the command and still be counted.
ORPHANS_SECONDS = 75
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Sample:
    """One look at the controller's processes. Bytes: `shared` counts a page once, `resident` in each process."""

    at: float
    shared: int
    resident: int
    processes: int
    ssh: int
    #: What the command's own process holds of `resident`.
    main: int = 0
    #: What the embedded store's servers hold of `shared`; an S3 service would take their place.
    store: int = 0


@dataclass
class Cost:
    code: int
    wall_seconds: float
    cpu_seconds: float
    began_at: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    @property
    def peak_shared(self) -> int:
        return max((sample.shared for sample in self.samples), default=0)

    @property
    def peak_without_store(self) -> int:
        return max((sample.shared - sample.store for sample in self.samples), default=0)

    @property
    def peak_resident(self) -> int:
        return max((sample.resident for sample in self.samples), default=0)

    @property
    def peak_main(self) -> int:
        return max((sample.main for sample in self.samples), default=0)

    def between(self, begin: float, end: float) -> list[Sample]:
        """The looks between two moments of the wall clock."""
        return [sample for sample in self.samples if begin <= self.began_at + sample.at <= end]


def measure(
    command: list[str], log: Path, environment: dict[str, str], cwd: Path, seconds: float, others: Collection[int] = ()
) -> Cost:
    """Run a command; its output goes to `log`. Orphans of it count too, as long as they end within half a minute.

    `others`: processes that this one started for other ends.
    """
    adopt_orphans()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun, began_at = time.monotonic(), time.time()
    samples: list[Sample] = []
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=environment, cwd=cwd
        )
        code = None
        while code is None:
            at = time.monotonic() - begun
            if at > seconds:
                process.kill()
                sys.exit(f"{command[1]} was not done after {seconds:.0f} s; see {log}")
            if not samples or at - samples[-1].at >= SAMPLE_SECONDS:
                samples.append(look(process.pid, at, others))
            code = reap(process.pid)
            if code is None:
                time.sleep(0.1)
    wall = time.monotonic() - begun
    until = time.monotonic() + ORPHANS_SECONDS
    while time.monotonic() < until and connections():
        reap(0)
        time.sleep(0.2)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(code, wall, cpu, began_at, samples)


@contextmanager
def scratch(count: int, keep: Path | None) -> Iterator[Path]:
    """A folder for one measurement, which is removed; copies its logs to `keep`."""
    with tempfile.TemporaryDirectory(prefix=f"gpuval-bench-{count}-", ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        finally:
            for log in Path(name).glob("*.txt") if keep else ():
                keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(log, keep / f"{count}-{log.name}")


def columns(lines: list[tuple[str, Callable]], results: list) -> str:
    """A line for each name, with a column for each result."""
    return "\n".join(f"{name:42}" + "".join(f"{show(result):>10}" for result in results) for name, show in lines)


def controller_environment(playbook: Path, root: Path, folder: Path) -> dict[str, str]:
    """Nothing of the user's own settings; the project's ansible.cfg, as `make validate` uses it."""
    (folder / "home").mkdir(exist_ok=True)
    return {
        "PATH": os.pathsep.join([str(playbook.parent), os.environ["PATH"]]),
        "HOME": str(folder / "home"),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
    }


def adopt_orphans() -> None:
    """Connections that OpenSSH keeps in the background become our children, so that their time is counted."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def reap(awaited: int) -> int | None:
    """Take in children that have ended; returns the exit code of the awaited one if it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if not pid:
            return code
        if pid == awaited:
            code = os.waitstatus_to_exitcode(status)


def connections() -> list[int]:
    """Our own children that are connections of OpenSSH. The embedded store is none, and stays."""
    found = []
    for text in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        try:
            name = Path(f"/proc/{text}/comm").read_text().strip()
        except OSError:
            continue
        if name == "ssh":
            found.append(int(text))
    return found


def look(root: int, at: float, others: Collection[int] = ()) -> Sample:
    """The processes below `root`, and those that were orphaned from there."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        parents[int(entry.name)] = int(rest.split()[1])
        names[int(entry.name)] = name.partition("(")[2]
    ours = {root}
    own = os.getpid()
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if pid not in ours and (parent in ours or parent == own)}
        more -= set(others)
        ours |= more
        grown = bool(more)
    shared = resident = main = store = 0
    for pid in ours:
        try:
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        except (OSError, ValueError):
            continue
        shared += (pages := int(fields["Pss"].split()[0]) * 1024)
        store += pages if names.get(pid) == "rclone" else 0
        resident += (held := int(fields["Rss"].split()[0]) * 1024)
        main = held if pid == root else main
    ssh = sum(names.get(pid) == "ssh" for pid in ours)
    return Sample(at, shared, resident, len(ours), ssh, main, store)
