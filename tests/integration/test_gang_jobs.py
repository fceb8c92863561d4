"""Jobs of several nodes: real sshd, torchrun and DeepSpeed's launcher, each node a container of its own."""

import json

import pytest

from tests.kit import gang_jobs
from tests.kit.container_fleet import ContainerFleet
from tests.kit.gang_fleet import RUN_SECONDS, gangs, settings, torch_node
from tests.kit.needs import needs_deepspeed

TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if os.environ["RANK"] == "0":
    print(f"performance: {total.item()} samples/s", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module", autouse=True)
def packages():
    needs_deepspeed()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gang_jobs")
    with ContainerFleet(folder, [torch_node(1), torch_node(2)], settings(gpuval_gang_search=False)) as fleet:
        yield fleet


def write(folder, name, launcher, *before):
    (folder / "train.py").write_text(TRAIN)
    train = {"name": "train", "run": ["train.py"], "launcher": launcher}
    results = {"patterns": [{"pattern": r"performance: (?P<value>\S+) (?P<unit>\S+)", "name": name}]}
    return gang_jobs.write(folder, *before, train, name=name, files=["train.py"], results=results)


def test_jobs_run_on_all_nodes_as_stages_of_their_gang(fleet, tmp_path):
    once = {"name": "download", "run": "sleep 2; echo downloaded", "once": True}
    paths = [write(tmp_path, "ddp", "torchrun", once), write(tmp_path, "engine", "deepspeed")]
    done = fleet.play("gpuval.fleet.job", "-e", json.dumps({"gpuval_jobs": list(map(str, paths))}), seconds=RUN_SECONDS)
    assert done.code == 0, done
    assert "round all: 2 nodes in 1 gang(s), ddp, engine" in done.told
    assert "FINAL ACCEPTANCE: PASS" in done.told
    for name in ("ddp", "engine"):
        first, second = (fleet.record(node, name) for node in fleet.nodes)
        assert {item["name"]: item["value"] for item in first["metrics"]}[f"{name}_samples_per_second"] == 2
        assert second["state"] == "success", second["message"]
        assert second["environment"]["gang"]["leader"] == "node-1"
    assert "downloaded" in fleet.log("node-1", "ddp")
    assert "step download (1 of 2): waiting for node-1: it runs there" in fleet.log("node-2", "ddp")


def test_a_step_that_fails_is_named_with_its_node_and_no_search_begins(fleet, tmp_path):
    run = '[ "$NODE_RANK" = 0 ] || { echo no space left; exit 6; }; sleep 300'
    path = gang_jobs.write(tmp_path, {"name": "convert", "run": run}, name="broken")
    asked = {"gpuval_jobs": [str(path)], "gpuval_gang_search": True}
    done = fleet.play("gpuval.fleet.job", "-e", json.dumps(asked), seconds=RUN_SECONDS)
    assert done.code != 0
    assert "FINAL ACCEPTANCE: INCOMPLETE" in done.told, done
    first, second = (fleet.record(node, "broken") for node in fleet.nodes)
    assert "node-2 (" in first["message"] and "step convert (1 of 1): exit code 6" in first["message"]
    assert "no space left" in second["message"]
    assert [item["kind"] for item in gangs(fleet)["rounds"]] == ["gangs"]
