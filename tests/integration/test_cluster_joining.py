"""Nodes that come up while a run is watched, and a window that is moved meanwhile: on a simulated cluster."""

import json
import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import known_runs

from tests.kit.cluster import ClusterKit
from tests.kit.cluster_fleet import Containers
from tests.kit.fleet import until


@pytest.fixture
def held(tmp_path):
    """Nodes whose stages wait, as long as their name is in it."""
    return set()


@pytest.fixture
def kit(tmp_path, held):
    def wait(run):
        until(lambda: run.node not in held, f"{run.node} may go on")

    with ClusterKit(tmp_path, on_stage=Containers(tmp_path / "pods", instead=wait)) as kit:
        yield kit


def test_a_node_that_comes_up_joins_the_run_and_one_that_does_not_fit_stays_out(new_controller, kit, held):
    pool = {"pool": "gpu"}
    kit.add_node("gpu-1", gpus=0, labels=pool)
    kit.add_node("spare-1", gpus=0)
    held.add("gpu-1")
    fleet = new_controller(gpuval_accept_new_nodes=True)
    fleet.source = {"selector": "pool=gpu"}
    playing = fleet.start()
    playing.expect(r"gpu-1 facts: running|nodes 0/1 done")
    until(lambda: kit.all("Job"), "the first Job")
    kit.add_node("gpu-2", gpus=0, labels=pool, ready=False)
    kit.add_node("spare-2", gpus=0)
    kit.add_node("gpu-9", gpus=8, labels=pool)
    playing.expect(r"gpu-2 does not join yet: Ready is False")
    playing.expect(r"gpu-9 does not join yet: no node of the run is of its kind")
    kit.set_node("gpu-2", ready=True, taints=[])
    playing.expect(r"gpu-2: joins the run")
    playing.expect(r"gpu-2 work: success")
    held.clear()
    done = playing.wait()
    assert done.code == 0, str(done)
    assert {entry["name"]: entry["verdict"] for entry in fleet.report()["nodes"]} == {"gpu-1": "PASS", "gpu-2": "PASS"}
    nodes = fleet.read_run()["nodes"]
    assert nodes["gpu-2"].pop("joined_at")
    assert nodes["gpu-2"] == nodes["gpu-1"]
    assert json.loads((fleet.folder_in_store / "run.json").read_text())["nodes"].keys() == nodes.keys()
    plan = json.loads((fleet.run_folder / ".state/plans/gpu-2.json").read_text())
    assert plan["node"] == "gpu-2"
    assert fleet.log("gpu-2", "work")
    done = fleet.play("gpuval.fleet.clean")
    assert done.code == 0, str(done)
    assert [kit.all(kind) for kind in ("Job", "Pod", "Secret", "ConfigMap")] == [[], [], [], []]


def test_no_node_joins_unasked(new_controller, kit, held):
    kit.add_node("gpu-1", gpus=0)
    held.add("gpu-1")
    fleet = new_controller()
    playing = fleet.start()
    until(lambda: kit.all("Job"), "the first Job")
    kit.add_node("gpu-2", gpus=0)
    playing.expect(r"gpu-1 facts: running|nodes 0/1 done")
    held.clear()
    done = playing.wait()
    assert done.code == 0, str(done)
    assert list(fleet.read_run()["nodes"]) == ["gpu-1"]


def test_a_controller_that_is_started_again_takes_up_who_has_joined_though_no_inventory_lists_it(
    new_controller, kit, held
):
    kit.add_node("gpu-1", gpus=0)
    held.update(("gpu-1", "gpu-2"))
    fleet = new_controller(gpuval_accept_new_nodes=True)
    fleet.expected = ["gpu-1"]
    playing = fleet.start()
    until(lambda: kit.all("Job"), "the first Job")
    kit.add_node("gpu-2", gpus=0)
    until(lambda: len(kit.all("Job")) == 2, "the Job of the node that joined")
    playing.kill()
    held.clear()
    done = fleet.play()
    assert done.code == 0, str(done)
    assert {entry["name"]: entry["verdict"] for entry in fleet.report()["nodes"]} == {"gpu-1": "PASS", "gpu-2": "PASS"}
    assert len(kit.all("Job")) == 2
    assert len(known_runs(fleet.results)) == 1


def test_the_window_is_moved_while_the_run_is_on(new_controller, kit, held):
    names = kit.add_nodes(4, gpus=0)
    held.update(names)
    fleet = new_controller(gpuval_max_nodes_at_once=1)
    playing = fleet.start()
    until(lambda: kit.all("Job"), "the first Job")
    done = fleet.play("gpuval.fleet.window", "-e", "run_window_nodes=3", "-e", "run_window_transfers=2")
    assert done.code == 0, str(done)
    assert "3 node(s) at once, 2 node(s) loading images at once" in done.told
    playing.expect(r"window: 3 node\(s\) work at once, at most 2 of them may load images")
    until(lambda: len(kit.all("Job")) == 3, "three nodes at work")
    time.sleep(2)
    assert len(kit.all("Job")) == 3
    held.clear()
    done = playing.wait()
    assert done.code == 0, str(done)
    done = fleet.play("gpuval.fleet.window", "-e", "run_window_nodes=1")
    assert done.code != 0
    assert "it has no window any more" in done.told
