"""The commands by which a person gets to a node, and what is new in a log."""

import contextlib
import os
import random
import shlex
import signal
import subprocess
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import scheduler as kubernetes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import reach
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.reach import FOLLOW, SHELL, ReachError

from tests.kit.actions import run_action
from tests.kit.run_commands import lay_out, started, variables

ACCESS = {"kubeconfig": "/k", "context": "", "namespace": "gpuval"}


def pod(**states):
    status = [{"name": name.replace("_", "-"), "state": {state: {}}} for name, state in states.items()]
    return {
        "metadata": {"name": "gpuval-x-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Pending", "initContainerStatuses": status[:-1], "containerStatuses": status[-1:]},
    }


@pytest.mark.parametrize(
    ("states", "stage"),
    [
        ({}, "facts"),
        ({"facts": "success", "training": "running"}, "training"),
        ({"facts": "success", "training": "failure", "loading": "skipped"}, "training"),
        ({"facts": "pending"}, "facts"),
    ],
)
def test_the_stage_at_work(states, stage):
    assert reach.stage_at_work(["facts", "training", "loading"], states) == stage


def piped(words):
    """The words of the command before the pipe that cleans its output."""
    assert words[:2] == ["sh", "-c"]
    before, after = words[2].split(" 2>&1 | ")
    assert after.endswith("escape.py")
    return shlex.split(before)


@pytest.mark.parametrize("connection", [[], ["sh", "-c"]], ids=["local", "remote"])
def test_no_escape_sequence_of_a_node_reaches_the_terminal(tmp_path, connection):
    log = tmp_path / "logs/facts.log"
    log.parent.mkdir()
    log.write_bytes(
        b"\x1b]0;owned\x07title\n\x1b[2Jred \x9b31m\xff\nover\rwritten\n" + b"x" * 200_000 + b"\x1b[31m\nend\n"
    )
    words = reach.on_host(FOLLOW, str(tmp_path), ["facts"], connection)
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as followed:
        try:
            shown = b""
            while not shown.endswith(b"end\n"):
                shown += followed.stdout.read1()
        finally:
            os.killpg(followed.pid, signal.SIGKILL)
    assert b"title\nred" in shown and b"over\nwritten\n" in shown
    assert not set(shown) & {0x1B, 0x07, 0x0D, 0x9B}


def test_what_the_remote_command_complains_is_cleaned():
    done = subprocess.run(reach.cleaned(["sh", "-c", "printf 'no\\033[2Jlog\\n' >&2"]), capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"nolog\n", b"")


def test_ssh_keeps_its_options_and_what_is_run_is_one_word():
    connection = ["ssh", "-o", "User=a b", "host"]
    words = piped(reach.on_host(FOLLOW, "/var/run 1/n", ["facts", "training"], connection, "root"))
    assert words[:-1] == connection
    *sudo, script = shlex.split(words[-1])
    assert sudo == ["sudo", "-n", "-u", "root", "sh", "-c"]
    logs = ["/var/run 1/n/logs/facts.log", "/var/run 1/n/logs/training.log"]
    assert shlex.split(script) == ["exec", "tail", "-n", "200", "-F", *logs, "2>/dev/null"]


def test_a_log_is_followed_into_the_next_stage(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "facts.log").write_text("of facts\n")
    words = reach.on_host(FOLLOW, str(tmp_path), ["facts", "training"], [])
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True, text=True) as followed:
        try:
            while followed.stdout.readline() != "of facts\n":
                pass
            (logs / "training.log").write_text("of training\n")
            shown = ""
            while not shown.endswith("of training\n"):
                shown += followed.stdout.readline()
        finally:
            os.killpg(followed.pid, signal.SIGKILL)
    assert "No such file" not in shown


def test_the_log_of_a_run_that_has_ended_is_shown_and_not_waited_for(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/facts.log").write_text("of facts\n")
    words = reach.on_host(FOLLOW, str(tmp_path), ["facts"], [], ended=True)
    assert subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout == "of facts\n"


def test_a_shell_under_become_begins_in_the_folder_that_only_that_user_may_enter(tmp_path):
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\necho "$1 $2" as asked; shift 2; exec "$@"\n')
    sudo.chmod(0o755)
    words = reach.on_host(SHELL, str(tmp_path), [], [], "root")
    options = {"env": {"SHELL": "/bin/sh", "PATH": f"{tmp_path}:/usr/bin:/bin"}, "capture_output": True, "text": True}
    done = subprocess.run(words, input="pwd\n", cwd="/", timeout=60, check=True, **options)
    assert done.stdout.splitlines() == ["-u root as asked", str(tmp_path)]


def test_a_shell_begins_in_the_folder_of_the_run_where_there_is_one(tmp_path):
    there = tmp_path / "a folder"
    there.mkdir()
    for directory, expected in ((str(there), str(there)), (str(tmp_path / "gone"), "/"), (None, "/")):
        words = reach.on_host(SHELL, directory, ["facts"], [])
        options = {"cwd": "/", "env": {"SHELL": "/bin/sh"}, "capture_output": True, "text": True, "timeout": 60}
        done = subprocess.run(words, input="pwd\n", check=True, **options)
        assert done.stdout.strip() == expected


def test_a_log_needs_a_run_on_the_node():
    with pytest.raises(ReachError, match="not started"):
        reach.on_host(FOLLOW, None, ["facts"], ["ssh", "host"])


def test_kubectl_is_asked_of_the_same_cluster():
    assert shlex.join(piped(reach.in_pod(FOLLOW, ACCESS, "p", "facts"))) == (
        "kubectl --kubeconfig=/k --namespace=gpuval logs --follow --tail=200 p --container=facts"
    )
    assert reach.in_pod(SHELL, ACCESS, "p", "facts")[3:9] == [
        *("exec", "--stdin", "--tty", "p", "--container=facts", "--"),
    ]


def test_the_container_that_runs_else_the_last_that_did():
    at_work = pod(facts="terminated", training="running", loading="waiting")
    assert reach.container_of(SHELL, at_work, "") == "training"
    assert reach.container_of(FOLLOW, at_work, "facts") == "facts"
    done = pod(facts="terminated", training="terminated")
    assert reach.container_of(FOLLOW, done, "") == "training"


@pytest.mark.parametrize(
    ("what", "there", "wanted", "why"),
    [
        (SHELL, pod(facts="terminated"), "", "no stage runs in pod gpuval-x-1"),
        (SHELL, pod(facts="terminated", training="running"), "facts", "facts does not run in pod"),
        (FOLLOW, pod(facts="waiting"), "", r"no stage has begun in pod gpuval-x-1 \(Pending\): facts waiting"),
        (FOLLOW, pod(facts="running"), "loading", "has no container loading, but facts"),
        (FOLLOW, {"metadata": {"name": "p"}}, "", "no container yet"),
    ],
)
def test_it_says_what_is_there_instead(what, there, wanted, why):
    with pytest.raises(ReachError, match=why):
        reach.container_of(what, there, wanted)


@pytest.mark.parametrize(
    ("there", "after"),
    [
        (pod(facts="terminated", training="running"), "training"),
        (pod(facts="terminated", training="waiting"), None),
        (pod(facts="terminated", training="terminated", loading="waiting"), "training"),
        (pod(facts="terminated"), ""),
        (pod(other="running"), ""),
    ],
)
def test_the_container_after_one_that_ended(there, after):
    assert reach.container_after(there, "facts") == after
    failed = {**there, "status": {**there["status"], "phase": "Failed"}}
    assert reach.container_after(failed, "facts") == (after or "")


def test_a_log_in_pods_is_followed_into_the_next_container(tmp_path, monkeypatch):
    """Each look at the cluster is one step on; a log is what its container has printed until then."""
    begun = pod(facts="running", training="waiting")
    between = pod(facts="terminated", training="waiting")
    training = pod(facts="terminated", training="running")
    done = pod(facts="terminated", training="terminated")
    looks = iter([begun, begun, between, between, training, done, done])
    logs = iter(["one\n", "one\ntwo\n", "one\ntwo\nthree\n", "four\n", "four\nfive\n"])
    cluster = SimpleNamespace(list=lambda *_, **__: ([next(looks)], ""), log=lambda *_, **__: next(logs))
    monkeypatch.setattr(kubernetes, "Cluster", lambda _access: contextlib.nullcontext(cluster))
    monkeypatch.setattr(kubernetes, "FOLLOW_SECONDS", 0.0)
    results = lay_out(tmp_path)
    started(results, "r1")
    options = {"results_dir": str(results), "node": "node-1", "placement": "kubernetes", "what": FOLLOW}
    shown = run_action("reach_node", options, task_vars=variables(results, "a"))
    assert shown.lines == ["facts:", "one", "two", "three", "training:", "four", "five"]
    assert "followed the log of node-1 to its end" in shown.result["msg"]


def test_every_line_of_a_log_is_shown_once():
    chance = random.Random(4)
    log = [f"{number} {chance.choice('ab')}" for number in range(300)]
    before, shown, length = [], [], 0
    while length < len(log):
        length = min(len(log), length + chance.randrange(0, 30))
        after = log[max(0, length - 40) : length]
        shown += reach.beyond(before, after)
        before = after or before
    assert shown == log
    assert reach.beyond([], []) == []
    assert reach.beyond(["a", "b"], ["c"]) == ["c"]
