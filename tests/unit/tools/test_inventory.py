"""`make inventory` writes an inventory that Ansible reads, from answers or variables."""

import importlib.util
import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("make_inventory", ROOT / "tools/inventory.py")
inventory = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(inventory)


def hosts_of(folder):
    found = InventoryManager(DataLoader(), sources=[str(folder)])
    variables = VariableManager(DataLoader(), found)
    return {host.name: variables.get_vars(host=host) for host in found.get_hosts()}


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())


def test_ranges_user_key_and_gpus(tmp_path, capsys):
    key = tmp_path / "id_fleet"
    key.write_text("private")
    given = {"nodes": "gpu[01-16], x=192.0.2.9", "user": "ubuntu", "key": key, "gpus": "8", "output": tmp_path / "mine"}
    assert inventory.main([f"--{name}={value}" for name, value in given.items()]) == 0
    hosts = hosts_of(tmp_path / "mine")
    assert list(hosts) == [*(f"gpu{number:02}" for number in range(1, 17)), "x"]
    assert hosts["x"]["ansible_host"] == "192.0.2.9"
    shared = {"ansible_user": "ubuntu", "ansible_ssh_private_key_file": str(key), "gpuval_gpu_count": 8}
    assert shared.items() <= hosts["gpu07"].items()
    assert f"17 node(s) in {tmp_path}/mine" in capsys.readouterr().out


def test_a_list_is_taken_as_it_is(tmp_path):
    (tmp_path / "fleet.csv").write_text("name,address,rack\nn[1:2],192.0.2.[1:2],r1\n")
    assert inventory.main([f"--nodes={tmp_path}/fleet.csv", f"--output={tmp_path}/mine"]) == 0
    assert [values["rack"] for values in hosts_of(tmp_path / "mine").values()] == ["r1", "r1"]


@pytest.mark.parametrize("gpus", ["", "8"])
def test_without_a_number_of_gpus_the_place_to_declare_it_is_shown(tmp_path, gpus):
    assert inventory.main(["--nodes=a", f"--gpus={gpus}", f"--output={tmp_path}/mine"]) == 0
    lines = (tmp_path / "mine/group_vars/all.yml").read_text().splitlines()
    assert ("# gpuval_gpu_count: 8" in lines) == (not gpus)
    assert ("gpuval_gpu_count: 8" in lines) == bool(gpus)
    assert hosts_of(tmp_path / "mine")["a"].get("gpuval_gpu_count") == (8 if gpus else None)


def test_a_terminal_is_asked(tmp_path, monkeypatch):
    answers = iter(["gpu[1-2]", "", "", "", str(tmp_path / "mine")])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _question: next(answers))
    assert inventory.main([]) == 0
    assert list(hosts_of(tmp_path / "mine")) == ["gpu1", "gpu2"]


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_control_c_and_control_d_end_the_questions(tmp_path, key):
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a run of the tests in the background ignores it
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, str(ROOT / "tools/inventory.py")])
    shown, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            try:
                shown += os.read(terminal, 1000)
            except OSError:  # the terminal ended with the program
                break
        elif b"Nodes" in shown and b"stopped" not in shown:  # it waits for the answer
            os.write(terminal, key.encode())
    else:
        os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert b"make inventory: stopped" in shown
    assert b"Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, 'NODES= is empty: make inventory NODES="gpu[01-16]"'),
        ({"nodes": "gpu[01-16"}, "'gpu[01-16': a range has two brackets"),
        ({"nodes": "gpu[16-01]"}, "the range 'gpu[16-01]' is empty"),
        ({"nodes": "a,a"}, "lines 2 and 3 have the same name a"),
        ({"nodes": "none.csv"}, "none.csv cannot be read: No such file or directory"),
        ({"nodes": "a", "user": "me too"}, "SSH_USER 'me too' is no name of a user"),
        ({"nodes": "a", "key": "/nowhere/id.pub"}, "KEY /nowhere/id.pub: give the file of a private key"),
        ({"nodes": "a", "gpus": "eight"}, "GPUS 'eight' is not a whole number"),
        (
            {"nodes": "a", "output": "inventories/local"},
            "inventories/local is there already: choose another one",
        ),
        ({"nodes": "a", "output": "/dev/null/x"}, "/dev/null/x cannot be written: Not a directory"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(tmp_path, monkeypatch, capsys, given, told):
    (tmp_path / "inventories/local/group_vars").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert inventory.main([f"--{name}={value}" for name, value in given.items()]) == 1
    assert told in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == []


@pytest.mark.parametrize(
    ("path", "ignored"), [("mine/nodes.csv", True), ("mine/group_vars/all.yml", True), ("local/x", 0)]
)
def test_git_leaves_out_inventories_of_a_site(path, ignored):
    done = subprocess.run(["git", "check-ignore", "-q", f"inventories/{path}"], cwd=ROOT, check=False)
    assert (done.returncode == 0) == ignored


def test_git_leaves_out_baselines_of_a_site():
    subprocess.run(["git", "check-ignore", "-q", "baselines/site-1.json"], cwd=ROOT, check=True)
