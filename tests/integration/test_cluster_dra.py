"""Runs on a simulated cluster whose nodes publish their GPUs in ResourceSlices: from the inventory to the clean."""

import pytest

from tests.kit.cluster import ClusterKit
from tests.kit.cluster_fleet import WORK, ClusterFleet
from tests.kit.cluster_records import Records
from tests.kit.dra_objects import device_class, gpus, slice_of

NODES = ("node-001", "node-002")
STAGES = ("first", "second")


@pytest.mark.parametrize("resource", ["", "nvidia.com/gpu"], ids=["claims", "extended-resource"])
def test_nodes_are_found_with_their_gpus_and_pods_get_them(tmp_path, resource):
    with ClusterKit(tmp_path, on_stage=Records()) as kit:
        kit.add_nodes(2, gpus=0)
        kit.install_dra(device_class(resource=resource))
        for node in NODES:
            kit.put(slice_of(node, gpus(8)))
        settings = {"gpuval_stages": list(STAGES), **{f"{stage}_workload": WORK for stage in STAGES}}
        fleet = ClusterFleet(tmp_path / "fleet", kit=kit, settings=settings)
        probed = fleet.play("gpuval.fleet.probe")
        assert probed.code == 0, str(probed)
        how = f"DeviceClass gpu.nvidia.com{f' as {resource}' if resource else ''}"
        assert f"2 node(s) publish 16 NVIDIA H200 (DRA, {how})" in probed.output
        done = fleet.play()
        expected = [fleet.read_run()["nodes"][node] for node in NODES]
        assert [(node["sku"], node["gpu_count"]) for node in expected] == [("h200", 8)] * 2, str(done)
        pods = [pod["spec"] for pod in kit.all("Pod")]
        assert {pod["nodeName"] for pod in pods} == set(NODES), str(done)
        for pod in pods:
            for container in (*pod["initContainers"], *pod["containers"]):
                resources = container["resources"]
                assert resources.get("limits") == ({"nvidia.com/gpu": "8"} if resource else None)
                assert resources.get("claims") == (None if resource else [{"name": "gpus"}])
        assert len(kit.all("ResourceClaimTemplate")) == (0 if resource else 1)
        records = [stage for node in fleet.report()["nodes"] for stage in node["stages"]]
        assert {(stage["name"], stage["state"]) for stage in records} == {(name, "success") for name in STAGES}
        cleaned = fleet.play("gpuval.fleet.clean")
        assert cleaned.code == 0, str(cleaned)
        assert not kit.all("ResourceClaimTemplate") and not kit.all("Job")
