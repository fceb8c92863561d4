"""Every known way to fail before the launch has its own class, a plain message and a remedy; nothing else has."""

import json
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import node_launch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import failure_classes, launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import findings

REAL = [
    case
    for path in sorted((Path(__file__).parent / "data").glob("*.json"))
    for case in json.loads(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("case", REAL, ids=lambda case: case["case"])
def test_a_real_text_has_its_class(case):
    launch = launch_errors.described({"state": case["state"], "message": case["message"]})
    assert launch["class"] == case["class"]
    assert "\n" not in launch["message"]
    assert "Make sure this host can be reached" not in launch["message"]
    assert "@@@" not in launch["message"]
    assert len(launch["message"]) <= launch_errors.MESSAGE_CHARACTERS
    assert launch["remedy"].format(node="node-1").endswith("--limit node-1")


OWN = [
    ("refused", node_launch.IN_THE_WAY.format(named="python3 (pid 7) on gpu:0"), "foreign_work"),
    ("refused", node_launch.BUSY.format(run="first", holder=" since 2026-11-23T10:00:00Z"), "other_run"),
    ("refused", node_launch.TWICE.format(name="node-7"), "same_machine_twice"),
    ("refused", node_launch.NO_SPACE.format(needed=140, place="/m", spare=0.27, free=8), "no_space"),
    (
        "refused",
        node_launch.LACKING.format(lacks="deepspeed needs deepspeed (not installed: install it)"),
        "no_package",
    ),
    (
        "failed",
        "/data/gpuval is shared with another machine, on which n1 is at work",
        "shared_folder",
    ),
    (
        "failed",
        "the node did not answer within 140 s: a file system, a driver or the container engine hangs",
        "no_answer",
    ),
    ("failed", "no answer within 180 s: is the node overloaded?", "no_answer"),
    ("failed", "Timed out after 75 second(s).", "no_answer"),
    ("failed", "Python 3.6.8 is too old for the runner, which needs 3.9: /usr/bin/python3", "old_python"),
    ("failed", "/var/lib/gpuval cannot be made: Read-only file system. Set gpuval_node_dir", "read_only"),
    ("failed", "/var/lib/gpuval/r/n/runner.pyz cannot be written: No space left on device. Free space", "disk_full"),
    ("failed", "the store cannot be used: it does not answer", "store_away"),
    ("failed", "the store cannot be used: http://192.0.2.9:9000: Connection refused", "store_away"),
    ("failed", "Task failed: the store cannot be used: Permission denied (publickey)", "store_away"),
    ("failed", "a node must run Linux, this is darwin: a Mac can be the controller, not a node", "not_linux"),
    ("failed", "the runner did not answer `start` within 120 s: is the node overloaded?", "lost_contact"),
]


@pytest.mark.parametrize(
    ("state", "message", "name"), OWN, ids=[f"{name}-{index}" for index, (*_, name) in enumerate(OWN)]
)
def test_what_the_node_itself_says_has_its_class(state, message, name):
    assert launch_errors.described({"state": state, "message": message})["class"] == name


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ("unreachable", "unreachable"),
        ("refused", "plan_refused"),
        ("failed", "launch_failed"),
        ("unknown", "not_started"),
    ],
)
def test_an_unknown_text_has_the_class_of_its_state_and_no_other(state, name):
    launch = launch_errors.described({"state": state, "message": "something that nobody has seen before"})
    assert (launch["class"], launch["message"]) == (name, "something that nobody has seen before")
    assert launch["remedy"]


@pytest.mark.parametrize("state", ["started", "finished"])
def test_a_launch_that_started_has_no_class_whatever_its_message_says(state):
    launch = launch_errors.described({"state": state, "message": "Permission denied (publickey)", "class": "refused"})
    assert (launch["class"], launch["remedy"]) == (None, None)


def test_what_a_probe_found_is_kept():
    launch = launch_errors.described({"state": "unreachable", "message": "no answer", "class": "timeout"})
    assert launch["class"] == "timeout"
    assert "firewall" in launch["remedy"]
    own = launch_errors.described({"state": "unreachable", "message": "?", "class": "bmc", "remedy": "power it on"})
    assert (own["class"], own["remedy"]) == ("bmc", "power it on")


def test_a_changed_key_names_the_key_and_the_file():
    (case,) = [case for case in REAL if case["case"] == "key_changed"]
    told = launch_errors.plain(case["message"])
    assert told.startswith("REMOTE HOST IDENTIFICATION HAS CHANGED: the node shows the ED25519 key SHA256:")
    assert "another one than in /home/operator/kh_bad:1" in told


def test_an_empty_reason_of_ssh_is_a_lost_contact():
    (case,) = [case for case in REAL if case["case"] == "node_killed_mid_module"]
    assert "broke off" in launch_errors.plain(case["message"])


def test_described_twice_is_the_same():
    for case in REAL:
        once = launch_errors.described({"state": case["state"], "message": case["message"]})
        assert launch_errors.described(once) == once


def test_every_class_has_a_remedy_and_a_name_of_its_own():
    classes = [known for group in failure_classes.read(failure_classes.LAUNCH).values() for known in group]
    assert len({known.name for known in classes}) == len(classes)
    for known in classes:
        assert known.remedy.format(node="n").endswith("then validate again with --limit n")


def test_every_state_of_the_probe_has_a_class_before_any_login():
    assert set(findings.STATES) - {findings.REACHABLE} <= launch_errors.BEFORE_LOGIN


def test_a_record_takes_back_that_its_node_was_lost():
    away = launch_errors.contact("ssh: connect to host 192.0.2.11 port 22: Connection refused")
    lost = {**away, "class": "lost_contact", "message": f"{launch_errors.LOST}no heartbeat for 5 min; {away}"}
    launch = {"state": "started", "attempt": 1}
    assert launch_errors.heard_again({**launch, "contact": lost}) == launch
    assert launch_errors.heard_again({**launch, "contact": away}) == {**launch, "contact": away}, "not asked since"
    assert launch_errors.heard_again(launch) == launch


def test_a_node_that_boots_is_no_wrong_login():
    for text in (
        '"System is booting up. Unprivileged users are not permitted to log in yet."\nConnection closed by 192.0.2.11',
        '"System is going down. See pam_nologin(8)."\nuser@192.0.2.11: Permission denied (publickey).',
    ):
        assert launch_errors.classify("unreachable", text).name == "booting"


def test_a_message_does_not_repeat_the_name_of_its_node():
    launch = {"node": "node-1", "state": "failed", "message": "node-1: No space left on device"}
    assert launch_errors.described(launch)["message"] == "No space left on device"
    assert "df -i" in launch_errors.described(launch)["remedy"]
