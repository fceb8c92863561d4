"""The evidence of racks under other names: no identity of a rack is left, and the racks are judged alike."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import derived, replay
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.sensitive import Sensitive
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.labels import CLIQUE_LABEL

from tests.kit.actions import run_action
from tests.kit.builders import LAUNCHED
from tests.kit.bundled_runs import make
from tests.kit.rack_fleet import RackFleet, chassis_of, uuid_of

pytestmark = pytest.mark.usefixtures("shipped_proofs")


def written(fleet, results):
    """The folder of a judged run of the fleet."""
    folder = RunFolder(results / fleet.run["run_id"])
    run_folder.write_json(folder.run_file, fleet.run)
    for name, launch in fleet.evidence.launches.items():
        run_folder.write_json(folder.state / "launches" / f"{name}.json", {**LAUNCHED, **launch})
        for stage, record in fleet.evidence.records[name].items():
            run_folder.write_json(folder.evidence_file(name, stage), record)
    for step in ("judge_run", "report_run"):
        outcome = run_action(step, {"run_id": folder.path.name, "results_dir": str(results)})
        assert not outcome.failed, outcome.text
    return run_folder.latest_run(results)


def decisions(report):
    return sorted(
        (rack["verdict"], rack["class"], [(one["name"], one["verdict"], len(one["nodes"])) for one in rack["checks"]])
        for rack in report["racks"]
    )


def test_racks_are_judged_alike_under_other_names(tmp_path):
    fleet = RackFleet(2, run_id="20261102-100000-a1b2", finished_at="2026-11-02T11:00:00Z")
    for record in (record for records in fleet.evidence.records.values() for record in records.values()):
        record["run_id"] = fleet.run["run_id"]
    fleet.set("r01-t03", chassis_serial=chassis_of(0))
    fleet.break_fabric("r00-t05")
    fleet.evidence.records["r00-t07"] = {}
    fleet.evidence.launches["r00-t07"] = {"state": "unreachable", "message": "no route to host"}
    for name in fleet.run["nodes"]:
        fleet.run["nodes"][name]["labels"][CLIQUE_LABEL] = f"{uuid_of(int(name[1:3]))}.1"
    run = written(fleet, tmp_path / "results")
    outcome = make(run)
    assert not outcome.failed, outcome.text
    assert (run.path / "evidence_bundle/run").is_dir(), outcome.text
    bundle, target = run.path / "evidence_bundle", tmp_path / "derived"
    derived.derive(bundle, target, derived.renamer_of(bundle, Sensitive(), b"k" * 32))
    assert replay.replay(target).problem() == ""
    first, second = (run_folder.read_report(RunFolder(folder / "run")) for folder in (bundle, target))
    assert [rack["verdict"] for rack in first["racks"]] == ["FAIL", "FAIL"]
    assert decisions(second) == decisions(first)
    text = "".join(path.read_text() for path in (target / "run").rglob("*") if path.is_file())
    original = (bundle / "run/report.json").read_text()
    hidden = [*map(uuid_of, (0, 1)), *map(chassis_of, (0, 1)), '"r00"']
    assert [name for name in hidden if name not in original] == []
    assert [name for name in hidden if name in text] == []
