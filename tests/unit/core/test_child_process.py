"""Tests of work in a child process beside one's own."""

import multiprocessing
import os
import signal
import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import processes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.processes import MIN_NODES, beside, by_halves


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def test_the_work_of_a_fleet_is_done_by_a_child_that_ends():
    with beside(lambda: (os.getpid(), "x" * 1_000_000), MIN_NODES) as result:
        pid, text = result()
    assert pid != os.getpid()
    assert len(text) == 1_000_000  # more than a pipe holds
    assert not multiprocessing.active_children()


def test_few_nodes_and_one_processor_have_no_child(monkeypatch):
    with beside(os.getpid, MIN_NODES - 1) as result:
        assert result() == os.getpid()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with beside(os.getpid, MIN_NODES) as result:
        assert result() == os.getpid()


def test_what_a_killed_child_did_not_finish_is_done_here():
    own = os.getpid()
    with beside(lambda: os.getpid() if os.getpid() == own else time.sleep(60), MIN_NODES) as result:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        assert result() == own


def test_what_a_child_was_killed_at_sending_is_done_here():
    own = os.getpid()
    with beside(lambda: os.getpid() if os.getpid() == own else "x" * 10_000_000, MIN_NODES) as result:
        time.sleep(0.5)  # it waits: a pipe holds less
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        assert result() == own


def test_what_a_child_that_hangs_computes_is_computed_here(monkeypatch):
    monkeypatch.setattr(processes, "CHILD_SECONDS", 0.1)
    own = os.getpid()
    with beside(lambda: own if os.getpid() == own else time.sleep(300), MIN_NODES) as result:
        assert result() == own
    assert not multiprocessing.active_children()


def test_an_error_shows_itself_here(capfd):
    with pytest.raises(ZeroDivisionError), beside(lambda: 1 / 0, MIN_NODES) as result:
        result()
    assert capfd.readouterr().err == "", "once, not by the child, too"


def test_a_child_that_is_not_asked_is_ended_though_it_has_the_handlers_of_its_parent():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pytest.raises(KeyError), beside(lambda: time.sleep(300), MIN_NODES):
            raise KeyError
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("nodes", (0, 1, MIN_NODES - 1, MIN_NODES + 1))
def test_both_halves_are_done_once_and_in_order(nodes):
    first, second = by_halves(lambda half: (os.getpid(), list(half)), range(nodes))
    assert [*first[1], *second[1]] == list(range(nodes))
    assert (first[0] != second[0]) == (nodes > MIN_NODES)
