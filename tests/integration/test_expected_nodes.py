"""Every node of the inventory is in the verdict: listed twice, out of reach, or well."""

import json
import socket

import pytest

from tests.kit.fleet import machine


@pytest.fixture(scope="module")
def fleet(new_fleet):
    with new_fleet("expected", settings={"gpuval_stages": ["facts"]}) as fleet:
        twin = machine(fleet.root / "machines/twin", "8e5b1c7aa0d94b2f9e6f3c1d2b4a5968")
        single = machine(fleet.root / "machines/single", "1f0c9e8d7b6a5f4e3d2c1b0a99887766")
        fleet.nodes = {"twin-1": twin, "twin-2": twin, "single": single}
        yield fleet


def test_one_machine_listed_twice_is_an_error_of_both_names(fleet):
    done = fleet.play()
    assert done.code != 0
    assert "FINAL ACCEPTANCE: INCOMPLETE" in done.output, done
    verdicts = {node["name"]: node["verdict"] for node in fleet.report()["nodes"]}
    assert verdicts == {"twin-1": "INCOMPLETE", "twin-2": "INCOMPLETE", "single": "PASS"}
    for node, other in (("twin-1", "twin-2"), ("twin-2", "twin-1")):
        (check,) = fleet.decisive(node)
        assert (check["name"], check["value"]) == ("identity", other)
        assert "one machine listed twice" in check["reason"]
        assert "machine id 8e5b1c7aa0d94b2f9e6f3c1d2b4a5968" in check["reason"]
        assert "fix the inventory: give every machine one name" in check["remedy"]
        fleet.assert_evidence(node, {"facts": "success"})
    assert (fleet.run_folder / "failed_nodes.txt").read_text() == "twin-1\ntwin-2\n"


def test_a_node_out_of_reach_is_incomplete_and_named(fleet, closed_port):
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": closed_port}
    done = fleet.play(nodes={"single": fleet.nodes["single"], "away": away})
    assert done.code != 0
    assert "FINAL ACCEPTANCE: INCOMPLETE" in done.output
    assert "- Nodes: 2 expected, 1 PASS, 0 FAIL, 1 INCOMPLETE" in done.output
    assert "- away INCOMPLETE launch: unreachable (refused):" in done.output
    assert (fleet.run_folder / "failed_nodes.txt").read_text() == "away\n"
    fleet.assert_evidence("single", {"facts": "success"})
    assert fleet.verdict("single")["verdict"] == "PASS"
    node = fleet.verdict("away")
    assert (node["verdict"], node["accelerator"]) == ("INCOMPLETE", "unknown")
    (launch,) = [check for check in node["checks"] if check["name"] == "launch"]
    assert "refused the connection" in launch["reason"]
    assert "--limit away" in launch["remedy"]

    cleaned = fleet.play("gpuval.fleet.clean", nodes={"single": fleet.nodes["single"], "away": away})
    assert cleaned.code != 0, "what could not be cleaned must be said"
    assert "- twin-1 not in the inventory" in cleaned.told
    assert "- away not reached, and nothing is there" in cleaned.told, "no run has started on it"
    assert not fleet.node_directory("single").exists()


def test_labels_and_endpoints_of_the_inventory_are_in_run_and_report(fleet):
    nodes = {"single": {**fleet.nodes["single"], "rack": "r7", "gpuval_labels": {"row": "b", "pdu": "3", "hall": ""}}}
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        nodes["single"] |= {
            "gpuval_endpoints": [{"name": "licenses", "address": address, "max_loss": "50 %"}],
            "gpuval_stages": ["facts", "endpoints"],
        }
        done = fleet.play(nodes=nodes)
    assert done.code == 0, done
    assert fleet.record("single", "endpoints")["message"] == "as declared: licenses"
    verdicts = {check["name"]: check["verdict"] for check in fleet.verdict("single")["checks"]}
    assert verdicts["endpoints_reached"] == verdicts["endpoints_floors"] == "pass"
    expected = {"rack": "r7", "row": "b", "pdu": "3"}
    assert json.loads((fleet.run_folder / "run.json").read_text())["nodes"]["single"]["labels"] == expected
    assert fleet.verdict("single")["labels"] == expected
    done = fleet.play(nodes={"single": {**fleet.nodes["single"], "gpuval_labels": {"row": True}}})
    assert done.code != 0
    assert ": gpuval_labels: row is True to YAML, not a text: write it in quotes" in done.told
    fleet.play("gpuval.fleet.clean", nodes=nodes)


def test_records_of_an_earlier_run_of_the_same_name_are_no_evidence(fleet):
    only = {"single": fleet.nodes["single"]}
    named = ("-e", "gpuval_run_id=nightly")
    done = fleet.play("gpuval.fleet.validate", *named, nodes=only)
    assert done.code == 0, done
    opened = fleet.read_run()["created_at"]
    stored = (fleet.folder_in_store / "run.json").read_bytes()
    fleet.run_folder.rename(fleet.root / "put-away")
    done = fleet.play("gpuval.fleet.validate", *named, nodes=only)
    assert done.code != 0 and "FINAL ACCEPTANCE: PASS" not in done.output, done
    assert f"the store has a run nightly already, in nightly/ of bucket gpuval, opened at {opened}" in done.output, done
    assert (fleet.store_data / "nightly/run.json").read_bytes() == stored
