"""The bad link of four nodes, found by measurement: real sshd, sockets, and tc. test_slurm_search.py finds a bad node.

That PyTorch's collectives measure what the search compares is for test_gangs.py to show.
"""

import json

import pytest

from tests.kit import ring_member
from tests.kit.container_fleet import ContainerFleet, Node
from tests.kit.gang_fleet import CATCH_UP, SIZE_BYTES, SLOW, USUAL, gangs, settings

#: A dozen rounds on nodes that share the cores of one machine with other tests.
RUN_SECONDS = 1500


def shape(fleet, node, rate, number=10):
    """What the node sends has this rate; class 20 is what goes by ``slow_to``."""
    its = ["dev", "eth0", "parent", "1:", "classid", f"1:{number}", "htb", "rate", rate, *CATCH_UP]
    fleet.bed.execute(node, "tc", "class", "replace", *its)


def slow_to(fleet, node, peer):
    """Without a classifier of tc, which not every kernel has."""
    to_peer = ["-d", fleet.bed.address(peer), "-j", "CLASSIFY", "--set-class", "1:20"]
    fleet.bed.execute(node, "iptables", "-t", "mangle", "-A", "POSTROUTING", *to_peer)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    nodes = [Node(f"node-{number}", net_admin=True) for number in range(1, 5)]
    measured = {f"{stage}_workload": ring_member.workload(SIZE_BYTES) for stage in ("collective", "fabric")}
    with ContainerFleet(tmp_path_factory.mktemp("search"), nodes, settings(gpuval_environment={}, **measured)) as fleet:
        for node in fleet.nodes:
            root = ["dev", "eth0", "root", "handle", "1:", "htb", "default", "10"]
            fleet.bed.execute(node, "tc", "qdisc", "add", *root)
            shape(fleet, node, USUAL)
            shape(fleet, node, SLOW, 20)
        yield fleet


def test_a_slow_link_between_two_good_nodes_is_found(fleet):
    slow_to(fleet, "node-2", "node-3")
    done = fleet.play("gpuval.fleet.fabric", seconds=RUN_SECONDS)
    assert done.code != 0
    (found,) = gangs(fleet)["findings"].values()
    assert found["bad_links"] == [["node-2", "node-3"]], f"{json.dumps(gangs(fleet), indent=1)}\n{done}"
    verdicts = {node: fleet.verdict(node)["verdict"] for node in fleet.nodes}
    assert verdicts == dict.fromkeys(fleet.nodes, "PASS") | {"node-2": "INCOMPLETE", "node-3": "INCOMPLETE"}
    assert "the link node-2 - node-3 is bad" in done.told
