"""Check mode starts nothing; --tags and --limit narrow a run, which is PARTIAL then."""

import pytest

from tests.kit.fleet import machine


@pytest.fixture(scope="module")
def fleet(new_fleet):
    # By steps, which a busy machine takes too.
    settings = {"training_seconds": 19, "training_steps": 40, "training_arguments": ["--processes", "1"]}
    with new_fleet("narrowed", nodes={"node-1": {}, "node-2": {}}, settings=settings) as fleet:
        for number, (name, variables) in enumerate(fleet.nodes.items()):
            variables.update(machine(fleet.root / "machines" / name, f"{number:032x}"))
        yield fleet


def test_check_mode_starts_nothing(fleet):
    def files():
        return {path for path in fleet.root.rglob("*") if not {".ansible", "engines"} & set(path.parts)}

    before = files()
    done = fleet.play("gpuval.fleet.validate", "--check", "--diff")
    assert done.code == 0, done
    added = files() - before
    assert {path.name for path in added} <= {"home", "hosts.json"}
    assert "FINAL ACCEPTANCE" not in done.output
    assert "gpuval_workloads.training" in done.output, "the diff shows what would be started"


def test_tags_run_a_stage_and_what_it_needs(fleet):
    done = fleet.play("gpuval.fleet.validate", "--tags", "training", "--limit", "node-1")
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PARTIAL" in done.output
    assert "Narrowed by --limit and --tags" in done.output
    assert f"- Report: {fleet.run_folder / 'report.html'}\n" in done.output
    assert "Shorter than the profile" in done.output
    assert "training_seconds 19 of " in done.output
    assert fleet.read_run()["narrowed_by"] == ["limit", "tags"]
    assert list(fleet.report()["nodes"][0]["metrics"]) == ["facts", "training"]
    fleet.assert_evidence("node-1", {"facts": "success", "training": "success"})


def test_tags_alone_are_partial_too(fleet):
    done = fleet.play("gpuval.fleet.validate", "--tags", "facts")
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PARTIAL" in done.output
    assert fleet.report()["counts"]["PASS"] == 2
    assert fleet.read_run()["narrowed_by"] == ["tags"]


def test_limit_leaves_the_other_node_alone(fleet):
    fleet.settings["gpuval_stages"] = ["facts"]
    done = fleet.play("gpuval.fleet.validate", "--limit", "node-2", "-e", "report_upload=false")
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PARTIAL" in done.output
    assert [node["name"] for node in fleet.report()["nodes"]] == ["node-2"]
    assert fleet.read_run()["narrowed_by"] == ["limit"]
    assert not fleet.node_directory("node-1").exists()
    assert not (fleet.folder_in_store / "report/report.json").exists()


def test_limit_to_nothing_is_an_error(fleet):
    done = fleet.play("gpuval.fleet.validate", "--limit", "all:!node-1:!node-2")
    assert done.code != 0
