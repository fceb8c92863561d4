"""What a Node object means: its description, SKU and GPUs, and whether work can be placed on it."""

import json
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import (
    nodes,
    pod_classes,
    pod_settings,
    scheduler,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import ClusterError, Forbidden, ObjectRefused
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.nodes import KubernetesHosts
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.permissions import AccessRequest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory.node_list import parse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.launch_errors import described
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import findings as ssh_findings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launch_inputs

from tests.kit.node_objects import AMD_LABELLER, BARE_H200, DOKS_MI300X, EKS_P5, GKE_H100, GPU_TAINT, h200, node

NVIDIA = {"nvidia.com/gpu": "8"}
NOT_READY = {
    "Ready": {
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": "2026-11-21T15:02:11Z",
    }
}
UNREACHABLE = [
    {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule", "timeAdded": "2026-11-21T15:02:11Z"},
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-21T15:02:16Z"},
]
CORDON = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]


def found(object_, *, pods=None, **given):
    description = nodes.describe(object_) if object_ else None
    settings = pod_settings.parse(pods) if pods else None
    return nodes.finding("gpu-001", description, settings=settings, **given)


# --- description -----------------------------------------------------------------------------------------------------


def test_a_description_has_what_people_ask_for_and_not_what_is_large():
    object_ = h200(taints=[GPU_TAINT])
    said = nodes.describe(object_)
    assert said["ready"] and not said["unschedulable"] and said["hostname"] == "gpu-001"
    assert said["taints"] == [GPU_TAINT]
    assert said["capacity"]["nvidia.com/gpu"] == "8" and said["addresses"]["InternalIP"] == "192.0.2.11"
    assert said["kubelet_version"] == "v1.34.1" and said["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert said["conditions"]["Ready"]["reason"] == "KubeletReady"
    text = json.dumps(said)
    assert "managedFields" not in text and "registry.example.org" not in text and len(text) < 4000


def test_of_several_addresses_of_a_kind_the_first_is_the_node_s():
    object_ = h200()
    object_["status"]["addresses"] = [
        {"type": "InternalIP", "address": "fd00::11"},
        {"type": "InternalIP", "address": "192.0.2.11"},
        {"type": "Hostname", "address": "gpu-001"},
    ]
    assert nodes.describe(object_)["addresses"] == {"InternalIP": "fd00::11", "Hostname": "gpu-001"}


def test_a_node_that_was_only_just_made_can_be_described():
    said = nodes.describe({"metadata": {"name": "gpu-001"}})
    assert not said["ready"] and said["capacity"] == {}
    finding = nodes.finding("gpu-001", said)
    assert finding.state == "node_not_ready" and "never reported Ready" in finding.message


# --- SKU and GPUs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "sku"),
    [
        (BARE_H200, "h200"),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}, "h100-80gb-hbm3"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "a100-sxm4-40gb"),
        (GKE_H100, "h100-80gb"),
        (DOKS_MI300X, "mi300x"),
        (AMD_LABELLER, "mi300x-oam"),
        (EKS_P5, "auto"),
        ({}, "auto"),
    ],
)
def test_a_sku_from_the_labels_of_feature_discovery_and_clouds(labels, sku):
    assert nodes.sku_of(nodes.describe(node(labels=labels)), {}) == sku


@pytest.mark.parametrize(
    ("rules", "sku"),
    [
        ({"h200": {"product": "*h200*"}}, "h200"),
        ({"other": {"product": "*B200*"}, "mine": {"resource": "nvidia.com/gpu"}}, "mine"),
        ({"mine": {"resource": "nvidia.com/gpu", "product": "*B200*"}, "rest": {"product": "*"}}, "rest"),
        ({"mine": {"nvidia.com/gpu.memory": "1437*"}}, "mine"),
        ({"mine": {"instance_type": "p5*"}}, "h200"),
        ({"mine": {"no/such": "*"}}, "h200"),
    ],
)
def test_a_sku_by_rule(rules, sku):
    assert nodes.sku_of(nodes.describe(h200()), rules) == sku


@pytest.mark.parametrize(
    ("labels", "vendor"),
    [
        ({"feature.node.kubernetes.io/pci-10de.present": "true"}, "nvidia"),
        ({"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, "nvidia"),
        ({"feature.node.kubernetes.io/pci-1200_1002.present": "true"}, "amd"),
        ({"feature.node.kubernetes.io/pci-1200_1da3.present": "true"}, "gaudi"),
        ({"feature.node.kubernetes.io/pci-0200_10de.present": "true"}, ""),
        ({"feature.node.kubernetes.io/pci-15b3.present": "true"}, ""),
        (AMD_LABELLER, "amd"),
        (DOKS_MI300X, "amd"),
        (GKE_H100, "nvidia"),
        ({"nvidia.com/gpu.present": "true"}, "nvidia"),
        ({}, ""),
    ],
)
def test_hardware_that_labels_tell_of(labels, vendor):
    assert nodes.vendor_by_labels(labels) == vendor


# --- findings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("object_", "given"),
    [
        (h200(), {}),
        (h200(), {"sku": "h200", "expected_gpus": 8}),
        (h200(taints=[GPU_TAINT]), {}),
        (node(), {}),  # a CPU node
        (node(), {"sku": "cpu", "expected_gpus": 8}),
        (node(labels=BARE_H200), {"sku": "cpu"}),
        (node(labels=BARE_H200), {"pods": {"resource": ""}}),
        (node(resources={"amd.com/gpu": "8"}, labels=DOKS_MI300X), {"sku": "mi300x", "expected_gpus": 8}),
        (node(resources={"habana.ai/gaudi": "8"}), {"sku": "gaudi", "expected_gpus": 8}),
        (h200(taints=[{"key": "dedicated", "value": "ml", "effect": "PreferNoSchedule"}]), {}),
        (h200(taints=[{"key": "gpuval.io/failed", "value": "r1", "effect": "NoSchedule"}]), {}),
        (
            h200(taints=[{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]),
            {"pods": {"tolerations": [{"key": "dedicated", "value": "ml"}]}},
        ),
        (h200(unschedulable=True, taints=CORDON), {"pods": {"tolerations": [{"operator": "Exists"}]}}),
        # The scheduler lets pods with requests pass it.
        (h200(taints=[{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}]), {}),
    ],
)
def test_a_node_that_work_can_be_placed_on(object_, given):
    finding = found(object_, **given)
    assert (finding.state, finding.message) == ("reachable", "")


@pytest.mark.parametrize(
    ("object_", "given", "state", "message", "remedy"),
    [
        (None, {}, "node_missing", "the cluster has no node gpu-001", "kubectl get nodes"),
        (
            h200(conditions=NOT_READY, taints=UNREACHABLE),
            {},
            "node_not_ready",
            "Ready is Unknown since 2026-11-21T15:02:11Z: NodeStatusUnknown: Kubelet stopped posting node status.",
            "kubectl describe node gpu-001",
        ),
        (h200(unschedulable=True, taints=CORDON), {}, "cordoned", "it is cordoned", "kubectl uncordon gpu-001"),
        (
            h200(unschedulable=True, taints=[*CORDON, {"key": "maintenance", "value": "rma", "effect": "NoSchedule"}]),
            {},
            "cordoned",
            "has the taint maintenance=rma:NoSchedule",
            "kubectl uncordon",
        ),
        # Not ready says more than cordoned.
        (h200(unschedulable=True, conditions=NOT_READY), {}, "node_not_ready", "Unknown", "kubelet"),
        (
            h200(conditions={"DiskPressure": {"status": "True", "reason": "KubeletHasDiskPressure"}}),
            {},
            "node_pressure",
            "DiskPressure is True",
            "free",
        ),
        (
            h200(taints=[{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]),
            {"pods": {"tolerations": [{"key": "dedicated", "value": "web"}]}},
            "tainted",
            "dedicated=ml:NoSchedule",
            "gpuval_pods.tolerations",
        ),
        (h200(taints=[{"key": "k", "effect": "NoExecute"}]), {}, "tainted", "k:NoExecute", "tolerations"),
        (
            h200(),
            {"pods": {"node_selector": {"pool": "a"}}},
            "not_selected",
            "pool=a of gpuval_pods.node_selector",
            "label the node",
        ),
        (node(labels=BARE_H200), {}, "no_gpu_resource", "no device plugin has registered", "nvidia-smi"),
        (
            node(resources={"nvidia.com/gpu": "0"}),
            {"sku": "h200"},
            "no_gpu_resource",
            "offers 0 nvidia.com/gpu",
            "nvidia",
        ),
        (
            h200(allocatable={"nvidia.com/gpu": "0"}),
            {},
            "no_gpu_resource",
            "reports none of its 8 nvidia.com/gpu healthy",
            "spec.nodeName=gpu-001",
        ),
        (node(labels=DOKS_MI300X), {"expected_gpus": 8}, "no_gpu_resource", "offers no amd.com/gpu", "amdgpu"),
        (node(), {"sku": "gaudi"}, "no_gpu_resource", "offers no habana.ai/gaudi", "hl-smi"),
        (node(), {"expected_gpus": 8}, "no_gpu_resource", "offers no GPU resource", "device plugin"),
        (
            node(labels=BARE_H200, resources={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.18gb": "56"}),
            {},
            "gpus_partitioned",
            "nvidia.com/mig-1g.18gb",
            "MIG",
        ),
        (
            node(labels={**BARE_H200, "nvidia.com/gpu.replicas": "4"}, resources={"nvidia.com/gpu": "32"}),
            {"expected_gpus": 8},
            "gpus_partitioned",
            "among 4 pods",
            "time slicing",
        ),
        (node(labels={"kubernetes.io/hostname": ""}), {}, "wrong_hostname", "kubernetes.io/hostname", "label"),
    ],
)
def test_a_node_that_nothing_can_be_placed_on(object_, given, state, message, remedy):
    finding = found(object_, **given)
    assert finding.state == state
    assert message in finding.message
    assert remedy in finding.remedy and "{node}" not in finding.remedy
    assert "validate again" in finding.remedy
    # Class and remedy reach the report as those of a node that SSH does not reach.
    launch = {"state": "unreachable", "class": finding.state, "message": finding.message, "remedy": finding.remedy}
    assert described(launch)["class"] == state and described(launch)["remedy"] == finding.remedy


def test_nodes_that_go_and_nodes_that_are_not_linux():
    going = h200()
    going["metadata"]["deletionTimestamp"] = "2026-11-21T15:00:00Z"
    assert found(going).state == "node_missing" and "being deleted since" in found(going).message
    windows = node()
    windows["status"]["nodeInfo"]["operatingSystem"] = "windows"
    assert found(windows).state == "not_linux"


def test_text_of_the_cluster_is_one_clean_line():
    bad = {
        "Ready": {
            "status": "False",
            "reason": "KubeletNotReady",
            "message": "container\x1b[2J runtime\nis down " + "x" * 5000,
        }
    }
    finding = found(h200(conditions=bad))
    assert finding.state == "node_not_ready" and "\x1b" not in finding.message and "\n" not in finding.message
    assert len(finding.message) < 500


def test_a_node_that_lost_a_gpu_works_with_the_rest():
    """Its facts prove what is missing, and the verdict is FAIL; left alone it would be INCOMPLETE."""
    finding = found(h200(allocatable={"nvidia.com/gpu": "7"}), expected_gpus=8)
    assert finding.state == "reachable" and "nvidia-smi" in finding.remedy
    assert finding.message == "7 nvidia.com/gpu allocatable (capacity 8), 8 expected"
    assert found(h200(gpus=7), expected_gpus=8).message == "7 nvidia.com/gpu allocatable, 8 expected"


def test_a_launch_learns_why_it_cannot_be():
    settings = pod_settings.PodSettings()
    assert nodes.finding_for("gpu-001", h200(gpus=7), settings, "h200", 8) is None
    told = nodes.finding_for("gpu-001", None, settings, "auto", None)
    assert told["class"] == "node_missing" and set(told) == {"class", "message", "remedy"}


# --- classes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (Forbidden([AccessRequest("create", "batch", "jobs")], "gpuval"), "forbidden"),
        (
            ObjectRefused('pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8', 403),
            "quota",
        ),
        (
            ObjectRefused('pods "x" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes', 403),
            "pod_security",
        ),
        (ObjectRefused('admission webhook "jobs.policy" denied the request: no GPUs today', 400), "pod_refused"),
        (ObjectRefused("Job.batch is invalid: spec.template: Invalid value", 422), "api_refused"),
        (ClusterError("https://192.0.2.1:6443: Connection refused"), "api_away"),
        (ClusterError("too many requests", 429), "api_away"),
        (ClusterError("etcdserver: leader changed", 500), "api_away"),
    ],
)
def test_classes_of_requests_that_failed(error, name):
    assert pod_classes.of_error(error).name == name


def test_what_the_probe_found_reaches_the_launch():
    missing = nodes.finding("gpu-001", None)
    probed = {"nodes": {"gpu-001": missing.document(), "gpu-002": found(h200(gpus=7), expected_gpus=8).document()}}
    away = launch_inputs.unreachable(probed, "gpu-001")
    assert (away["state"], away["class"], away["remedy"]) == ("unreachable", "node_missing", missing.remedy)
    assert launch_inputs.unreachable(probed, "gpu-002") is None


# --- inventory -------------------------------------------------------------------------------------------------------


def hosts(made):
    return {host.name: host for host in made.hosts}


def made_of(objects, expected=None, selected=(), label_groups=None):
    listed = parse("\n".join(expected), "expected") if expected is not None else None
    return KubernetesHosts({}, label_groups).fleet([nodes.describe(one) for one in objects], listed, selected)


def test_every_node_is_a_host_in_natural_order():
    made = made_of([h200("gpu-10"), h200("gpu-9"), node("cpu-1")])
    assert list(hosts(made)) == ["cpu-1", "gpu-9", "gpu-10"]
    host = hosts(made)["gpu-9"]
    assert host.variables["ansible_connection"] == "local" and host.variables["gpuval_placement"] == "kubernetes"
    assert host.variables["kubernetes_node"]["ready"] is True and host.groups == ("sku_h200",)
    assert made.group_variables == {"sku_h200": {"gpuval_sku": "h200", "gpuval_gpu_count": 8}}
    assert "gpuval_gpu_count" not in host.variables  # a host's variable would win over group_vars


def test_a_node_that_lost_a_gpu_is_expected_to_have_what_its_like_have():
    made = made_of([h200("a"), h200("b", gpus=7), node("c", labels=BARE_H200)])
    assert made.group_variables["sku_h200"]["gpuval_gpu_count"] == 8
    assert all("sku_h200" in host.groups for host in made.hosts)


def test_instance_types_with_other_counts_are_not_alike():
    def cloud(name, kind, gpus):
        labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "node.kubernetes.io/instance-type": kind}
        return node(name, labels=labels, resources={"nvidia.com/gpu": gpus})

    made = made_of([cloud("a", "a2-highgpu-1g", "1"), cloud("b", "a2-highgpu-8g", "8")])
    assert made.group_variables["type_a2_highgpu_1g"]["gpuval_gpu_count"] == 1
    assert made.group_variables["type_a2_highgpu_8g"]["gpuval_gpu_count"] == 8
    assert "gpuval_gpu_count" not in made.group_variables["sku_a100_sxm4_40gb"]


def test_an_instance_type_of_all_nodes_says_nothing():
    def k3s(name, product, gpus):
        labels = {"nvidia.com/gpu.product": product, "node.kubernetes.io/instance-type": "k3s"}
        return node(name, labels=labels, resources={"nvidia.com/gpu": gpus})

    made = made_of([k3s("a", "NVIDIA-H200", "8"), k3s("b", "NVIDIA-L40S", "4")])
    assert made.group_variables["sku_h200"]["gpuval_gpu_count"] == 8
    assert made.group_variables["sku_l40s"]["gpuval_gpu_count"] == 4


def test_shared_gpus_are_counted_once():
    labels = {**BARE_H200, "nvidia.com/gpu.product": "NVIDIA-H200-SHARED", "nvidia.com/gpu.replicas": "4"}
    made = made_of([node("a", labels=labels, resources={"nvidia.com/gpu": "32"})])
    assert made.group_variables["sku_h200"] == {"gpuval_sku": "h200", "gpuval_gpu_count": 8}


def test_pools_zones_and_vendors_make_groups():
    made = made_of([node("g", labels=GKE_H100, resources=NVIDIA), node("e", resources={"amd.com/gpu": "8"})])
    assert hosts(made)["g"].groups == ("sku_h100_80gb", "pool_a3_high", "zone_us_central1_a", "type_a3_highgpu_8g")
    assert hosts(made)["e"].groups == ("gpu_amd",) and made.group_variables["gpu_amd"] == {"gpuval_gpu_count": 8}
    made = made_of([node("g", labels=GKE_H100, resources=NVIDIA)], label_groups={"cloud.google.com/gke-nodepool": "np"})
    assert "np_a3_high" in hosts(made)["g"].groups and "pool_a3_high" not in hosts(made)["g"].groups


def test_expected_nodes_are_hosts_whether_they_are_there_or_not():
    made = made_of([h200("gpu-2"), h200("gpu-1"), h200("gpu-9")], ["gpu-[1:3]"])
    assert list(hosts(made)) == ["gpu-1", "gpu-2", "gpu-3"]
    assert made.missing == ("gpu-3",) and made.beyond == ("gpu-9",)
    gone = hosts(made)["gpu-3"].variables
    assert gone["kubernetes_node"] == {"exists": False, "reason": "the cluster has no node gpu-3"}
    assert gone["gpuval_placement"] == "kubernetes"
    made = made_of([h200("gpu-1"), h200("gpu-9"), node("cpu")], ["gpu-1"], selected={"gpu-9"})
    assert list(hosts(made)) == ["gpu-1", "gpu-9"] and made.beyond == ("cpu",)


def test_what_a_list_says_wins():
    text = "name,address,user,sku,gpu_count,rack,unique_id\na,192.0.2.1,root,h200-141,8,r1,SN1\nb,,,,,,\n"
    made = KubernetesHosts({}).fleet(
        [nodes.describe(h200("a", gpus=7)), nodes.describe(h200("b"))], parse(text, "nodes.csv")
    )
    first = hosts(made)["a"]
    assert first.variables["gpuval_sku"] == "h200-141" and first.variables["gpuval_gpu_count"] == 8
    assert first.variables["gpuval_node_ids"] == {"a": "SN1"}
    assert {"sku_h200_141", "rack_r1"} <= set(first.groups) and "sku_h200" not in first.groups
    assert "ansible_host" not in first.variables and "ansible_user" not in first.variables


# --- the probe of many -----------------------------------------------------------------------------------------------


def test_what_a_hosts_variables_say_is_expected():
    expected = nodes.expected_of("n", {"gpuval_gpu_count": "8", "gpuval_sku": "h200"})
    assert (expected["expected_gpus"], expected["sku"]) == (8, "h200")
    assert nodes.expected_of("n", {"gpuval_gpu_count": None})["expected_gpus"] is None
    with pytest.raises(pod_settings.PodSettingsError, match="n: "):
        nodes.expected_of("n", {"gpuval_pods": {"no_such_key": 1}})


def test_each_cluster_is_judged_by_one_list(monkeypatch):
    """Hosts of other placements are left out; a node of one cluster is none of another."""
    in_cluster = {"gpuval_placement": "kubernetes", "gpuval_gpu_count": 8}
    hosts = dict.fromkeys(("a", "b", "c"), in_cluster)
    hosts |= {"d": {"ansible_host": "192.0.2.1"}, "e": {**in_cluster, "gpuval_kube_context": "hall"}}
    opened, asked = [], []

    class Listed:
        def __init__(self, access):
            opened.append((access.kubeconfig, access.context))

        def __enter__(self):
            return self

        def __exit__(self, *_exception):
            return

        def list(self, _kind, selector="", fields=""):
            if fields:
                return [], "1"
            asked.append(selector)
            in_hall = opened[-1][1] == "hall"
            return [h200("c"), h200("e")] if in_hall else [h200("a"), h200("b", gpus=7), h200("other")], "1"

    monkeypatch.setattr(scheduler, "Cluster", Listed)
    monkeypatch.setattr(scheduler.KubernetesScheduler, "_variables", lambda _self, name: hosts[name])
    task_vars = {"ansible_play_hosts_all": [*hosts]}
    probes = scheduler.KubernetesScheduler(SimpleNamespace(task_vars=task_vars), None).probe()
    findings = probes.findings
    assert asked == ["kubernetes.io/hostname in (a,b,c)", "kubernetes.io/hostname in (e)"]
    assert (opened, probes.more) == ([("", ""), ("", "hall")], {"short": ["b"]})
    states = {name: finding.state for name, finding in findings.items()}
    assert states == {"a": "reachable", "b": "reachable", "c": "node_missing", "e": "reachable"}
    assert ssh_findings.fewer_gpus(findings) == ["b"]
    lines = ssh_findings.summary_of_cluster(findings, 0.25)
    assert lines[0] == "cluster: 3 of 4 node(s) can be worked on, 0.2 s"
    assert "  node_missing (1): c" in lines and "  fewer GPUs than expected (1): b" in lines
    assert any("->" in line for line in lines)
