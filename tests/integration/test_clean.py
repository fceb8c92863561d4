"""What `clean` takes away, and that two runs never work on one node at once."""

import json

FACTS = json.dumps({"gpuval_stages": ["facts"]})


def test_one_clean_takes_all_runs_of_this_controller_and_a_second_changes_nothing(new_fleet):
    with new_fleet("cleaned") as fleet:
        for _ in range(2):
            assert fleet.play("gpuval.fleet.validate", "-e", FACTS, "-e", "gpuval_run_id=new").code == 0
        assert len(list(fleet.node_base("node-1").glob("*/node-1/plan.json"))) == 2
        first = fleet.play("gpuval.fleet.clean")
        assert first.code == 0, first
        assert not list(fleet.node_base("node-1").rglob("*"))
        second = fleet.play("gpuval.fleet.clean")
        assert second.code == 0, second
        assert "changed=0" in second.output
        assert len(list(fleet.results.glob("2*/report.json"))) == 2, "results are kept"


def test_a_second_run_is_refused_while_the_first_is_at_work(new_fleet):
    stages = json.dumps(
        {"gpuval_stages": ["facts", "pause"], "pause_workload": {"command": ["sleep", "600"], "needs": ["facts"]}}
    )
    with new_fleet("busy", settings={"gpuval_heartbeat_seconds": 1}) as fleet:
        first = fleet.start("gpuval.fleet.validate", "-e", stages, "-e", "gpuval_run_id=first")
        first.expect(r"pause: running")
        second = fleet.play("gpuval.fleet.validate", "-e", FACTS, "-e", "gpuval_run_id=second")
        assert second.code != 0
        assert "run first is at work on this node" in second.output
        assert fleet.verdict("node-1")["verdict"] == "INCOMPLETE"
        assert first.running, "the first run goes on"
        cleaned = fleet.play("gpuval.fleet.clean", "-e", "gpuval_run_id=second")
        assert cleaned.code == 0, cleaned
        record = json.loads((fleet.store_data / "first/records/pause/node-1.json").read_text())
        assert record["state"] == "running", "cleaning the other run left this one and its store alone"
        closed = fleet.play("gpuval.fleet.clean", "-e", "gpuval_run_id=first")
        assert closed.code == 0, closed
        assert "closed by another command" in first.wait(60).output
