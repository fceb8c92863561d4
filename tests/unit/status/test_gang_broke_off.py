"""An error of the controller while gangs work is recorded, and is the reason of whoever has no record for it."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document, orchestrate, session
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.builders import LAUNCHED, SHIPPED, facts_record, make_run
from tests.kit.judged_folder import report_on


def folder_of(tmp_path):
    run = make_run(["a", "b", "c"], stages=["facts"])
    for node in run["nodes"].values():
        node["gang_stages"] = ["collective"]
    folder = run_folder.RunFolder(tmp_path / "run-1")
    folder.write_run(run)
    for node in run["nodes"]:
        run_folder.write_json(folder.evidence_file(node, "facts"), facts_record(node))
        run_folder.write_json(folder.launch_file(node), LAUNCHED)
    return folder


def states(folder):
    checks = SHIPPED
    nodes = report_on(folder, checks, gangs=document.read(folder))["nodes"]
    assert {node["verdict"] for node in nodes} == {"INCOMPLETE"}
    return [check["reason"] for node in nodes for check in node["checks"] if check["name"] == "collective_state"]


def test_it_is_the_reason_of_nodes_without_records_until_the_run_is_resumed(tmp_path):
    folder = folder_of(tmp_path)
    session.abort(folder, "the first error")
    reason = session.abort(folder, "no space left on device\n" + "x" * 9000)
    assert reason.startswith("the gangs were aborted: no space left on device")
    assert len(reason) < 500
    assert states(folder) == [reason] * 3
    session.begin(folder, orchestrate.GangSettings(search_seconds=77.0))
    assert run_folder.read_json(folder.problems_file) == []
    assert run_folder.read_json(folder.gang_limits_file) == {"search_seconds": 77.0}


def test_who_was_left_out_keeps_the_reason_for_that(tmp_path):
    folder = folder_of(tmp_path)
    document.write(folder, {"schema": document.SCHEMA, "formed_at": "t", "gangs": {}, "left_out": {"b": "other driver"},
                        "alone": [], "rounds": [], "searches": {}, "findings": {}, "ended_at": None})  # fmt: skip
    reason = session.abort(folder, "away")
    assert states(folder) == [reason, "left out of the gangs: other driver", reason]


def test_a_damaged_document_does_not_hide_the_error(tmp_path):
    folder = folder_of(tmp_path)
    run_folder.write_bytes(folder.gangs_file, b"{")
    assert session.abort(folder, "it is damaged") in {
        one["reason"] for one in run_folder.read_json(folder.problems_file)
    }
