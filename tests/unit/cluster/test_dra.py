"""GPUs that nodes publish by dynamic resource allocation: how many there are, and how a pod gets them."""

import json
import re
from dataclasses import replace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import (
    cleaning,
    dra,
    gangs,
    manifests,
    nodes,
    pod_classes,
    pod_settings,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.dra import ClusterDevices, NodeDevices
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import PodSettingsError, parse

from tests.kit.dra_objects import device, device_class, gpus, slice_of
from tests.kit.kubernetes_schemas import kubernetes_validate
from tests.kit.node_objects import BARE_H200, h200, node
from tests.unit.cluster.test_manifests import IMAGE, containers, made, of, placement

CLASS, EXTENDED = device_class(), device_class(resource="nvidia.com/gpu")
MIG = device_class("mig.nvidia.com", kind="mig")
#: resource.k8s.io/v1 came with 1.34.
VERSIONS = ("1.34", "1.35", "1.36")
BAD = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}]


def published(*slices, classes=(CLASS,), name="gpu-001", labels=None):
    return NodeDevices(**ClusterDevices(slices, classes).of_node(name, labels or {}))


def finding(devices, object_=None, pods=None, **expected):
    description = nodes.describe(object_ or node("gpu-001"), devices)
    return nodes.finding("gpu-001", description, settings=parse(pods or {}), **expected)


# What nodes publish


def test_whole_gpus_are_counted_once_with_their_model():
    partitions = [device(f"gpu-{index}-mig-{part}", "mig") for index in range(8) for part in range(7)]
    found = published(slice_of("gpu-001", [*gpus(), *partitions]), classes=[MIG, CLASS])
    assert (found.count, found.partitions, found.product) == (8, 56, "NVIDIA H200")
    assert (found.vendor, found.device_class, found.resource) == ("nvidia", "gpu.nvidia.com", "")


def test_only_the_newest_generation_of_a_pool_counts_and_a_part_of_it_is_named():
    old = slice_of("gpu-001", gpus(8), generation=3)
    new = [slice_of("gpu-001", gpus(4), generation=10, part=part, count=3) for part in range(2)]
    found = published(old, *new)
    assert found.count == 8 and found.note == "pool gpu-001 has 2 of 3 slices"
    assert published(old).note == ""


TERMS = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]
NOT_IN_A = [{"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["a"]}]}]
BY_NAME = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-001"]}]}]


def selecting(terms):
    return {"nodeSelector": {"nodeSelectorTerms": terms}}


SPREAD = [device("a", nodeName="gpu-001"), device("b", nodeName="x"), device("c", **selecting(BY_NAME))]


@pytest.mark.parametrize(
    ("spec", "devices", "count"),
    [
        ({}, gpus(2), 2),
        ({"nodeName": "gpu-002"}, gpus(2), 0),
        ({"allNodes": True}, gpus(2), 2),
        (selecting(TERMS), gpus(2), 2),
        (selecting(BY_NAME), gpus(2), 2),
        (selecting(NOT_IN_A), gpus(2), 0),
        (selecting([{}]), gpus(2), 0),
        ({"perDeviceNodeSelection": True}, SPREAD, 2),
    ],
)
def test_devices_belong_to_the_nodes_that_can_use_them(spec, devices, count):
    assert published(slice_of("gpu-001", devices, **spec), labels={"pool": "a"}).count == count


@pytest.mark.parametrize(
    ("driver", "prefix", "attributes", "vendor"),
    [
        ("gpu.amd.com", "", {"type": "amdgpu", "productName": "AMD_Instinct_MI300X_OAM"}, "amd"),
        ("gpu.amd.com", "gpu.amd.com/", {"type": "amdgpu", "productName": "AMD_Instinct_MI300X_OAM"}, "amd"),
        ("gaudi.intel.com", "", {"model": "Gaudi3"}, "gaudi"),
    ],
)
def test_drivers_of_other_vendors(driver, prefix, attributes, vendor):
    typed = {f"{prefix}{name}": {"string": value} for name, value in attributes.items()}
    classes = [device_class(driver, driver=driver, kind="")]
    found = published(slice_of("gpu-001", [{"name": "0", "attributes": typed}], driver=driver), classes=classes)
    assert (found.vendor, found.count, found.device_class) == (vendor, 1, driver)
    assert found.product == list(attributes.values())[-1]


def test_devices_of_other_drivers_are_no_gpus():
    nic = slice_of("gpu-001", [device("nic", "nic")], driver="dra.net")
    channels = slice_of("gpu-001", [device("c", "channel")], driver="compute-domain.nvidia.com")
    assert ClusterDevices([nic, channels], [CLASS]).of_node("gpu-001", {}) == {}


def test_a_driver_whose_class_stands_for_the_resource_of_a_vendor_is_the_vendors():
    classes = [device_class("fast", driver="gpu.example.com", kind="", resource="nvidia.com/gpu")]
    found = published(slice_of("gpu-001", gpus(4), driver="gpu.example.com"), classes=classes)
    assert (found.vendor, found.device_class, found.resource, found.count) == ("nvidia", "fast", "nvidia.com/gpu", 4)


def test_partitions_of_a_static_layout_leave_no_whole_gpu():
    devices = ClusterDevices([slice_of("gpu-001", [device("m", "mig"), device("n", "vfio")])], [CLASS, MIG])
    told = finding(devices)
    assert (told.state, told.message) == (
        "gpus_partitioned", "DRA driver gpu.nvidia.com publishes only 2 parts of GPUs"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "classes", "state", "message"),
    [
        ([], [CLASS], "no_gpu_resource", "DRA driver gpu.nvidia.com publishes no usable GPU"),
        ([device("a", taints=BAD)], [CLASS], "no_gpu_resource", "device taints gpu.nvidia.com/xid:NoExecute"),
        ([device("a", allowMultipleAllocations=True)], [CLASS], "gpus_partitioned", "lets claims share a GPU"),
        (gpus(), [MIG], "device_class_missing", "no DeviceClass selects the GPUs of DRA driver gpu.nvidia.com"),
    ],
)
def test_a_node_whose_published_gpus_cannot_be_claimed(devices, classes, state, message):
    told = finding(ClusterDevices([slice_of("gpu-001", devices)], classes))
    assert told.state == state and message in told.message and "validate again" in told.remedy


def test_a_node_that_lost_a_gpu_works_with_the_rest():
    slices = [slice_of("gpu-001", [*gpus(7), device("gpu-7", taints=BAD)])]
    told = finding(ClusterDevices(slices, [EXTENDED]), expected_gpus=8)
    assert (
        told.state == "reachable"
        and "7 GPUs allocatable (DRA, DeviceClass gpu.nvidia.com as nvidia.com/gpu), 8" in told.message
    )
    assert finding(ClusterDevices([slice_of("gpu-001", gpus())], [CLASS]), expected_gpus=8).message == ""


def test_slices_that_may_not_be_read_are_named_where_gpus_are_missing():
    unknown = ClusterDevices(problem="this user may not list resourceslices")
    assert finding(unknown, node("gpu-001", labels=BARE_H200)).message.endswith(
        "DRA: this user may not list resourceslices"
    )
    assert finding(unknown, h200()).message == ""


def test_an_inventory_has_model_and_count():
    devices = ClusterDevices([slice_of("a", gpus()), slice_of("b", gpus(7))], [EXTENDED])
    hosts = nodes.KubernetesHosts({}).fleet([nodes.describe(node(name), devices) for name in ("a", "b", "cpu")])
    assert {host.name: host.groups for host in hosts.hosts} == {"a": ("sku_h200",), "b": ("sku_h200",), "cpu": ()}
    assert hosts.group_variables["sku_h200"] == {"gpuval_sku": "h200", "gpuval_gpu_count": 8}
    ruled = nodes.KubernetesHosts({"mine": {"resource": "nvidia.com/gpu"}}).fleet([nodes.describe(node("a"), devices)])
    assert ruled.hosts[0].groups == ("sku_mine",)


def test_the_summary_says_dra():
    devices = ClusterDevices([slice_of("a", gpus()), slice_of("b", gpus(7))], [EXTENDED])
    every = [NodeDevices(**devices.of_node(name, {})) for name in ("a", "b", "cpu")]
    assert dra.summary(every) == "2 node(s) publish 15 NVIDIA H200 (DRA, DeviceClass gpu.nvidia.com as nvidia.com/gpu)"
    assert dra.summary([NodeDevices()]) == ""


# How a pod gets them


def attempt(devices, pods=None, object_=None, sku="h200", **planned):
    description = nodes.describe(object_ or node("gpu-001"), devices)
    target = manifests.target_of("gpu-001", description)
    return placement({"image": IMAGE, **(pods or {})}, target=target, sku=sku, node="gpu-001", **planned)


def rendered(*arguments, **options):
    objects = made(attempt(*arguments, **options))
    (job,) = of("Job", objects)
    for item in objects:
        for version in VERSIONS:
            kubernetes_validate.validate(item, version, strict=True)
    return job["spec"]["template"]["spec"], of("ResourceClaimTemplate", objects)


CLAIMED = ClusterDevices([slice_of("gpu-001", gpus())], [CLASS])
NAMED_CLASS = ClusterDevices([slice_of("gpu-001", gpus())], [EXTENDED])


def test_a_class_that_stands_for_a_resource_leaves_the_pod_as_with_a_device_plugin():
    spec, templates = rendered(NAMED_CLASS)
    plain, _none = rendered(None, object_=node("gpu-001", resources={"nvidia.com/gpu": "8"}))
    assert spec == plain and templates == []
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}


def test_all_stages_of_a_pod_share_one_claim_of_all_gpus():
    spec, (template,) = rendered(CLAIMED)
    assert template["spec"]["spec"]["devices"]["requests"] == [
        {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}}
    ]
    name = template["metadata"]["name"]
    assert spec["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": name}]
    for container in containers(spec):
        assert container["resources"]["claims"] == [{"name": "gpus"}]
        assert "nvidia.com/gpu" not in json.dumps(container["resources"])
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    assert template["metadata"]["labels"].items() <= template["spec"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("pods", "devices", "object_", "how"),
    [
        ({}, CLAIMED, None, "claim"),
        ({}, CLAIMED, h200(), "nvidia.com/gpu"),  # side by side
        ({"devices": "dra"}, CLAIMED, h200(), "claim"),
        ({"devices": "dra"}, NAMED_CLASS, None, "claim"),
        ({"devices": "plugin"}, NAMED_CLASS, None, "nvidia.com/gpu"),
        ({"devices": "plugin"}, CLAIMED, h200(), "nvidia.com/gpu"),
        ({"resource": ""}, CLAIMED, None, ""),
        ({"resource": "", "devices": "dra"}, CLAIMED, None, ""),
        ({"resource": "nvidia.com/gpu"}, NAMED_CLASS, None, "nvidia.com/gpu"),
    ],
)
def test_settings_choose_between_plugin_and_claim(pods, devices, object_, how):
    spec, templates = rendered(devices, pods, object_)
    limits = spec["containers"][0]["resources"].get("limits", {})
    assert (list(limits.items()) or [("", "")])[0] == ((how, "8") if "/" in how else ("", ""))
    assert bool(templates) == (how == "claim")


def test_a_cpu_node_claims_nothing():
    assert rendered(CLAIMED, sku="cpu")[1] == []
    assert rendered(None, {"devices": "dra"}, sku="auto")[1] == []


def test_claims_that_are_demanded_need_published_gpus():
    with pytest.raises(PodSettingsError, match=r"gpuval_pods\.devices is dra, and the node publishes no GPUs"):
        made(attempt(None, {"devices": "dra"}, h200()))
    told = finding(None, node("gpu-001", labels=BARE_H200), {"devices": "dra"})
    assert told.state == "no_gpu_resource" and "no DRA driver has registered on it" in told.message
    assert finding(None, h200(), {"devices": "dra"}).state == "no_gpu_resource"
    with pytest.raises(PodSettingsError, match="devices"):
        parse({"devices": "both"})


def test_a_tainted_gpu_is_left_out_of_the_claim():
    devices = ClusterDevices([slice_of("gpu-001", [*gpus(7), device("gpu-7", taints=BAD)])], [CLASS])
    _spec, (template,) = rendered(devices)
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 7}


def test_partitions_are_left_out_of_the_claim():
    devices = ClusterDevices([slice_of("gpu-001", [*gpus(), device("m", "mig")])], [device_class(kind="")])
    _spec, (template,) = rendered(devices)
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    (selector,) = request["exactly"]["selectors"]
    assert 'device.attributes["gpu.nvidia.com"].type == "gpu"' in selector["cel"]["expression"]


def test_a_queue_counts_devices():
    item = attempt(CLAIMED, {"kueue": {"own_stages": True}})
    queued = replace(item, settings=replace(item.settings, queue="acceptance"))
    for one, mode in ((item, "All"), (queued, "ExactCount")):
        template = manifests.claim_template_of("run-1", "gpuval", one)
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"]["allocationMode"] == mode
    assert request["exactly"]["count"] == 8


def test_equal_nodes_share_a_template_and_others_have_their_own():
    slices = [slice_of("a", gpus()), slice_of("b", gpus(4)), slice_of("c", [*gpus(7), device("x", taints=BAD)])]
    devices = ClusterDevices(slices, [CLASS])
    items = [
        replace(attempt(devices), target=manifests.target_of(name, nodes.describe(node(name), devices)))
        for name in ("a", "b", "c")
    ]
    names = [manifests.claim_template_of("run-1", "gpuval", item)["metadata"]["name"] for item in items]
    assert names[0] == names[1] != names[2] and all(re.fullmatch(r"[a-z0-9-]{1,63}", name) for name in names)


CLIQUE, OTHER_CLIQUE = {dra.CLIQUE_LABEL: "3f2a.32766"}, {dra.CLIQUE_LABEL: "other.32766"}


@pytest.mark.parametrize(
    ("labels", "members"),
    [
        ([CLIQUE] * 18, [18]),
        ([CLIQUE], []),
        ([{}, {}], []),
        ([CLIQUE, {}], []),
        ([CLIQUE, OTHER_CLIQUE], []),
        ([CLIQUE, OTHER_CLIQUE, {}, CLIQUE, OTHER_CLIQUE, CLIQUE], [3, 2]),
    ],
)
def test_each_nvlink_domain_of_a_gang_has_a_compute_domain(labels, members):
    labels_by_node = {f"node-{place}": own for place, own in enumerate(labels)}
    domains = dra.compute_domains("run-1", "gpuval", "rack-1", labels_by_node)
    assert [domain["spec"]["numNodes"] for domain, _ in domains] == members == [len(names) for _, names in domains]
    assert len({domain["metadata"]["name"] for domain, _ in domains}) == len(domains)
    for _, names in domains:
        assert len({labels_by_node[name][dra.CLIQUE_LABEL] for name in names}) == 1


# What keeps it waiting, with texts of Kubernetes 1.34 to 1.36


NONE_AVAILABLE = "0/3 nodes are available: {}. no new claims to deallocate, preemption: 0/3 nodes are available: 3 no"


@pytest.mark.parametrize(
    ("reasons", "name"),
    [
        ("1 cannot allocate all claims, 2 node(s) didn't match Pod's node affinity/selector", "gpus_in_use"),
        ("request gpus: device class gpu.nvidia.com does not exist", "device_class_missing"),
        ('pod "gpuval/gpuval-1": ResourceClaim not created yet', "claim_not_created"),
        ("claim x, request gpus: asks for all devices, but resource pool n is currently being updated", "dra_driver"),
    ],
)
def test_what_keeps_a_pod_with_a_claim_waiting(reasons, name):
    assert pod_classes.unschedulable("gpu-001", NONE_AVAILABLE.format(reasons), None)[0] == name


# In a cluster


def test_slices_are_read_by_two_requests_and_only_where_they_are_served(kit, cluster):
    assert "does not serve" in dra.read(cluster).problem
    assert [asked.resource for asked in kit.requests] == []
    kit.install_dra()
    assert dra.read(cluster).problem == ""
    assert [asked.resource for asked in kit.requests] == ["resourceslices"]
    kit.put(EXTENDED)
    kit.put(slice_of("gpu-001", gpus()))
    assert NodeDevices(**dra.read(cluster).of_node("gpu-001", {})).count == 8
    assert [asked.resource for asked in kit.requests[1:]] == ["resourceslices", "deviceclasses"]
    kit.deny("list", "resource.k8s.io", "deviceclasses")
    denied = dra.read(cluster)
    assert denied.problem.startswith("this user may not list deviceclasses: apply role.yml")
    assert denied.warning.endswith(denied.problem)


def test_clean_removes_templates_and_domains_and_needs_no_right_where_none_is_granted(kit, cluster):
    template = dra.claim_template("run-1", "gpuval", NodeDevices(device_class="gpu.nvidia.com"), is_queued=False)
    ((domain, _),) = dra.compute_domains("run-1", "gpuval", "rack-1", dict.fromkeys(("a", "b"), CLIQUE))
    kit.install_dra(domains=True)
    gang_round = gangs.GangRound("run-0", "collective")
    for manifest in (template, gangs.labelled(domain, gang_round)):
        cluster.create(manifest)
    cleaned = cleaning.clean(cluster, ["run-1"], 5)
    assert {kind: len(found) for kind, found in cleaned.removed.items()} == {
        "ResourceClaimTemplate": 1,
        "ComputeDomain": 1,
    }
    for resource in ("resourceclaimtemplates", "computedomains"):
        kit.deny("list", "resource.k8s.io" if "claim" in resource else "resource.nvidia.com", resource)
    assert cleaning.clean(cluster, ["run-1"], 5).left == []


def test_a_pod_without_gpus_of_its_own_is_tried_before_a_run():
    spec = manifests.trial_pod("gpuval", pod_settings.PodSettings(devices="dra"), [IMAGE])["spec"]
    assert "resourceClaims" not in spec
