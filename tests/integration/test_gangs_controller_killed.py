"""The controller dies amid a round: its keys stay hidden, it is taken up once, and clean takes all away."""

import json
import tarfile

from tests.kit import ring_member
from tests.kit.container_fleet import ContainerFleet, Node
from tests.kit.fleet import until
from tests.kit.gang_fleet import RUN_SECONDS, gangs, settings

ASKED = json.dumps({"run_gang_stages": ["collective"]})
LONG = {"gpuval_environment": {}, "collective_workload": ring_member.workload(1 << 20, seconds=20)}
WHERE = "find /var/lib/gpuval -name token -o -name id_ed25519"
AT_WORK = "pgrep -f 'over plain [s]ockets' || true"


def at_work(fleet, node):
    """Process ids of the round's work: what the watch shows of it comes later, and on a busy machine too late."""
    return fleet.bed.execute(node, "sh", "-c", AT_WORK).split()


def killed_in_its_round(fleet):
    playing = fleet.start("gpuval.fleet.validate", "-e", ASKED)
    playing.expect("round all: ", RUN_SECONDS)
    until(lambda: all(at_work(fleet, node) for node in fleet.nodes), "the round at work on both nodes", RUN_SECONDS)
    playing.kill()
    (kept,) = fleet.run_folder.rglob("gang_keys.json")
    assert kept.stat().st_mode & 0o077 == 0
    made = json.loads(kept.read_text())
    return [made["token"], *made["id_ed25519"].split("\n")[1:3]]


def test_a_round_is_resumed_and_what_it_left_is_removed(tmp_path):
    nodes = [Node(f"node-{number}") for number in (1, 2)]
    with ContainerFleet(tmp_path, nodes, settings(gpuval_gang_search=False, **LONG)) as fleet:
        secrets = killed_in_its_round(fleet)
        first = fleet.run_id
        shown = fleet.play("gpuval.fleet.status")
        assert "round all" in shown.told, shown
        packed = fleet.play("gpuval.fleet.logs")
        assert packed.code == 0, packed
        (archive,) = fleet.run_folder.glob("logs/logs-*.tar.gz")
        with tarfile.open(archive) as bundle:
            for member in bundle:
                text = bundle.extractfile(member).read().decode(errors="replace") if member.isfile() else ""
                assert not any(secret in text for secret in secrets), member.name
                assert "OPENSSH PRIVATE KEY" not in text, member.name

        done = fleet.play("gpuval.fleet.validate", "-e", ASKED, seconds=RUN_SECONDS)
        assert done.code == 0, done
        assert fleet.run_id == first
        assert [item["name"] for item in gangs(fleet)["rounds"]] == ["all"]
        record = fleet.record("node-1", "collective")
        assert (record["attempt"], record["attempts"]) == (1, [])
        assert not list(fleet.run_folder.rglob("gang_keys.json"))

        killed_in_its_round(fleet)
        assert fleet.run_id != first
        for below in (fleet.run_folder / "gangs").glob("*/run.json"):
            below.write_text("{")  # damaged: what the round is called is known all the same
        for node in fleet.nodes:
            there = fleet.bed.execute(node, "sh", "-c", f"{WHERE}; {AT_WORK}")
            assert "ssh/token" in there and there.split()[-1].isdecimal(), there
        cleaned = fleet.play("gpuval.fleet.clean")
        assert cleaned.code == 0, cleaned
        assert not list(fleet.results.rglob("gang_keys.json"))
        for node in fleet.nodes:
            left = fleet.bed.execute(node, "sh", "-c", f"{WHERE}; {AT_WORK}")
            assert not left.strip(), left
