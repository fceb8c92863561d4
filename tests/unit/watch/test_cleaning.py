"""What a clean says of each node: done, left, not reached, gone from the inventory; and when it counts as done."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import cleaning

CLEAN = cleaning.answered({"changed": True, "removed": ["/var/lib/gpuval/r1/n"], "killed": ["runner (pid 5)"]})
LOST = 'Task failed: Data could not be sent to remote host "192.0.2.9". Make sure this host can be reached over ssh: '


def test_all_clean():
    summary = cleaning.summarize(["r1"], {"n2": CLEAN, "n1": CLEAN})
    assert summary.open == []
    assert summary.counts == {"clean": 2}
    assert summary.lines == [
        "CLEAN: run r1: all of 2 nodes are clean",
        "- Removed: 2 paths, 2 processes and containers",
    ]


def test_each_node_that_is_not_clean_is_named_with_class_and_remedy_in_natural_order():
    outcomes = {
        "n10": cleaning.unreached(LOST + "ssh: connect to host 192.0.2.9 port 22: Connection refused"),
        "n9": cleaning.answered({"failed": True, "msg": "could not be removed: /x: busy", "removed": ["/y"]}),
        "n1": CLEAN,
        **cleaning.absent(["n1", "n2", "n3"], ["n1"], ["n1", "n2"]),
    }
    summary = cleaning.summarize(["r1"], outcomes)
    assert summary.open == ["n3", "n9", "n10"]
    assert summary.counts == {
        "clean": 1,
        "not in the inventory": 1,
        "left": 1,
        "not reached": 1,
        "left out by --limit": 1,
    }
    assert summary.lines[0] == "CLEAN: run r1: 1 of 4 nodes are clean, 3 are not"
    assert summary.lines[1] == "- Removed: 2 paths, 1 process or container"
    assert summary.lines[2].startswith("- n3 not in the inventory: the node is not in the inventory any more")
    assert summary.lines[3] == "- n9 left: could not be removed: /x: busy"
    assert summary.lines[4].startswith("- n10 not reached (refused): ssh: connect to host 192.0.2.9 port 22: Conn")
    assert summary.lines[4].endswith("then clean again with --limit n10")
    assert summary.lines[5].startswith("- n2 left out by --limit")


def test_what_is_left_is_never_clean_even_if_something_was_removed():
    outcome = cleaning.answered({"failed": True, "msg": "No space left on device", "removed": ["/x"]})
    assert (outcome["state"], outcome["class"]) == ("left", "disk_full")
    assert outcome["remedy"].endswith("then clean again with --limit {node}")
    assert cleaning.summarize([], {"n": outcome}).open == ["n"]


def test_who_could_not_become_root_was_not_reached():
    outcome = cleaning.answered({"failed": True, "msg": "Task failed: Missing sudo password"})
    assert (outcome["state"], outcome["class"]) == ("not reached", "sudo_password_needed")
    assert "--ask-become-pass" in outcome["remedy"]


def test_a_probe_s_own_remedy_wins():
    outcome = cleaning.unreached("no answer", "refused", "start sshd")
    assert outcome["remedy"] == "start sshd, then clean again with --limit {node}"


def test_a_probe_s_class_is_kept():
    outcome = cleaning.unreached("no answer within 5 s", "timeout")
    assert (outcome["class"], outcome["message"]) == ("timeout", "no answer within 5 s")
    assert outcome["remedy"].endswith("then clean again with --limit {node}")


def test_a_node_left_out_is_named_and_no_fault():
    outcomes = {"n1": CLEAN, **cleaning.absent(["n1", "n2"], ["n1"], ["n1", "n2"])}
    summary = cleaning.summarize(["r1"], outcomes)
    assert summary.open == []
    assert "n2 left out by --limit" in summary.lines[-1]
    assert "all of 1 nodes" in summary.lines[0]


def test_nodes_on_which_another_run_goes_on_are_not_called_clean():
    goes_on = {"r2": (["n1"], "`make clean RUN=r2`")}
    summary = cleaning.summarize(["r1"], {"n1": CLEAN, "n2": CLEAN}, goes_on=goes_on)
    assert summary.lines[0] == "CLEAN: run r1: removed from all of 2 nodes"
    assert summary.lines[2] == "- Run r2 goes on, on n1: to end it, `make clean RUN=r2`"
    assert summary.open == []


def test_check_mode_says_what_would_go():
    summary = cleaning.summarize([], {"n1": CLEAN}, trial=True)
    assert summary.lines[0] == "CLEAN (check mode, nothing was removed): all runs"
    assert summary.lines[1].startswith("- To be removed: 1 path")


def test_many_nodes_stay_readable_and_none_is_lost():
    outcomes = {f"n{index}": cleaning.unreached("Connection refused") for index in range(100)}
    summary = cleaning.summarize(["r1"], outcomes)
    text = "\n".join(summary.lines)
    assert len(summary.lines) == 2 + cleaning.MAX_LINES + 1
    assert all(name in text for name in outcomes)


LAUNCHED = {"state": "started", "at": "2026-11-20T10:00:00Z", "attempt": 1, "directory": "/var/lib/gpuval/r/n"}


@pytest.mark.parametrize(
    ("launch", "cleaned_at", "held"),
    [
        ({}, None, False),
        (LAUNCHED, None, True),
        (LAUNCHED, "2026-11-20T11:00:00Z", False),
        (LAUNCHED, "2026-11-20T09:00:00Z", True),
        ({"state": "unreachable", "message": "Connection refused", "at": "x"}, None, False),
        ({"state": "unreachable", "message": LOST, "at": "x"}, None, True),
        ({"state": "failed", "message": "No space left on device", "at": "x"}, None, True),
        ({"state": "unreachable", "message": "Connection refused", "attempt": 2, "at": "x"}, None, True),
    ],
)
def test_a_node_may_hold_something_once_a_user_was_logged_in(launch, cleaned_at, held):
    assert cleaning.may_hold(launch, cleaned_at) is held


def test_classes_before_a_login_are_classes():
    assert {known.name for known in launch_errors.CLASSES} >= launch_errors.BEFORE_LOGIN


def test_what_was_put_back_and_what_was_left_alone_is_reported():
    outcome = cleaning.answered({"removed": ["/a"], "restored": ["eth0 mtu 1500"], "kept": ["eth1: changed since"]})
    lines = cleaning.summarize(["r1"], {"n1": outcome}).lines
    assert lines[1] == "- Removed: 1 path, 1 network change reverted"
    assert lines[2] == "- Left alone on purpose: n1: eth1: changed since"
