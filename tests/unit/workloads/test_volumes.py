"""Volumes that the site provides, such as claims, NFS and Lustre, with real faults: no node fails for them."""

import errno
import json
import os
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import row_of
from gpuval_node import node_directory, volumes
from gpuval_workloads.storage import targets

from tests.kit.builders import SHIPPED, healthy, judge, make_record, make_run
from tests.unit.workloads.test_loading_run import (  # noqa: F401 - fixtures
    NAME,
    load,
    original,
    small_disk,
    stored,
    variables,
)
from tests.unit.workloads.test_storage import (
    loop_device,
    mounted,
    needs_loop,
    put_fio,
    pytestmark,  # noqa: F401 - without fio nothing runs
    scoped,
    start,
)

CLAIM = {"GPUVAL_VOLUMES": json.dumps({"/": "claim lustre"})}


@contextmanager
def read_only(folder, view):
    """The folder at a second place, mounted read-only, as a kubelet mounts a volume with `readOnly`."""
    view.mkdir()
    subprocess.run(["mount", "--bind", folder, view], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", view], check=True)
        yield view
    finally:
        subprocess.run(["umount", view], check=True)


def fill(disk):
    space = os.statvfs(disk)
    with (disk / "data").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (space.f_bavail - 1000) * space.f_frsize)


def report_of(*ends):
    """The report on nodes with these results of the stage."""
    names = [f"node-{number}" for number, _ in enumerate(ends, 1)]
    run = make_run(names, stages=["facts", "storage"])
    evidence = healthy(run)
    for name, ended in zip(names, ends, strict=True):
        fields = {key: ended.result[key] for key in ("state", "message", "metrics", "fingerprints", "environment")}
        evidence.records[name]["storage"] = make_record(name, "storage", **fields)
    return judge(run, evidence, SHIPPED)


def cut(disk):
    """A fio that finds the device behind the file system cut short: the kernel answers with EIO."""
    return put_fio(disk.parent, f'case "$*" in *--rw=read*) truncate -s 1M {disk.parent}/image;; esac')


FLIP = (
    'case "$*" in *--filename=*/disk/*--rw=read*--verify=crc32c*)\n'
    'for a; do case "$a" in --filename=*) f=${a#*=};; esac; done\n'
    "printf X | dd of=$f bs=1 seek=700001 conv=notrunc 2>/dev/null;; esac"
)


@needs_loop
@pytest.mark.parametrize(
    ("fault", "name", "words", "is_shared"),
    [
        ("full", "volume_full", "too little for a file of 16 MiB; make room", True),
        ("read_only", "volume_read_only", "Read-only file system", True),
        ("read_only", "volume_read_only", "Read-only file system", False),
        ("missing", "volume_missing", "No such file or directory", True),
        ("slow", "volume_slow", "under the declared", True),
        ("slow", "volume_slow", "under the declared", False),
        ("broken", "volume_fault", "Input/output error", True),
        ("wrong", "volume_fault", "wrong data: what was read is not what was written", True),
    ],
)
def test_a_fault_of_a_volume_of_the_site_is_not_the_nodes(tmp_path, fault, name, words, is_shared):
    with loop_device(tmp_path) as device, mounted(device, tmp_path) as disk:
        more = {} if is_shared else CLAIM
        with suppress(KeyError):
            more["PATH"] = {"broken": lambda: cut(disk), "wrong": lambda: put_fio(tmp_path, FLIP)}[fault]()
        if fault == "full":
            fill(disk)
        arguments = ["--shared-path" if is_shared else "--path", disk / "none" if fault == "missing" else disk]
        arguments += ["--shared-floors" if is_shared else "--floors", '{"sequential_read_bytes_per_second": 1e15}'] * (
            fault == "slow"
        )
        if fault == "read_only":
            with read_only(disk, tmp_path / "view") as view:
                ended = start(tmp_path, arguments[0], view, **more).end()
        else:
            ended = start(tmp_path, *arguments, **more).end()
    assert (ended.code, ended.result["environment"]["fault"]) == (1, name)
    assert words in ended.result["message"]
    assert ("claim lustre: " in ended.result["message"]) == (not is_shared)
    report = report_of(ended, ended)
    for node in report["nodes"]:
        checks = {check["name"]: check for check in node["checks"] if check["stage"] == "storage"}
        assert (checks["storage_state"]["verdict"], checks["storage_state"]["class"]) == ("missing", name)
        assert "fail" not in {check["verdict"] for check in checks.values() if check["severity"] == "required"}
    (entry,) = (check for check in report["fleet"]["checks"] if check["name"] == "storage_shared")
    assert (entry["class"], entry["value"]) == (name, 2)
    assert entry["remedy"].startswith(row_of(name).steps)


@needs_loop
def test_a_broken_disk_of_the_node_counts_beside_a_volume_that_is_full(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    with loop_device(tmp_path) as device, mounted(device, tmp_path) as disk:
        ended = start(tmp_path, "--path", disk, "--shared-path", shared / "none", PATH=cut(disk)).end()
    assert "fault" not in ended.result["environment"]
    assert "No such file or directory" in ended.result["message"]
    assert scoped(ended, targets.StorageTarget(disk).scope)["storage_io_error_count"] == 1
    failed = {check["name"] for check in report_of(ended)["nodes"][0]["checks"] if check["verdict"] == "fail"}
    assert {"storage_io_errors", "storage_state"} <= failed


@needs_loop
def test_a_file_system_of_the_node_that_is_mounted_read_only_is_the_sites_and_one_that_became_so_is_not(tmp_path):
    with loop_device(tmp_path) as device, mounted(device, tmp_path) as disk:
        with read_only(disk, tmp_path / "view") as view:
            assert volumes.volume_of(view).fault_in(os.strerror(errno.EROFS)) == "volume_read_only"
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)  # as the kernel does after an error
        assert volumes.volume_of(disk).fault_in(os.strerror(errno.EROFS)) == ""


@pytest.mark.parametrize(
    ("kind", "of_site"),
    [
        *(
            (kind, True)
            for kind in ("nfs", "nfs4", "lustre", "fuse.gcsfuse", "fuse.rclone", "beegfs", "ceph", "virtiofs")
        ),
        *((kind, False) for kind in ("ext4", "xfs", "overlay", "fuse.fuse-overlayfs", "fuseblk", "btrfs")),
    ],
)
def test_what_servers_provide_is_of_the_site(tmp_path, kind, of_site):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"22 1 254:1 / / rw - ext4 /dev/vda1 rw\n31 22 0:26 / /mnt rw - {kind} 10.0.0.2:/export rw\n", encoding="utf-8"
    )
    volume = volumes.volume_of(Path("/mnt/of/nodes"), mounts)
    assert (volume.of_site, volume.name) == (of_site, f"{kind} 10.0.0.2:/export")
    assert (volume.fault_in("OSError: [Errno 116] Stale file handle") == "volume_fault") == of_site
    assert volume.fault_in("a wheel fell off") == ""
    assert not volumes.volume_of(Path("/mntother"), mounts).of_site


def test_a_stage_in_a_pod_is_given_the_names_of_volumes():
    assert node_directory.inherited({**CLAIM, "GPUVAL_OTHER": "x"}) == CLAIM


class TestLoading:
    def test_a_claim_for_models_that_is_full(self, load, stored, small_disk):  # noqa: F811
        ended = load(GPUVAL_MODELS_DIR=str(small_disk), GPUVAL_VOLUMES=json.dumps({str(small_disk): "claim models"}))
        assert (ended.code, ended.result["environment"]["fault"]) == (1, "volume_full")
        assert ended.result["message"].startswith("claim models: disk full: the model needs 7.40 MB in ")

    def test_a_claim_for_models_that_is_read_only(self, load, stored, tmp_path):  # noqa: F811
        (tmp_path / "models").mkdir()
        with read_only(tmp_path / "models", tmp_path / "view") as view:
            ended = load(GPUVAL_MODELS_DIR=str(view))
        assert (ended.code, ended.result["environment"]["fault"]) == (1, "volume_read_only")
        assert "Read-only file system" in ended.result["message"]

    def test_what_the_store_lacks_stays_the_stores_fault(self, load, stored):  # noqa: F811
        (stored / "SHA256SUMS").unlink()
        ended = load(GPUVAL_VOLUMES=json.dumps({"/": "claim models"}))
        assert ended.result["environment"]["fault"] == "store_incomplete"
        assert NAME in ended.result["message"]


def test_a_stage_that_a_hung_volume_of_the_site_stopped_says_nothing_about_the_node():
    message = (
        "no output and no result for 60 s, its limit is 60 s (inactivity_seconds); nfs4 store:/data does not answer"
    )
    run = make_run(["node-1"], stages=["facts", "storage"])
    evidence = healthy(run)
    hung = make_record("node-1", "storage", state="timeout", message=message, environment={"fault": "volume_fault"})
    evidence.records["node-1"]["storage"] = hung
    (node,) = judge(run, evidence, SHIPPED)["nodes"]
    (check,) = (check for check in node["checks"] if check["name"] == "storage_state")
    assert (node["verdict"], check["verdict"], check["class"]) == ("INCOMPLETE", "missing", "volume_fault")
