"""`make follow` and `make shell` get to the round that a node is in, and to its own stages when they are asked for."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps.reach_node import in_round

from tests.kit.gang_bed import Bed, Died, Fault, build


@pytest.fixture
def bed(tmp_path):
    gang = build(6, 1, rack=0, noise=0.0)
    gang.bad["node-003"] = Fault("slow", 0.5)
    return Bed(tmp_path, gang)


def test_the_round_that_is_on(bed):
    assert in_round(bed.folder, "node-001") is None
    bed.dies_at = 12
    with pytest.raises(Died):
        bed.go()
    assert in_round(bed.folder, "node-001").path.name == "search-01"
    assert in_round(bed.folder, "node-001", "collective").path.name == "all"


def test_the_last_round_of_each_node(bed):
    bed.go()
    assert in_round(bed.folder, "node-001").path.name == "all-again"
    assert in_round(bed.folder, "node-003").path.name.startswith("search-")
    assert in_round(bed.folder, "node-003", "collective").path.name == "all"
    assert in_round(bed.folder, "node-001", "facts") is None
    assert in_round(bed.folder, "node-001", "deepspeed") is None
