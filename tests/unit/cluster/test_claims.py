"""Gangs on nodes that publish their GPUs by dynamic resource allocation, by the placement and a simulated cluster."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import cleaning, dra, placement

from tests.kit.cluster import ClusterKit
from tests.kit.dra_objects import device_class, gpus, slice_of
from tests.unit.cluster.test_queues import PARENT, Round

NODES = ("node-001", "node-002")
CLIQUE = {dra.CLIQUE_LABEL: "3f2a.32766"}


@pytest.fixture
def kit(tmp_path, monkeypatch):
    monkeypatch.setattr(placement.ClusterPlacement, "SETTLE_SECONDS", 0.5)
    with ClusterKit(tmp_path) as kit:
        kit.add_nodes(2, gpus=0, labels=CLIQUE)
        kit.install_dra(device_class(), domains=True)
        for node in NODES:
            kit.put(slice_of(node, gpus(4)))
        kit.stage_seconds_of["collective"] = 30
        yield kit


def running(kit):
    pods = kit.all("Pod")
    return len(pods) == 2 and all(pod["status"]["phase"] == "Running" for pod in pods) and pods


def test_members_in_one_nvlink_domain_claim_gpus_and_a_channel_and_clean_removes_both(kit, tmp_path):
    with Round(kit, tmp_path, sku="nvidia") as of:
        of.watch_until(lambda: running(kit))
        (template,), (domain,) = kit.all("ResourceClaimTemplate", cleaning.names.ALL_RUNS), kit.all("ComputeDomain")
        assert domain["spec"]["numNodes"] == 2
        channel = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
        for pod in kit.all("Pod"):
            names = {claim["name"]: claim["resourceClaimTemplateName"] for claim in pod["spec"]["resourceClaims"]}
            assert names == {"gpus": template["metadata"]["name"], "channel": channel}
            assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpus"}, {"name": "channel"}]
        cleaned = cleaning.clean(of.cluster, [PARENT], 20)
    kit.wait(lambda: not kit.all("ResourceClaimTemplate"))
    assert cleaned.left == [] and {"ResourceClaimTemplate", "ComputeDomain"} <= cleaned.removed.keys()
    slices = [asked for asked in kit.requests if asked.resource in ("resourceslices", "deviceclasses")]
    assert len(slices) == 2, "one list of each"


@pytest.mark.parametrize("given", ["forbidden", "plugin", "two domains"])
def test_a_gang_has_no_compute_domain_where_it_cannot_be_or_is_not_wanted(kit, tmp_path, given):
    pods = {"devices": "plugin"} if given == "plugin" else {}
    if given == "forbidden":
        kit.deny("create", "resource.nvidia.com", "computedomains")
    if given == "two domains":
        kit.change("Node", "node-002", {"metadata": {"labels": {dra.CLIQUE_LABEL: "b.1"}}})
    with Round(kit, tmp_path, sku="cpu" if pods else "nvidia", **pods) as of:
        of.watch_until(lambda: running(kit))
        assert not kit.all("ComputeDomain")
        claims = [claim["name"] for pod in kit.all("Pod") for claim in pod["spec"].get("resourceClaims", [])]
        assert claims == ([] if pods else ["gpus", "gpus"])
    assert bool(of.warned) == (given == "forbidden")


def test_gpus_that_others_claimed_are_in_use(kit, tmp_path):
    def occupy():
        for node in NODES:
            kit.world._pods_of[node].add("other")
        kit.world._allocated["other"] = {(node, "gpu-0") for node in NODES}

    kit.do(occupy)
    with Round(kit, tmp_path, sku="nvidia", patience_seconds=1) as of:
        of.watch_until(of.ended)
        assert {view.launch["class"] for view in of.views.values()} == {"gpus_in_use"}
        assert "cannot allocate all claims" in of.views["node-001"].launch["message"]


def test_a_class_that_is_missing_starts_nothing(kit, tmp_path):
    kit.remove("DeviceClass", "gpu.nvidia.com")
    with Round(kit, tmp_path, sku="nvidia") as of:
        launches = [of.folder.read_launch(node) for node in of.nodes]
    assert {launch["class"] for launch in launches} == {"device_class_missing"}
    assert not kit.all("Job") and not kit.all("ResourceClaimTemplate", cleaning.names.ALL_RUNS)
