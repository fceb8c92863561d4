"""Work shared between processes gives what one process would give."""

import os

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import sharing

from tests.kit.builders import healthy, judge, make_run


@pytest.mark.parametrize(("cores", "count", "processes"), [(2, 48, 2), (1, 48, 0), (2, 47, 0)])
def test_results_come_in_order(monkeypatch, cores, count, processes):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    found = list(sharing.shared_map(lambda item: (item, os.getpid()), range(count)))
    assert [item for item, _ in found] == list(range(count))
    assert (os.getpid() in {pid for _, pid in found}) == (processes == 0)


def test_an_error_is_raised(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    with pytest.raises(ZeroDivisionError):
        list(sharing.shared_map(lambda item: 1 // item, range(48)))


def test_a_fleet_is_judged_alike_by_several_processes(monkeypatch):
    run = make_run([f"node-{number}" for number in range(48)])
    evidence = healthy(run)
    del evidence.records["node-7"]["training"]
    reports = []
    for cores in ({0, 1}, {0}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, cores=cores: cores)
        reports.append(judge(run, evidence))
    assert reports[0] == reports[1]
    assert reports[0]["counts"]["INCOMPLETE"] == 1
