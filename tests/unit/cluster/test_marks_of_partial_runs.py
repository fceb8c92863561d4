"""A run that accepts no node takes FAIL off none."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import marks, names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterAccess
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.marks import FAILED_TAINT, Mark

from tests.kit.cluster import ClusterKit

AT = "2026-11-20T21:40:00Z"
OWN = {"key": FAILED_TAINT, "value": "first", "effect": "NoSchedule"}


def node(*taints, verdict=None):
    labels = {marks.VERDICT_LABEL: verdict, names.RUN_LABEL: "first"} if verdict else {}
    return {"metadata": {"name": "n1", "resourceVersion": "1", "labels": labels}, "spec": {"taints": list(taints)}}


@pytest.mark.parametrize("verdict", ["PASS", "INCOMPLETE"])
@pytest.mark.parametrize("known", [node(OWN), node(verdict="FAIL"), node(OWN, verdict="FAIL")])
@pytest.mark.parametrize("taint", [True, False])
def test_what_failed_stays_so(verdict, known, taint):
    assert marks.change(known, Mark(verdict, "second", AT, partial=True), taint=taint) is None
    assert marks.change(known, Mark(verdict, "second", AT), taint=taint) is not None


def test_a_partial_run_marks_all_others_and_fails_whom_it_finds():
    assert marks.change(node(), Mark("PASS", "second", AT, partial=True)) is not None
    assert marks.change(node(verdict="INCOMPLETE"), Mark("PASS", "second", AT, partial=True)) is not None
    found = marks.change(node(verdict="FAIL"), Mark("FAIL", "second", AT, partial=True), taint=True)
    assert found.patch["spec"]["taints"][0]["value"] == "second"
    assert marks.change(node(OWN, verdict="FAIL"), None).patch["spec"]["taints"] == []


def test_who_stays_failed_is_named(tmp_path):
    with ClusterKit(tmp_path) as kit, Cluster(ClusterAccess(str(kit.kubeconfig), "", "gpuval")) as cluster:
        nodes = kit.add_nodes(2)
        marks.set_marks(cluster, {nodes[0]: Mark("FAIL", "first", AT)}, taint=True)
        done = marks.set_marks(cluster, {name: Mark("PASS", "second", AT, True) for name in nodes}, taint=True)
        assert (list(done.changes), [*done.still], done.busy) == ([nodes[1]], [nodes[0]], [])
