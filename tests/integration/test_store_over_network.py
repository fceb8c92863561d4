"""The embedded store beyond the loopback: machines of their own write to it and load from it, with TLS."""

import json
import subprocess

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.rclone import find_rclone

from tests.kit.container_fleet import ContainerFleet, Node, nap
from tests.kit.log_bundles import bundle_of

STAGES = ["facts", "work", "loading"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    settings = {"gpuval_stages": STAGES, "work_workload": nap(1), "gpuval_retries": 0, "run_pull_seconds": 2}
    with ContainerFleet(
        tmp_path_factory.mktemp("network"), [Node("near"), Node("walled", net_admin=True)], settings
    ) as fleet:
        fleet.bed.block_port("walled", fleet.settings["gpuval_store_port"])
        for node in fleet.nodes:
            target = f"{fleet.bed.container(node)}:/usr/local/bin/rclone"
            subprocess.run(["docker", "cp", find_rclone(), target], check=True, capture_output=True, timeout=60)
        fleet.done = fleet.play()
        yield fleet


def launch(fleet, node):
    return json.loads((fleet.run_folder / ".state/launches" / f"{node}.json").read_text())


def test_a_node_writes_to_the_store_and_loads_from_it(fleet):
    assert fleet.done.code == 0, str(fleet.done)
    assert launch(fleet, "near")["store_reachable"] is True
    uploaded = json.loads(fleet.bed.execute("near", "cat", f"{fleet.node_directory('near')}/uploaded.json"))
    assert {f"records/{stage}" for stage in STAGES} <= set(uploaded)
    fleet.assert_evidence("near", dict.fromkeys(STAGES, "success"))
    store = json.loads(fleet.bed.execute("near", "cat", f"{fleet.node_directory('near')}/store.json"))
    assert all(url.startswith(f"https://{fleet.bed.gateway}:") for url in store["put"].values())


def test_the_key_of_the_authority_stays_on_the_controller(fleet):
    store = fleet.root / "state/store"
    key = (store / "ca.key").read_text().splitlines()[1]
    assert key
    found = fleet.bed.execute("near", "sh", "-c", f"grep -rl -e 'PRIVATE KEY' {fleet.node_directory('near')} || true")
    assert found.strip() == ""
    on_node = fleet.bed.execute("near", "cat", f"{fleet.node_directory('near')}/ca.pem")
    assert on_node.strip() == (store / "ca.pem").read_text().strip()


def test_a_firewall_in_between_is_named_and_nothing_is_lost(fleet):
    told = launch(fleet, "walled")
    assert told["store_reachable"] is False
    assert "check that the controller's firewall allows TCP" in told["message"]
    fleet.assert_evidence("walled", dict.fromkeys(STAGES, "success"))


def test_the_logs_of_machines_come_over_ssh(fleet):
    done = fleet.play("gpuval.fleet.logs")
    assert done.code == 0, str(done)
    files, nodes = bundle_of(fleet.run_folder / "logs", fleet.run_id)
    assert set(nodes) == {"logs/near.tar.gz", "logs/walled.tar.gz"}
    for node in nodes.values():
        assert {"run/runner.log", "run/records/loading.json", "system/uname.txt"} <= set(node)
        assert b"X-Amz-Signature=" not in b"".join(node.values())
    told = [*files.values(), *(data for node in nodes.values() for data in node.values())]
    assert b"PRIVATE KEY" not in b"".join(told)
