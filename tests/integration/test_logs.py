"""The logs bundle: after a run, without one, with a node that nobody reaches, and without any secret."""

import hashlib
import json
import subprocess

import pytest

from tests.kit.log_bundles import GONE, bundle_of
from tests.kit.planted_secrets import leaks, plant

BOTH = {"node-1": {}, "gone-1": GONE}


@pytest.fixture(scope="module")
def finished(new_fleet):
    """A short run with secrets of all kinds in play, and a log that a careless program wrote one of them into."""
    planted = {name: plant(name) for name in ("gpuval_hf_token", "gpuval_s3_secret_key", "environment")}
    settings = {
        "gpuval_stages": ["facts"],
        **{name: planted[name] for name in ("gpuval_hf_token", "gpuval_s3_secret_key")},
        "gpuval_environment": {"MY_TOKEN": planted["environment"]},
    }
    with new_fleet("logs", settings=settings) as fleet:
        done = fleet.play("gpuval.fleet.validate")
        assert done.code == 0, done
        directory = fleet.node_directory("node-1")
        urls = json.loads((directory / "store.json").read_text())["put"]
        planted |= {f"signature {key}": url.partition("X-Amz-Signature=")[2] for key, url in urls.items()}
        state = json.loads((fleet.root / "state/store/store.json").read_text())
        planted |= {side: state[side]["secret_key"] for side in ("writer", "reader")}
        with (directory / "logs/facts.log").open("a") as log:
            url = next(iter(urls.values()))
            log.write(f"careless: {url} {url.partition('X-Amz-Signature=')[2]}\n")
        with (fleet.root / "state/store/writer.log").open("a") as log:
            log.write(f"careless: {planted['writer']} {planted['reader']}\n")
        yield fleet, planted


def test_all_is_in_one_archive_and_the_node_that_is_gone_is_named(finished):
    fleet, _ = finished
    done = fleet.play("gpuval.fleet.logs", nodes=BOTH)
    assert done.code == 0, done
    assert "logs of 1 of 2 nodes" in done.output
    assert "- without: gone-1: " in done.output
    assert done.recap("node-1")["failed"] == done.recap("gone-1")["failed"] == 0
    files, nodes = bundle_of(fleet.run_folder / "logs", fleet.run_id)
    assert set(nodes) == {"logs/node-1.tar.gz"}
    told = json.loads(files["nodes.json"])["nodes"]
    assert (told["node-1"]["state"], told["gone-1"]["state"]) == ("gathered", "unreachable")
    assert told["node-1"]["sha256"] == hashlib.sha256(files["logs/node-1.tar.gz"]).hexdigest()
    (node,) = nodes.values()
    for name in ("system/uname.txt", "run/runner.log", "run/plan.json", "run/records/facts.json", "run/logs/facts.log"):
        assert node[name], name
    for name in ("results/run.json", "results/report.json", "results/nodes/node-1/facts.log", "store/writer.log"):
        assert files[name], name
    assert "store.json" not in {name.rpartition("/")[2] for name in (*files, *node)}


def test_no_secret_is_in_it(finished):
    fleet, planted = finished
    done = fleet.play("gpuval.fleet.logs", "-vvv")
    assert done.code == 0, done
    assert leaks(planted, done.output.encode()) == []
    files, nodes = bundle_of(fleet.run_folder / "logs", fleet.run_id)
    (node,) = nodes.values()
    assert b"careless: " in node["run/logs/facts.log"]
    assert b"careless: " in files["store/writer.log"]
    for name, data in [*files.items(), *node.items()]:
        assert leaks(planted, data) == [], name


def test_a_mistyped_run_is_named_with_the_nearest_and_makes_no_folder(finished):
    fleet, _ = finished
    typed = f"{fleet.run_id}x"
    done = fleet.play("gpuval.fleet.logs", "-e", f"gpuval_run_id={typed}")
    assert done.code == 0, done
    assert f"no run in {fleet.results / typed}: is it {fleet.run_id}?" in done.told
    assert f"What the nodes have comes into {fleet.results / 'no-run'}" in done.told
    assert not (fleet.results / typed).exists()
    kept = fleet.run_folder
    kept.rename(fleet.root / "away")
    try:
        lost = fleet.play("gpuval.fleet.logs", "-e", f"gpuval_run_id={fleet.run_id}")
    finally:
        (fleet.root / "away").rename(kept)
    assert lost.code == 0, lost
    _files, nodes = bundle_of(fleet.results / "no-run/logs", "no-run")
    assert nodes["logs/node-1.tar.gz"]["run/logs/facts.log"], "the node has what the results have lost"


def test_check_mode_gathers_nothing(finished):
    fleet, _ = finished
    before = {path: path.stat().st_mtime_ns for path in fleet.run_folder.rglob("*")}
    done = fleet.play("gpuval.fleet.logs", "--check", nodes=BOTH)
    assert done.code == 0, done
    assert {path: path.stat().st_mtime_ns for path in fleet.run_folder.rglob("*")} == before


def test_nodes_tell_of_themselves_where_no_run_ever_was(new_fleet):
    with new_fleet("no_run") as fleet:
        done = fleet.play("gpuval.fleet.logs", nodes=BOTH)
        assert done.code == 0, done
        files, nodes = bundle_of(fleet.results / "no-run/logs", "no-run")
        assert b"Linux" in nodes["logs/node-1.tar.gz"]["system/uname.txt"]
        told = json.loads(files["nodes.json"])["nodes"]
        assert told["node-1"]["message"] == "the node has nothing of this run"
        assert told["gone-1"]["state"] == "unreachable"
        assert not fleet.node_base("node-1").exists(), "nothing is left on the node"


def test_every_node_gone_is_reported_and_no_error(new_fleet):
    with new_fleet("all_gone") as fleet:
        done = fleet.play("gpuval.fleet.logs", nodes={"gone-1": GONE})
        assert done.code == 0, done
        assert "logs of 0 of 1 nodes" in done.output


def test_the_bundle_is_read_by_tar_and_sha256sum(finished, tmp_path):
    fleet, _ = finished
    archive = fleet.run_folder / "logs" / f"logs-{fleet.run_id}.tar.gz"
    subprocess.run(["tar", "xzf", str(archive), "-C", str(tmp_path)], check=True, timeout=30)
    check = ["sha256sum", "--check", "--strict", "--quiet", "MANIFEST"]
    subprocess.run(check, cwd=tmp_path / f"logs-{fleet.run_id}", check=True, timeout=30)
