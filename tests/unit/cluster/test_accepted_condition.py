"""The condition `gpuval.io/Accepted`: it follows the marks, grows old, and leaves the conditions of others alone."""

from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import accepted_condition, marks
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.accepted_condition import ACCEPTED
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Exists, Forbidden
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.marks import Mark
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.nodes import label_selector
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError

RUN, FAULT = "20261120-201500-3f2a", "training_gpu_ecc_uncorrected"
NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
KUBELET = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


def days_ago(days):
    return (datetime.now(timezone.utc) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata(verdict, at="2026-11-20T21:40:00Z", failure_class=None):
    notes = {"gpuval.io/run-id": RUN, "gpuval.io/validated-at": at, "gpuval.io/class": failure_class}
    return {"labels": {"gpuval.io/verdict": verdict, "gpuval.io/run": RUN}, "annotations": notes}


def condition_for(*values, max_age_days=30):
    return accepted_condition.condition_for(metadata(*values), NOW, max_age_days)


@pytest.mark.parametrize(
    ("values", "status", "reason", "words"),
    [
        (("PASS",), "True", "Pass", f"PASS in run {RUN}"),
        (("PASS", "2026-10-31T12:00:01Z"), "True", "Pass", f"PASS in run {RUN}"),
        (("PASS", "2026-10-30T11:59:59Z"), "Unknown", "Outdated", "older than 30 days: validate the node again"),
        (("PASS", "yesterday"), "Unknown", "Outdated", "older"),
        (("FAIL", "2026-11-20T21:40:00Z", FAULT), "False", FAULT, f"FAIL in run {RUN}: {FAULT}"),
        (("FAIL", "2020-01-01T00:00:00Z", FAULT), "False", FAULT, f"FAIL in run {RUN}: {FAULT}"),
        (("INCOMPLETE", "2026-11-20T21:40:00Z", "node_lost"), "Unknown", "node_lost", "INCOMPLETE in run"),
        (("INCOMPLETE",), "Unknown", "Incomplete", "INCOMPLETE in run"),
    ],
)
def test_a_mark_as_a_condition(values, status, reason, words):
    condition = condition_for(*values)
    assert (condition["type"], condition["status"], condition["reason"]) == (ACCEPTED, status, reason)
    assert words in condition["message"]


def test_the_heartbeat_is_the_time_of_the_verdict_and_no_age_limit_means_never():
    assert condition_for("PASS")["lastHeartbeatTime"] == "2026-11-20T21:40:00Z"
    assert condition_for("PASS", "2020-01-01T01:00:00+01:00", max_age_days=0) == {
        **condition_for("PASS"),
        "lastHeartbeatTime": "2020-01-01T00:00:00Z",
    }
    assert condition_for(None) is None


def set_marks(cluster, marks_by_name):
    """As the step does it."""
    nodes = marks.read_nodes(cluster, marks_by_name)
    return marks.set_marks(cluster, marks_by_name, taint=False, nodes=nodes, max_age_days=30)


def conditions_of(kit, name):
    return {one["type"]: one for one in kit.get("Node", name, "")["status"]["conditions"]}


def test_only_this_condition_changes_and_its_transition_only_with_its_status(kit, cluster):
    (name,) = kit.add_nodes(1)
    others = conditions_of(kit, name)
    marks.set_marks(cluster, {name: Mark("PASS", "first", days_ago(2))}, taint=True)
    first = conditions_of(kit, name)[ACCEPTED]
    kit.do(kit.world.set_condition, name, {**first, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    marks.set_marks(cluster, {name: Mark("PASS", "second", days_ago(1))}, taint=True)
    second = conditions_of(kit, name)[ACCEPTED]
    assert second["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert second["lastHeartbeatTime"] > first["lastHeartbeatTime"]
    marks.set_marks(cluster, {name: Mark("FAIL", "third", days_ago(0), failure_class=FAULT)}, taint=True)
    third = conditions_of(kit, name).pop(ACCEPTED)
    assert (third["status"], third["reason"]) == ("False", FAULT) and third["lastTransitionTime"] > "2026-11"
    assert {kind: one for kind, one in conditions_of(kit, name).items() if kind != ACCEPTED} == others


def test_what_another_controller_writes_meanwhile_is_not_lost(kit, cluster):
    (name,) = kit.add_nodes(1)
    patch = cluster.patch

    def after_another(kind, node, body, *subresource):
        if subresource:
            kit.do(kit.world.set_condition, node, {**KUBELET, "status": "Unknown"})
        return patch(kind, node, body, *subresource)

    cluster.patch = after_another
    assert not marks.set_marks(cluster, {name: Mark("PASS", RUN, days_ago(0))}, taint=True).busy
    assert (conditions_of(kit, name)["Ready"]["status"], conditions_of(kit, name)[ACCEPTED]["status"]) == (
        "Unknown",
        "True",
    )


def test_a_node_that_stays_failed_stays_refused_through_a_pass(kit, cluster):
    (name,) = kit.add_nodes(1)
    marks.set_marks(cluster, {name: Mark("FAIL", "first", days_ago(9), failure_class=FAULT)}, taint=False)
    marks.set_marks(cluster, {name: Mark("PASS", "second", days_ago(0), partial=True)}, taint=False)
    assert (conditions_of(kit, name)[ACCEPTED]["status"], FAULT) == (
        "False",
        conditions_of(kit, name)[ACCEPTED]["reason"],
    )
    marks.set_marks(cluster, {name: Mark("PASS", "third", days_ago(0))}, taint=False)
    assert conditions_of(kit, name)[ACCEPTED]["status"] == "True"
    assert "gpuval.io/class" not in kit.get("Node", name, "")["metadata"]["annotations"]


def test_a_failed_node_of_an_earlier_version_gets_its_condition_with_the_next_run(kit, cluster):
    (name,) = kit.add_nodes(1, labels={"gpuval.io/verdict": "FAIL", "gpuval.io/run": "old"})
    marks.set_marks(cluster, {name: Mark("PASS", RUN, days_ago(0), partial=True)}, taint=False)
    assert conditions_of(kit, name)[ACCEPTED]["status"] == "False"


def test_each_run_makes_old_verdicts_of_other_nodes_unknown(kit, cluster):
    old, fresh, failed, own, unmarked = kit.add_nodes(5)
    before = {old: Mark("PASS", RUN, days_ago(31)), fresh: Mark("PASS", RUN, days_ago(29))}
    before[failed] = Mark("FAIL", RUN, days_ago(400), failure_class=FAULT)
    marks.set_marks(cluster, before, taint=False)
    done = set_marks(cluster, {own: Mark("PASS", "now", days_ago(0))})
    statuses = {name: conditions_of(kit, name).get(ACCEPTED, {}).get("status") for name in (*before, own, unmarked)}
    assert statuses == {old: "Unknown", fresh: "True", failed: "False", own: "True", unmarked: None}
    assert sorted(done.changes) == [old, own]
    assert f"{ACCEPTED}: True (Pass)" in done.changes[old][0] and "Unknown (Outdated)" in done.changes[old][1]
    kit.forget_requests()
    assert set_marks(cluster, {}).changes == {}
    assert [request.verb for request in kit.requests] == ["list"]


def test_a_node_that_another_run_marks_meanwhile_keeps_its_new_condition(kit, cluster):
    (name,) = kit.add_nodes(1)
    marks.set_marks(cluster, {name: Mark("PASS", RUN, days_ago(31))}, taint=False)
    patch = cluster.patch

    def after_another(*arguments):
        kit.change("Node", name, {"metadata": {"annotations": {"gpuval.io/validated-at": days_ago(0)}}}, "")
        return patch(*arguments)

    cluster.patch = after_another
    with pytest.raises(Exists):
        cluster.patch("Node", name, {"metadata": {"resourceVersion": "1"}, "status": {"conditions": []}}, "status")
    assert set_marks(cluster, {}).changes == {}
    assert conditions_of(kit, name)[ACCEPTED]["status"] == "True"


def test_the_condition_goes_with_the_marks(kit, cluster):
    first, second = kit.add_nodes(2)
    others = conditions_of(kit, first)
    marks.set_marks(cluster, dict.fromkeys((first, second), Mark("FAIL", RUN, days_ago(0))), taint=True)
    marks.remove_marks(cluster, [first])
    assert conditions_of(kit, first) == others
    assert conditions_of(kit, second)[ACCEPTED]["status"] == "False"


def test_check_mode_shows_the_condition_and_writes_none(kit, cluster):
    (name,) = kit.add_nodes(1)
    done = marks.set_marks(cluster, {name: Mark("FAIL", RUN, days_ago(0))}, taint=True, trial=True)
    assert f"{ACCEPTED}: False (Fail)" in done.changes[name][1]
    assert ACCEPTED not in conditions_of(kit, name)


def test_the_right_to_write_a_status_is_asked_for(kit, cluster):
    (name,) = kit.add_nodes(1)
    kit.deny("patch", "", "nodes", "status")
    with pytest.raises(Forbidden, match=r'resources: \["nodes/status"\]'):
        marks.set_marks(cluster, {name: Mark("PASS", RUN, days_ago(0))}, taint=False)


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        ("!node-role.kubernetes.io/control-plane", [("node-role.kubernetes.io/control-plane", "DoesNotExist", None)]),
        ("a=b, c!=d", [("a", "In", ["b"]), ("c", "NotIn", ["d"])]),
        ("x in (a, b),y notin (c),z", [("x", "In", ["a", "b"]), ("y", "NotIn", ["c"]), ("z", "Exists", None)]),
        ("", []),
    ],
)
def test_the_selector_of_a_readiness_rule(text, expressions):
    made = label_selector(text)["matchExpressions"]
    assert [(one["key"], one["operator"], one.get("values")) for one in made] == expressions


def test_a_selector_that_no_rule_can_have():
    with pytest.raises(SettingError, match="'a>5' is none of"):
        label_selector("a>5")
