"""Whole runs on a simulated cluster: from the inventory to the verdict and the clean, by the playbooks."""

import pytest

from tests.kit.cluster import ClusterKit
from tests.kit.cluster_fleet import ClusterFleet, Containers


@pytest.fixture
def kit(tmp_path):
    with ClusterKit(tmp_path, on_stage=Containers(tmp_path / "pods")) as kit:
        yield kit


@pytest.mark.quick
def test_every_node_passes_and_clean_leaves_nothing(tmp_path, kit):
    kit.add_nodes(3, gpus=0)
    fleet = ClusterFleet(tmp_path / "fleet", kit=kit)
    done = fleet.play()
    assert done.code == 0, str(done)
    assert fleet.report()["counts"] == {"expected": 3, "PASS": 3, "FAIL": 0, "INCOMPLETE": 0, "flaky": 0}
    channels = {stage["confirmed_by"] for node in fleet.report()["nodes"] for stage in node["stages"]}
    assert channels == {"kubernetes"}
    assert len(kit.all("Job")) == 3
    done = fleet.play("gpuval.fleet.clean")
    assert done.code == 0, str(done)
    assert [kit.all(kind) for kind in ("Job", "Pod", "Secret", "ConfigMap")] == [[], [], [], []]
