"""Jobs of several nodes: real sshd and torchrun, each node a container of its own."""

import json

import pytest

from tests.kit import gang_jobs
from tests.kit.container_fleet import ContainerFleet
from tests.kit.gang_fleet import RUN_SECONDS, gangs, settings, torch_node

TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if os.environ["RANK"] == "0":
    print(f"performance: {total.item()} samples/s", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gang_jobs")
    with ContainerFleet(folder, [torch_node(1), torch_node(2)], settings()) as fleet:
        yield fleet


def test_jobs_run_on_all_nodes_as_stages_of_their_gang(fleet, tmp_path):
    """The last one fails: it is named with its node, the others keep their results, and no search begins."""
    once = {"name": "download", "run": "sleep 2; echo downloaded", "once": True}
    fails = {"name": "convert", "run": '[ "$NODE_RANK" = 0 ] || { echo no space left; exit 6; }; sleep 300'}
    (tmp_path / "train.py").write_text(TRAIN)
    train = {"name": "train", "run": ["train.py"], "launcher": "torchrun"}
    results = {"patterns": [{"pattern": r"performance: (?P<value>\S+) (?P<unit>\S+)", "name": "ddp"}]}
    paths = [
        gang_jobs.write(tmp_path, once, train, name="ddp", files=["train.py"], results=results),
        gang_jobs.write(tmp_path, fails, name="broken", stay_alive=600),
    ]
    done = fleet.play("gpuval.fleet.job", "-e", json.dumps({"gpuval_jobs": list(map(str, paths))}), seconds=RUN_SECONDS)
    assert "round all: 2 nodes in 1 gang(s), ddp, broken" in done.told, done
    first, second = (fleet.record(node, "ddp") for node in fleet.nodes)
    assert first["state"] == "success", first["message"]
    assert {item["name"]: item["value"] for item in first["metrics"]}["ddp_samples_per_second"] == 2
    assert second["state"] == "success", second["message"]
    assert second["environment"]["gang"]["leader"] == "node-1"
    assert "downloaded" in fleet.log("node-1", "ddp")
    assert "step download (1 of 2): waiting for node-1: it runs there" in fleet.log("node-2", "ddp")
    first, second = (fleet.record(node, "broken") for node in fleet.nodes)
    assert "the gang has ended: node-2 (" in first["message"], first["message"]
    assert "step convert (1 of 1): exit code 6" in first["message"]
    assert "no space left" in second["message"], second["message"]
    assert done.code != 0
    assert "FINAL ACCEPTANCE: INCOMPLETE" in done.told
    assert {fleet.verdict(node)["class"] for node in fleet.nodes} == {"own_program"}
    assert [item["kind"] for item in gangs(fleet)["rounds"]] == ["gangs"]
    for node in fleet.nodes:  # it stays for a shell although the run has been judged
        place = f"/var/lib/gpuval/{fleet.run_id}.all/{node}"
        assert "stays for a shell" in fleet.bed.execute(node, "cat", f"{place}/logs/broken.log")
        assert "broken" in fleet.bed.execute(node, "ls", f"{place}/work")
        assert "gpuval_workloads.job" in fleet.bed.execute(node, "ps", "-e", "-o", "args")
    assert fleet.play("gpuval.fleet.clean").code == 0
    for node in fleet.nodes:
        assert "gpuval_workloads.job" not in fleet.bed.execute(node, "ps", "-e", "-o", "args")
