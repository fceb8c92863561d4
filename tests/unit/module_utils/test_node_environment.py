"""The environment of workloads on a node: made by the real uv from tiny wheels, whole or not at all."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import node_directory
from ansible_collections.gpuval.fleet.plugins.module_utils.node_steps import node_environment as step
from ansible_collections.gpuval.fleet.plugins.module_utils.node_steps.node_environment import EnvironmentSpec
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors

from tests.kit.fleet import ROOT, until
from tests.kit.needs import tmpfs
from tests.kit.ports import free_port
from tests.kit.tiny_wheels import TORCH, TORCH_TAG, TinyWheels, sha256, uv_entry, write_wheel

SPEC = EnvironmentSpec("cpu", False, "torch==2.13.0", uv_entry())
PATH, SCRATCH, INDEX = Path("/e/1"), Path("/e/scratch"), "https://index/simple"
INSTALL = ["pip", "install", "--python", "/e/1/bin/python"]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """What the step sets for the programs that it calls ends with the test."""
    for name in (*step.SETTINGS, "UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(step, "NEEDED_BYTES", {"cpu": 100 << 20, "nvidia": 0, "amd": 0})


class Node:
    """A folder of gpuval on a node, and tiny wheels for it."""

    def __init__(self, root, **code):
        self.root, self.base = root, root / "node"
        self.wheels = TinyWheels(root / "wheels", **code)
        self.lock = self.wheels.lock()

    @property
    def link(self):
        return self.base / "environment"

    def arguments(self, **changes):
        options = {"locked": self.lock, "torch": TORCH, "timeout_seconds": 300, "wheels": {}, "vendor": "cpu"}
        options |= {"index": INDEX, "torch_index": "", "torch_backend": "auto", "requirements": []}
        return {"state": "present", "directory": str(self.base), "python": "auto", **options, **changes}

    def call(self, check_mode=False, **changes):
        return step.node_environment(types.SimpleNamespace(check_mode=check_mode), **self.arguments(**changes))

    def archive(self):
        """The archive of wheels, at a URL."""
        path = self.root / "wheels.tar"
        return {**self.wheels.pack(path), "url": path.as_uri()}

    def install(self, **changes):
        return self.call(wheels=self.archive(), **changes)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def spec_of(node):
    return replace(SPEC, torch=TORCH, locked=node.lock)


def class_of(error):
    return launch_errors.classify("", str(error.value)).name


# What it is to have


def test_commands_with_an_index():
    venv, locked, torch = SPEC.commands(PATH, SCRATCH, INDEX)
    assert venv == ["venv", "--clear", "--python", step.PYTHONS, "/e/1"]
    source = ["--default-index", INDEX]
    assert locked == [*INSTALL, *source, "--no-deps", "--require-hashes", "-r", "/e/scratch/locked.txt"]
    assert torch == [*INSTALL, *source, "--torch-backend", "cpu", "torch==2.13.0"]


def test_commands_of_a_node_without_internet():
    wheel = "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl"
    venv, locked, torch = SPEC.commands(PATH, SCRATCH, INDEX, wheel)
    assert venv == ["venv", "--clear", "--python", "3.12", "--offline", "/e/1"]
    source = ["--offline", "--no-index", "--find-links", "/e/scratch"]
    assert locked == [*INSTALL, *source, "--no-deps", "--no-verify-hashes", "-r", "/e/scratch/locked.txt"]
    assert torch == [*INSTALL, *source, f"/e/scratch/{wheel}"]
    assert (
        launch_errors.classify("", "uv venv failed: error: No interpreter found for Python 3.12").name
        == "no_interpreter"
    )


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, ["--torch-backend", "cpu"]),
        ({"vendor": "nvidia", "has_driver": True}, ["--torch-backend", "auto"]),
        ({"vendor": "nvidia", "has_driver": True, "torch_backend": "cu128"}, ["--torch-backend", "cu128"]),
        # uv would see no driver, and choose the build for CPUs
        ({"vendor": "nvidia"}, []),
        ({"vendor": "amd", "has_driver": True}, ["--torch-backend", "auto"]),
        ({"torch_index": "https://mirror/torch"}, ["--index", "https://mirror/torch"]),
        ({"vendor": "nvidia", "torch_index": "https://mirror/torch"}, ["--index", "https://mirror/torch"]),
    ],
)
def test_the_build_of_pytorch(changes, chosen):
    command = replace(SPEC, **changes).commands(PATH, SCRATCH, INDEX)[2]
    assert command == [*INSTALL, "--default-index", INDEX, *chosen, "torch==2.13.0"]


def test_a_change_of_anything_is_another_environment():
    changed = [
        replace(SPEC, locked="uv==1"), replace(SPEC, torch="torch==2"), replace(SPEC, vendor="amd"),
        replace(SPEC, has_driver=True), replace(SPEC, torch_backend="cpu"), replace(SPEC, torch_index="x"),
    ]  # fmt: skip
    assert len({SPEC.digest, *(spec.digest for spec in changed)}) == 7
    assert replace(SPEC).digest == SPEC.digest


WHEELS = [
    "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl",
    "torch-2.13.0+cu130-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.13.0+rocm7.1-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.12.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.13.0+cpu-cp313-cp313t-manylinux_2_28_x86_64.whl",
]


@pytest.mark.parametrize(("vendor", "number"), [("cpu", 0), ("nvidia", 2), ("amd", 3)])
def test_the_wheel_of_pytorch_for_a_vendor(vendor, number, monkeypatch):
    monkeypatch.setattr(step.platform, "machine", lambda: "x86_64")
    assert replace(SPEC, vendor=vendor).torch_wheel(WHEELS) == WHEELS[number]


def test_the_wheel_of_pypi_is_for_cuda(monkeypatch):
    monkeypatch.setattr(step.platform, "machine", lambda: "x86_64")
    names = ["torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"]
    assert replace(SPEC, vendor="nvidia").torch_wheel(names) == names[0]
    with pytest.raises(node_directory.NodeError, match=r"no wheel of torch==2\.13\.0 for cpu on x86_64") as error:
        SPEC.torch_wheel(names)
    assert class_of(error) == "no_torch_build"


def test_the_wheel_for_a_python_that_the_node_has(monkeypatch):
    monkeypatch.setattr(step.platform, "machine", lambda: "x86_64")
    names = [f"torch-2.13.0+cpu-cp3{minor}-cp3{minor}-linux_x86_64.whl" for minor in (97, sys.version_info[1], 98)]
    assert SPEC.torch_wheel(names) == names[1]


def test_gaudi_is_named_and_left_alone(node, monkeypatch):
    facts = {"accelerator": {"vendor": "gaudi", "count": 8}}
    monkeypatch.setattr(step.collect, "collect", lambda: facts)
    with pytest.raises(
        node_directory.NodeError, match="PyTorch for gaudi is on no package index: nothing was"
    ) as error:
        node.call(vendor="auto")
    assert class_of(error) == "no_torch_build"
    assert not node.base.exists()
    answer = node.call(vendor="auto", python="/opt/habana/bin/python")  # the site's own
    assert not answer["changed"]


# What it does


def test_installed_once(node):
    planned = node.call(check_mode=True)
    assert (planned["changed"], node.base.exists()) == (True, False)
    answer = node.install()
    assert answer["changed"]
    others = "deepspeed 1.0, transformers 1.0, accelerate 1.0"
    assert re.fullmatch(rf"Python 3\.\d+\.\d+, torch 9\.9\.0\+cpu, {re.escape(others)}", answer["summary"])
    assert node_directory.workload_python("auto", node.base) == f"{node.link}/bin/python"
    assert {path.name for path in (node.base / "environments").iterdir()} == {"lock", node.link.resolve().name}
    before = node.link.lstat().st_mtime_ns
    again = node.call()
    assert (again["changed"], node.link.lstat().st_mtime_ns) == (False, before)
    assert "torch 9.9.0+cpu" in again["summary"]
    assert not node.call(check_mode=True)["changed"]


def test_a_new_release_replaces_it(node):
    node.install()
    before = node.link.resolve()
    interrupted = before.with_name("of-a-release-between")
    interrupted.mkdir()
    node.lock += "# another\n"
    assert node.install()["changed"]
    assert node.link.resolve() != before
    assert not before.exists()
    assert not interrupted.exists()


def test_an_environment_that_cannot_be_imported_is_not_used(node):
    node.install()
    before = node.link.resolve()
    broken = Node(node.root, deepspeed="import no_such_module\n")
    with pytest.raises(node_directory.NodeError, match=r"the import of PyTorch failed: .*no_such_module") as error:
        broken.install()
    assert class_of(error) == "environment_failed"
    assert node.link.resolve() == before
    assert not node.call()["changed"]


def test_what_was_damaged_is_made_again(node):
    node.install()
    next(node.link.glob("lib/python3*/site-packages/torch.py")).write_text("raise OSError")
    assert node.install()["changed"]
    assert not node.call()["changed"]


KILLED = """
import json, sys, types
from ansible_collections.gpuval.fleet.plugins.module_utils.node_steps import node_environment as step
step.NEEDED_BYTES = {"cpu": 0}
step.node_environment(types.SimpleNamespace(check_mode=False), **json.loads(sys.stdin.read()))
"""


def test_killed_midway_it_is_completed_by_the_next_call(node):
    archive = node.archive()
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT / "collections")}, "start_new_session": True, "text": True}
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE, **options)
    process.stdin.write(json.dumps(node.arguments(wheels=archive)))
    process.stdin.close()
    until((node.base / "environments/scratch/uv").exists, "uv is unpacked", 120)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert node_directory.workload_python("auto", node.base) == "python3"
    assert node.call(wheels=archive)["changed"]
    assert not node.call()["changed"]


def test_two_at_once(node):
    archive = node.archive()
    step.make_private(node.base)
    step.make_private(node.base / "environments")
    with (
        step.installing(node.base / "environments"),
        pytest.raises(node_directory.NodeError, match="is installing") as error,
    ):
        node.call(wheels=archive)
    assert class_of(error) == "environment_failed"
    assert node.call(wheels=archive)["changed"]


def test_a_run_at_work_keeps_its_environment(node, monkeypatch):
    monkeypatch.setattr(step, "runs_at_work", lambda base, but: {"run-7": " since noon"})
    with pytest.raises(node_directory.NodeError, match="run run-7 is at work on this node since noon") as error:
        node.install()
    assert class_of(error) == "other_run"
    monkeypatch.undo()
    assert not node.link.exists()
    assert node.call()["changed"]  # it is complete: only the link was missing
    assert not node.call()["changed"]


def test_a_run_at_work_keeps_an_environment_that_fails_its_trial(node, monkeypatch):
    node.install()
    next(node.link.glob("lib/python3*/site-packages/torch.py")).write_text("raise MemoryError")
    monkeypatch.setattr(step, "runs_at_work", lambda base, but: {"run-7": " since noon"})
    for state in ("present", "absent"):
        with pytest.raises(node_directory.NodeError, match="run run-7 is at work on this node since noon"):
            node.install(state=state)
        assert (node.link / "bin/python").exists()
        assert (node.link / "complete").exists()


def test_removed_when_asked(node):
    assert not node.call(state="absent")["changed"]
    node.install()
    assert node.call(check_mode=True, state="absent")["changed"]
    assert node.link.exists()
    assert node.call(state="absent")["changed"]
    assert not node.base.exists()


# What goes wrong


def test_a_disk_that_is_too_small(node, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "NEEDED_BYTES", {"cpu": 3 << 30})
    (tmp_path / "small").mkdir()
    with tmpfs(tmp_path / "small", "size=1m,mode=700") as folder:
        with pytest.raises(
            node_directory.NodeError, match=r"disk full: .* 0\.0 GB free, and .* up to 3\.3 GB"
        ) as error:
            node.call(wheels=node.archive() | {"url": "http://127.0.0.1:9/"}, directory=str(folder))
        assert class_of(error) == "disk_full"
        assert not (folder / "environment").exists()


def test_a_folder_that_is_read_only(node, tmp_path):
    (tmp_path / "fixed").mkdir()
    with tmpfs(tmp_path / "fixed", "ro,mode=700") as folder:
        with pytest.raises(node_directory.NodeError, match="Read-only file system") as error:
            node.call(wheels=node.archive(), directory=str(folder))
        assert class_of(error) == "read_only"


def test_a_folder_of_another_user(node):
    node.base.mkdir()
    node.base.chmod(0o777)
    mine, ran = node.root / "mine", node.root / "ran"
    mine.write_text("mine")
    program = node.base / "environments" / spec_of(node).digest / "bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    (program.parents[1] / "complete").touch()
    (node.base / "environments/lock").symlink_to(mine)
    node.link.symlink_to(program.parents[1])
    needs = [{"in_python": True, "environment": {}, "needs": [{"import": "torch", "stages": ["training"]}]}]
    for state in ("present", "examined", "absent"):
        for check_mode in (False, True):
            with pytest.raises(node_directory.NodeError, match="is not a folder of this user alone: remove it, or set"):
                node.call(check_mode, state=state, requirements=needs)
    assert node_directory.workload_python("auto", node.base) == "python3"
    assert (mine.read_text(), ran.exists()) == ("mine", False)


def test_no_index_answers(node):
    with pytest.raises(node_directory.NodeError, match="no package index answers at http://127") as error:
        node.call(index=f"http://127.0.0.1:{free_port()}/simple")
    assert class_of(error) == "no_package_index"


def test_from_an_index(node):
    with node.wheels.served() as index:
        assert node.call(index=index, torch_index=index)["changed"]
        assert not node.call(index=index, torch_index=index)["changed"]


def test_from_an_index_with_a_login(node):
    with node.wheels.served("bob:s3/cret") as index:
        with pytest.raises(node_directory.NodeError, match=r"no package index answers at http://127.*: Unauthorized"):
            node.call(index=index.replace("://", "://bob:wrong@"))
        private = index.replace("://", "://bob:s3%2Fcret@")
        assert node.call(index=private, torch_index=private)["changed"]


def test_an_index_with_a_login_is_named_without_it(node):
    for index in (f"http://bob:s3cret@127.0.0.1:{free_port()}/simple", "htp://bob:s3cret@[mirror/simple"):
        with pytest.raises(node_directory.NodeError, match="no package index answers at ht") as error:
            node.call(index=index)
        assert "s3cret" not in str(error.value)


def test_an_index_that_speaks_no_http(node):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            for _ in range(2):
                connection = server.accept()[0]
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"what?\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        for options in ({"index": url}, {"wheels": {**node.archive(), "url": url}}):
            with pytest.raises(node_directory.NodeError, match=r"what\?") as error:
                node.call(**options)
            assert class_of(error) == "no_package_index"
        thread.join()


def test_a_package_with_another_hash_is_refused(node):
    node.lock = node.wheels.lock(fastapi="0" * 64)
    with (
        node.wheels.served() as index,
        pytest.raises(node_directory.NodeError, match=r"(?s)Hash mismatch.*fastapi") as error,
    ):
        node.call(index=index, torch_index=index)
    assert class_of(error) == "wrong_hash"
    assert not node.link.exists()


def test_a_wheel_of_uv_with_another_hash_is_refused(node):
    name = next(node.wheels.folder.glob("uv-*"))
    name.unlink()
    write_wheel(node.wheels.folder, "uv", name.name.split("-")[1], tag="-".join(name.stem.split("-")[2:]))
    with pytest.raises(
        node_directory.NodeError, match=rf"hash mismatch: .* {sha256(name)}, which is not locked"
    ) as error:
        node.install()
    assert class_of(error) == "wrong_hash"


def test_an_archive_that_is_damaged_is_refused(node):
    archive = node.archive()
    (node.root / "wheels.tar").write_bytes(b"x" * archive["bytes"])
    with pytest.raises(
        node_directory.NodeError, match="the archive of wheels that came is not the controller's"
    ) as error:
        node.call(wheels=archive)
    assert class_of(error) == "wrong_hash"
    assert not node.link.exists()


def test_an_archive_that_does_not_come(node):
    archive = {**node.archive(), "url": f"http://127.0.0.1:{free_port()}/wheels.tar"}
    with pytest.raises(node_directory.NodeError, match=r"the download from 127\.0\.0\.1 broke off") as error:
        node.call(wheels=archive)
    assert class_of(error) == "no_package_index"


def test_wheels_without_pytorch_for_the_node(node):
    next(node.wheels.folder.glob("torch-*")).unlink()
    write_wheel(node.wheels.folder, "torch", "9.9.0+cu130", tag=TORCH_TAG)
    with pytest.raises(node_directory.NodeError, match=r"no wheel of torch==9\.9\.0 for cpu") as error:
        node.install()
    assert class_of(error) == "no_torch_build"


def test_too_slow(node, monkeypatch):
    with pytest.raises(node_directory.NodeError, match="broke off: it did not end in time"):
        node.install(timeout_seconds=0)
    monkeypatch.setattr(step.web_files, "download", lambda url, path, *_: shutil.copy(url[len("file://") :], path))
    with pytest.raises(
        node_directory.NodeError, match=r"uv venv failed: uv venv did not answer within 0\.1 s"
    ) as error:
        node.install(timeout_seconds=0)
    assert class_of(error) == "environment_failed"
