"""Nodes that work together: real sshd, real torch and DeepSpeed over gloo, each node a container of its own."""

import json

import pytest

from tests.kit import gang_jobs
from tests.kit.container_fleet import ContainerFleet
from tests.kit.fleet import until
from tests.kit.gang_fleet import RUN_SECONDS, settings, stored, torch_node
from tests.kit.needs import needs_deepspeed


@pytest.fixture(scope="module", autouse=True)
def packages():
    needs_deepspeed()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    nodes = [torch_node(number, net_admin=True) for number in (1, 2, 3)]
    with ContainerFleet(tmp_path_factory.mktemp("gangs"), nodes, settings(gpuval_gang_search=False)) as fleet:
        yield fleet


@pytest.fixture
def pair(fleet):
    """An import of DeepSpeed takes each node's share of this machine's cores ten seconds: two nodes do it."""
    return {name: fleet.nodes[name] for name in ("node-1", "node-2")}


def test_nodes_train_through_torchrun(fleet, pair):
    asked = {"run_gang_stages": ["collective", "deepspeed", "rdma_rails"]}
    done = fleet.play("gpuval.fleet.validate", "-e", json.dumps(asked), seconds=RUN_SECONDS, nodes=pair)
    assert done.code == 0, done
    assert "round all: 2 nodes in 1 gang(s), collective, deepspeed, rdma_rails" in done.told
    for node in pair:
        verdict = fleet.verdict(node)
        assert [stage["name"] for stage in verdict["stages"]] == ["facts", "collective", "deepspeed", "rdma_rails"]
        rails = fleet.record(node, "rdma_rails")
        assert (rails["state"], rails["fingerprints"]) == ("success", {"rdma_rails": "none"}), rails["message"]
        trained = stored(fleet, f"gangs/all/records/deepspeed/{node}.json")
        assert trained["state"] == "success", trained["message"]
        assert trained["environment"]["gang"]["leader"] == "node-1"
        figures = {item["name"]: item["value"] for item in trained["metrics"]}
        assert figures["gang_processes_count"] == 2
        assert figures["gang_loss_last"] < figures["gang_loss_first"]
        assert figures["gang_loss_spread_ratio"] == 0
        assert "all 2 members have joined" in fleet.log(node, "deepspeed"), "every member's log is brought"
    measured = fleet.record("node-2", "collective")
    assert {  # what searches compare; tests/kit/ring_member.py measures the same
        "gang_all_reduce_bus_bytes_per_second",
        "gang_all_reduce_latency_seconds",
        "gang_all_to_all_bus_bytes_per_second",
        "gang_collective_error_count",
        "gang_collective_largest_bytes",
    } <= {item["name"] for item in measured["metrics"]}
    assert measured["fingerprints"]["gang_all_reduce_asked"] == "yes"
    assert measured["fingerprints"]["gang_network"] == "gloo"
    hostfile = fleet.play("gpuval.fleet.hostfile", nodes=pair)
    assert hostfile.code == 0, hostfile
    addresses = [fleet.bed.address(node) for node in pair]
    assert (fleet.run_folder / "hostfile").read_text() == "".join(f"{address} slots=1\n" for address in addresses)


def test_nodes_train_over_ssh_by_the_launcher_of_deepspeed(fleet, pair):
    speaking = {**settings()["gpuval_environment"], "TORCH_CPP_LOG_LEVEL": "INFO"}  # every rank says something
    asked = {"run_gang_stages": ["deepspeed"], "gpuval_environment": speaking}
    done = fleet.play("gpuval.fleet.deepspeed", "-e", json.dumps(asked), seconds=RUN_SECONDS, nodes=pair)
    assert done.code == 0, done
    for node in pair:
        record = fleet.record(node, "deepspeed")
        assert record["state"] == "success", record["message"]
        assert record["environment"]["gang"]["launcher"] == "deepspeed"
    log = fleet.log("node-1", "deepspeed")
    assert "pdsh" in log, "the leader starts all ranks over SSH"
    assert "deepspeed.json: {" in log and "run.sh:" in log, "what the launcher was told is kept"
    assert "[c10d] The client socket has connected" in fleet.log("node-2", "deepspeed"), (
        "and each node has what its own ranks print"
    )
    for path in (fleet.run_folder / "gangs").rglob("*"):
        assert not path.is_file() or "PRIVATE KEY" not in path.read_text(errors="replace"), f"a key is left in {path}"


def test_a_node_that_dies_is_named_and_the_others_are_freed(fleet, tmp_path):
    """As with torch's ranks: what a member does when the gang ends asks its processes nothing."""
    job = gang_jobs.write(tmp_path, {"name": "nap", "run": "echo napping; sleep 300"}, name="naps")
    asked = {"gpuval_jobs": [str(job)], "run_silence_seconds": 15, "run_gang_lost_seconds": 20}
    playing = fleet.start("gpuval.fleet.job", "-e", json.dumps(asked))
    playing.expect("node-2 naps: running", RUN_SECONDS)
    log = f"/var/lib/gpuval/{fleet.run_id}.all/node-1/logs/naps.log"

    def said():
        return fleet.bed.execute("node-1", "sh", "-c", f"cat {log} 2>/dev/null || true")

    until(lambda: "napping" in said(), "the job is at work", 240)
    fleet.bed.stop("node-2")
    try:
        done = playing.wait(RUN_SECONDS)
    finally:
        fleet.bed.start("node-2")
    assert done.code != 0
    assert "FINAL ACCEPTANCE: INCOMPLETE" in done.output, done
    for node in ("node-1", "node-3"):
        record = fleet.record(node, "naps")
        assert record["state"] == "crash"
        assert "node-2" in record["message"], record["message"]
        assert record["duration_seconds"] < 200, "it was freed, and did not wait for its time limit"
        assert fleet.verdict(node)["verdict"] == "INCOMPLETE", "nobody is accused for another's end"
    lost = fleet.verdict("node-2")
    assert (lost["verdict"], lost["class"]) == ("INCOMPLETE", "lost_contact"), lost
    (state,) = [check for check in lost["checks"] if check["name"] == "naps_state"]
    assert "the node was unreachable (lost_contact): lost contact: " in state["reason"], state
