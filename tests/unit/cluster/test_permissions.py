import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import permissions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.permissions import Asked

CREATE_JOBS = Asked("create", "batch", "jobs")
GET_LOGS = Asked("get", "", "pods", "log")
PATCH_NODES = Asked("patch", "", "nodes")


def test_the_role_has_no_wildcards_and_reads_nothing_one_by_one():
    for document in permissions.documents("gpuval"):
        for rule in document.get("rules", []):
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            assert "get" not in rule["verbs"] or rule["resources"] == ["pods/log"]
            assert not {"pods/exec", "serviceaccounts", "roles"} & set(rule["resources"])


def test_the_namespace_is_that_of_the_inventory():
    documents = permissions.documents("night-runs")
    namespaced = [document for document in documents if "namespace" in document["metadata"]]
    assert {document["kind"] for document in namespaced} == {"ServiceAccount", "Role", "RoleBinding"}
    assert {document["metadata"]["namespace"] for document in namespaced} == {"night-runs"}
    subjects = [subject for document in documents for subject in document.get("subjects", [])]
    assert {subject["namespace"] for subject in subjects} == {"night-runs"}


def test_what_is_printed_is_what_is_applied():
    assert list(yaml.safe_load_all(permissions.printed("night-runs"))) == permissions.documents("night-runs")


def test_bindings_name_roles_that_are_there():
    documents = permissions.documents("gpuval")
    there = {(document["kind"], document["metadata"]["name"]) for document in documents}
    bound = {(d["roleRef"]["kind"], d["roleRef"]["name"]) for d in documents if "roleRef" in d}
    assert bound <= there


def test_what_is_not_granted_and_what_is_unused():
    roles = permissions.documents("gpuval")
    assert permissions.not_granted(roles, [CREATE_JOBS, GET_LOGS, PATCH_NODES, permissions.REVIEW]) == []
    assert permissions.not_granted(roles, [Asked("delete", "batch", "jobs")]) == [Asked("delete", "batch", "jobs")]
    everything = permissions.granted(roles)
    assert permissions.unused(roles, everything) == []
    assert permissions.unused(roles, everything - {GET_LOGS}) == [GET_LOGS]


def test_a_role_of_a_namespace_does_not_allow_nodes():
    role = {"kind": "Role", "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]}
    assert permissions.not_granted([role], [PATCH_NODES]) == [PATCH_NODES]
    assert permissions.not_granted([{**role, "kind": "ClusterRole"}], [PATCH_NODES]) == []


@pytest.mark.parametrize(
    ("rule", "covered"),
    [
        ({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, True),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"]}, True),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["*/log"]}, True),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}, False),
        ({"verbs": ["list"], "apiGroups": [""], "resources": ["pods/log"]}, False),
        ({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["pods/log"]}, False),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"], "resourceNames": ["one"]}, False),
    ],
)
def test_rules_that_a_cluster_reports(rule, covered):
    assert permissions.lacking([rule], [GET_LOGS]) == ([] if covered else [GET_LOGS])


def test_the_missing_rule_is_yaml_that_a_role_takes():
    asked = [CREATE_JOBS, Asked("list", "batch", "jobs"), GET_LOGS]
    rules = yaml.safe_load(permissions.rule_text(asked))
    assert permissions.not_granted([{"kind": "Role", "rules": rules}], asked) == []
    assert rules[0] == {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "list"]}


def test_the_explanation_says_which_kind_of_role_and_where():
    text = permissions.explain([CREATE_JOBS, PATCH_NODES], "night-runs")
    assert "may not create jobs, patch nodes" in text
    assert "a Role in the namespace night-runs needs" in text
    assert "a ClusterRole needs" in text
