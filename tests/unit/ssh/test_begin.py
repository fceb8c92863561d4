"""A task that cannot even be begun ends its own node's turn, and nobody else's; all end with the playbook."""

import os
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.processes import AbandonedError, Parent
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import node_tasks
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.node_tasks import NodeTasks


def tasks_whose_start(start):
    tasks = NodeTasks.__new__(NodeTasks)
    tasks._worker = SimpleNamespace(read_tasks=lambda file: [{"name": "one"}])
    tasks._limit, tasks._waiting, tasks._running, tasks._not_begun, tasks._files = 2, deque(), {}, [], {}
    tasks._start, tasks._parent = start, Parent()
    return tasks


def test_a_controller_without_memory_for_a_worker_says_so_of_that_node():
    def start(*_words):
        raise OSError(12, "Cannot allocate memory")

    tasks = tasks_whose_start(start)
    for node in ("a", "b", "c"):
        tasks.submit(node, "launch", Path("launch.yml"), {}, 5)
    assert tasks.busy == {"a", "b", "c"}
    ended = tasks.wait(60)
    assert [(outcome.node, outcome.kind, outcome.failed) for outcome in ended] == [
        (node, "launch", True) for node in ("a", "b", "c")
    ]
    assert "Cannot allocate memory" in ended[0].message
    assert tasks.busy == set()


def test_a_node_is_not_late_by_the_seconds_that_the_end_of_another_takes(monkeypatch):
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(node_tasks, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(node_tasks, "wait", lambda _pipes, timeout: [])
    monkeypatch.setattr(node_tasks, "_end", lambda _process: setattr(clock, "now", clock.now + 20))
    tasks, pipe = tasks_whose_start(None), SimpleNamespace(close=lambda: None)
    tasks._running = {node: node_tasks._Running(None, pipe, "launch", at, 5) for node, at in (("a", 9), ("b", 12))}
    assert [outcome.node for outcome in tasks._collect(0.0)] == ["a"]
    assert tasks.busy == {"b"}


def test_waiting_for_nodes_ends_with_the_playbook(monkeypatch):
    tasks = tasks_whose_start(None)
    assert tasks.wait(0.0) == []
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with pytest.raises(AbandonedError):
        tasks.wait(60.0)
