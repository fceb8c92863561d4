"""The commands beside validate on a cluster: its logs bundle, a shell and the log of a stage, and what it refuses."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.kit.cluster import ClusterKit, Fault
from tests.kit.cluster_fleet import ClusterFleet, Containers
from tests.kit.fleet import until
from tests.kit.log_bundles import bundle_of
from tests.kit.planted_secrets import leaks, plant


@pytest.fixture
def kit(tmp_path):
    with ClusterKit(tmp_path, on_stage=Containers(tmp_path / "pods")) as kit:
        yield kit


def test_the_logs_bundle_has_the_objects_and_the_output_of_each_node_and_no_secret(new_controller, kit):
    kit.add_nodes(2, gpus=0)
    kit.fault("node-002", Fault("image_pull", message="registry.example/facts:1: not found"))
    planted = {"environment": plant("environment"), "output": plant("output")}
    settings = {
        "gpuval_pods": {"image": "registry.example/facts:1", "environment": {"MY_TOKEN": planted["environment"]}},
        "run_pod_patience_seconds": 2,
    }
    fleet = new_controller(**settings)
    fleet.expected = ["node-001", "node-002", "node-003"]
    done = fleet.play()
    assert done.code != 0
    (pod,) = [pod for pod in kit.all("Pod") if pod["spec"]["nodeName"] == "node-001"]
    careless = f"careless: {planted['environment']}\nhttps://s3.example/x?X-Amz-Signature={planted['output']}\n"
    kit.set_log(pod["metadata"]["name"], "facts", careless)
    state = json.loads((fleet.root / "state/store/store.json").read_text())
    planted |= {side: state[side]["secret_key"] for side in ("writer", "reader")}
    before = set((fleet.root / "node").rglob("*"))
    kit.forget_requests()
    done = fleet.play("gpuval.fleet.logs")
    assert done.code == 0, str(done)
    assert "logs of 2 of 3 nodes" in done.output
    assert "- without: node-003: the cluster has neither the node nor anything of this run on it" in done.told
    assert {asked.verb for asked in kit.counts()} <= {"list", "get"}
    assert "secrets" not in {asked.resource for asked in kit.counts()}
    files, nodes = bundle_of(fleet.run_folder / "logs", fleet.run_id)
    assert set(nodes) == {"logs/node-001.tar.gz", "logs/node-002.tar.gz"}
    first, second = (nodes[f"logs/node-00{number}.tar.gz"] for number in (1, 2))
    assert b"kubernetes.io/hostname: node-001" in first["cluster/node.yaml"]
    assert b"activeDeadlineSeconds" in first["run/job-1.yaml"]
    assert any(b"careless: ***" in data for data in first.values())
    assert [name for name in first if name.startswith("run/output/work-1-")]
    assert b"ErrImagePull" in second["run/events.txt"]  # its Job was given up and deleted
    assert not [name for name in (*first, *second) if name.startswith("system/")]
    for name, data in [*files.items(), *first.items(), *second.items()]:
        assert leaks(planted, data) == [], name
    assert set((fleet.root / "node").rglob("*")) == before
    fleet.play("gpuval.fleet.clean")
    done = fleet.play("gpuval.fleet.logs")
    assert done.code == 0, str(done)
    told = json.loads((fleet.run_folder / "logs/nodes.json").read_text())["nodes"]
    assert told["node-001"]["message"] == "the cluster no longer has a Job of this run for the node"


def test_logs_without_a_run_and_in_check_mode(new_controller, kit):
    kit.add_node("gpu-1", gpus=0)
    fleet = new_controller()
    done = fleet.play("gpuval.fleet.logs", "--check")
    assert done.code == 0, str(done)
    assert not fleet.results.exists()
    done = fleet.play("gpuval.fleet.logs")
    assert done.code == 0, str(done)
    _files, nodes = bundle_of(fleet.results / "no-run/logs", "no-run")
    assert set(nodes["logs/gpu-1.tar.gz"]) == {"cluster/node.yaml", "NOTES.txt"}


REFUSED = {
    "network": ("gpuval.fleet.network", {}, "the network of nodes"),
    "keys": ("gpuval.fleet.keys", {}, "placing SSH keys"),
    "load": ("gpuval.fleet.load", {}, "bringing images to nodes"),
    "prepare": ("gpuval.fleet.prepare", {"network_sysctls": {"vm.swappiness": "1"}}, "the network of nodes"),
    "build on nodes": (
        "gpuval.fleet.build",
        {
            "container_image_build_on": "nodes",
            "gpuval_images": {"facts": {"reference": "localhost/facts:1", "build": True, "base": "localhost/base:1"}},
        },
        "building images on nodes",
    ),
}


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    """A fleet after its run, for tests that leave it as it is."""
    root = tmp_path_factory.mktemp("validated")
    with ClusterKit(root, on_stage=Containers(root / "pods")) as kit:
        kit.add_nodes(2, gpus=0)
        fleet = ClusterFleet(root / "fleet", kit=kit)
        done = fleet.play()
        assert done.code == 0, str(done)
        yield fleet
        fleet.end()


@pytest.mark.parametrize("case", REFUSED)
def test_what_works_on_nodes_themselves_is_refused_and_not_done_to_the_controller(validated, monkeypatch, case):
    playbook, settings, what = REFUSED[case]
    monkeypatch.setattr(validated, "settings", settings)
    done = validated.play(playbook)
    assert done.code != 0
    assert f"{what}" in done.told
    assert "over SSH, and these are nodes of a cluster, on which gpuval makes pods and nothing else" in done.told
    assert not (validated.home / ".gpuval").exists()
    assert not list(validated.home.rglob("*.ssh*"))


@pytest.mark.parametrize("playbook", ["status", "report", "probe"])
def test_these_work_as_over_ssh(validated, playbook):
    validated.kit.forget_requests()
    done = validated.play(f"gpuval.fleet.{playbook}")
    assert done.code == 0, str(done)
    assert {asked.verb for asked in validated.kit.counts()} <= {"list"}


class WithoutKubectl(ClusterFleet):
    """A controller with all its programs but one."""

    @property
    def environment(self):
        folder = self.root / "programs"
        if not folder.exists():
            folder.mkdir(parents=True)
            for program in (*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()):
                if program.name != "kubectl" and not (folder / program.name).is_symlink():
                    (folder / program.name).symlink_to(program)
        path = os.pathsep.join([str(Path(sys.executable).parent), str(folder)])
        return {**super().environment, "PATH": path}


def reach(fleet, what, *more, node="gpu-1"):
    way = fleet.root / "way"
    way.unlink(missing_ok=True)
    words = ["-e", f"run_reach={what}", "-e", f"run_reach_node={node}", "-e", f"run_reach_file={way}"]
    done = fleet.play("gpuval.fleet.reach", *words, *more)
    return done, shlex.split(way.read_text()) if way.exists() else None


@pytest.fixture
def at_work(tmp_path):
    """A run on one node whose second stage is at work until the set is emptied."""
    held = {"work"}

    def wait(run):
        if run.stage == "work":
            until(lambda: run.stage not in held, f"{run.stage} may go on")

    with ClusterKit(tmp_path, on_stage=Containers(tmp_path / "pods", instead=wait)) as kit:
        kit.add_node("gpu-1", gpus=0)
        fleet = WithoutKubectl(tmp_path / "fleet", kit=kit)
        playing = fleet.start()

        def runs():
            return any("running" in one["state"] for pod in kit.all("Pod") for one in statuses(pod, "work"))

        until(runs, "the stage work runs")
        yield kit, fleet, held
        held.clear()
        playing.wait()
        fleet.end()


def statuses(pod, name):
    return [one for one in pod.get("status", {}).get("containerStatuses", []) if one["name"] == name]


def test_a_shell_and_a_log_are_commands_of_kubectl(at_work, monkeypatch):
    kit, fleet, _held = at_work
    (pod,) = kit.all("Pod")
    access = [f"--kubeconfig={kit.kubeconfig}", "--namespace=gpuval"]
    monkeypatch.setattr(WithoutKubectl, "environment", ClusterFleet.environment)
    done, words = reach(fleet, "shell")
    assert done.code == 0, str(done)
    assert words[:-1] == [
        *("exec", "kubectl", *access, "exec", "--stdin", "--tty", pod["metadata"]["name"], "--container=work"),
        *("--", "sh", "-c"),
    ]
    done, words = reach(fleet, "follow", "-e", "run_reach_stage=facts")
    command, cleaner = words[3].split(" 2>&1 | ")
    assert words[:3] == ["exec", "sh", "-c"] and cleaner.endswith("escape.py")
    assert shlex.split(command) == [
        *("kubectl", *access, "logs", "--follow", "--tail=200", pod["metadata"]["name"], "--container=facts")
    ]
    done, words = reach(fleet, "shell", "-e", "run_reach_stage=facts")
    assert done.code != 0
    assert "facts does not run in pod" in done.told
    done, words = reach(fleet, "shell", node="gpu-2")
    assert done.code != 0
    assert "'gpu-2' is no node of run" in done.told
    assert words is None


def test_without_kubectl_a_log_is_followed_to_its_end(at_work):
    kit, fleet, held = at_work
    (pod,) = kit.all("Pod")
    done, _words = reach(fleet, "shell")
    assert done.code != 0
    assert "a shell needs kubectl, which is not installed here: kubectl" in done.told
    kit.set_log(pod["metadata"]["name"], "work", "first line\nsecond \x1b[31mline\n")
    playing = fleet.start("gpuval.fleet.reach", "-e", "run_reach=follow", "-e", "run_reach_node=gpu-1")
    playing.expect(r"^second ")
    kit.set_log(pod["metadata"]["name"], "work", "first line\nsecond \x1b[31mline\nthird line\n")
    playing.expect(r"^third line")
    held.clear()
    done = playing.wait()
    assert done.code == 0, str(done)
    assert done.output.count("first line") == 1
    assert "\x1b[31m" not in done.output
    assert "followed the log of gpu-1 to its end" in done.told or "worked: 3 items" in done.told
