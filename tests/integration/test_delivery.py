"""`make deliver` as an operator uses it: after a real short run, to a real S3 service with keys of its own."""

import json
import subprocess

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, Store

from tests.kit.fleet import machine, until
from tests.kit.planted_secrets import leaks, plant
from tests.kit.s3_service import S3Service

NODES = {"node-1": {}, "node-10": {}}
TABLE = "| id | worker | uniqueid |\n|--|--|--|\n| 1 | node-1 | atl1node212 |\n| 2 | node-10 | atl1node342 |\n"


@pytest.fixture(scope="module")
def finished(new_fleet, tmp_path_factory):
    """A run of two nodes whose logs careless programs wrote to, and the mapping of their ids."""
    planted = {"token": plant("token"), "environment": plant("environment")}
    root = tmp_path_factory.mktemp("machines")
    nodes = {name: machine(root / f"m{number}", f"{number:032x}") for number, name in enumerate(NODES)}
    settings = {
        "gpuval_stages": ["facts"],
        "gpuval_hf_token": planted["token"],
        "gpuval_environment": {"MY_TOKEN": planted["environment"]},
    }
    with new_fleet("delivery", nodes=nodes, settings=settings) as fleet:
        done = fleet.play("gpuval.fleet.validate")
        assert done.code == 0, done
        state = json.loads((fleet.root / "state/store/store.json").read_text())
        planted |= {side: state[side]["secret_key"] for side in ("writer", "reader")}
        log = fleet.run_folder / "nodes/node-10/facts.log"
        text = "".join(f"careless: {value}\n" for value in planted.values())
        log.write_text(log.read_text() + text + "node-1 and node-10 at 10.11.12.13, driver 580.159.04.1\n")
        (fleet.root / "mapping.txt").write_text(TABLE)
        yield fleet, planted


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """An S3 service with one pair of keys, and a bucket in it: the endpoint, the keys, its objects as files."""
    root = tmp_path_factory.mktemp("destination")
    access, secret = "CUSTOMER7", plant("customer")
    with S3Service(root, (access, secret)) as service:
        (service.data / "handover").mkdir()
        yield service.endpoint, access, secret, service.data / "handover"


def deliver(fleet, *arguments, **variables):
    told = {"gpuval_node_ids": str(fleet.root / "mapping.txt"), **variables}
    file = fleet.root / "deliver.json"
    file.write_text(json.dumps(told))
    return fleet.play("gpuval.fleet.deliver", "-e", f"@{file}", *arguments)


def files_below(path):
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_is_delivered_under_unique_ids(finished):
    fleet, planted = finished
    done = deliver(fleet, "-vvv")
    assert done.code == 0, done
    path = fleet.run_folder / "delivery" / fleet.run_id
    files = files_below(path)
    assert {"logs/facts/atl1node212.log", "logs/facts/atl1node342.log", "report.html", "SHA256SUMS"} <= set(files)
    assert leaks(planted, done.output.encode()) == []
    for name, data in files.items():
        assert leaks(planted, data) == [], name
        assert b"node-1" not in data and b"10.11.12.13" not in data, name
    assert b"atl1node212 and atl1node342 at address-" in files["logs/facts/atl1node342.log"]
    assert b"driver 580.159.04.1" in files["logs/facts/atl1node342.log"]
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=path, check=True, timeout=30)
    again = deliver(fleet)
    assert again.recap("node-1")["changed"] == 0, again
    assert files_below(path) == files


def test_check_mode_holds_the_mapping_and_writes_nothing(finished):
    fleet, _ = finished
    done = deliver(fleet, "--check", delivery_name="checked")
    assert done.code == 0, done
    assert not (fleet.run_folder / "delivery/checked").exists()
    (fleet.root / "short.csv").write_text("worker,uniqueid\nnode-1,a\nnode-99,b\n")
    refused = deliver(fleet, "--check", gpuval_node_ids=str(fleet.root / "short.csv"))
    assert refused.code != 0
    assert "1 node(s) without a unique id: node-10" in refused.told
    assert "delivery_unmapped=keep" in refused.told
    assert "workers that are not in the run: node-99" in refused.told


def test_unmapped_nodes_may_keep_their_names_and_duplicates_never_pass(finished):
    fleet, _ = finished
    done = deliver(fleet, gpuval_node_ids={"node-1": "atl1node212"}, delivery_unmapped="keep", delivery_name="kept")
    assert done.code == 0, done
    assert {path.name for path in (fleet.run_folder / "delivery/kept/logs/facts").iterdir()} == {
        "atl1node212.log",
        "node-10.log",
    }
    for mapping in ({"node-1": "x", "node-10": "X"}, {"node-1": "../x", "node-10": "y"}):
        assert deliver(fleet, gpuval_node_ids=mapping, delivery_unmapped="keep").code != 0
    clash = deliver(fleet, gpuval_node_ids={"node-1": "NODE-10"}, delivery_unmapped="keep")
    assert clash.code != 0 and "but for case the same" in clash.told


@pytest.mark.parametrize("form", ["folder", "tar.gz"])
def test_it_is_sent_to_an_s3_service_with_keys_of_its_own(finished, s3, form):
    fleet, planted = finished
    endpoint, access, secret, data = s3
    variables = {
        "delivery_name": f"batch-{form}",
        "delivery_format": form,
        "delivery_destination": "s3://handover/acceptance",
        "delivery_s3_endpoint": endpoint,
        "delivery_s3_access_key": access,
        "delivery_s3_secret_key": secret,
    }
    done = deliver(fleet, "-vvv", **variables)
    assert done.code == 0, done
    assert leaks({**planted, "customer": secret}, done.output.encode()) == []
    made = fleet.run_folder / "delivery" / f"batch-{form}{'' if form == 'folder' else '.tar.gz'}"
    there = data / "acceptance" / made.name
    if form == "folder":
        assert files_below(there) == files_below(made)
        (there / "report.md").write_text("damaged on the way")
        (there / "index.csv").unlink()
    else:
        assert there.read_bytes() == made.read_bytes()
        there.write_bytes(b"cut off")
    store = Store(Connection("handover", endpoint, access_key=access, secret_key=secret))
    on_disk = {f"acceptance/{name}": len(held) for name, held in files_below(data / "acceptance").items()}
    # The service notices within a second or so what is changed behind its back.
    until(lambda: {entry.key: entry.size for entry in store.list("acceptance/")} == on_disk, "the listing", 30)
    again = deliver(fleet, **variables)
    assert again.code == 0, again
    assert ("2 file(s) sent" if form == "folder" else "1 file(s) sent") in again.told
    assert (files_below(there) == files_below(made)) if form == "folder" else there.read_bytes() == made.read_bytes()
    third = deliver(fleet, **variables)
    assert "0 file(s) sent" in third.told and third.recap("node-1")["changed"] == 0, third


def test_keys_that_are_missing_wrong_or_the_runs_own_are_refused(finished, s3):
    fleet, _ = finished
    endpoint, access, _, data = s3
    where = {"delivery_destination": "s3://handover/refused", "delivery_s3_endpoint": endpoint}
    missing = deliver(fleet, **where)
    assert missing.code != 0 and "needs its own keys" in missing.told
    own = json.loads((fleet.root / "state/store/store.json").read_text())["writer"]
    run = deliver(fleet, **where, delivery_s3_access_key=own["access_key"], delivery_s3_secret_key=own["secret_key"])
    assert run.code != 0 and "that of the run's store" in run.told
    wrong = deliver(fleet, **where, delivery_s3_access_key=access, delivery_s3_secret_key=plant("wrong"))
    assert wrong.code != 0 and "cannot send " in wrong.told
    assert not (data / "refused").exists()


def test_a_folder_as_destination(finished):
    fleet, _ = finished
    done = deliver(fleet, delivery_name="local", delivery_destination=str(fleet.root / "handover"))
    assert done.code == 0, done
    assert files_below(fleet.root / "handover/local") == files_below(fleet.run_folder / "delivery/local")
    refused = deliver(fleet, delivery_name="local", delivery_destination="/proc/handover")
    assert refused.code != 0 and "set delivery_destination to a folder that you can write" in refused.told
