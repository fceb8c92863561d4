"""Nodes of a cluster that differ from their peers are measured again; a scheduler that starts nothing holds no run."""

import pytest

from tests.kit import slow_peer
from tests.kit.cluster import ClusterKit, Fault
from tests.kit.cluster_fleet import ClusterFleet, Containers

WHY = "Insufficient nvidia.com/gpu"


@pytest.fixture
def kit(tmp_path):
    with ClusterKit(tmp_path, on_stage=Containers(tmp_path / "pods")) as kit:
        kit.add_nodes(slow_peer.NODES, gpus=0)
        yield kit


@pytest.fixture
def validate(tmp_path, kit):
    """Validates the nodes; returns the fleet, and the nodes that were to be measured again."""
    fleets = []

    def run(**settings):
        chosen = {**slow_peer.settings(tmp_path), "gpuval_sku": "cpu", **settings}
        fleets.append(ClusterFleet(tmp_path / "of", kit=kit, settings=chosen))
        return fleets[-1], slow_peer.measured_again(fleets[-1].play())

    yield run
    for fleet in fleets:
        fleet.close()


def test_the_slow_node_and_two_good_ones_are_measured_again(validate):
    fleet, again = validate()
    names = [f"node-00{number}" for number in range(1, slow_peer.NODES + 1)]
    assert {name for name in names if fleet.record(name, "work")["attempt"] == 2} == {*again}
    slow_peer.assert_only_first_differs(fleet.report(), again)


@pytest.mark.parametrize("limit", [{"gpuval_wait_for_node": 3}, {"run_pod_patience_seconds": 3}])
def test_a_scheduler_that_starts_nothing_leaves_the_first_verdict_with_a_warning(validate, kit, limit):
    """Whichever comes first: the end of the waiting, or the placement's patience."""
    for number in range(1, slow_peer.NODES + 1):
        kit.fault(f"node-00{number}", Fault("unschedulable", attempt=2))
    fleet, again = validate(**limit)
    slow_peer.assert_only_first_differs(fleet.report(), again, WHY)
    assert not kit.all("Job", "gpuval.io/attempt=2"), "no Job waits for its node"
