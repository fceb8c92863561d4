"""The controller's manifests: valid, restricted, off the nodes under test, without a secret for all to read."""

import base64
import copy
import http.server
import json
import ssl
import threading
from dataclasses import replace

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import controller, manifests, permissions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterAccess, Forbidden
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.controller import (
    ControllerOrder,
    ControllerPodOptions,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.controller_files import ControllerFiles
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.kinds import KINDS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import PodSettingsError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import run_in_cluster
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates
from kubernetes.config import incluster_config

from tests.kit.kubernetes_schemas import kubernetes_validate

IMAGE = f"registry.example/validate@sha256:{'0' * 64}"
KUBERNETES = "1.36"
FILES = {
    "ConfigMap": {"inventory/1/a b/hosts.yml": b"x: 1\n"},
    "Secret": {"secrets.json": b'{"key": "s3cret"}'},
}


def order(schedule="", name="20261130-101500-ab12", **pod):
    return ControllerOrder(
        name,
        "checks",
        ControllerPodOptions(**{"image": IMAGE, **pod}),
        FILES,
        ["-i", "x"],
        ["n1"],
        "mine",
        600,
        schedule,
    )


def spec_of(made):
    work = made[-1]
    return (work["spec"]["jobTemplate"] if work["kind"] == "CronJob" else work)["spec"]["template"]["spec"]


def node(name, *, taints=(), ready="True", labels=None):
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": f"{name}.host", **(labels or {})}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "capacity": {}, "allocatable": {}},
    }


@pytest.mark.parametrize("schedule", ["", "17 3 * * *"])
@pytest.mark.parametrize(
    "pod",
    [
        {},
        {
            "image_pull_policy": "Always",
            "image_pull_secrets": ["pull"],
            "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}},
            "node_selector": {"pool": "system"},
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
            "share_nodes": True,
            "priority_class": "low",
            "labels": {"team": "a"},
            "annotations": {"x/y": "z"},
            "environment": {"HTTPS_PROXY": "http://proxy:3128"},
            "secret": "store-keys",
            "claim": "results",
        },
    ],
    ids=["default", "all"],
)
def test_manifests_are_valid_and_restricted(schedule, pod):
    made = controller.objects(order(schedule, **pod))
    for item in made:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
    assert [item["kind"] for item in made] == ["ConfigMap", "Secret", "CronJob" if schedule else "Job"]
    spec = spec_of(made)
    assert manifests.security_level(spec) == "restricted"
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is True and spec["serviceAccountName"] == controller.ACCOUNT
    assert "s3cret" not in json.dumps(made) and base64.b64encode(b'{"key": "s3cret"}').decode() in json.dumps(made[1])
    mapped = {item["path"] for source in spec["volumes"][0]["projected"]["sources"] for kind in source.values()
              for item in kind["items"]}  # fmt: skip
    assert mapped == {f"project/{path}" for path in (*FILES["ConfigMap"], *FILES["Secret"])}


def test_rights_are_valid_and_those_of_the_role_alone():
    made = controller.rights("checks", marks=True, volumes=True)
    for item in made:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
    bound = {item["roleRef"]["name"] for item in made if "roleRef" in item}
    assert {item["metadata"]["name"] for item in made if item["kind"] in ("Role", "ClusterRole")} == bound
    assert permissions.granted(made) == permissions.granted(
        [item for item in permissions.documents("checks") if item["metadata"]["name"] in bound]
    )
    plain = controller.rights("checks", marks=False, volumes=False)
    assert not {"gpuval-marks", "gpuval-volumes"} & {item["metadata"]["name"] for item in plain}


def test_a_lost_pod_is_followed_by_another_one_but_a_verdict_is_final():
    job = controller.objects(order())[-1]["spec"]
    assert (job["backoffLimit"] > 1, job["podReplacementPolicy"]) == (True, "Failed")
    final, lost = job["podFailurePolicy"]["rules"]
    assert (final["action"], final["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert lost["action"] == "Ignore"
    assert job["activeDeadlineSeconds"] == 600 + controller.SLACK_SECONDS


def test_the_controller_keeps_off_the_nodes_under_test():
    affinity = spec_of(controller.objects(order()))["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}]
    shared = spec_of(controller.objects(order(share_nodes=True)))["affinity"]["nodeAffinity"]
    assert list(shared) == ["preferredDuringSchedulingIgnoredDuringExecution"]


def test_where_it_can_run_and_why_not():
    nodes = [node("n1"), node("away", ready="False"), node("gpu", taints=["nvidia.com/gpu"]), node("free")]
    choice = controller.hosts(nodes, {"n1"}, ControllerPodOptions())
    assert choice == (["free"], ["n1.host"])
    tolerant = ControllerPodOptions(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
    assert controller.hosts(nodes, {"n1"}, tolerant).free == ["gpu", "free"]
    with pytest.raises(PodSettingsError) as refused:
        controller.hosts(nodes[:3], {"n1"}, ControllerPodOptions())
    for told in (
        "beside 1 under test",
        "gpu: no toleration covers its taint nvidia.com/gpu:NoSchedule",
        "share_nodes: true",
    ):
        assert told in str(refused.value), told
    assert controller.hosts(nodes[:3], {"n1"}, ControllerPodOptions(share_nodes=True)).free == ["n1"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "Run_1"}, "run id Run_1: in the cluster it names a Job"),
        ({"image": ""}, "the controller has no image"),
        ({"run_as_user": 0}, "run_as_user 0: must be 1 or more"),
    ],
)
def test_what_cannot_work_is_named_before_anything_is_made(changes, told):
    with pytest.raises(PodSettingsError, match=told):
        controller.check_order(order(**changes))


def test_an_inventory_that_no_config_map_holds_is_named_with_its_largest_file():
    big = ControllerOrder(
        "r1", "checks", ControllerPodOptions(image=IMAGE), {"ConfigMap": {"inventory/1/nodes.csv": b"x" * 1_100_000}},
        [], [], "mine", 600,
    )  # fmt: skip
    with pytest.raises(PodSettingsError, match=r"a ConfigMap holds 1 MiB.*nodes\.csv 1100000 bytes"):
        controller.check_order(big)


def test_an_image_by_tag_is_remarked():
    assert controller.check_order(order()) == []
    assert "names no digest" in controller.check_order(order(image="registry.example/validate:1"))[0]


@pytest.fixture
def inventory(tmp_path):
    folder = tmp_path / "mine"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "hosts.yml").write_text("plugin: gpuval.fleet.kubernetes_nodes\nexpected: nodes.txt\n")
    (folder / "nodes.txt").write_text("n[1:2]\n")
    (folder / "group_vars/all.yml").write_text("gpuval_s3_secret_key: pl4nted-key\n")
    (folder / "group_vars/vault.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    (folder / "kubeconfig").write_text("apiVersion: v1\nkind: Config\nusers: []\n")
    (folder / "private.yml").write_text("x: 1\n")
    (folder / "private.yml").chmod(0o600)
    (folder / ".env").write_text("AWS_SECRET_ACCESS_KEY=pl4nted-key\n")
    return folder


def test_secrets_of_an_inventory_go_into_the_secret_and_kubeconfig_and_env_nowhere(inventory):
    collected = ControllerFiles(["pl4nted-key"], lambda path: "decrypted: 1\n")
    assert collected.add_inventory([str(inventory)]) == ["/etc/gpuval/inventory/1/mine"]
    files = collected.by_kind
    place = "inventory/1/mine"
    assert set(files["ConfigMap"]) == {f"{place}/hosts.yml", f"{place}/nodes.txt"}
    assert set(files["Secret"]) == {
        f"{place}/{name}" for name in ("group_vars/all.yml", "group_vars/vault.yml", "private.yml")
    }
    assert files["Secret"][f"{place}/group_vars/vault.yml"] == b"decrypted: 1\n"


def test_an_inventory_that_is_a_file_brings_its_variables_and_its_list(inventory):
    collected = ControllerFiles([], lambda path: "")
    assert collected.add_inventory([str(inventory / "hosts.yml"), "a,b,"]) == [
        "/etc/gpuval/inventory/1/mine/hosts.yml", "a,b,",
    ]  # fmt: skip
    paths = {path for files in collected.by_kind.values() for path in files}
    assert paths == {
        f"inventory/1/mine/{name}" for name in ("hosts.yml", "nodes.txt", "group_vars/all.yml", "group_vars/vault.yml")
    }


def test_a_program_as_inventory_is_refused(tmp_path):
    program = tmp_path / "hosts.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(PodSettingsError, match=r"is a program.*ansible-inventory --list --export"):
        ControllerFiles([], str).add_inventory([str(program)])


def test_files_of_settings_travel_and_the_settings_follow(tmp_path):
    (tmp_path / "site.yml").write_text("checks: []\n")
    (tmp_path / "ext/stages").mkdir(parents=True)
    (tmp_path / "ext/stages/a.yml").write_text("x\n")
    collected = ControllerFiles([], str)
    changed = collected.add_settings(
        {"gpuval_criteria": [str(tmp_path / "site.yml")], "gpuval_extensions": [str(tmp_path / "ext")],
         "gpuval_node_ids": {"n1": "id"}, "gpuval_baseline": ""}
    )  # fmt: skip
    assert changed == {
        "gpuval_criteria": ["/etc/gpuval/files/gpuval_criteria/1/site.yml"],
        "gpuval_extensions": ["/etc/gpuval/files/gpuval_extensions/1/ext"],
    }
    assert set(collected.by_kind["ConfigMap"]) == {
        "files/gpuval_criteria/1/site.yml", "files/gpuval_extensions/1/ext/stages/a.yml",
    }  # fmt: skip


KINDS_OF_RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def manifest_of(kind):
    made = [*controller.rights("gpuval", marks=False, volumes=False), controller.priority_class("low")]
    ordered = replace(order(), namespace="gpuval")
    made += [*controller.objects(ordered), *controller.objects(replace(ordered, schedule="1 2 * * *"))]
    return next(item for item in made if item["kind"] == kind)


@pytest.mark.parametrize("verb", ["list", "create", "patch"])
@pytest.mark.parametrize("kind", [*KINDS_OF_RIGHTS, "PriorityClass", "ConfigMap", "Secret", "Job", "CronJob"])
def test_each_right_that_the_command_lacks_is_named_as_the_rule_to_add(kit, cluster, kind, verb):
    manifest, asked = manifest_of(kind), KINDS[kind].asked(verb)
    if verb == "patch":
        kit.put({**manifest, "metadata": {**manifest["metadata"], "labels": {"old": "true"}}})
    kit.deny(verb, asked.group, asked.resource)
    with pytest.raises(Forbidden) as refused:
        run_in_cluster._apply(cluster, manifest, trial=False)
    rule = yaml.safe_load(str(refused.value).partition("needs this rule:\n")[2].partition("\n(")[0])
    assert rule == [{"apiGroups": [asked.group], "resources": [asked.resource], "verbs": [verb]}]


@pytest.mark.parametrize("kind", [*KINDS_OF_RIGHTS, "PriorityClass", "ConfigMap", "Secret", "CronJob"])
def test_what_is_applied_twice_changes_once(kit, cluster, kind):
    manifest = manifest_of(kind)
    apply = run_in_cluster._apply
    assert apply(cluster, manifest, trial=True)[0] == "created" and not kit.all(kind)
    assert [apply(cluster, manifest, trial=False)[0] for _ in range(2)] == ["created", ""]
    part = {"CronJob": "spec", "ConfigMap": "binaryData", "Secret": "data", "PriorityClass": "description"}
    if kind in part:
        name, changed = part[kind], copy.deepcopy(manifest)
        changed[name] = {**changed[name], "schedule": "3 4 * * *"} if kind == "CronJob" else {"x": "eA=="}
        changed = {**manifest, "value": -5} if kind == "PriorityClass" else changed
        assert apply(cluster, changed, trial=True)[0].startswith("changed")
        assert apply(cluster, manifest, trial=False)[0] == "", "a trial keeps nothing"
        outcome, before = apply(cluster, changed, trial=False)
        assert outcome == "changed" and "s3cret" not in before and "czNjcmV0" not in before


def test_a_pod_logs_in_by_the_token_and_authority_in_its_files(tmp_path, monkeypatch):
    """Over TLS, and again when the token is renewed."""
    files = certificates.CertificateFiles(tmp_path)
    certificates.ensure(files, [])
    tokens = []

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            tokens.append(self.headers["Authorization"])
            is_known = tokens[-1].split()[-1] == "second"
            body = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []}).encode()
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            (tmp_path / "token").write_text("second")  # as the kubelet does

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server, files.server_key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("first")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(files.authority))
    for name, value in {"HOST": "127.0.0.1", "PORT": str(server.server_port)}.items():
        monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    try:
        with Cluster(ClusterAccess()) as in_pod:
            assert in_pod.list("Pod") == ([], "1")
    finally:
        server.shutdown()
        server.server_close()
    assert [token.split()[-1] for token in tokens] == ["first", "second"]
