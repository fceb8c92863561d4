"""The stage `storage` with the real fio: on folders, on file systems of loop devices, and with faults caused there."""

import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from gpuval_runner import scratch
from gpuval_workloads.common.result import WorkloadResult
from gpuval_workloads.storage import program, table, targets

from tests.kit.builders import SHIPPED, healthy, judge, make_record, make_run
from tests.kit.needs import SYS_ADMIN, needs_root
from tests.kit.runner import until
from tests.kit.workload_process import Workload, is_alive

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
needs_loop = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists() or shutil.which("mkfs.ext4") is None,
    reason=f"{SYS_ADMIN.format(to='to mount a loop device')}, with mkfs.ext4 (apt-get install e2fsprogs)",
)
MIB = 1 << 20
REAL_FIO = shutil.which("fio")


def start(folder, *arguments, seconds=5, written=150 * MIB, **variables):
    """The stage on a node `n` of a run `r`; its folder is that of the runner."""
    work = folder / "r" / "n" / "work" / "storage"
    work.mkdir(parents=True, exist_ok=True)
    limits = ("--seconds", str(seconds), "--max-written-bytes", str(written), "--keep-free-ratio", "0")
    variables = {"GPUVAL_RUN_ID": "r", "GPUVAL_NODE": "n", **variables}
    return Workload(work, "gpuval_workloads.storage", *limits, *map(str, arguments), **variables)


def judged(*results):
    """What the shipped criteria say of nodes with these results of the stage: by node the verdict, and its checks."""
    names = [f"node-{number + 1}" for number in range(len(results))]
    run = make_run(names, stages=["facts", "storage"])
    evidence = healthy(run)
    for name, result in zip(names, results, strict=True):
        fields = {key: result[key] for key in ("state", "message", "metrics", "fingerprints", "environment")}
        evidence.records[name]["storage"] = make_record(name, "storage", **fields)
    found = []
    for node in judge(run, evidence, SHIPPED)["nodes"]:
        checks = {check["name"]: check for check in node["checks"] if check["stage"] == "storage"}
        required = {check["verdict"] for check in checks.values() if check["severity"] == "required"}
        found.append(("FAIL" if "fail" in required else "INCOMPLETE" if "missing" in required else "PASS", checks))
    return found


def like(result, factor):
    """The result of another node with a disk that is faster by a factor; exact copies are found out."""
    faster = [
        {**one, "value": one["value"] * factor} if one["name"].endswith("_per_second") else one
        for one in result["metrics"]
    ]
    return {**result, "metrics": faster}


def scoped(ended, scope):
    return {metric["name"]: metric["value"] for metric in ended.result["metrics"] if metric["scope"] == scope}


@contextmanager
def loop_device(folder, size=96 * MIB):
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(size)
    device = subprocess.run(
        ["losetup", "-f", "--show", image], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        yield Path(device)
    finally:
        subprocess.run(["losetup", "-d", device], check=False)


@contextmanager
def mounted(device, folder):
    subprocess.run(["mkfs.ext4", "-q", "-F", device], check=True)
    place = folder / "disk"
    place.mkdir()
    subprocess.run(["mount", device, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def put_fio(folder, before):
    """A fio in front of the real one, which does something first where its arguments fit (`$*`)."""
    (folder / "bin").mkdir()
    (folder / "bin" / "fio").write_text(f'#!/bin/sh\n{before}\nexec {REAL_FIO} "$@"\n')
    (folder / "bin" / "fio").chmod(0o755)
    return f"{folder / 'bin'}:{os.environ['PATH']}"


def test_a_local_and_a_shared_file_system_are_measured_and_verified(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    ended = start(tmp_path, "--shared-path", shared).end()
    assert ended.code == 0, ended.err
    for scope in ("link:scratch", targets.StorageTarget(shared).scope):
        figures = scoped(ended, scope)
        assert {
            f"storage_{test.name}_{end}" for test in table.TESTS for end in ("bytes_per_second", "p999_seconds")
        } <= (figures.keys())
        assert figures["storage_random_read_p50_seconds"] <= figures["storage_random_read_p999_seconds"] < 10
        # One request at a time, so their mean time is 1 / rate at most, and no median is more than twice its mean.
        rate = figures["storage_random_read_single_requests_per_second"]
        assert 1e-7 < figures["storage_random_read_single_p50_seconds"] < 2.1 / rate
        assert figures["storage_verified_bytes"] >= MIB
    assert 32 * MIB < ended.metric("storage_written_bytes") <= 150 * MIB
    assert [path.name for path in shared.iterdir()] == []
    ((verdict, checks),) = judged(ended.result)
    assert verdict == "PASS"
    assert checks["storage_verified"]["verdict"] == "pass"


def test_a_byte_that_changes_is_found(tmp_path):
    """The byte is changed in the file between the write and the read of the verification."""
    flip = 'case "$*" in *--rw=read*--verify=crc32c*) for a; do case "$a" in --filename=*) f=${a#*=};; esac; done\n'
    flip += "printf X | dd of=$f bs=1 seek=700001 conv=notrunc 2>/dev/null;; esac"
    ended = start(tmp_path, PATH=put_fio(tmp_path, flip)).end()
    assert ended.code == 1
    assert "wrong data: what was read is not what was written" in ended.result["message"]
    assert "storage_verified_bytes" not in scoped(ended, "link:scratch")
    ((verdict, checks),) = judged(ended.result)
    assert verdict == "FAIL"
    assert checks["storage_mismatch"]["verdict"] == "fail"
    assert not next(check for check in SHIPPED if check.name == "storage_mismatch").retry


def test_without_fio_nothing_is_accepted(tmp_path):
    ended = start(tmp_path, PATH=str(tmp_path)).end()
    assert ended.code == 0
    ((verdict, checks),) = judged(ended.result)
    assert verdict == "INCOMPLETE"
    assert checks["storage_verified"]["verdict"] == "missing"
    assert "fio was not found: install it" in checks["storage_verified"]["reason"]


def test_a_path_that_does_not_exist_is_named_without_fio_too(tmp_path):
    ended = start(tmp_path, "--path", str(tmp_path / "none"), PATH=str(tmp_path)).end()
    assert ended.result["message"].startswith(f"{tmp_path / 'none'}: No such file or directory; fio was not found")
    assert "storage_mismatch_count" not in scoped(ended, f"link:{targets.StorageTarget(tmp_path / 'none').scope[5:]}")


def test_disks_whose_health_cannot_be_read_are_not_tested_and_said_so(tmp_path):
    ended = start(tmp_path, PATH=str(tmp_path)).end()
    untested = ended.metric("storage_disks_untested_count")
    if not untested:
        pytest.skip("this machine has no disk, or all tell their health")
    ((_, checks),) = judged(ended.result)
    assert checks["storage_disks_untested"]["verdict"] == "warn"
    assert "health not tested" in checks["storage_disks_untested"]["reason"]
    assert "storage_disk_warning" not in checks


@needs_loop
def test_a_full_disk_is_not_measured(tmp_path):
    with loop_device(tmp_path) as device, mounted(device, tmp_path) as disk:
        space = os.statvfs(disk)
        with (disk / "data").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, (space.f_bavail - 1000) * space.f_frsize)
        ended = start(tmp_path, "--path", disk).end()
        assert sorted(path.name for path in disk.iterdir()) == ["data", "lost+found"]
    assert "too little for a file of 16 MiB; make room" in ended.result["message"]
    ((verdict, _),) = judged(ended.result)
    assert verdict == "INCOMPLETE"


@needs_loop
def test_a_disk_that_fails_requests_fails_the_node(tmp_path):
    """The image behind the loop device is cut before it is read: the kernel answers with EIO."""
    cut = f'case "$*" in *--rw=read*) truncate -s 1M {tmp_path}/image;; esac'
    with loop_device(tmp_path) as device, mounted(device, tmp_path) as disk:
        ended = start(tmp_path, "--path", disk, PATH=put_fio(tmp_path, cut)).end()
    assert ended.code == 1
    assert "Input/output error" in ended.result["message"]
    ((verdict, checks),) = judged(ended.result)
    assert (verdict, checks["storage_io_errors"]["verdict"]) == ("FAIL", "fail")


@needs_loop
@pytest.mark.slow
def test_a_slow_disk_misses_its_floor_and_stands_out_of_the_fleet(tmp_path):
    """The kernel holds the loop device to 8 MB/s for the processes of a control group."""
    group = tmp_path / "blkio"
    group.mkdir()
    if subprocess.run(["mount", "-t", "cgroup", "-o", "blkio", "none", group], check=False).returncode:
        pytest.skip("no control group limits block devices here")
    floors = '{"sequential_read_bytes_per_second": 3e7}'
    own = group / f"gpuval-test-{os.getpid()}"
    try:
        own.mkdir()
        with loop_device(tmp_path, 256 * MIB) as device, mounted(device, tmp_path) as disk:
            number = device.stat().st_rdev
            good = start(tmp_path, "--path", disk, "--floors", floors).end()
            for way in ("read", "write"):
                limit = f"{os.major(number)}:{os.minor(number)} 8000000\n"
                (own / f"blkio.throttle.{way}_bps_device").write_text(limit)
            (own / "cgroup.procs").write_text(str(os.getpid()))
            try:
                slow = start(tmp_path, "--path", disk, "--floors", floors).end()
            finally:
                (group / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        own.rmdir()
        subprocess.run(["umount", group], check=True)
    scope = targets.StorageTarget(disk).scope
    assert scoped(slow, scope)["storage_sequential_read_bytes_per_second"] < 1.2e7
    *rest, (verdict, checks) = judged(*(like(good.result, 1 + n / 1000) for n in range(9)), slow.result)
    assert ({verdict for verdict, _ in rest}, verdict) == ({"PASS"}, "FAIL")
    assert checks["storage_floors"]["verdict"] == "fail"
    assert "under the declared 30.00 MB/s" in checks["storage_floors"]["reason"]
    assert checks["storage_sequential_read_fleet"]["verdict"] == "warn"
    assert rest[0][1]["storage_sequential_read_fleet"]["verdict"] == "pass"


def test_where_requests_cannot_pass_the_page_cache_by_no_floor_is_kept(tmp_path):
    refuse = 'case "$*" in *--direct=1*) echo "fio: first direct IO errored: Invalid argument"; exit 1;; esac'
    path = put_fio(tmp_path, refuse)
    ended = start(tmp_path, "--floors", '{"random_read_requests_per_second": 1}', PATH=path).end()
    assert "refuses O_DIRECT" in ended.result["message"]
    assert "storage_buffered_random_read_requests_per_second" in scoped(ended, "link:scratch")
    ((verdict, checks),) = judged(ended.result)
    assert (verdict, checks["storage_floors"]["verdict"]) == ("INCOMPLETE", "missing")


def test_a_floor_whose_figure_fio_did_not_give_is_neither_kept_nor_missed():
    target, result = targets.StorageTarget(Path("/data")), WorkloadResult()
    options = program.parse_arguments(["--floors", '{"mixed_p99_seconds": 1, "mixed_bytes_per_second": 5}'])
    found = program.TargetFindings(figures={"mixed_bytes_per_second": 9.0}, verified_bytes=1)
    program._report(result, {target: found}, options)
    assert "storage_floor_misses_count" not in [metric["name"] for metric in result.metrics]
    assert "/data: no mixed_p99_seconds (floor 1,000,000 us)" in result.message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_stage_leaves_nothing_in_shared_folders(tmp_path, number):
    """After TERM it removes its folder itself; after KILL the runner does, also when the node is cleaned."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "of-others").mkdir()
    stage = start(tmp_path, "--shared-path", shared, "--path", tmp_path, seconds=600)
    made = shared / "gpuval-r-n"
    stage.wait_for_line(f"{tmp_path}: ")
    until((tmp_path / "gpuval-r-n" / "data").exists)
    made.mkdir()  # as if it had come to the second one
    (made / "data").write_bytes(b"x")
    work = tmp_path / "r" / "n" / "work" / "storage"
    with (work / "outside").open("a") as note:
        note.write(f"{made}\n{shared / 'of-others'}\n")
    left = stage.ranks()  # fio, in a session of its own
    stage.process.send_signal(number)
    stage.process.wait(30)
    assert number == signal.SIGKILL or not [pid for pid in left if Path(f"/proc/{pid}").exists()]
    assert (tmp_path / "gpuval-r-n").exists() == (number == signal.SIGKILL)
    for pid in left if number == signal.SIGKILL else ():
        os.killpg(pid, signal.SIGKILL)  # as the runner ends what is left
        until(lambda pid=pid: not is_alive(pid))
    assert scratch.remove(work) == []
    assert [path.name for path in shared.iterdir()] == ["of-others"]
    assert not (tmp_path / "gpuval-r-n").exists()


def test_memory_is_no_disk(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n30 22 0:25 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n"
        "31 22 0:26 / /dev/shm/in\\040it rw - ext4 /dev/vdb rw\n32 22 0:27 / /mnt/\\134M\u00fcll rw - tmpfs tmpfs rw\n",
        encoding="utf-8",
    )
    assert targets.in_memory(targets.StorageTarget(Path("/dev/shm/a")), mounts)
    assert not targets.in_memory(targets.StorageTarget(Path("/dev/shm/in it/a")), mounts)
    assert not targets.in_memory(targets.StorageTarget(Path("/dev/shmem")), mounts)
    assert targets.in_memory(targets.StorageTarget(Path("/mnt/\\M\u00fcll/a")), mounts), "names in UTF-8 stay"


@needs_loop
def test_disks_that_hold_anything_are_refused(tmp_path):
    with loop_device(tmp_path) as device:
        assert targets.refused(device) == ""
        with mounted(device, tmp_path):
            assert "in use" in targets.refused(device)
        assert "holds ext4" in targets.refused(device)
    assert targets.refused(tmp_path) == "is not a block device"
    assert targets.refused(Path("/dev/null")) == "is not a block device"


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        ("partition", "is a partition"),
        ("disk1/partition", "has partitions"),
        ("holders/dm-0", "part of another device"),
    ],
)
def test_partitions_and_members_are_refused(tmp_path, made, problem):
    needs_root("to make device nodes")
    device = tmp_path / "node"
    os.mknod(device, 0o600 | 0o060000, os.makedev(259, 77))
    system = tmp_path / "sys/dev/block/259:77"
    (system / "holders").mkdir(parents=True)
    (system / made).parent.mkdir(exist_ok=True)
    (system / made).touch()
    assert problem in targets.refused(device, tmp_path)


@needs_loop
def test_an_empty_disk_is_measured_once_it_is_confirmed(tmp_path):
    with loop_device(tmp_path) as device:
        arguments = ("--path", tmp_path, "--raw-device", device)
        refused = start(tmp_path, *arguments).end()
        assert (refused.code, refused.result) == (2, None)
        assert "storage_raw_devices_confirmed" in refused.err
        image = tmp_path / "image"
        assert not any(image.read_bytes())
        ended = start(tmp_path, *arguments, "--confirmed-raw-device", device).end()
        assert ended.code == 0, ended.result
        assert scoped(ended, targets.StorageTarget(device).scope)["storage_verified_bytes"] >= MIB
        assert any(image.read_bytes())


def test_targets_beyond_the_most_are_refused_not_dropped(capsys):
    paths = [text for number in range(program.MAX_TARGETS) for text in ("--path", f"/disk{number}")]
    assert len(program.parse_arguments(paths).path) == 32
    with pytest.raises(SystemExit):
        program.parse_arguments([*paths, "--shared-path", "/shared"])
    assert "33 paths and devices: 32 at most, shorten storage_paths" in capsys.readouterr().err


def test_a_disk_whose_device_node_is_in_memory_is_no_memory(monkeypatch):
    """In containers /dev is a tmpfs."""
    for name, value in {"refused": "", "in_memory": True, "free_bytes": (1 << 30, 1 << 30)}.items():
        monkeypatch.setattr(program, name, lambda _target, value=value: value)
    options = program.parse_arguments([])
    assert program._file_bytes(targets.StorageTarget(Path("/dev/nvme1n1"), raw=True), 1e9, options) == 238 * MIB
    with pytest.raises(targets.TargetError, match="is memory"):
        program._file_bytes(targets.StorageTarget(Path("/dev/shm")), 1e9, options)


def test_nodes_that_share_a_file_system_leave_each_other_room(tmp_path):
    options = program.parse_arguments(["--sharers", "1000000000", "--keep-free-ratio", "0"])
    assert program._file_bytes(targets.StorageTarget(tmp_path), 1e9, options) >= 16 * MIB
    with pytest.raises(
        targets.TargetError, match="1000000000 nodes share the rest, 1000 MB may be written: too little"
    ):
        program._file_bytes(targets.StorageTarget(tmp_path, shared=True), 1e9, options)


def test_bytes_are_limited():
    assert table.file_bytes(4e9, 16e9, 1e12, 0) == 953 * MIB
    assert table.file_bytes(1e12, 16e9, 50e9, 45e9) == 4768 * MIB
    assert table.file_bytes(1e12, 16e9, 50e9, 49.99e9) == 0
    assert 100 * table.file_bytes(1e12, 16e9, 50e9, 45e9, sharers=100) <= 5e9
    limit, size = 1e9, table.file_bytes(1e9, 16e9, 1e12, 0)
    moved = sum(program.work(test, size, 60, limit).limit_bytes for test in table.TESTS if test.writes)
    assert moved + table.verify_bytes(size, 1e12, 60, limit) + 3 * MIB < limit
    assert table.verify_bytes(size, 1e6, 60, limit) == 3 * MIB
    assert sum(test.time_share for test in table.TESTS) + table.VERIFY_SHARE == pytest.approx(1)
