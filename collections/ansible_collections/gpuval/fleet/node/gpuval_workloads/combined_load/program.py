"""Loads each part of the node alone for a while, then all parts together, and compares the rates."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuval_node.hardware.tree import Tree
from gpuval_node.process_stat import oom_kills

from ..common import fio
from ..common.arguments import positive_float, workload_parser
from ..common.device import TorchDevices, choose_accelerator
from ..common.laps import ThinnedSample
from ..common.processes import free_port
from ..common.result import WorkloadCrash, WorkloadFailure, WorkloadResult
from ..common.tool_output import number, shortened
from ..rdma import node as rdma_node
from ..rdma import perftest
from ..rdma.program import INSTALL
from .worker import DATA_FILE, LEFT_OUT, CombinedLoad

READY_SECONDS, STALL_SECONDS, REPORT_SECONDS, END_SECONDS, KILL_SECONDS = 300.0, 60.0, 10.0, 6.0, 10.0
NIC_END_SECONDS = 30.0  # time for perftest to end; fio gets END_SECONDS
WARM_UP = 0.2  # share of a phase that is not measured
SOLO_SHARE, MOST_SOLO_SECONDS = 0.06, 60.0  # share of the whole time, for each kind of part
NIC_SOLO_SECONDS = 15.0  # minimum: two measurements of perftest after the warm-up
MIB = 1 << 20
MAX_SAMPLES = 2048  # kept samples of each process, evenly spread over a phase
#: Minimum cores of each part. Without enough cores, the first parts are left out, so that the GPUs get theirs.
LEAST_CORES = {"nic": 2, "loopback": 2, "disk": 1, "memory": 1, "cpu": 1}
UNITS = {"gpu": ("tflops", "TFLOP/s", 1e12)}
BYTES = ("bytes_per_second", "bytes/s", 1.0)


def memory_kills() -> int:
    """Return the number of processes that the kernel has OOM-killed, at a limit of their own or the machine's."""
    return oom_kills(Path("/proc/vmstat")) or 0


@dataclass
class Worker:
    """A process that loads a part, and its reports: amount of work by monotonic time, and wrong results."""

    kind: str
    index: int
    process: subprocess.Popen[str]
    port: str = ""
    is_ready: bool = False
    samples: ThinnedSample = field(default_factory=lambda: ThinnedSample(MAX_SAMPLES))
    last: float = 0.0
    last_line: str = ""
    wrong: int = 0
    left_out: str = ""
    kills: int = field(default_factory=memory_kills)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self.read, daemon=True)

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.port or self.index}"

    @property
    def is_absent(self) -> bool:
        """Whether the part never began: an RDMA port that may not be opened. Of others, evidence is missing then."""
        return self.kind == "nic" and bool(self.left_out) and self.process.poll() is None

    def read(self) -> None:
        """Read all output of the process to its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(LEFT_OUT):
                self.left_out = shortened(line.partition(LEFT_OUT)[2])
            elif line.strip() == "ready":
                self.is_ready = True
            elif not self._take(line) and line.strip():
                self.last_line = shortened(line)
                print(f"{self.name}: {line.rstrip()}", flush=True)  # an earlier line may have the root cause

    def _take(self, line: str) -> bool:
        """Keep a line if it is a report; returns whether it is. Warnings look similar (``[W1125 10:00:00 x.cpp]``)."""
        try:
            clock, amount, wrong = map(float, json.loads(line))
        except (TypeError, ValueError):
            return False
        self.samples.extend([(clock, amount)])
        self.last, self.wrong = clock, int(wrong)
        return True

    def order(self, word: str) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # the process ended: the next check reports it
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()


@dataclass(frozen=True)
class LoadPhase:
    """A measured interval, in seconds of the monotonic clock."""

    begin: float
    end: float


def rate(samples: Sequence[tuple[float, float]], phase: LoadPhase) -> float | None:
    """Return the work per second within a phase, after its warm-up; None without two samples in it."""
    begin = phase.begin + WARM_UP * (phase.end - phase.begin)
    inside = [sample for sample in list(samples) if begin <= sample[0] <= phase.end]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        return None
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def counts(accelerator: TorchDevices, cores: int, has_fio: bool, nics: int = 0) -> dict[str, int]:
    """Return how many processes load each kind of part. One core is left for each process that feeds a GPU, moves data
    or measures, and two for each RDMA port, whose tools poll."""
    gpus = max(accelerator.count, 1)
    free = max(2, cores - gpus - 2 * nics - 4)
    count_by_kind = {"gpu": gpus, "cpu": max(1, free * 3 // 4), "memory": max(1, min(free // 4, 16)), "loopback": 1}
    return {**count_by_kind, **({"disk": 1} if has_fio else {}), **({"nic": nics} if nics else {})}


def ports(tree: Tree, patterns: Sequence[str], left_out: dict[str, str]) -> list[tuple[str, int]]:
    """Return the active RDMA ports that match a pattern, each with a TCP port for perftest."""
    names = [rail.port.name for rail in rdma_node.look(tree, patterns).rails]
    if names and not shutil.which(perftest.WRITE):
        left_out["nic"] = f"{perftest.WRITE} not found: {INSTALL}"
        return []
    numbers: set[int] = set()
    while len(numbers) < len(names):
        numbers.add(free_port())
    return list(zip(names, numbers))


def usable_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores that this process may use, limited by a container's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # control groups v2, v1
        try:
            quota, period = map(int, " ".join((root / name).read_text(encoding="ascii") for name in names).split())
        except (OSError, ValueError):  # other version of control groups; "max" is no quota
            continue
        if quota > 0 and period > 0:
            cores = min(cores, max(1, quota // period))
    return cores


def crowded_out(count_by_kind: dict[str, int], cores: int) -> list[str]:
    """Return the parts for which no core is left beside those that feed the GPUs and one for this program."""
    kinds = [kind for kind in LEAST_CORES if kind in count_by_kind]
    least = {kind: LEAST_CORES[kind] * (count_by_kind[kind] if kind == "nic" else 1) for kind in kinds}
    out = []
    while kinds and 1 + count_by_kind["gpu"] + sum(least[kind] for kind in kinds) > cores:
        out.append(kinds.pop(0))
    return out


def main(result: WorkloadResult) -> None:
    """Load and measure all parts of the node. Raises ``WorkloadFailure`` for a part that ends, hangs or computes wrong
    results."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = workload_parser("combined_load", "Load all parts of the node.")
    parser.add_argument("--seconds", type=positive_float, default=120.0, help="seconds, alone and together")
    parser.add_argument("--max-written-bytes", type=positive_float, default=1e10, help="limit for the disk")
    parser.add_argument("--nics", nargs="*", default=["*"], metavar="NAME", help="RDMA devices to load; * is any text")
    options = parser.parse_args()
    accelerator = choose_accelerator()
    cores = usable_cores()
    left_out = {} if fio.find() else {"disk": "fio was not found: install it, or put it into the image"}
    nics = ports(Tree(), options.nics, left_out)
    count_by_kind = counts(accelerator, cores, "disk" not in left_out, len(nics))
    work = Path(os.environ.get("GPUVAL_WORK_DIR") or ".").absolute()
    size = _file_bytes(work, options.max_written_bytes)
    if "disk" in count_by_kind and not size:
        del count_by_kind["disk"]
        left_out["disk"] = f"too little space in {work}"
    for kind in crowded_out(count_by_kind, cores) if accelerator.is_gpu else ():
        del count_by_kind[kind]
        left_out[kind] = f"{cores} processors are too few beside {accelerator.count} GPUs: raise the CPU limit"
    engine, stopped = None, []
    if "disk" in count_by_kind:
        result.report("the disk's file is written")
        engine, measurement = lay_out(work / DATA_FILE, size)
        if measurement.problem:
            del count_by_kind["disk"]
            left_out["disk"] = f"{work}: {measurement.problem}"
            stopped = [f"the disk hangs: {left_out['disk']}"] if measurement.hung else []
    use = (engine.name, engine.direct) if engine else None
    load = CombinedLoad(str(work), size, options.max_written_bytes, use, tuple(nics))
    result.environment.update(processes=count_by_kind, left_out=left_out)
    with _workers(count_by_kind, load) as everyone:
        _until_ready(everyone, result)
        left_out.update({worker.name: worker.left_out for worker in everyone if worker.is_absent})
        workers = [worker for worker in everyone if not worker.is_absent]
        loaded = sum(worker.kind == "nic" for worker in workers)
        result.fingerprints["combined_load_nics"] = "present" if loaded else "none"
        result.add_metric("combined_load_nics_count", loaded, "count")
        solo = min(MOST_SOLO_SECONDS, SOLO_SHARE * options.seconds)
        alone = {}
        for kind in dict.fromkeys(worker.kind for worker in workers):
            seconds = max(solo, NIC_SOLO_SECONDS) if kind == "nic" else solo
            alone[kind] = _run([w for w in workers if w.kind == kind], seconds, result, f"{kind} alone")
        rates = {worker.name: rate(worker.samples.kept, alone[worker.kind]) for worker in workers}
        for worker in workers:
            worker.samples = ThinnedSample(MAX_SAMPLES)
        together = options.seconds - solo * len(count_by_kind)
        phase = _run(workers, together, result, "all together", report=lambda p: _report(result, workers, rates, p))
    _report(result, workers, rates, phase)
    _conclude(result, workers, phase, left_out, stopped)


def _conclude(
    result: WorkloadResult,
    workers: Sequence[Worker],
    phase: LoadPhase,
    left_out: dict[str, str],
    stopped: Sequence[str] = (),
) -> None:
    """Complete the result. If a part stopped for a reason that is not the node's fault, evidence is missing:
    ``combined_load_seconds`` is left out. Raises ``WorkloadFailure`` for wrong results."""
    stopped = [*stopped, *(f"{w.name} stopped under load: {w.left_out}" for w in workers if w.left_out)]
    if not stopped:
        result.add_metric("combined_load_seconds", phase.end - phase.begin, "seconds")
    result.add_metric("combined_load_left_out_count", len(left_out), "count")
    wrong = [worker.name for worker in workers if worker.wrong]
    if wrong:
        raise WorkloadFailure(f"wrong results under load: {', '.join(wrong)}")
    without = [f"without {kind}: {why}" for kind, why in left_out.items()]
    result.message = "; ".join([*stopped, f"{phase.end - phase.begin:.0f} s together", *without])


def _file_bytes(work: Path, limit: float) -> int:
    """Return the size in bytes of the disk part's file, for a `limit` of written bytes; 0 without enough space."""
    size = int(min(1 << 30, limit / 8, shutil.disk_usage(work).free / 4)) // MIB * MIB
    return size if size >= 16 * MIB else 0


def lay_out(file: Path, size: int) -> tuple[fio.FioEngine, fio.FioMeasurement]:
    """Write the disk part's file of `size` bytes; return the fio engine that works, and the measurement: if it has a
    problem, the disk is left out. Raises ``WorkloadFailure`` for an error of the disk."""
    engine, measurement = fio.choose_engine(fio.find() or "fio", file, size)
    if measurement.problem:
        with suppress(OSError):
            file.unlink(missing_ok=True)
    if measurement.is_disk_error:
        raise WorkloadFailure(f"the disk of {file.parent} cannot be loaded: {measurement.problem}")
    return engine, measurement


@contextmanager
def _workers(count_by_kind: dict[str, int], load: CombinedLoad) -> Iterator[list[Worker]]:
    """Yield the processes that load the node's parts; they end with the context."""
    workers = []
    command = [sys.executable, "-m", "gpuval_workloads.combined_load.worker"]
    try:
        for kind, count in count_by_kind.items():
            for index in range(count):
                process = subprocess.Popen(
                    [*command, kind, str(index), json.dumps(asdict(load))], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                )  # fmt: skip
                workers.append(Worker(kind, index, process, load.nics[index][0] if kind == "nic" else ""))
                workers[-1].reader.start()
        yield workers
    finally:
        for worker in workers:
            if worker.process.stdin:
                with suppress(OSError):  # the process has ended, or reads no input
                    worker.process.stdin.close()
        _wait(workers, NIC_END_SECONDS if load.nics else END_SECONDS)
        for worker in workers:
            worker.process.kill()
        _wait(workers, KILL_SECONDS)  # a process that hangs in a driver stays, and is reported as a failure
        with suppress(OSError):
            (Path(load.work) / DATA_FILE).unlink(missing_ok=True)


def _wait(workers: Sequence[Worker], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for worker in workers:
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(max(0.1, deadline - time.monotonic()))
            if worker.reader.is_alive():  # the last report may have a wrong result
                worker.reader.join(max(0.1, deadline - time.monotonic()))


def _until_ready(workers: Sequence[Worker], result: WorkloadResult) -> None:
    deadline = time.monotonic() + READY_SECONDS
    result.report(f"{len(workers)} processes start")
    while late := [worker for worker in workers if not (worker.is_ready or worker.left_out)]:
        _look_at(late)
        if time.monotonic() > deadline:
            raise WorkloadCrash(f"not ready after {READY_SECONDS:.0f} s: {', '.join(w.name for w in late[:8])}")
        time.sleep(0.2)


def _run(
    workers: Sequence[Worker], seconds: float, result: WorkloadResult, title: str, report=lambda _phase: None
) -> LoadPhase:
    """Load parts for `seconds`; return the interval. Raises ``WorkloadFailure`` for a worker that ends or stalls."""
    begin = spoken = time.monotonic()
    result.report(f"{title}: {seconds:.0f} s")
    for worker in workers:
        worker.order("run")
    while (clock := time.monotonic()) < begin + seconds:
        working = [worker for worker in workers if not worker.left_out]
        _look_at(working)
        stalled = [w.name for w in working if clock - max(begin, w.last) > STALL_SECONDS]
        if stalled:
            where = f"for {STALL_SECONDS:.0f} s under load ({title})"
            raise WorkloadFailure(f"{', '.join(stalled[:8])}: no progress {where}")
        if clock - spoken >= REPORT_SECONDS:
            spoken = clock
            report(LoadPhase(begin, clock))
            result.report(f"{title}: {clock - begin:.0f} of {seconds:.0f} s")
        time.sleep(min(0.2, max(0.01, begin + seconds - clock)))
    for worker in workers:
        worker.order("pause")
    return LoadPhase(begin, clock)


def _look_at(workers: Sequence[Worker]) -> None:
    """Raise ``WorkloadFailure`` for workers that ended. One that was OOM-killed is left out: its part is not broken."""
    ended = [worker for worker in workers if worker.process.poll() is not None]
    for worker in tuple(ended):
        if worker.process.returncode == -signal.SIGKILL and memory_kills() > worker.kills:
            worker.left_out = "the kernel killed it for want of memory: raise the memory limit of the stage's container"
            ended.remove(worker)
    if ended:
        time.sleep(0.5)  # its last output may still come
        words = "; ".join(f"{w.name} ended with {w.process.returncode}: {w.last_line}" for w in ended[:8])
        raise WorkloadFailure(f"a part failed under load: {words}")


def _report(result: WorkloadResult, workers: Sequence[Worker], solo: dict[str, float | None], phase: LoadPhase) -> None:
    """Add the figures of the phase with all parts to the result: by GPU and port, and of other kinds as sums. `solo`
    has each process's rate alone, by name."""
    groups: dict[tuple[str, str], list[Worker]] = defaultdict(list)
    gpu = "rank" if os.environ.get("GPUVAL_ACCELERATOR") == "cpu" else "gpu"
    for worker in workers:
        scopes = {"gpu": f"{gpu}:{worker.index}", "nic": f"link:{worker.port}"}
        groups[worker.kind, scopes.get(worker.kind, "node")].append(worker)
    result.add_metric("combined_load_processes_count", sum(kind == "gpu" for kind, _ in groups), "count")
    for (kind, scope), group in groups.items():
        name, unit, divisor = UNITS.get(kind, BYTES)
        now = [rate(worker.samples.kept, phase) for worker in group]
        before = [solo[worker.name] for worker in group]
        if kind != "nic":  # perftest does not compare received data
            result.add_metric(f"combined_load_{kind}_mismatch_count", sum(w.wrong for w in group), "count", scope)
        if None in now:
            continue
        total = sum(number(value) or 0.0 for value in now)
        result.add_metric(f"combined_load_{kind}_{name}", total / divisor, unit, scope)
        if None not in before and (base := sum(number(value) or 0.0 for value in before)):
            result.add_metric(f"combined_load_{kind}_ratio", total / base, "ratio", scope)
        if len(group) == 1:
            x, y = curve(group[0].samples.kept, phase, divisor)
            result.add_series(f"combined_load_{kind}_{name}", unit, x, y, x_unit="seconds", scope=scope)


def curve(samples: Sequence[tuple[float, float]], phase: LoadPhase, divisor: float) -> tuple[list[float], list[float]]:
    """Return seconds since the phase's begin, and work per second / `divisor` then. `samples`: (time, total work)."""
    inside = [sample for sample in list(samples) if phase.begin <= sample[0] <= phase.end]
    pairs = [(old, new) for old, new in zip(inside, inside[1:]) if new[0] > old[0]]
    rates = [(new[1] - old[1]) / (new[0] - old[0]) / divisor for old, new in pairs]
    return [round(new[0] - phase.begin, 2) for _, new in pairs], rates
