"""Gangs that end by an error of the controller: the verdict and all reports come all the same, and say why."""

import contextlib
import json

from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import find_or_place, keep_inventory

from tests.kit.fleet import Fleet


def test_the_run_is_judged_and_reported_although_its_gangs_broke_off(tmp_path):
    settings = {"gpuval_stages": ["facts"], "run_gang_stages": ["collective"], "gpuval_heartbeat_seconds": 2}
    with contextlib.closing(Fleet(tmp_path, {"node-1": {}, "node-2": {}}, settings)) as fleet:
        folder = find_or_place(fleet.results, "r1", [str(fleet.root / "hosts.json")])
        keep_inventory(folder, fleet.results, [str(fleet.root / "hosts.json")])
        rounds = folder.path / "gangs"
        rounds.parent.mkdir(parents=True)
        rounds.symlink_to("/proc/sys/debug")  # an error of the disk: no file of the gangs can be written
        done = fleet.play("gpuval.fleet.validate", "-e", "gpuval_run_id=r1")
        assert done.code != 0
        assert "the gangs were aborted: " in done.told
        assert "FINAL ACCEPTANCE: INCOMPLETE" in done.output, done
        report = json.loads((fleet.run_folder / "report.json").read_text())
        for node in report["nodes"]:
            assert node["verdict"] == "INCOMPLETE"
            (state,) = [check for check in node["checks"] if check["name"] == "collective_state"]
            assert state["reason"].startswith("the gangs were aborted: "), state
            assert "r1/gangs/" in state["reason"]
        assert (fleet.run_folder / "report.html").exists()
        watch = json.loads((fleet.store_data / fleet.run_id / "run_watch.json").read_text())
        assert any(problem["reason"].startswith("the gangs were aborted: ") for problem in watch["problems"])

        assert done.recap("node-1")["rescued"] == 1

        wrong = fleet.play("gpuval.fleet.validate", "-e", json.dumps({"gpuval_gang_size": 1}))
        assert "gpuval_gang_size 1: a gang has two nodes or more" in wrong.told, wrong
        assert wrong.recap("node-1")["failed"] == 1
