"""Values before changes are on disk before each change, and come back unless the changes are confirmed."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.network import ledger
from ansible_collections.gpuval.fleet.plugins.module_utils.network.changes import NetworkChange
from ansible_collections.gpuval.fleet.plugins.module_utils.network.ledger import ChangeLedger
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import (
    NodeError,
    one_at_once,
    one_launch_at_once,
)

from tests.kit.fleet import until
from tests.kit.needs import needs_root

ROOT = Path(__file__).resolve().parents[3]
#: Changes the MTU of an interface under the lock of a module, and ends as the argument says.
APPLY = """
import os, signal, sys
from pathlib import Path
from ansible_collections.gpuval.fleet.plugins.module_utils.network.changes import NetworkChange
from ansible_collections.gpuval.fleet.plugins.module_utils.network.host import Deadline, NetworkHost
from ansible_collections.gpuval.fleet.plugins.module_utils.network.ledger import ChangeLedger
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import one_launch_at_once
base, before, after, ending = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
change = NetworkChange("mtu", "cable mtu", before, after, "cable")
with one_launch_at_once(base):
    ledger = ChangeLedger(base)
    ledger.begin(confirm_seconds=0.3 if ending != "confirmed" else 600)
    ledger.note(change)
    NetworkHost(Deadline(30)).make(change)
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
if ending == "confirmed":
    ledger.confirm()
print(ledger.attempt)
"""

#: Declares an MTU; another command changes one and is confirmed before this one has its turn.
SECOND = """
import contextlib, sys
from pathlib import Path
from types import SimpleNamespace
from ansible_collections.gpuval.fleet.plugins.module_utils.network.changes import NetworkChange
from ansible_collections.gpuval.fleet.plugins.module_utils.network.ledger import ChangeLedger
from ansible_collections.gpuval.fleet.plugins.module_utils.node_steps import host_network
own_turn = host_network.one_launch_at_once
@contextlib.contextmanager
def turn_after_another(base):
    with own_turn(base):
        other = ChangeLedger(base)
        other.note(NetworkChange("mtu", "far mtu", 1500, 9000, "far"))
        other.confirm()
        yield
host_network.one_launch_at_once = turn_after_another
cable = dict(dict.fromkeys(("pattern", "driver", "count")), name="cable", mtu=9000, state="up", flap=False)
cable.update(exclude=[], addresses=[], routes=[])
module = SimpleNamespace(check_mode=False, _diff=False)
print(host_network.host_network(module, interfaces=[cable], deadline_seconds=30, link_seconds=0, directory=sys.argv[1]))
"""


def mtu(before, after, name="ib0"):
    return NetworkChange("mtu", f"{name} mtu", before, after, name)


def noted(base, *changes):
    known = ChangeLedger(base)
    for change in changes:
        known.note(change)
    return known


def test_the_first_value_wins_however_often_it_changes(tmp_path):
    base = tmp_path / "base"
    noted(base, mtu(1500, 9000), mtu(1500, 9000, "ib1")).confirm()
    known = noted(base, mtu(9000, 4000))
    assert ChangeLedger(base).pending == [mtu(9000, 4000)], "on disk before it is made"
    known.confirm()
    assert ChangeLedger(base).confirmed == [mtu(1500, 4000), mtu(1500, 9000, "ib1")]
    assert base.stat().st_mode & 0o777 == known.path.parent.stat().st_mode & 0o777 == 0o700
    assert known.path.stat().st_mode & 0o777 == 0o600


def test_what_is_changed_back_and_confirmed_is_forgotten(tmp_path):
    noted(tmp_path / "base", mtu(1500, 9000)).confirm()
    known = noted(tmp_path / "base", mtu(9000, 1500))
    assert ChangeLedger(tmp_path / "base").pending, "the change back may still fail"
    known.confirm()
    assert not (tmp_path / "base").exists()


def test_other_things_in_the_folder_stay(tmp_path):
    known = noted(tmp_path, mtu(1500, 9000), mtu(9000, 1500))
    (tmp_path / "models").mkdir()
    known.confirm()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]


def test_a_file_of_release_1_0_is_read(tmp_path):
    change = {"kind": "mtu", "subject": "ib0 mtu", "before": 1500, "after": 9000, "interface": "ib0"}
    (tmp_path / "network").mkdir(mode=0o700)
    document = {"schema": "gpuval.network-undo/1", "changes": [change], "flapped": {}}
    (tmp_path / "network/undo.json").write_text(json.dumps(document))
    known = ChangeLedger(tmp_path)
    assert (known.confirmed, known.pending, known.attempt) == ([mtu(1500, 9000)], [], "")


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"schema": "other", "changes": [], "flapped": {}})])
def test_a_damaged_file_is_no_empty_one(tmp_path, text):
    (tmp_path / "network").mkdir(mode=0o700)
    (tmp_path / "network/undo.json").write_text(text)
    with pytest.raises(NodeError, match="damaged"):
        ChangeLedger(tmp_path)


@pytest.fixture
def cable():
    """A veth pair in a network namespace of its own; returns how to run a command there."""
    needs_root("to make a network namespace")
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    own, other = Path("/proc/self/ns/net"), Path(f"/proc/{holder.pid}/ns/net")
    until(lambda: other.readlink() != own.readlink(), "the namespace is there")

    def run(*command):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
        words = ["nsenter", f"--net={other}", *command]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    assert run("ip", "link", "add", "cable", "type", "veth", "peer", "name", "far").returncode == 0
    yield run
    holder.stdin.close()
    holder.wait()


def mtu_of(run):
    return json.loads(run("ip", "-json", "link", "show", "cable").stdout)[0]["mtu"]


def apply(run, base, before, after, ending):
    return run(sys.executable, "-c", APPLY, str(base), str(before), str(after), ending)


@pytest.mark.parametrize("ending", ["silent", "killed"])
def test_changes_that_are_not_confirmed_are_rolled_back_even_if_the_module_is_killed(cable, tmp_path, ending):
    base = tmp_path / "base"
    assert apply(cable, base, 1500, 4000, "confirmed").returncode == 0
    done = apply(cable, base, 4000, 9000, ending)
    assert done.returncode == (0 if ending == "silent" else -9), done.stderr
    until(lambda: not ChangeLedger(base).pending, "the change is rolled back")
    assert mtu_of(cable) == 4000, "the confirmed change stays"
    assert ChangeLedger(base).confirmed == [mtu(1500, 4000, "cable")]


def test_the_way_back_waits_for_the_lock_as_long_as_others_have_it(tmp_path, monkeypatch):
    """A module that hangs in a driver, or a long launch, must not leave changes that nobody confirms."""

    def without_limit(base, seconds=0.0):
        if seconds < math.inf:
            raise NodeError("the turn does not come")
        return one_at_once(base, seconds)

    monkeypatch.setattr(ledger, "one_at_once", without_limit)
    with one_launch_at_once(tmp_path):
        known = ChangeLedger(tmp_path)
        known.begin(confirm_seconds=0.1)
        known.note(mtu(1500, 9000, "gone0"))  # nothing is put back of an interface that is gone
    until(lambda: not ChangeLedger(tmp_path).pending, "the change is rolled back")


def test_changes_that_were_put_back_in_part_cannot_be_confirmed(tmp_path):
    with one_launch_at_once(tmp_path):
        known = ChangeLedger(tmp_path)
        known.begin(confirm_seconds=0.1)
        known.note(NetworkChange("sysctl", "net.gpuval.none", "1", "2"))
    until(lambda: not ChangeLedger(tmp_path).attempt, "the attempt is over")
    assert len(ChangeLedger(tmp_path).pending) == 1, "a clean puts it back"


def test_a_command_that_waited_for_another_one_forgets_no_first_value(cable, tmp_path):
    done = cable(sys.executable, "-c", SECOND, str(tmp_path / "base"))
    assert "another command changed the network of this node meanwhile: run this again" in done.stderr, str(done)
    assert ChangeLedger(tmp_path / "base").confirmed == [mtu(1500, 9000, "far")]
    assert mtu_of(cable) == 1500


def test_confirmed_changes_stay_and_are_restored(cable, tmp_path):
    base = tmp_path / "base"
    done = apply(cable, base, 1500, 9000, "confirmed")
    assert done.returncode == 0, done.stderr
    assert (mtu_of(cable), ChangeLedger(base).attempt) == (9000, "")
    program = f"import pathlib, {ledger.__name__} as ledger; print(ledger.restore_network(pathlib.Path({str(base)!r})))"
    done = cable(sys.executable, "-c", program)
    assert "'restored': ['cable mtu: 9000 -> 1500'], 'kept': [], 'left': []" in done.stdout, done.stderr
    assert mtu_of(cable) == 1500
    assert not base.exists()
