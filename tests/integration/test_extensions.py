"""A stage and a profile in a folder outside the collection, which the whole of a run takes like those that ship."""

import json
import re

import pytest

from tests.kit.extension import write_extension


@pytest.fixture(scope="module")
def fleet(new_fleet):
    with new_fleet("extensions", settings={"gpuval_profile": "night"}) as fleet:
        fleet.settings["gpuval_extensions"] = [str(write_extension(fleet.root / "site"))]
        yield fleet


def test_the_profile_of_an_extension_passes(fleet):
    done = fleet.play()
    assert done.code == 0, done
    assert "1 PASS, 0 FAIL, 0 INCOMPLETE" in done.output
    assert "rdma_rails, storage, training, vendor_tools (not in the profile night)" in done.output
    fleet.assert_evidence("node-1", {"facts": "success", "burn": "success"})
    assert "burned by the site's own program" in fleet.log("node-1", "burn")
    figures = {metric["name"]: metric["value"] for metric in fleet.record("node-1", "burn")["metrics"]}
    assert figures["burn_seconds"] == 3, "the profile's, not the stage's default"
    run = fleet.read_run()
    assert run["profile"] == "night"
    assert run["extensions"].keys() == {"site"}
    checks = {check["name"]: check["verdict"] for check in fleet.verdict("node-1")["checks"]}
    assert checks["burn_turned"] == "pass"
    untested = {gap["what"] for gap in fleet.report()["fleet"]["not_tested"]}
    assert "training" in untested
    assert "burn" not in untested
    assert "burn" in (fleet.run_folder / "report.html").read_text()
    assert "burn_turned" in (fleet.run_folder / "junit.xml").read_text()


def test_the_stage_is_listed_among_the_tags(fleet):
    chosen = json.dumps({"gpuval_extensions": fleet.settings["gpuval_extensions"]})
    done = fleet.play("gpuval.fleet.validate", "--list-tags", "-e", chosen)
    assert re.search(r"TASK TAGS: \[always, burn, collective, .*, vendor_tools\]", done.output), done


def test_a_tag_chooses_the_stage_and_the_inventory_its_settings(fleet):
    done = fleet.play("gpuval.fleet.validate", "--tags", "burn", "-e", "burn_seconds=1", "-e", "gpuval_run_id=new")
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PARTIAL" in done.output
    assert "burn_seconds 1 of 3" in done.output
    fleet.assert_evidence("node-1", {"facts": "success", "burn": "success"})


def test_a_wrong_setting_of_the_stage_is_named_before_anything_starts(fleet):
    done = fleet.play("gpuval.fleet.validate", "-e", "burn_seconds=soon", "-e", "gpuval_run_id=new")
    assert done.code != 0
    assert "burn_seconds soon: must be a number" in done.told
    done = fleet.play("gpuval.fleet.validate", "-e", "burn_second=1", "-e", "gpuval_run_id=new")
    assert "burn_second: no such setting; is it burn_seconds?" in done.told
    done = fleet.play("gpuval.fleet.validate", "-e", "gpuval_profile=nigth")
    assert "gpuval_profile nigth: must be one of night, quick, standard, burnin, soak; is it night?" in done.told


def test_a_failed_check_has_the_action_of_its_class(fleet):
    done = fleet.play("gpuval.fleet.validate", "-e", "burn_turns=0", "-e", "gpuval_run_id=new")
    assert done.code != 0
    entry = fleet.verdict("node-1")
    assert entry["verdict"] == "FAIL"
    assert entry["class"] == "burn_turned"
    assert entry["action"]["name"] == "reboot", "of the ladder gpu_damage"
    assert "Replace the loop." in (fleet.run_folder / "report.html").read_text()


def test_a_crash_is_retried_and_is_the_programs_own(fleet):
    done = fleet.play(
        "gpuval.fleet.validate", "-e", '{"gpuval_environment": {"BURN_CRASHES": "1"}}', "-e", "gpuval_run_id=new"
    )
    assert done.code != 0
    assert fleet.record("node-1", "burn")["attempt"] == 2
    entry = fleet.verdict("node-1")
    assert (entry["verdict"], entry["class"]) == ("INCOMPLETE", "own_program")


def test_an_implausible_figure_is_found_by_the_stages_own_range(fleet):
    done = fleet.play("gpuval.fleet.validate", "-e", "burn_turns=2000", "-e", "gpuval_run_id=new")
    assert done.code != 0
    assert fleet.verdict("node-1")["verdict"] == "INCOMPLETE"
    assert "burn_turns_count" in done.told


def test_a_run_is_not_resumed_with_other_content(fleet):
    program = fleet.root / "site/stages/burn/program/words.py"
    text = program.read_text()
    program.write_text(text + "# changed\n")
    done = fleet.play("gpuval.fleet.validate", "-e", f"gpuval_run_id={fleet.run_id}")
    program.write_text(text)
    assert done.code != 0
    assert "was opened with other content of gpuval_extensions: restore that, or give another" in done.told


def test_doctor_status_and_clean_take_the_stage(fleet):
    done = fleet.play("gpuval.fleet.doctor")
    assert re.search("^ok +extensions +stages burn; profiles night$", done.output, re.MULTILINE), done
    done = fleet.play("gpuval.fleet.status")
    assert "facts 1 success | burn 1 success" in done.output, done
    program = fleet.root / "site/stages/burn/program/words.py"
    program.chmod(0o666)
    refused = fleet.play("gpuval.fleet.validate")
    assert refused.code != 0
    assert "words.py: others can write it, and it is code: chmod go-w" in refused.told
    cleaned = fleet.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true")
    program.chmod(0o644)
    assert cleaned.code == 0, cleaned
    assert not fleet._left()
