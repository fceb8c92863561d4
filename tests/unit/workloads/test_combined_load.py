"""The stage `combined_load`: real processes load this machine, and faults are caused under their load."""

import contextlib
import errno
import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from gpuval_node.hardware.tree import Tree as Sysfs
from gpuval_node.process_stat import oom_kills
from gpuval_workloads.combined_load import program
from gpuval_workloads.combined_load import worker as worker_program
from gpuval_workloads.combined_load.worker import CombinedLoad
from gpuval_workloads.common.device import CPU, TorchDevices
from gpuval_workloads.common.result import WorkloadFailure, WorkloadResult

from tests.kit import perftest as standin
from tests.kit.runner import until
from tests.kit.sysfs_tree import IB_GIDS, Tree
from tests.kit.workload_process import NODE, TorchWorkload

PHASE = program.LoadPhase(100.0, 110.0)


def steady(speed, start=99.0, end=111.0):
    return [(start + n / 2, speed * n / 2) for n in range(int(2 * (end - start)))]


@pytest.fixture(autouse=True)
def _the_workloads_are_found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(NODE))


def workers_of(wanted, folder, **load):
    return program._workers(wanted, CombinedLoad(str(folder), **load))


def test_the_rate_is_that_of_the_phase_without_its_warm_up():
    slow_start = [(clock, done / 10 if clock < 101.5 else done) for clock, done in steady(8.0)]
    assert program.rate(slow_start, PHASE) == pytest.approx(8.0)
    assert program.rate(steady(8.0, end=101.0), PHASE) is None
    assert program.rate([], PHASE) is None
    x, y = program.curve(steady(8.0), PHASE, 2.0)
    assert (x[0], x[-1], set(y)) == (0.5, 10.0, {4.0})


def test_processes_leave_cores_to_what_feeds_the_gpus():
    big = program.counts(TorchDevices("cuda", 8, "nccl"), 192, True)
    assert big == {"gpu": 8, "cpu": 135, "memory": 16, "loopback": 1, "disk": 1}
    assert program.counts(CPU, 1, False) == {"gpu": 1, "cpu": 1, "memory": 1, "loopback": 1}
    with_nics = program.counts(TorchDevices("cuda", 8, "nccl"), 192, True, 8)
    assert with_nics == {**big, "cpu": 123, "nic": 8}  # two tools of each port poll


def test_the_time_that_a_container_is_given_limits_its_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(program.os, "sched_getaffinity", lambda _: set(range(192)))
    (tmp_path / "cpu").mkdir()
    assert program.usable_cores(tmp_path) == 192
    for quota, cores in (("max 100000", 192), ("1650000 100000", 16), ("50000 100000", 1), ("99999999 100000", 192)):
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
        assert program.usable_cores(tmp_path) == cores
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    for quota, cores in (("-1", 192), ("1600000", 16)):
        (tmp_path / "cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
        assert program.usable_cores(tmp_path) == cores


def test_where_cores_do_not_suffice_the_gpus_are_fed_first():
    eight = TorchDevices("cuda", 8, "nccl")
    out = {cores: program.crowded_out(program.counts(eight, cores, True), cores) for cores in range(9, 16)}
    assert out[14] == out[15] == []
    assert out[13] == out[12] == ["loopback"]
    assert out[11] == ["loopback", "disk"]
    assert out[9] == ["loopback", "disk", "memory", "cpu"]
    for cores in [*range(10, 20), *range(24, 36)]:
        wanted = program.counts(eight, cores, True, 8 if cores >= 24 else 0)
        kept = wanted.keys() - program.crowded_out(wanted, cores)
        assert sum(wanted[kind] * (2 if kind == "nic" else 1) for kind in kept) < cores
    assert [program.crowded_out(program.counts(eight, cores, True, 8), cores) for cores in (29, 30)] == [["nic"], []]


@pytest.mark.slow
def test_all_parts_work_together_and_are_compared_with_each_alone(tmp_path):
    pytest.importorskip("torch")
    ended = TorchWorkload(
        tmp_path, "gpuval_workloads.combined_load", "--seconds", "60", "--max-written-bytes", "3e8"
    ).end()
    assert ended.code == 0, ended.err
    names = {metric["name"] for metric in ended.result["metrics"]}
    for kind in ended.result["environment"]["processes"]:
        scope = "rank:0" if kind == "gpu" else "node"
        assert ended.metric(f"combined_load_{kind}_mismatch_count", scope) == 0
        assert ended.metric(f"combined_load_{kind}_{'tflops' if kind == 'gpu' else 'bytes_per_second'}", scope) > 0
    # One core cannot give two parts what each had alone.
    assert 0 < ended.metric("combined_load_gpu_ratio", "rank:0") < 3
    assert ended.metric("combined_load_cpu_ratio") < 1.5
    assert ended.metric("combined_load_seconds") == pytest.approx(42, abs=3)
    assert "combined_load_left_out_count" in names
    assert any(series["name"] == "combined_load_gpu_tflops" for series in ended.result["series"])
    assert not list(tmp_path.glob("*.data"))


def test_a_part_that_dies_under_load_is_named(tmp_path):
    with workers_of({"cpu": 2}, tmp_path) as workers:
        result = WorkloadResult()
        program._until_ready(workers, result)
        workers[1].process.send_signal(signal.SIGKILL)
        with pytest.raises(WorkloadFailure, match=r"cpu:1 ended with -9"):
            program._run(workers, 20, result, "all together")
    assert all(worker.process.poll() is not None for worker in workers)


def test_a_part_that_hangs_under_load_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "STALL_SECONDS", 3.0)
    monkeypatch.setattr(program, "END_SECONDS", 0.5)
    with workers_of({"memory": 1, "loopback": 1}, tmp_path) as workers:
        program._until_ready(workers, WorkloadResult())
        os.kill(workers[0].process.pid, signal.SIGSTOP)
        with pytest.raises(WorkloadFailure, match=r"^memory:0: no progress for 3 s under load"):
            program._run(workers, 60, WorkloadResult(), "all together")


def test_a_part_that_cannot_be_killed_is_still_named(tmp_path, monkeypatch):
    """It hangs in a driver: KILL has no effect, and neither that nor a broken pipe hides what was found."""
    monkeypatch.setattr(program, "END_SECONDS", 0.2)
    monkeypatch.setattr(program, "KILL_SECONDS", 0.2)
    with pytest.raises(WorkloadFailure, match="no progress"), workers_of({"cpu": 2}, tmp_path) as workers:
        program._until_ready(workers, WorkloadResult())
        stuck, dead = (worker.process for worker in workers)
        os.kill(stuck.pid, signal.SIGSTOP)
        kill = stuck.kill
        stuck.kill = lambda: None
        dead.kill()
        dead.wait(10)
        workers[1].order("run")
        raise WorkloadFailure("cpu:0: no progress for 60 s under load")
    kill()
    assert stuck.wait(10) == -signal.SIGKILL


def test_a_wrong_result_just_before_the_end_is_reported(monkeypatch, capsys):
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reader))
    os.write(writer, b"run\n")

    def rounds():
        yield from [(1.0, 0), (1.0, 0), (1.0, 1)]
        os.close(writer)
        while True:
            time.sleep(0.01)
            yield 1.0, 0

    worker_program.serve(rounds())
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[2] == 1


def test_workers_end_with_their_parent(tmp_path):
    """The pipe closes when the stage is killed: no part loads the node on."""
    with workers_of({"cpu": 1}, tmp_path) as (worker,):
        program._until_ready([worker], WorkloadResult())
        worker.order("run")
        worker.process.stdin.close()
        assert worker.process.wait(10) == 0


def test_wrong_results_are_counted_for_their_part(monkeypatch):
    monkeypatch.setenv("GPUVAL_ACCELERATOR", "nvidia")
    lines = "print('[W1125 10:00:00 Context.cpp:67] Warning'); print('[1, null, 0]'); print('[7]');"
    lines += "".join(f"print('[{clock}, {done}, {int(clock > 105)}]');" for clock, done in steady(2e12))
    process = program.subprocess.Popen([sys.executable, "-c", lines], stdout=program.subprocess.PIPE, text=True)
    worker = program.Worker("gpu", 3, process)
    worker.read()
    process.wait(10)
    assert worker.last_line == "[7]"
    result = WorkloadResult()
    program._report(result, [worker], {"gpu:3": 2.5e12}, PHASE)
    assert result.metric("combined_load_gpu_mismatch_count", "gpu:3") == 1
    assert result.metric("combined_load_gpu_tflops", "gpu:3") == pytest.approx(2.0)
    assert result.metric("combined_load_gpu_ratio", "gpu:3") == pytest.approx(0.8)


def test_a_wrong_result_of_the_first_round_counts(capsys, monkeypatch):
    is_reported = threading.Event()

    def orders():
        yield "run\n"
        assert is_reported.wait(60)

    def rounds():
        yield 1.0, 1
        yield 1.0, 0
        is_reported.set()
        yield from itertools.repeat((1.0, 0))

    monkeypatch.setattr(sys, "stdin", orders())
    worker_program.serve(rounds())
    ready, *reports = capsys.readouterr().out.splitlines()
    assert ready == "ready" and [json.loads(line)[2] for line in reports] == [1] * len(reports) != []


def test_a_long_phase_is_measured_from_its_begin():
    """Four hours, a report every half second: samples are thinned, not forgotten."""
    samples = program.ThinnedSample(program.MAX_SAMPLES)
    samples.extend((n / 2, 3.0 * n / 2) for n in range(2 * 14400))
    assert program.rate(samples.kept, program.LoadPhase(0, 14400)) == pytest.approx(3.0)
    assert samples.kept[0] == (0, 0)
    assert samples.kept[-1][0] > 14300


#: .ci/run installs fio: CI skips none of these.
needs_fio = pytest.mark.skipif(program.fio.find() is None, reason="fio is not installed")


@needs_fio
def test_a_disk_without_room_is_left_out_and_a_broken_one_fails(tmp_path, monkeypatch):
    file = tmp_path / "data"
    file.symlink_to("/dev/full")  # each write: no space left
    _, found = program.lay_out(file, 1 << 20)
    assert "No space left on device" in found.problem and not found.hung
    assert not file.is_symlink()
    with monkeypatch.context() as patch:
        broken = program.fio.FioMeasurement(problem="fio: Input/output error", error=errno.EIO)
        patch.setattr(program.fio, "choose_engine", lambda *_: (None, broken))
        with pytest.raises(WorkloadFailure, match=r"the disk of .* cannot be loaded: fio: Input/output error"):
            program.lay_out(file, 1 << 20)
    monkeypatch.setattr(program.fio, "find", lambda: "/bin/false")  # no evidence of the disk
    assert program.lay_out(file, 1 << 20)[1].problem


def test_the_disk_is_written_within_its_limit_then_read(tmp_path, monkeypatch):
    pytest.importorskip("resource")
    if program.fio.find() is None:
        pytest.skip("fio is not installed")
    worker = worker_program
    size, limit = 16 << 20, 80 << 20
    monkeypatch.setattr(worker, "DISK_SECONDS", 0.5)
    engine, found = program.lay_out(tmp_path / worker.DATA_FILE, size)
    assert not found.problem
    calls = []
    call = worker.fio.call

    def watched(*arguments, **options):
        found = call(*arguments, **options)
        calls.append((arguments[2].rw, found.write.total_bytes if found.write else 0))
        return found

    monkeypatch.setattr(worker.fio, "call", watched)
    rounds = worker.disk(0, CombinedLoad(str(tmp_path), size, limit, (engine.name, engine.direct)))
    deadline = time.monotonic() + 60
    while not calls or calls[-1][0] != "randread":
        assert next(rounds)[0] > 0
        assert time.monotonic() < deadline
    assert size + sum(written for _, written in calls) <= limit + 1
    assert Path(tmp_path, "combined_load.data").stat().st_size == size


@needs_fio
def test_a_disk_that_gets_full_under_load_is_no_fault_and_leaves_evidence_out(tmp_path):
    """The other parts go on, and fail the node for what they find."""
    file, size = tmp_path / worker_program.DATA_FILE, 16 << 20
    program.lay_out(file, size)
    load = {"file_bytes": size, "written_bytes": 1 << 40, "fio": ("psync", False)}
    result = WorkloadResult()
    with workers_of({"disk": 1, "cpu": 1}, tmp_path, **load) as workers:
        program._until_ready(workers, result)
        file.unlink()
        file.symlink_to("/dev/full")
        phase = program._run(workers, 6, result, "all together")
    assert "No space left on device" in workers[0].left_out and not workers[1].left_out
    assert program.rate(workers[1].samples.kept, phase) > 0
    program._conclude(result, workers, phase, {})
    assert "combined_load_seconds" not in [metric["name"] for metric in result.metrics]
    assert result.message.startswith("disk:0 stopped under load: fio: ")
    workers[1].wrong = 1
    with pytest.raises(WorkloadFailure, match="wrong results under load: cpu:0"):
        program._conclude(result, workers, phase, {})


def hanging_fio(folder, monkeypatch):
    folder.mkdir()
    (folder / "fio").write_text("#!/bin/sh\nexec sleep 60\n")
    (folder / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_a_disk_that_hangs_leaves_evidence_out_as_in_the_stage_storage(tmp_path, monkeypatch):
    """A share of the network hangs, too: neither stage passes, and neither calls the disk broken."""
    hanging_fio(tmp_path / "bin", monkeypatch)
    monkeypatch.setattr(program.fio, "GRACE_SECONDS", -9.5)
    _, found = program.lay_out(tmp_path / worker_program.DATA_FILE, 1 << 20)
    assert found.hung and "had not ended after" in found.problem
    result = WorkloadResult()
    program._conclude(result, [], PHASE, {"disk": found.problem}, [f"the disk hangs: {found.problem}"])
    assert "combined_load_seconds" not in [metric["name"] for metric in result.metrics]
    assert result.message.startswith("the disk hangs: ")
    said = []
    monkeypatch.setattr(worker_program, "_leave_out", lambda why: said.append(why) or sys.exit(0))
    monkeypatch.setattr(worker_program.fio, "GRACE_SECONDS", -1.5)
    with pytest.raises(SystemExit):
        list(worker_program.disk(0, CombinedLoad(str(tmp_path), 1 << 20, 1 << 30, ("psync", False))))
    assert "had not ended after" in said[0]


@pytest.mark.parametrize("when", ["start", "load"])
def test_a_part_that_is_killed_for_want_of_memory_is_not_broken_and_leaves_evidence_out(tmp_path, monkeypatch, when):
    """The kernel's counter rises with the kill; the other parts go on."""
    result, killed = WorkloadResult(), []
    monkeypatch.setattr(program, "memory_kills", lambda: len(killed))
    with workers_of({"cpu": 2}, tmp_path) as workers:
        for worker in workers:
            worker.kills = 0
        if when == "load":
            program._until_ready(workers, result)
        workers[1].process.kill()
        killed.append(workers[1])
        program._until_ready(workers, result)
        phase = program._run(workers, 3, result, "all together")
        program._conclude(result, workers, phase, {})
    assert program.rate(workers[0].samples.kept, phase) > 0
    assert "combined_load_seconds" not in [metric["name"] for metric in result.metrics]
    assert "cpu:1 stopped under load: the kernel killed it for want of memory: raise the memory limit" in result.message


def test_kills_for_want_of_memory_are_counted(tmp_path):
    vmstat = tmp_path / "vmstat"
    assert oom_kills(vmstat) is None
    vmstat.write_text("oom_kill_other 9\noom_kill 3\n")
    assert oom_kills(vmstat) == 3


class Nics:
    """Two ports in a tree like /sys, and stand-ins of perftest, whose behaviour a test changes under load."""

    def __init__(self, folder, monkeypatch, names=("mlx5_0", "mlx5_1")):
        self.folder, self.bin, self.left_out = folder, folder / "bin", {}
        self.tree = Tree(folder / "sys")
        for index, name in enumerate(names):
            self.tree.pci("pci0000:40", f"0000:4{index}:00.0", **{"class": "0x020700"}, **self.tree.link())
            self.tree.rdma(name, pci=f"0000:4{index}:00.0")
            self.tree.port(name, gids=IB_GIDS)
        self.bin.mkdir()
        monkeypatch.setenv("PATH", str(self.bin))

    def behave(self, **devices):
        standin.install(self.bin, {"mlx5_0": {}, "mlx5_1": {}, **devices})

    def ports(self, *patterns):
        return program.ports(Sysfs(self.tree.root), patterns or ("*",), self.left_out)

    def workers(self):
        nics = self.ports()
        return workers_of({"nic": len(nics)}, self.folder, tree=str(self.tree.root), nics=tuple(nics))

    def tools(self):
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended
                found += [path] if str(self.bin) in path.read_text(errors="replace") else []
        return found


@pytest.fixture
def nics(tmp_path, monkeypatch):
    return Nics(tmp_path, monkeypatch)


def test_each_port_is_loaded_alone_then_together(nics):
    nics.behave()
    result = WorkloadResult()
    with nics.workers() as workers:
        program._until_ready(workers, result)
        alone = program._run(workers, 5, result, "nic alone")
        rates = {worker.name: program.rate(worker.samples.kept, alone) for worker in workers}
        nics.behave(mlx5_1={"share": 0.5})
        time.sleep(1)
        until(lambda: not nics.tools())  # those of before the change
        together = program._run(workers, 5, result, "all together")
        gpu = program.Worker("gpu", 0, workers[0].process)
        program._report(result, [gpu, *workers], {**rates, "gpu:0": None}, together)
    full = standin.SPEED * 1.97e9 / 8
    for port, share in {"link:mlx5_0:1": 1, "link:mlx5_1:1": 0.5}.items():
        assert result.metric("combined_load_nic_bytes_per_second", port) == pytest.approx(share * full, rel=0.02)
        assert result.metric("combined_load_nic_ratio", port) == pytest.approx(share, rel=0.02)


def test_a_port_that_fails_under_load_is_named_with_the_words_of_the_tool(nics):
    nics.behave()
    with nics.workers() as workers:
        program._until_ready(workers, WorkloadResult())
        nics.behave(mlx5_1={"fail": " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81"})
        with pytest.raises(WorkloadFailure, match=r"nic:mlx5_1:1 ended with 1: ib_write_bw -b mlx5_1:1: .* status 12"):
            program._run(workers, 20, WorkloadResult(), "all together")


@pytest.mark.slow  # as long as a measurement may take
def test_a_port_that_hangs_under_load_is_named_and_its_tools_end(nics):
    nics.behave()
    with nics.workers() as workers:
        program._until_ready(workers, WorkloadResult())
        nics.behave(mlx5_0={"hang": True})
        with pytest.raises(WorkloadFailure, match=r"nic:mlx5_0:1 ended with 1: .*had not ended after \d+ s"):
            program._run(workers, 60, WorkloadResult(), "all together")
        nics.behave(mlx5_1={"hang": True})
        time.sleep(1)
        assert nics.tools()
    assert not nics.tools()


def test_a_port_that_may_not_be_opened_is_left_out_with_the_reason(nics):
    standin.install(nics.bin, {"mlx5_0": {}})  # the tool knows no other, as in a container
    with nics.workers() as workers:
        program._until_ready(workers, WorkloadResult())
        assert [(worker.name, bool(worker.left_out)) for worker in workers] == [
            ("nic:mlx5_0:1", False),
            ("nic:mlx5_1:1", True),
        ]
        assert "Unable to find the Infiniband/RoCE device" in workers[1].left_out


def test_ports_without_perftest_are_left_out_and_none_without_devices(nics, tmp_path):
    assert not nics.ports() and "apt-get install perftest" in nics.left_out.pop("nic")
    nics.behave()
    assert [name for name, _ in nics.ports("mlx5_1")] == ["mlx5_1:1"] and not nics.left_out
    assert program.ports(Sysfs(tmp_path / "empty"), ["*"], nics.left_out) == [] and not nics.left_out
