"""Objects that change in the bucket after their node uploaded them: digests that come over SSH show it."""

import json
import re
from pathlib import Path

import pytest

from tests.kit.cluster import ClusterKit
from tests.kit.cluster_fleet import ClusterFleet, Containers
from tests.kit.container_fleet import ContainerFleet, Node
from tests.kit.fleet import until

STAGES = ["facts", "work"]
GO_ON = "/tmp/go-on"
#: Work of the second node lasts until the test has changed what the first one uploaded.
WORK = {
    "command": [
        "sh",
        "-c",
        f"[ $GPUVAL_NODE = first ] || while [ ! -e {GO_ON} ]; do sleep 0.5; done; echo worked: 2799390720 items",
    ],
    "patterns": [{"name": "worked_items", "pattern": r"^worked: (?P<value>\d+) (?P<unit>items)"}],
    "timeout_seconds": 1800,
    "inactivity_seconds": 0,
}
KEPT, FLIPPED = "2799390720", "2799390620"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    settings = {"gpuval_stages": STAGES, "work_workload": WORK}
    with ContainerFleet(tmp_path_factory.mktemp("altered"), [Node("first"), Node("second")], settings) as fleet:
        yield fleet


VALUE = r'"value": ?'


def flip(fleet, kind, name, words):
    """Change one byte of the figure in an object in the bucket, which stays a valid document."""
    path = fleet.folder_in_store / kind / "work" / name
    altered, flips = re.subn(words + KEPT, lambda match: match[0].replace(KEPT, FLIPPED), path.read_text())
    assert flips == 1
    path.write_text(altered)


def worked(fleet):
    (figure,) = [one["value"] for one in fleet.record("first", "work")["metrics"] if one["name"] == "worked_items"]
    return figure


def confirmed(fleet, node):
    return {stage["name"]: stage.get("confirmed_by") for stage in fleet.verdict(node)["stages"]}


def play_and(fleet, change):
    """Validate; when the first node has ended, and the second still works, make the change."""
    fleet.bed.execute("second", "rm", "-f", GO_ON)
    playing = fleet.start("gpuval.fleet.validate", "-e", "gpuval_run_id=new")
    playing.expect("first work: success")
    playing.expect("second work: running")
    until((fleet.folder_in_store / "logs/work/first.log").exists, "the log of first")
    until(lambda: b"ended: success" in (fleet.folder_in_store / "logs/work/first.log").read_bytes(), "its end")
    change()
    fleet.bed.execute("second", "touch", GO_ON)
    return playing.wait()


def test_a_byte_that_changes_in_the_bucket_is_fetched_again_from_the_node(fleet):
    def change():
        flip(fleet, "records", "first.json", VALUE)
        flip(fleet, "logs", "first.log", "worked: ")

    done = play_and(fleet, change)

    assert done.code == 0, done
    assert worked(fleet) == int(KEPT), done
    assert f"worked: {KEPT}" in fleet.log("first", "work") and FLIPPED not in fleet.log("first", "work")
    assert confirmed(fleet, "first") == confirmed(fleet, "second") == dict.fromkeys(STAGES, "node")
    reasons = [problem["reason"] for problem in fleet.verdict("first")["problems"]]
    copy = "the store's copy is not what the node uploaded"
    assert sorted(reasons) == [f"logs fetched from the node: {copy}", f"records fetched from the node: {copy}"]
    kept = json.loads((fleet.run_folder / ".state/digests/first.json").read_text())
    assert kept["channel"] == "node"
    assert all(digest in kept["stated"][result] for result, digest in kept["read"].items())


def test_what_the_node_cannot_return_is_refused_and_blames_the_store(fleet):
    def change():
        fleet.bed.execute("first", "rm", f"{fleet.node_directory('first')}/records/work.json")
        flip(fleet, "records", "first.json", VALUE)

    done = play_and(fleet, change)

    assert done.code != 0
    verdict = fleet.verdict("first")
    assert (verdict["verdict"], verdict["class"]) == ("INCOMPLETE", "store_altered"), done
    (check,) = [check for check in verdict["checks"] if check["name"] == "work_state"]
    assert check["verdict"] == "missing"
    assert check["reason"] == "the store's copy is not what the node uploaded: records"
    assert "find out who can write to the bucket" in check["remedy"]
    assert not (fleet.run_folder / "nodes/first/work.json").exists()
    assert fleet.verdict("second")["verdict"] == "PASS"


def test_what_no_node_confirms_is_marked_and_keeps_its_verdict(fleet):
    """A clean of the node ends before the controller collects."""

    def change():
        fleet.bed.execute("first", "rm", "-r", str(Path(fleet.node_directory("first")).parent))

    done = play_and(fleet, change)

    assert done.code == 0, done
    assert fleet.verdict("first")["verdict"] == "PASS"
    assert confirmed(fleet, "first") == dict.fromkeys(STAGES, "store only")
    assert confirmed(fleet, "second") == dict.fromkeys(STAGES, "node")
    assert "1 node(s) did not confirm the digests of their evidence" in done.output
    assert re.search(r"success \S+ \S+, store only", (fleet.run_folder / "report.md").read_text())


def test_a_record_that_is_not_what_its_pod_uploaded_is_refused(tmp_path):
    """The pod is gone when the results are collected: only its termination message is left."""
    go_on = tmp_path / "go-on"
    script = WORK["command"][-1].replace("$GPUVAL_NODE = first", "$GPUVAL_NODE = node-001").replace(GO_ON, str(go_on))
    work = {**WORK, "command": ["sh", "-c", script], "image": "registry.example/work:1"}
    with ClusterKit(tmp_path, on_stage=Containers(tmp_path / "pods")) as kit:
        names = kit.add_nodes(2, gpus=0)
        fleet = ClusterFleet(tmp_path / "fleet", kit=kit, settings={"gpuval_stages": STAGES, "work_workload": work})
        playing = fleet.start()
        playing.expect("node-001 work: success")
        flip(fleet, "records", "node-001.json", VALUE)
        go_on.touch()
        done = playing.wait()
        assert done.code != 0
        verdicts = {name: (fleet.verdict(name)["verdict"], fleet.verdict(name)["class"]) for name in names}
        assert verdicts == {"node-001": ("INCOMPLETE", "store_altered"), "node-002": ("PASS", None)}, done
        assert confirmed(fleet, "node-002") == dict.fromkeys(STAGES, "kubernetes")
        fleet.play("gpuval.fleet.clean")
