import re
import subprocess
from types import SimpleNamespace

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import permissions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.permissions import AccessRequest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps.prepare_cluster import (
    PrepareClusterOptions,
    prepare_cluster,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import reach

from tests.kit.cluster import POD_SECURITY, ClusterKit, Problem
from tests.kit.needs import needs_programs

CREATE_JOBS = AccessRequest("create", "batch", "jobs")
GET_LOGS = AccessRequest("get", "", "pods", "log")
PATCH_NODES = AccessRequest("patch", "", "nodes")


def test_the_role_has_no_wildcards_and_reads_no_secret():
    for document in permissions.documents("gpuval"):
        for rule in document.get("rules", []):
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            is_by_name = rule.get("resourceNames") == ["kube-system"]
            assert "get" not in rule["verbs"] or rule["resources"][0].startswith("pods") or is_by_name
            assert not {"serviceaccounts", "roles"} & set(rule["resources"])
            assert rule["resources"] != ["pods/exec"] or document["metadata"]["name"] == "gpuval-shell"


@pytest.mark.parametrize(
    ("what", "more"), [(reach.FOLLOW, set()), (reach.SHELL, {"gpuval-shell"})], ids=["make-follow", "make-shell"]
)
def test_the_role_allows_what_kubectl_asks_for(tmp_path, monkeypatch, what, more):
    needs_programs({"kubectl": "kubernetes-client"})
    monkeypatch.setenv("HOME", str(tmp_path))  # its cache
    roles = [one for one in permissions.documents("gpuval") if one["metadata"]["name"] in {"gpuval-controller", *more}]
    with ClusterKit(tmp_path, token="") as kit:  # kubectl sends none without TLS
        pod = {
            "metadata": {"name": "pod", "namespace": "gpuval"},
            "spec": {"containers": [{"name": "facts"}]},
            "status": {"phase": "Running"},
        }
        kit.put({"kind": "Pod", **pod})
        access = {"kubeconfig": str(kit.kubeconfig), "namespace": "gpuval"}
        words = reach.in_pod(what, access, "pod", "facts")
        words = [word for word in words if word != "--tty"]
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        asked = {AccessRequest(*one) for one in kit.requests}
    assert {AccessRequest("get", "", "pods"), AccessRequest("get", "", "pods", "exec" if more else "log")} <= asked
    assert asked <= permissions.granted(roles)


def test_the_namespace_is_that_of_the_inventory():
    documents = permissions.documents("night-runs")
    namespaced = [document for document in documents if "namespace" in document["metadata"]]
    assert {document["kind"] for document in namespaced} == {"ServiceAccount", "Role", "RoleBinding"}
    assert {document["metadata"]["namespace"] for document in namespaced} == {"night-runs"}
    subjects = [subject for document in documents for subject in document.get("subjects", [])]
    assert {subject["namespace"] for subject in subjects} == {"night-runs"}


def test_a_second_namespace_leaves_the_first_one_its_nodes():
    """What has no namespace is either the same for all, or has a name of its own."""

    def shared(namespace):
        return {
            (document["kind"], document["metadata"]["name"]): document
            for document in permissions.documents(namespace)
            if "namespace" not in document["metadata"]
        }

    first, second = shared("gpuval"), shared("night-runs")
    assert ("ClusterRoleBinding", "gpuval-nodes-gpuval") in first
    assert ("ClusterRoleBinding", "gpuval-nodes-night-runs") in second
    assert [first[key] == second[key] for key in first.keys() & second.keys()] == [True] * 4


def test_bindings_name_roles_that_are_there():
    documents = permissions.documents("gpuval")
    there = {(document["kind"], document["metadata"]["name"]) for document in documents}
    bound = {(d["roleRef"]["kind"], d["roleRef"]["name"]) for d in documents if "roleRef" in d}
    assert bound <= there


def test_a_role_of_a_namespace_does_not_allow_nodes():
    role = {"kind": "Role", "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]}
    assert permissions.granted([role]) == set()
    assert permissions.granted([{**role, "kind": "ClusterRole"}]) == {PATCH_NODES}


@pytest.mark.parametrize(
    ("change", "listed"),
    [
        ({}, True),
        ({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, True),
        ({"resources": ["pods"]}, False),
        ({"verbs": ["list"]}, False),
        ({"apiGroups": ["batch"]}, False),
        ({"resourceNames": ["one"]}, False),
        ({"resources": None}, False),
    ],
)
def test_a_listed_rule_allows_what_it_names(change, listed):
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"], **change}
    assert permissions.is_listed(GET_LOGS, [rule]) is listed
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    assert not permissions.is_listed(PATCH_NODES, [everything]), "what a namespace allows says nothing about nodes"


def test_the_missing_rule_is_yaml_that_a_role_takes():
    asked = [CREATE_JOBS, AccessRequest("list", "batch", "jobs"), GET_LOGS]
    rules = yaml.safe_load(permissions.rule_text(asked))
    assert permissions.granted([{"kind": "Role", "rules": rules}]) == set(asked)
    assert rules[0] == {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "list"]}


def test_the_explanation_says_which_kind_of_role_and_where():
    text = permissions.explain([CREATE_JOBS, PATCH_NODES], "night-runs")
    assert "may not create jobs, patch nodes" in text
    assert "a Role in the namespace night-runs needs" in text
    assert "a ClusterRole needs" in text


class Preparation:
    """The step prepare_cluster, without a play."""

    def __init__(self, kit):
        self.kit, self.told, self.pods = kit, [], {}
        self.images = {}
        self.role_file = kit.directory / "state" / "role.yml"

    def _tell(self, *lines):
        self.told.append("\n".join(lines))

    def __call__(self, *, check_mode=False, namespace="gpuval", make_namespace=False):
        display = SimpleNamespace(display=self._tell, warning=self._tell)
        options = PrepareClusterOptions(
            kubeconfig=str(self.kit.kubeconfig),
            namespace=namespace,
            make_namespace=make_namespace,
            pods=self.pods,
            images=self.images,
            role_file=self.role_file,
        )
        self.told.clear()
        return prepare_cluster(SimpleNamespace(check_mode=check_mode, display=display), options)


class TestPreparation:
    @pytest.fixture
    def prepare(self, tmp_path):
        with ClusterKit(tmp_path) as kit:
            yield Preparation(kit)

    def test_the_role_is_named_when_it_is_new_and_shown_when_something_is_missing(self, prepare):
        assert prepare()["changed"]
        (told,) = prepare.told
        assert str(prepare.role_file) in told and "\n" not in told
        assert prepare.role_file.read_text() == permissions.printed("gpuval")
        assert not prepare()["changed"]
        assert prepare.told == []
        prepare.kit.deny("create", "batch", "jobs")
        with pytest.raises(AnsibleActionFail, match=f"kubectl apply -f {prepare.role_file}"):
            prepare()
        assert prepare.told == [permissions.printed("gpuval")]

    @pytest.mark.parametrize("denied", permissions.needed(), ids=lambda asked: f"{asked.verb}-{asked.full_resource}")
    def test_each_right_that_is_missing_is_named_as_the_rule_to_add(self, prepare, denied):
        prepare.kit.deny(*denied[:3], denied.subresource)
        with pytest.raises(AnsibleActionFail) as caught:
            prepare()
        text = str(caught.value)
        role = "ClusterRole" if denied.resource in permissions.CLUSTER_SCOPED else "Role in the namespace gpuval"
        assert f"this user may not {denied.verb} {denied.full_resource}; a {role} needs this rule:" in text
        rule = yaml.safe_load(re.search(r"(?s)needs this rule:\n(.*?)\nan administrator", text)[1])
        assert permissions.granted([{"kind": role.split(maxsplit=1)[0], "rules": rule}]) == {denied}

    def test_check_mode_names_it_and_writes_nothing(self, prepare):
        assert prepare(check_mode=True)["changed"]
        assert "would be written" in prepare.told[0]
        assert not prepare.role_file.exists()

    @pytest.mark.parametrize("check_mode", [False, True])
    def test_a_namespace_that_is_missing(self, prepare, check_mode):
        with pytest.raises(AnsibleActionFail) as caught:
            prepare(check_mode=check_mode, namespace="nowhere")
        assert "kubectl create namespace nowhere, or prepare with -e kubernetes_make_namespace=true" in str(
            caught.value
        )
        assert len(prepare.told) == 1, "the Role is not what is missing"
        assert not prepare.kit.all("ConfigMap")

    def test_a_namespace_is_made_once_and_not_in_check_mode(self, prepare):
        assert prepare(check_mode=True, namespace="late", make_namespace=True)["changed"]
        assert prepare.kit.get("Namespace", "late") is None
        prepare(namespace="late", make_namespace=True)
        assert prepare.kit.get("Namespace", "late")
        assert not prepare(namespace="late", make_namespace=True)["changed"]
        assert not prepare(check_mode=True, namespace="late", make_namespace=True)["changed"]
        assert not prepare.kit.all("ConfigMap")

    def test_a_namespace_that_the_user_may_not_create_is_named_with_the_command(self, prepare):
        prepare.kit.deny("create", "", "namespaces")
        assert prepare(make_namespace=True)["changed"], "one that is there needs no right to create it"
        with pytest.raises(AnsibleActionFail) as caught:
            prepare(namespace="late", make_namespace=True)
        assert "this user may not create namespaces; a ClusterRole needs this rule" in str(caught.value)
        assert "where the namespace is missing: kubectl create namespace late" in str(caught.value)
        assert prepare.kit.get("Namespace", "late") is None

    def test_a_webhook_without_dry_runs_is_no_missing_namespace(self, prepare):
        said = 'admission webhook "policy.test" does not support dry run'
        prepare.kit.fail(1, 400, "BadRequest", said)
        assert prepare()["changed"]  # the review of the rules is not answered by it

    @pytest.mark.parametrize(
        ("level", "pods", "refused"),
        [
            ("restricted", {}, "runAsNonRoot != true"),
            ("restricted", {"run_as_user": 1000}, ""),
            ("baseline", {}, ""),
            ("baseline", {"gang": {"host_network": True}}, "hostNetwork=true"),
            ("privileged", {"host_network": True}, ""),
        ],
    )
    def test_pod_security_is_asked_beforehand(self, prepare, level, pods, refused):
        prepare.kit.change("Namespace", "gpuval", {"metadata": {"labels": {POD_SECURITY: level}}}, "")
        prepare.pods = pods
        if not refused:
            assert prepare()["changed"]
        else:
            with pytest.raises(AnsibleActionFail) as caught:
                prepare()
            assert refused in str(caught.value)
            assert "set gpuval_pods.run_as_user" in str(caught.value)
        assert not prepare.kit.all("Pod")

    def test_what_else_a_namespace_refuses_is_a_warning(self, prepare):
        def full(resource, manifest):
            if resource.kind == "Pod":
                raise Problem(403, "Forbidden", 'pods "gpuval-prepare" is forbidden: exceeded quota: gpus')

        prepare.kit.server.admit = full
        assert prepare()["changed"]
        (warned,) = [told for told in prepare.told if "quota" in told]
        assert warned.startswith("namespace gpuval: pods refused: exceeded quota: gpus: raise or free the quota")

    @pytest.mark.parametrize(
        ("own", "references", "warned"),
        [
            ("", [], ""),  # a run without an image is refused for that
            ("registry.example.org/all:1", [], ""),
            ("registry.example.org/all:1", ["registry.example.org/training:1"], ""),
            ("registry.example.org/all:1", ["elsewhere.example.org/training:1"], "elsewhere.example.org/training:1"),
            ("elsewhere.example.org/all:1", ["registry.example.org/training:1"], "elsewhere.example.org/all:1"),
        ],
    )
    def test_a_policy_for_images_sees_those_of_the_run(self, prepare, own, references, warned):
        def allowed(resource, manifest):
            spec = manifest.get("spec", {}) if resource.kind == "Pod" else {}
            for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
                if not container["image"].startswith("registry.example.org/"):
                    raise Problem(403, "Forbidden", f"image {container['image']} is not of an allowed registry")

        prepare.kit.server.admit = allowed
        prepare.pods = {"image": own}
        prepare.images = {f"image-{number}": {"reference": one} for number, one in enumerate(references)}
        assert prepare()["changed"]
        found = [told for told in prepare.told if "allowed registry" in told]
        assert bool(found) == bool(warned)
        assert all(warned in told for told in found)
