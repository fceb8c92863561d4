"""A task that cannot even be begun ends its own node's turn, and nobody else's; all end with the playbook."""

import os
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.processes import AbandonedError, Parent
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


def test_waiting_for_nodes_ends_with_the_playbook(monkeypatch):
    tasks = tasks_whose_start(None)
    assert tasks.wait(0.0) == []
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with pytest.raises(AbandonedError):
        tasks.wait(60.0)
