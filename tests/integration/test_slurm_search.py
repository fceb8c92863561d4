"""The bad node of three on Slurm, found by rounds of pairs, each a job of its own."""

import json

import pytest

from tests.kit import ring_member
from tests.kit.gang_fleet import CATCH_UP, FAST_ENOUGH, RUN_SECONDS, SIZE_BYTES, SLOW, USUAL, gangs
from tests.kit.slurm_bed import SlurmBed
from tests.kit.slurm_fleet import SlurmFleet

NODES = ("gpu-1", "gpu-2", "gpu-3")


def shape(bed, node, rate):
    """What the node may send."""
    root = ["dev", "eth0", "root", "handle", "1:", "htb", "default", "10"]
    bed.execute(node, "tc", "qdisc", "replace", *root)
    its = ["dev", "eth0", "parent", "1:", "classid", "1:10", "htb", "rate", rate, *CATCH_UP]
    bed.execute(node, "tc", "class", "replace", *its)


@pytest.fixture
def bed(tmp_path):
    with SlurmBed(tmp_path / "bed", NODES, ["--cap-add=NET_ADMIN"]) as bed:
        yield bed


def test_a_slow_node_of_three_is_found(bed, tmp_path):
    for node in NODES:
        shape(bed, node, SLOW if node == "gpu-3" else USUAL)
    criteria = tmp_path / "criteria.yml"
    criteria.write_text(json.dumps({"schema": "gpuval.criteria/1", "checks": [FAST_ENOUGH]}))
    measured = {f"{stage}_workload": ring_member.workload(SIZE_BYTES) for stage in ("collective", "fabric")}
    settings = {**measured, "gpuval_stages": ["facts"], "run_gang_stages": ["collective"], "gpuval_environment": {}}
    fleet = SlurmFleet(tmp_path / "fleet", bed, settings={**settings, "gpuval_criteria": [str(criteria)]})
    try:
        done = fleet.play(seconds=RUN_SECONDS)
        assert done.code != 0
        (found,) = gangs(fleet)["findings"].values()
        assert found["nodes"] == {"gpu-1": "healthy", "gpu-2": "healthy", "gpu-3": "bad"}, str(done)
        assert not found["bad_links"]
        assert gangs(fleet)["rounds"][-1]["name"] == "all-again", "the others are accepted without it"
        assert "gpu-3 FAIL fabric: bad: " in done.told, done
        verdicts = {node: fleet.verdict(node)["verdict"] for node in NODES}
        assert verdicts == {"gpu-1": "PASS", "gpu-2": "PASS", "gpu-3": "FAIL"}
    finally:
        fleet.close()
