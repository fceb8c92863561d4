"""The evidence of a cabling plan under other names: no switch's name is left, and the cabling is judged alike."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import derived, replay
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.conversion import InternalDataConverter
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.sensitive import Sensitive
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

from tests.kit.actions import run_action
from tests.kit.builders import LAUNCHED, facts_record, make_run
from tests.kit.bundled_runs import make

pytestmark = pytest.mark.usefixtures("shipped_proofs")
RUN_ID = "20261102-100000-a1b2"
#: How the plan and the nodes name the switches; the last two send no name.
PLANNED = {
    "eth4": "leaf-a1",
    "eth5": "Leaf-A2.dc7.example",
    "eth6": "0011.2233.4455",
    "mlx5_0": "b83f:d203:00a1:b2c0",
}
SEEN = {"eth4": "LEAF-A1.dc7.example", "eth5": "leaf-a2", "eth6": None, "mlx5_0": None}
IDS = {"mlx5_0": "0xb83fd20300a1b2c0"}


def written(results):
    """The folder of a judged run of six nodes, with swapped cables and one in a switch that the plan does not have."""
    run = make_run([f"node-{n}" for n in range(6)], stages=["facts"], run_id=RUN_ID, finished_at="2026-11-02T11:00:00Z")
    folder = RunFolder(results / RUN_ID)
    for number, (name, node) in enumerate(run["nodes"].items()):
        cables = [{"port": port, "switch": switch, "switch_port": f"Eth1/{number}"} for port, switch in PLANNED.items()]
        node["declared"] = {"cabling": cables}
        place = {0: 1, 1: 0}.get(number, number)
        facts = facts_record(name, run_id=RUN_ID)
        facts["environment"]["cabling"] = [
            {
                "names": [port],
                "neighbours": [
                    {"name": switch, "id": IDS.get(port, "00:11:22:33:44:55"), "ports": [f"Ethernet1/{place}"]}
                ],
                "problem": None,
            }
            for port, switch in SEEN.items()
        ]
        if number == 2:
            facts["environment"]["cabling"][0]["neighbours"][0]["name"] = "mgmt-7.lab.example"
        run_folder.write_json(folder.state / "launches" / f"{name}.json", LAUNCHED)
        run_folder.write_json(folder.evidence_file(name, "facts"), facts)
    run_folder.write_json(folder.run_file, run)
    for step in ("judge_run", "report_run"):
        outcome = run_action(step, {"run_id": RUN_ID, "results_dir": str(results)})
        assert not outcome.failed, outcome.text
    return run_folder.latest_run(results)


def cabling(folder):
    nodes = run_folder.read_report(folder)["nodes"]
    return [check for node in nodes for check in node["checks"] if check["name"] == "cabling"]


def test_the_cabling_is_judged_alike_under_other_names(tmp_path):
    run = written(tmp_path / "results")
    outcome = make(run)
    assert not outcome.failed, outcome.text
    bundle, target = run.path / "evidence_bundle", tmp_path / "derived"
    derived.derive(bundle, target, derived.renamer_of(bundle, Sensitive(), b"k" * 32))
    assert replay.replay(target).problem() == ""
    first, second = (cabling(RunFolder(folder / "run")) for folder in (bundle, target))
    assert sorted(check["verdict"] for check in first) == sorted(check["verdict"] for check in second)
    assert sorted(check["verdict"] for check in first).count("fail") == 3  # of two exchanged nodes one each
    text = "".join(path.read_text() for path in (target / "run").rglob("*") if path.is_file()).lower()
    original = (bundle / "run/report.json").read_text().lower()
    for name in (
        "leaf-a1",
        "leaf-a2",
        "dc7.example",
        "mgmt-7",
        "lab.example",
        "00:11:22:33:44:55",
        "0011.2233.4455",
        "b83f",
    ):
        assert name not in text
    assert "leaf-a1" in original and "mgmt-7" in original


def test_a_switch_has_one_placeholder_with_and_without_its_domain(tmp_path):
    run = written(tmp_path / "results")
    sensitive = Sensitive()
    sensitive.add_plan(run.read_run())
    sensitive.add_facts("node-2", run_folder.read_object(run.evidence_file("node-2", "facts")))
    converter = InternalDataConverter(sensitive.of_run({}, {"mgmt", "7"}, RUN_ID))
    short, full, unknown = map(converter.text, ("leaf-a1 Eth1/2", "LEAF-A1.dc7.example Eth1/2", "mgmt-7.lab.example 3"))
    assert full.split(".")[0] == short.split(" ")[0].strip() and short.startswith("host-")
    assert "mgmt" not in unknown and "lab" not in unknown
    claimed = Sensitive()
    claimed.add_facts("node-2", {"environment": {"cabling": [{"neighbours": [{"name": "h100"}, {"name": "switch"}]}]}})
    assert InternalDataConverter(claimed.of_run({}, {"h100"}, RUN_ID)).text("8 H100 switch") == "8 H100 switch"
