"""The controller dies in the middle and the same command is given again: it takes the running plan up."""

import json
import re

from tests.kit.container_fleet import nap
from tests.kit.processes import of_stage

STAGES = ["facts", "work", "after"]


def test_the_same_command_takes_the_run_up_and_runs_nothing_twice(new_fleet):
    settings = {"gpuval_stages": STAGES, "work_workload": nap(10), "after_workload": nap(0)}
    with new_fleet("controller", settings=settings) as fleet:
        first = fleet.start()
        first.expect("node-1 work: running")
        fleet.at_work("node-1", "work", saying="naps")
        first.kill()
        run_id = fleet.run_id
        run = fleet.read_run()
        begun = {stage: on_the_node(fleet, stage)["started_at"] for stage in ("facts", "work")}
        assert run["finished_at"] is None
        assert of_stage(run_id, "node-1", "work"), "the work must live on without its controller"

        done = fleet.play()

        assert done.code == 0, done
        assert "FINAL ACCEPTANCE: PASS" in done.output
        assert [path.name for path in fleet.results.iterdir() if path.name != "latest"] == [run_id]
        assert (fleet.run_id, fleet.read_run()["created_at"]) == (run_id, run["created_at"])
        assert re.search(r"node-1 work: (running|success)", done.output)
        fleet.assert_evidence("node-1", dict.fromkeys(STAGES, "success"))
        for stage in STAGES:
            record = fleet.record("node-1", stage)
            assert (record["attempt"], record["attempts"]) == (1, [])
            assert record["started_at"] == begun.get(stage, record["started_at"])
        notes = fleet.runner_log("node-1")
        assert notes.count("runner pid") == 1
        for stage in STAGES:
            assert len(re.findall(rf" {stage}: starts$", notes, re.MULTILINE)) == 1
        assert fleet.verdict("node-1")["flaky"] is False


def on_the_node(fleet, stage):
    return json.loads((fleet.node_directory("node-1") / "records" / f"{stage}.json").read_text())
