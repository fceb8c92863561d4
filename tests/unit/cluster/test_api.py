import asyncio
import base64
import http.server
import json
import logging
import ssl
import sys
import tempfile
import threading
import time
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace

import aiohttp.web
import pytest
import urllib3
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import api, dra, login, manifests, permissions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import (
    Cluster,
    ClusterAccess,
    ClusterError,
    Exists,
    Forbidden,
    Gone,
    Missing,
    ObjectRefused,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.dra import NodeDevices
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.permissions import AccessRequest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import PodSettings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.certificates import CertificateFiles

from tests.kit.cluster import Fault
from tests.kit.cluster_objects import LABELS, SELECTOR, config_map, job

CREATE_MAPS = AccessRequest("create", "", "configmaps")


@pytest.fixture
def waits(monkeypatch):
    """How long the client waits between tries, which takes no time."""
    seconds = []
    monkeypatch.setattr(api, "time", SimpleNamespace(monotonic=time.monotonic, sleep=seconds.append))
    return seconds


@pytest.fixture
def cluster(kit, waits):
    with Cluster(ClusterAccess(str(kit.kubeconfig)), deadline_seconds=60) as cluster:
        yield cluster


def test_what_is_made_is_listed_and_deleted_by_its_label(kit, cluster):
    cluster.create(config_map("one", a="1"))
    cluster.create(config_map("two"))
    cluster.create(config_map("other", labels={**LABELS, "gpuval.io/run": "r2"}))
    items, version = cluster.list("ConfigMap", SELECTOR)
    assert [item["metadata"]["name"] for item in items] == ["one", "two"]
    assert int(version) >= int(items[-1]["metadata"]["resourceVersion"])
    cluster.delete_all("ConfigMap", SELECTOR)
    assert [item["metadata"]["name"] for item in kit.all("ConfigMap")] == ["other"]
    assert cluster.asked == {
        CREATE_MAPS: 3,
        AccessRequest("list", "", "configmaps"): 1,
        AccessRequest("deletecollection", "", "configmaps"): 1,
    }
    assert cluster.asked == kit.counts()


def test_a_long_list_comes_in_pages(kit, cluster, monkeypatch):
    monkeypatch.setattr(api, "PAGE", 3)
    for number in range(7):
        kit.put({**config_map(f"c{number}"), "metadata": {"name": f"c{number}", "namespace": "gpuval"}})
    items, _ = cluster.list("ConfigMap")
    assert [item["metadata"]["name"] for item in items] == [f"c{number}" for number in range(7)]
    assert kit.counts()[AccessRequest("list", "", "configmaps")] == 3


def test_a_list_whose_version_is_gone_between_pages_starts_again(kit, cluster, monkeypatch):
    kit.add_nodes(5)
    call, times = cluster._call, []

    def compacting(request):
        if "continue" in request.query and not times:
            times.append(1)
            kit.compact()
        return call(request)

    monkeypatch.setattr(cluster, "_call", compacting)
    monkeypatch.setattr(api, "PAGE", 2)
    items, _ = cluster.list("Node")
    assert len(items) == len({item["metadata"]["name"] for item in items}) == 5
    assert kit.counts()[AccessRequest("list", "", "nodes")] == 5


def test_what_a_secret_holds_is_not_fetched(kit, cluster):
    cluster.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": LABELS}, "stringData": {"k": "v"}}
    )
    items, _ = cluster.list("Secret", SELECTOR)
    assert list(items[0]) == ["metadata"]


def test_what_a_deleted_secret_held_does_not_come_back(kit, cluster, monkeypatch):
    call, answers = cluster._call, []

    def kept(*rest, **options):
        answers.append(call(*rest, **options))
        return answers[-1]

    monkeypatch.setattr(cluster, "_call", kept)
    planted = base64.b64encode(b"planted-signature-2204").decode()
    meta = {"name": "s", "labels": LABELS}
    cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"k": planted}})
    cluster.delete_all("Secret", SELECTOR)
    cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"k": planted}})
    cluster.delete("Secret", "s")
    for answer in (answers[1], answers[3]):
        assert [item["metadata"]["name"] for item in json.loads(answer.data)["items"]] == ["s"]
        assert planted.encode() not in answer.data


def test_a_dry_run_is_checked_and_makes_nothing(kit, cluster):
    assert cluster.create(config_map(), dry_run=True)["metadata"]["name"] == "one"
    assert not kit.all("ConfigMap")
    with pytest.raises(ObjectRefused, match=r"metadata\.name"):
        cluster.create(config_map("Not_A_Name"), dry_run=True)
    with (
        Cluster(ClusterAccess(str(kit.kubeconfig), "", "nowhere")) as nowhere,
        pytest.raises(Missing, match=r"kubectl create namespace nowhere, or .*-e kubernetes_make_namespace=true"),
    ):
        nowhere.create(config_map(), dry_run=True)
    assert set(kit.counts()) == {CREATE_MAPS}


def test_objects_are_trimmed(kit, cluster):
    kit.add_node("node-001", taints=[{"key": "a", "effect": "PreferNoSchedule"}])
    cluster.create(job())
    pod = kit.wait(lambda: [pod for pod in cluster.list("Pod")[0] if pod["status"]["phase"] == "Succeeded"])[0]
    node = cluster.list("Node")[0][0]
    assert "managedFields" not in pod["metadata"]
    assert "images" not in node["status"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["spec"]["taints"] == [{"key": "a", "effect": "PreferNoSchedule"}]
    assert pod["spec"] == {
        "nodeName": "node-001",
        "initContainers": [{"name": "facts", "image": "registry.test/work:1"}],
        "containers": [{"name": "training", "image": "registry.test/work:1"}],
        "volumes": [],
    }
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_one_object_is_deleted_by_the_rules_of_lists(kit, cluster):
    cluster.create(config_map("one"))
    cluster.create(config_map("two"))
    cluster.delete("ConfigMap", "one")
    cluster.delete("ConfigMap", "one")  # none is no error
    assert [item["metadata"]["name"] for item in cluster.list("ConfigMap", SELECTOR)[0]] == ["two"]
    assert {asked.verb for asked in kit.requests} == {"create", "list", "deletecollection"}


def test_everything_is_never_deleted(cluster):
    with pytest.raises(ValueError, match="never"):
        cluster.delete_all("Job", "")


def test_pods_and_secrets_of_a_deleted_job_go_with_it(kit, cluster):
    kit.add_node("node-001")
    made = cluster.create(job())
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job-1", "uid": made["metadata"]["uid"]}
    meta = {"name": "s", "labels": LABELS, "ownerReferences": [owner]}
    cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta})
    kit.wait(lambda: kit.all("Pod"))
    cluster.delete_all("Job", SELECTOR)
    kit.wait(lambda: not (kit.all("Job") or kit.all("Pod") or kit.all("Secret")))


def test_nodes_take_a_merge_patch(kit, cluster):
    kit.add_node("node-001", labels={"old": "1"})
    node = cluster.patch("Node", "node-001", {"metadata": {"labels": {"gpuval.io/verdict": "PASS", "old": None}}})
    assert node["metadata"]["labels"]["gpuval.io/verdict"] == "PASS"
    assert "old" not in kit.get("Node", "node-001")["metadata"]["labels"]
    with pytest.raises(Exists, match="has been modified"):
        cluster.patch("Node", "node-001", {"metadata": {"resourceVersion": "1", "labels": {"x": "1"}}})
    with pytest.raises(Missing, match="node-404"):
        cluster.patch("Node", "node-404", {})


class TestLogs:
    @pytest.fixture
    def pod(self, kit, cluster):
        kit.add_node("node-001")
        cluster.create(job())
        return kit.wait(lambda: [pod for pod in kit.all("Pod") if pod["status"]["phase"] == "Succeeded"])[0][
            "metadata"
        ]["name"]

    def test_the_end_of_it(self, kit, cluster, pod):
        kit.set_log(pod, "facts", "one\ntwo\nthrée\n")
        assert cluster.log(pod, "facts") == "one\ntwo\nthrée\n"
        assert cluster.log(pod, "facts", tail_lines=1) == "thrée\n"
        assert cluster.log(pod, "facts", limit_bytes=3) == "one"
        assert cluster.asked[AccessRequest("get", "", "pods", "log")] == 3

    def test_output_that_is_no_text(self, kit, cluster, pod):
        kit.server.logs["gpuval", pod, "facts"] = b"\xff\xfeok"
        assert cluster.log(pod, "facts") == "\ufffd\ufffdok"

    def test_more_than_was_asked_for_is_not_read(self, kit, cluster, pod, monkeypatch):
        # A server that takes no notice of the limit.
        monkeypatch.setattr(type(kit.server), "_log", lambda *args: aiohttp.web.Response(body=b"x" * 10**6))
        assert len(cluster.log(pod, "facts", limit_bytes=1000)) == 1000
        assert len(cluster.log(pod, "facts", limit_bytes=1000)) == 1000

    def test_none_while_it_has_not_started(self, kit, cluster, pod):
        del kit.server.logs["gpuval", pod, "training"]
        assert cluster.log(pod, "training") == ""

    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    def test_a_kubelet_that_is_dead_is_asked_once(self, kit, cluster, pod, waits, status):
        said = 'Get "https://10.0.0.7:10250/containerLogs/gpuval/p/facts": dial tcp 10.0.0.7:10250: no route to host'
        kit.fail(1, status, "InternalError", said)
        with pytest.raises(ClusterError, match=r"dial tcp 10\.0\.0\.7:10250"):
            cluster.log(pod, "facts")
        assert waits == []
        assert cluster.asked[AccessRequest("get", "", "pods", "log")] == 1
        kit.throttle(1)
        assert cluster.log(pod, "facts") is not None  # a busy server is another matter

    def test_a_kubelet_that_does_not_answer(self, kit, cluster, pod, monkeypatch):
        async def slow(*args):
            await asyncio.sleep(30)
            return aiohttp.web.Response()

        monkeypatch.setattr(type(kit.server), "_answer", slow)
        monkeypatch.setattr(api, "LOG_SECONDS", 0.3)
        began = time.monotonic()
        with pytest.raises(ClusterError, match=f"kubelet of the node of {pod} does not answer"):
            cluster.log(pod, "facts")
        assert time.monotonic() - began < 20

    def test_no_such_container(self, cluster, pod):
        with pytest.raises(ObjectRefused, match="not valid for pod"):
            cluster.log(pod, "nothing")


class TestRetries:
    def test_too_many_requests_waits_as_asked(self, kit, cluster, waits):
        kit.throttle(2, retry_after=3)
        with pytest.raises(ClusterError, match="too many requests"):  # 3 s are more than the deadline
            Cluster(ClusterAccess(str(kit.kubeconfig)), deadline_seconds=2).create(config_map())
        assert waits == []
        kit.throttle(1, retry_after=1)
        assert cluster.create(config_map())["metadata"]["uid"]
        assert waits == [3.0, 1.0]

    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    def test_a_server_in_trouble_is_asked_again(self, kit, cluster, waits, status):
        kit.fail(3, status)
        cluster.create(config_map())
        assert len(waits) == 3
        assert waits[0] < waits[1] < waits[2]

    def test_a_server_that_hangs_up_is_asked_again(self, kit):
        with Cluster(ClusterAccess(str(kit.kubeconfig)), deadline_seconds=10) as cluster:
            kit.down(0.5)
            cluster.create(config_map())

    def test_not_for_ever(self, kit):
        kit.down(60)
        began = time.monotonic()
        with (
            Cluster(ClusterAccess(str(kit.kubeconfig)), deadline_seconds=0.6) as cluster,
            pytest.raises(ClusterError, match=r"http://127\.0\.0\.1:\d+ does not answer.*kubeconfig"),
        ):
            cluster.create(config_map())
        assert time.monotonic() - began < 30

    def test_an_object_whose_answer_was_lost_is_made_once(self, kit, cluster):
        kit.lose_answers(1)
        made = cluster.create(config_map("one"))
        assert made["metadata"]["uid"] == kit.get("ConfigMap", "one")["metadata"]["uid"]
        assert kit.counts()[CREATE_MAPS] == 2

    def test_the_object_of_another_run_is_not_ours(self, cluster):
        cluster.create(config_map(labels={**LABELS, "gpuval.io/run": "r2"}))
        with pytest.raises(Exists, match="not of this run"):
            cluster.create(config_map())

    def test_an_object_on_its_way_out_is_not_ours(self, kit, cluster):
        cluster.create(config_map())
        kit.change("ConfigMap", "one", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        with pytest.raises(Exists, match="being deleted"):
            cluster.create(config_map())

    def test_a_namespace_that_is_there_is_there(self, kit, cluster):
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuval", "labels": LABELS}}
        cluster.create(manifest)
        cluster.create({**manifest, "metadata": {"name": "another"}})
        assert kit.get("Namespace", "another")


class TestRefusals:
    def test_a_missing_rule_is_named(self, kit, cluster):
        kit.deny("create", "batch", "jobs")
        with pytest.raises(Forbidden) as caught:
            cluster.create(job())
        assert caught.value.asked == [AccessRequest("create", "batch", "jobs")]
        assert '- apiGroups: ["batch"]\n  resources: ["jobs"]\n  verbs: ["create"]' in str(caught.value)
        assert "namespace gpuval" in str(caught.value)
        assert kit.counts()[AccessRequest("create", "batch", "jobs")] == 1  # no use in asking again

    @pytest.mark.parametrize("verb", ["list", "create"])
    def test_an_api_server_that_has_just_started_denies_everything(self, kit, cluster, monkeypatch, verb):
        monkeypatch.setattr(api, "DENIED_SECONDS", 8.0)
        kit.deny(verb, "batch", "jobs", times=3)
        cluster.create(job()) if verb == "create" else cluster.list("Job")
        assert kit.counts()[AccessRequest(verb, "batch", "jobs")] == 4

    def test_denials_are_waited_out_once_for_all_kinds_of_requests(self, kit, monkeypatch):
        monkeypatch.setattr(api, "DENIED_SECONDS", 0.5)
        kinds = ("jobs", "pods", "events")
        for resource, group in zip(kinds, ("batch", "", "")):
            kit.deny("list", group, resource)
        with Cluster(ClusterAccess(str(kit.kubeconfig))) as cluster:
            for kind in ("Job", "Pod", "Event"):
                with pytest.raises(Forbidden):
                    cluster.list(kind)
        first, *others = (sum(n for asked, n in kit.counts().items() if asked.resource == kind) for kind in kinds)
        assert 2 <= first <= 5
        assert others == [1, 1]

    def test_a_denial_is_final_where_the_cluster_has_allowed_anything(self, kit, cluster, monkeypatch):
        monkeypatch.setattr(api, "DENIED_SECONDS", 60.0)
        cluster.list("Pod")
        kit.deny("list", "batch", "jobs")
        with pytest.raises(Forbidden):
            cluster.list("Job")
        assert kit.counts()[AccessRequest("list", "batch", "jobs")] == 1

    def test_a_cluster_that_was_unreachable_may_have_just_started(self, kit, monkeypatch):
        monkeypatch.setattr(api, "DENIED_SECONDS", 8.0)
        with Cluster(ClusterAccess(str(kit.kubeconfig))) as cluster:
            cluster.list("Pod")
            kit.deny("list", "batch", "jobs", times=2)
            kit.down(0.3)
            cluster.list("Job")
        assert kit.counts()[AccessRequest("list", "batch", "jobs")] == 3

    @pytest.mark.parametrize("lists_rules", [True, False])
    def test_all_missing_rules_at_once(self, kit, cluster, lists_rules):
        kit.server.lists_rules = lists_rules
        needed = sorted(permissions.granted(permissions.documents("gpuval")))
        cluster.check(needed)
        kit.deny("create", "batch", "jobs")
        kit.deny("watch", "", "nodes")
        with pytest.raises(Forbidden) as caught:
            cluster.check(needed)
        assert caught.value.asked == [AccessRequest("create", "batch", "jobs"), AccessRequest("watch", "", "nodes")]
        of_nodes = [asked for asked in needed if asked.resource in permissions.CLUSTER_SCOPED]
        single = 2 * len(of_nodes) + 1 if lists_rules else 2 * len(needed)
        assert kit.counts() == {permissions.RULES_REVIEW: 2, permissions.REVIEW: single}

    def test_the_documented_role_is_enough_for_each_call_here(self, kit, cluster):
        kit.add_node("node-001")
        granted = permissions.granted(permissions.documents("gpuval")) | {permissions.REVIEW}
        kit.allow_only(lambda asked: tuple(asked) in granted)
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuval"}})
        cluster.create(config_map())
        cluster.create(manifests.trial_pod("gpuval", PodSettings(), ["all:1"]), dry_run=True)
        cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": LABELS}})
        cluster.create(job())
        pod = kit.wait(lambda: cluster.list("Pod")[0])[0]["metadata"]["name"]
        cluster.log(pod, "facts")
        cluster.patch("Node", "node-001", {"metadata": {"labels": {"gpuval.io/verdict": "PASS"}}})
        condition = {"type": "gpuval.io/Accepted", "status": "True"}
        cluster.patch("Node", "node-001", {"status": {"conditions": [condition]}}, "status")
        assert cluster.read_uid() == kit.get("Namespace", "kube-system", "")["metadata"]["uid"]
        for kind in ("Job", "Pod", "Event", "Node"):
            _, version = cluster.list(kind)
            cluster.watch(kind, "", "", version, seconds=1, silence_seconds=5).close()
        for kind in ("Service", "PersistentVolume", "PersistentVolumeClaim"):
            cluster.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": "models", "labels": LABELS}})
        kit.install_dra(domains=True)
        for kind in ("ResourceSlice", "DeviceClass"):
            cluster.list(kind)
        devices = NodeDevices(device_class="gpu.nvidia.com")
        cluster.create(dra.claim_template("run", "gpuval", devices, is_queued=False))
        labels = {node: {dra.CLIQUE_LABEL: "a.1"} for node in ("a", "b")}
        cluster.create(dra.compute_domains("run", "gpuval", "gang", labels)[0][0])
        kit.install_job_sets()
        meta = {"name": "s", "labels": LABELS}
        sets = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
        cluster.create({**sets, "spec": {"replicatedJobs": []}})
        for kind in (
            "JobSet",
            "ResourceClaimTemplate",
            "ComputeDomain",
            "Job",
            "Pod",
            "Secret",
            "ConfigMap",
            "Service",
            "PersistentVolume",
            "PersistentVolumeClaim",
        ):
            cluster.delete_all(kind, SELECTOR)
            cluster.list(kind, SELECTOR)
        of_kubectl = {("get", "", "pods", ""), ("get", "", "pods", "exec"), ("create", "", "pods", "exec")}
        assert permissions.granted(permissions.documents("gpuval")) - set(kit.requests) == of_kubectl

    @pytest.mark.parametrize(
        "message",
        [
            'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8',
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostNetwork',
            "jobs.batch is forbidden: unable to create new content in namespace gpuval because it is being terminated",
        ],
    )
    def test_a_refusal_of_the_object_is_no_missing_rule(self, kit, cluster, message):
        kit.fail(1, 403, "Forbidden", message)
        with pytest.raises(ObjectRefused, match=message[:20]):
            cluster.create(job())

    def test_what_the_server_finds_wrong_in_an_object(self, cluster):
        with pytest.raises(ObjectRefused, match=r"create configmaps: .*metadata.name: Invalid value"):
            cluster.create(config_map("Not_A_Name"))
        with pytest.raises(ObjectRefused, match="1048576"):
            cluster.create(config_map(big="x" * (1 << 20) + "y"))

    def test_the_namespace_is_missing(self, kit):
        with (
            Cluster(ClusterAccess(str(kit.kubeconfig), "", "nowhere")) as cluster,
            pytest.raises(Missing, match='namespaces "nowhere" not found: create the namespace'),
        ):
            cluster.create(config_map())

    def test_a_version_that_is_too_old(self, kit, cluster):
        _, version = cluster.list("Pod")
        kit.compact()
        with pytest.raises(Gone):
            cluster.watch("Pod", "", "", version, seconds=1, silence_seconds=5)


class TestLogin:
    def test_wrong_token(self, kit, waits):
        path = kit.write_kubeconfig("wrong", {"token": "wrong"})
        with (
            Cluster(ClusterAccess(str(path))) as cluster,
            pytest.raises(ClusterError, match="credentials"),
        ):
            cluster.list("Pod")

    def exec_plugin(self, kit, tmp_path, body, name="exec"):
        plugin = tmp_path / f"{name}.py"
        plugin.write_text(body, encoding="utf-8")
        user = {
            "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": [str(plugin)]}
        }
        return kit.write_kubeconfig(name, user)

    def test_a_token_of_a_plugin_that_expires_is_asked_for_again(self, kit, tmp_path):
        token = tmp_path / "token"
        token.write_text(kit.token, encoding="utf-8")
        body = (
            "import json, pathlib\n"
            f"token = pathlib.Path({str(token)!r}).read_text()\n"
            "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', "
            "'status': {'token': token}}))\n"
        )
        with Cluster(ClusterAccess(str(self.exec_plugin(kit, tmp_path, body)))) as cluster:
            cluster.list("Pod")
            kit.server.token = "second"
            token.write_text("second", encoding="utf-8")
            cluster.list("Pod")
            kit.server.token = "third"
            token.write_text("third", encoding="utf-8")
            _, version = "", "1"
            with pytest.raises(Gone):  # known by then, and the version is old
                cluster.watch("Pod", "", "", version, seconds=1, silence_seconds=5)
            with pytest.raises(Gone):
                for event in cluster.watch("Pod", "", "", version, seconds=1, silence_seconds=5):
                    raise Gone(str(event["object"]["code"]))

    def test_a_plugin_that_fails_says_why(self, kit, tmp_path):
        path = self.exec_plugin(kit, tmp_path, "import sys\nsys.exit('session expired: run doctl auth init')")
        with pytest.raises(ClusterError, match=r"login to the cluster failed.*run doctl auth init"):
            Cluster(ClusterAccess(str(path)))
        assert not any(isinstance(handler, BufferingHandler) for handler in logging.getLogger().handlers)

    def test_contexts(self, kit, tmp_path):
        config = json.loads(kit.kubeconfig.read_text(encoding="utf-8"))
        config["contexts"].append({"name": "second", "context": {"cluster": "kit", "user": "tester"}})
        config["current-context"] = "gone"
        path = tmp_path / "contexts"
        path.write_text(json.dumps(config), encoding="utf-8")
        with Cluster(ClusterAccess(str(path), "second")) as cluster:
            cluster.list("Pod")
        with pytest.raises(ClusterError, match="gone"):
            Cluster(ClusterAccess(str(path)))

    def test_no_kubeconfig(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        with pytest.raises(ClusterError, match="set gpuval_kubeconfig"):
            Cluster(ClusterAccess())
        with pytest.raises(ClusterError, match="no kubeconfig /nowhere"):
            Cluster(ClusterAccess("/nowhere"))
        broken = tmp_path / "broken"
        broken.write_text("just text", encoding="utf-8")
        with pytest.raises(ClusterError, match="broken"):
            Cluster(ClusterAccess(str(broken)))

    def test_kubeconfig_of_the_environment(self, kit, monkeypatch):
        monkeypatch.setenv("KUBECONFIG", f"/nowhere:{kit.kubeconfig}")
        with Cluster(ClusterAccess()) as cluster:
            cluster.list("Pod")

    def test_no_tls_where_tls_is_expected(self, kit, tmp_path):
        config = json.loads(kit.kubeconfig.read_text(encoding="utf-8"))
        config["clusters"][0]["cluster"]["server"] = kit.url.replace("http:", "https:")
        path = tmp_path / "tls"
        path.write_text(json.dumps(config), encoding="utf-8")
        began = time.monotonic()
        with (
            Cluster(ClusterAccess(str(path)), deadline_seconds=120) as cluster,
            pytest.raises(ClusterError, match="does not answer"),
        ):
            cluster.list("Pod")
        assert time.monotonic() - began < 60  # waiting would not help

    def test_a_certificate_of_another(self, kit, tmp_path):
        files = CertificateFiles(tmp_path / "certificates")
        files.authority.parent.mkdir()
        certificates.ensure(files, ["127.0.0.1"])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files.server, files.server_key)
        server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = json.loads(kit.kubeconfig.read_text(encoding="utf-8"))
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{server.server_port}"
        path = tmp_path / "somebody"
        path.write_text(json.dumps(config), encoding="utf-8")
        try:
            with (
                Cluster(ClusterAccess(str(path))) as cluster,
                pytest.raises(ClusterError, match="certificate verify failed"),
            ):
                cluster.list("Pod")
            config["clusters"][0]["cluster"]["certificate-authority"] = str(files.authority)
            path.write_text(json.dumps(config), encoding="utf-8")
            with Cluster(ClusterAccess(str(path))) as cluster, pytest.raises(Missing):  # known, and no API server
                cluster.list("Pod")
        finally:
            server.shutdown()
            server.server_close()

    def test_what_answers_is_no_api_server(self, kit, cluster, monkeypatch):
        page = lambda *args: aiohttp.web.Response(text="<html>log in</html>")  # noqa: E731
        monkeypatch.setattr(type(kit.server), "_list", page)
        with pytest.raises(ClusterError, match="not from a Kubernetes API server"):
            cluster.list("Pod")

    def test_a_login_is_renewed_once_for_all_threads(self, kit, tmp_path):
        token, count = tmp_path / "token", tmp_path / "count"
        token.write_text(kit.token, encoding="utf-8")
        body = (
            "import json, pathlib, time\n"
            f"pathlib.Path({str(count)!r}).open('a').write('x')\n"
            f"token = pathlib.Path({str(token)!r}).read_text()\n"
            "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', "
            "'status': {'token': token}}))\n"
        )
        with Cluster(ClusterAccess(str(self.exec_plugin(kit, tmp_path, body)))) as cluster:
            kit.server.token = "second"
            token.write_text("second", encoding="utf-8")
            threads = [threading.Thread(target=cluster.list, args=("Pod",)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert kit.counts()[AccessRequest("list", "", "pods")] <= 12
        assert count.read_text(encoding="utf-8") == "xx"

    @pytest.fixture
    def temporary(self, tmp_path, monkeypatch):
        folder = tmp_path / "temporary"
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    def test_a_key_of_the_kubeconfig_is_on_disk_while_it_is_used(self, kit, tmp_path, temporary):
        files = CertificateFiles(tmp_path / "certificates")
        files.authority.parent.mkdir()
        certificates.ensure(files, ["127.0.0.1"])
        encoded = {
            "client-certificate-data": base64.b64encode(files.server.read_bytes()).decode(),
            "client-key-data": base64.b64encode(files.server_key.read_bytes()).decode(),
        }
        config = json.loads(kit.write_kubeconfig("inline", encoded).read_text(encoding="utf-8"))
        config["clusters"][0]["cluster"]["server"] = "https://cluster.invalid"
        path = tmp_path / "inline"
        path.write_text(json.dumps(config), encoding="utf-8")
        for _ in range(2):
            first, second = Cluster(ClusterAccess(str(path))), Cluster(ClusterAccess(str(path)))
            keys = [Path(one._client.configuration.key_file) for one in (first, second)]
            assert [key.read_bytes() for key in keys] == [files.server_key.read_bytes()] * 2
            assert all(key.is_relative_to(temporary) and key.stat().st_mode & 0o77 == 0 for key in keys)
            first.close()
            assert keys[1].exists()
            second.close()
            assert not list(temporary.iterdir())
        login.remove_folder(str(tmp_path), -1)  # of another process
        assert tmp_path.exists()

    def test_nothing_stays_of_a_login_that_failed(self, temporary):
        with pytest.raises(ClusterError):
            Cluster(ClusterAccess("/nowhere"))
        assert not list(temporary.iterdir())

    def test_without_the_library(self, kit, monkeypatch):
        monkeypatch.setitem(sys.modules, "kubernetes.client", None)
        login._library.cache_clear()
        with pytest.raises(ClusterError, match="pip install kubernetes"):
            Cluster(ClusterAccess(str(kit.kubeconfig)))
        login._library.cache_clear()


class TestProxy:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch):
        for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.lower(), raising=False)

    def kubeconfig(self, kit, server, **more):
        config = json.loads(kit.kubeconfig.read_text(encoding="utf-8"))
        config["clusters"][0]["cluster"].update(server=server, **more)
        path = kit.directory / "behind-proxy"
        path.write_text(json.dumps(config), encoding="utf-8")
        return ClusterAccess(str(path))

    def test_of_the_kubeconfig(self, kit, monkeypatch):
        # The server for tests takes requests of a proxy's client too; the cluster's own name leads nowhere.
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "cluster.invalid")
        access = self.kubeconfig(kit, "http://cluster.invalid", **{"proxy-url": kit.url})
        with Cluster(access) as cluster:
            assert cluster.list("Pod")[0] == []
        kubeconfig = json.loads(Path(access.kubeconfig).read_text(encoding="utf-8"))
        kubeconfig["clusters"].append({"name": "direct", "cluster": {"server": kit.url}})
        kubeconfig["contexts"].append({"name": "direct", "context": {"cluster": "direct", "user": "tester"}})
        Path(access.kubeconfig).write_text(json.dumps(kubeconfig), encoding="utf-8")
        with Cluster(ClusterAccess(access.kubeconfig, "direct")) as cluster:  # it is the proxy of that cluster alone
            assert cluster._client.configuration.proxy == "http://127.0.0.1:9"
            assert cluster.list("Pod")[0] == []

    def test_of_the_environment(self, kit, monkeypatch):
        monkeypatch.setenv("http_proxy", kit.url)
        with Cluster(self.kubeconfig(kit, "http://cluster.invalid")) as cluster:
            assert cluster.list("Pod")[0] == []

    @pytest.mark.parametrize(
        ("server", "environment", "proxy"),
        [
            ("https://api.test:6443", {"HTTPS_PROXY": "http://s:1", "HTTP_PROXY": "http://p:1"}, "http://s:1"),
            ("https://api.test:6443", {"https_proxy": "http://s:1", "http_proxy": "http://p:1"}, "http://s:1"),
            ("https://api.test:6443", {"HTTPS_PROXY": "s:1"}, "http://s:1"),
            ("https://api.test:6443", {"HTTP_PROXY": "http://p:1"}, None),  # as kubectl has it
            ("http://api.test", {"HTTPS_PROXY": "http://s:1", "HTTP_PROXY": "http://p:1"}, "http://p:1"),
            ("https://api.test:6443", {"HTTPS_PROXY": "http://s:1", "NO_PROXY": "other,.test"}, None),
            ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://s:1", "no_proxy": "10.0.0.0/8"}, None),
            ("https://11.1.2.3:6443", {"HTTPS_PROXY": "http://s:1", "no_proxy": "10.0.0.0/8"}, "http://s:1"),
            ("https://api.test:6443", {"HTTPS_PROXY": "http://s:1", "NO_PROXY": "*"}, None),
            ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://s:1"}, None),
            ("https://localhost:6443", {"HTTPS_PROXY": "http://s:1"}, None),
            ("https://[::1]:6443", {"HTTPS_PROXY": "http://s:1"}, None),
        ],
    )
    def test_which_one(self, kit, monkeypatch, server, environment, proxy):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with Cluster(self.kubeconfig(kit, server)) as cluster:
            manager = cluster._client.rest_client.pool_manager
            assert str(getattr(manager, "proxy", None)) == str(proxy)

    def test_its_login(self, kit):
        access = self.kubeconfig(kit, "https://api.test", **{"proxy-url": "http://me:s%40cret@proxy.test:3128"})
        with Cluster(access) as cluster:
            told = cluster._client.rest_client.pool_manager.proxy_headers
        assert told == urllib3.make_headers(proxy_basic_auth="me:s@cret")

    def test_of_a_kind_that_cannot_be_used(self, kit):
        access = self.kubeconfig(kit, "https://api.test", **{"proxy-url": "socks5://me:secret@proxy.test:1080"})
        with pytest.raises(ClusterError, match="socks5") as caught:
            Cluster(access)
        assert "secret" not in str(caught.value)


def test_no_token_in_messages_or_logs(kit, cluster, caplog):
    caplog.set_level(logging.DEBUG)
    kit.deny("create", "", "secrets")
    planted = "planted-signature-7781"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"k": base64.b64encode(planted.encode()).decode()},
    }
    with pytest.raises(Forbidden) as caught:
        cluster.create(secret)
    cluster.create(config_map(k=planted))
    for text in (str(caught.value), caplog.text):
        assert planted not in text
        assert base64.b64encode(planted.encode()).decode() not in text
        assert kit.token not in text


def test_many_threads_share_a_cluster(kit, cluster):
    kit.add_nodes(3)
    problems = []

    def work(number):
        try:
            for count in range(10):
                cluster.create(config_map(f"c-{number}-{count}"))
                cluster.list("Node")
        except ClusterError as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not problems
    assert len(kit.all("ConfigMap")) == 80


class TestSimulation:
    """What of the simulated cluster no fault of test_faults.py would notice."""

    @pytest.fixture(autouse=True)
    def node(self, kit):
        kit.add_node("node-001")
        kit.settings.retry_seconds = 0.02

    def failed(self, kit):
        jobs = kit.all("Job")
        return [c["reason"] for c in jobs[0]["status"].get("conditions", []) if c["type"] == "Failed"] if jobs else []

    def state(self, kit, stage):
        pods = kit.all("Pod")
        statuses = [
            one
            for pod in pods
            for part in ("initContainerStatuses", "containerStatuses")
            for one in pod["status"].get(part) or []
        ]
        return next((one["state"] for one in statuses if one["name"] == stage), {})

    def test_node_lost_and_back(self, kit, cluster):
        kit.fault("node-001", Fault("node_lost", stage="training"))
        cluster.create(job())
        kit.wait(lambda: self.failed(kit) == ["BackoffLimitExceeded"])
        assert kit.all("Pod")[0]["metadata"]["deletionTimestamp"]
        ready = next(c for c in kit.get("Node", "node-001")["status"]["conditions"] if c["type"] == "Ready")
        assert ready["status"] == "Unknown"
        kit.restore_node("node-001")
        assert not kit.all("Pod")

    def test_no_place_for_a_pod(self, kit, cluster):
        kit.set_node("node-001", unschedulable=True)
        cluster.create(job())
        event = kit.wait(lambda: [e for e in kit.all("Event") if e["reason"] == "FailedScheduling"])[0]
        assert event["message"].startswith("0/1 nodes are available: 1 node(s) were unschedulable.")
        kit.set_node("node-001", unschedulable=None)
        kit.wait(lambda: kit.all("Job")[0]["status"].get("succeeded") == 1)

    def test_the_whole_node_is_accepted(self, kit, cluster):
        kit.stage_seconds_of["facts"] = 0.3
        gpus = {"limits": {"nvidia.com/gpu": 8}}
        for number in (1, 2):
            manifest = job(f"job-{number}")
            for part in ("initContainers", "containers"):
                for container in manifest["spec"]["template"]["spec"][part]:
                    container["resources"] = gpus
            cluster.create(manifest)
        kit.wait(lambda: [e for e in kit.all("Event") if "1 Insufficient nvidia.com/gpu" in e["message"]])
        kit.wait(lambda: all(one["status"].get("succeeded") for one in kit.all("Job")))
        assert kit.most_running == 1
