"""Verdicts on the nodes of a cluster: what is changed, and that nothing of others is lost."""

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import marks, names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Exists, Forbidden
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.marks import FAILED_TAINT, Mark

RUN, AT = "20261120-201500-3f2a", "2026-11-20T21:40:00Z"
FOREIGN = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
OWN = {"key": FAILED_TAINT, "value": RUN, "effect": "NoSchedule"}
LABELS = {"kubernetes.io/hostname": "n1", "team": "search"}
MARKED = {marks.VERDICT_LABEL: "FAIL", names.RUN_LABEL: RUN}
NOTED = {names.RUN_ANNOTATION: RUN, marks.TIME_ANNOTATION: AT}


def mark(verdict="FAIL", run_id=RUN):
    return Mark(verdict, run_id, AT)


def node(*taints, labels=None, annotations=None):
    meta = {"name": "n1", "resourceVersion": "77", "labels": {**LABELS, **(labels or {})}}
    return {"metadata": {**meta, "annotations": annotations or {}}, "spec": {"taints": list(taints)}}


# --- one node --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "INCOMPLETE"])
def test_a_node_gets_verdict_run_and_time_and_no_taint_unasked(verdict):
    change = marks.change(node(), mark(verdict))
    assert change.patch == {
        "metadata": {"labels": {marks.VERDICT_LABEL: verdict, names.RUN_LABEL: RUN}, "annotations": NOTED}
    }
    assert yaml.safe_load(change.before) is None
    assert yaml.safe_load(change.after)["labels"][marks.VERDICT_LABEL] == verdict


@pytest.mark.parametrize(
    ("verdict", "taints", "after"),
    [
        ("FAIL", [], [OWN]),
        ("FAIL", [FOREIGN], [FOREIGN, OWN]),
        ("FAIL", [OWN, FOREIGN], [OWN, FOREIGN]),
        ("FAIL", [{**OWN, "value": "earlier"}, FOREIGN], [FOREIGN, OWN]),
        ("PASS", [OWN, FOREIGN], [FOREIGN]),
        ("PASS", [FOREIGN], [FOREIGN]),
        ("INCOMPLETE", [OWN], [OWN]),
        ("INCOMPLETE", [], []),
    ],
)
def test_taints_when_asked(verdict, taints, after):
    patch = marks.change(node(*taints), mark(verdict), taint=True).patch
    assert patch.get("spec", {}).get("taints", taints) == after
    assert ("resourceVersion" in patch["metadata"]) == (taints != after)


def test_a_mark_that_is_there_is_left_as_it_is():
    assert marks.change(node(OWN, labels=MARKED, annotations=NOTED), mark(), taint=True) is None


def test_no_mark_takes_ours_away_and_nothing_else():
    change = marks.change(node(OWN, FOREIGN, labels=MARKED, annotations={**NOTED, "x": "y"}), None)
    assert change.patch == {
        "metadata": {
            "labels": dict.fromkeys(MARKED),
            "annotations": dict.fromkeys(NOTED),
            "resourceVersion": "77",
        },
        "spec": {"taints": [FOREIGN]},
    }
    assert FAILED_TAINT in change.before and yaml.safe_load(change.after) is None
    assert marks.change(node(FOREIGN), None) is None


def test_a_run_id_that_is_no_label_is_whole_in_the_annotation():
    run_id = "Run_" + "x" * 58 + "."
    patch = marks.change(node(), mark(run_id=run_id), taint=True).patch
    label = patch["metadata"]["labels"][names.RUN_LABEL]
    assert label == names.label_value(run_id) != run_id
    assert patch["metadata"]["annotations"][names.RUN_ANNOTATION] == run_id
    assert patch["spec"]["taints"] == [{**OWN, "value": label}]


# --- a cluster -------------------------------------------------------------------------------------------------------


def spec_of(kit, name):
    return kit.get("Node", name, "")["spec"]


def labels_of(kit, name):
    return kit.get("Node", name, "")["metadata"]["labels"]


def test_a_hundred_nodes_cost_a_list_and_two_patches_each(kit, cluster):
    nodes = kit.add_nodes(100, taints=[FOREIGN])
    wanted = {name: mark("PASS" if number % 10 else "FAIL") for number, name in enumerate(nodes)}
    done = marks.set_marks(cluster, wanted, taint=True)
    assert (len(done.changes), len(kit.requests), done.missing, done.busy) == (100, 201, [], [])
    assert spec_of(kit, nodes[0])["taints"] == [FOREIGN, OWN]
    assert spec_of(kit, nodes[1])["taints"] == [FOREIGN]
    assert labels_of(kit, nodes[1])[marks.VERDICT_LABEL] == "PASS"
    assert labels_of(kit, nodes[1])["kubernetes.io/hostname"] == nodes[1]
    kit.forget_requests()
    assert marks.set_marks(cluster, wanted, taint=True).changes == {}
    assert len(kit.requests) == 1


def test_marks_are_removed_again(kit, cluster):
    nodes = kit.add_nodes(3, taints=[FOREIGN])
    before = {name: (spec_of(kit, name), labels_of(kit, name)) for name in nodes}
    marks.set_marks(cluster, dict.fromkeys(nodes[:2], mark()), taint=True)
    done = marks.remove_marks(cluster)
    assert sorted(done.changes) == nodes[:2]
    assert {name: (spec_of(kit, name), labels_of(kit, name)) for name in nodes} == before


def test_only_marks_of_one_run_or_of_some_nodes_are_removed(kit, cluster):
    nodes = kit.add_nodes(3)
    marks.set_marks(cluster, {nodes[0]: mark(), nodes[1]: mark(run_id="other"), nodes[2]: mark()}, taint=False)
    assert list(marks.remove_marks(cluster, runs=["other"]).changes) == [nodes[1]]
    done = marks.remove_marks(cluster, [nodes[0], "gone"])
    assert (list(done.changes), done.missing) == ([nodes[0]], ["gone"])
    assert marks.VERDICT_LABEL in labels_of(kit, nodes[2])


def test_check_mode_changes_nothing_and_shows_what_it_would(kit, cluster):
    nodes = kit.add_nodes(2)
    done = marks.set_marks(cluster, dict.fromkeys(nodes, mark()), taint=True, trial=True)
    assert len(done.changes) == 2
    assert FAILED_TAINT in done.changes[nodes[0]][1]
    assert {one.verb for one in kit.requests} == {"list"}
    assert marks.VERDICT_LABEL not in labels_of(kit, nodes[0])


def test_a_node_that_the_cluster_has_not_is_reported(kit, cluster):
    kit.add_nodes(1)
    assert marks.set_marks(cluster, {"gone": mark()}, taint=False).missing == ["gone"]


def test_a_missing_rule_ends_it(kit, cluster):
    nodes = kit.add_nodes(1)
    kit.deny("patch", "", "nodes")
    with pytest.raises(Forbidden, match="patch"):
        marks.set_marks(cluster, {nodes[0]: mark()}, taint=False)


class Contested:
    """A cluster in which somebody changes the node between reading and patching, `times` times."""

    def __init__(self, times):
        self.times, self.version, self.taints, self.patches = times, 1, [FOREIGN], []

    def list(self, kind, selector):
        known = node(*self.taints)
        known["metadata"]["resourceVersion"] = str(self.version)
        return [known], str(self.version)

    def patch(self, kind, name, patch, subresource=""):
        if subresource:
            return
        if self.times:
            self.times -= 1
            self.version += 1
            self.taints = [*self.taints, {"key": f"other-{self.version}", "effect": "NoSchedule"}]
        if patch["metadata"].get("resourceVersion") != str(self.version):
            raise Exists("the object has been modified", 409)
        self.patches.append(patch)


def test_a_taint_that_another_sets_meanwhile_is_not_lost():
    cluster = Contested(2)
    done = marks.set_marks(cluster, {"n1": mark()}, taint=True)
    (patch,) = cluster.patches
    assert [taint["key"] for taint in patch["spec"]["taints"]] == [FOREIGN["key"], "other-2", "other-3", FAILED_TAINT]
    assert (list(done.changes), done.busy) == (["n1"], [])


def test_a_node_that_is_always_changed_is_given_up_and_named():
    done = marks.set_marks(Contested(99), {"n1": mark()}, taint=True)
    assert (done.changes, done.busy) == ({}, ["n1"])
