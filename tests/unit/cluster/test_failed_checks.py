"""FAIL stays on a node until a run shows that it passes what it failed: whichever run, and no other one."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import failed_checks, folder

from tests.kit.actions import run_action
from tests.kit.cluster_project import RUN, Project


def check(stage, name, verdict="pass", severity="required"):
    return {"stage": stage, "name": name, "verdict": verdict, "severity": severity}


def node(verdict="PASS", *checks, stages=None):
    named = dict.fromkeys(one["stage"] for one in checks if one["stage"])
    listed = [{"name": stage, "state": "success"} for stage in named] if stages is None else stages
    return {"name": "n1", "verdict": verdict, "checks": list(checks), "stages": listed}


def decide(known, reported, *, failed=True, whole=True):
    known = None if known is None else frozenset(known)
    found = failed_checks.decide(known, reported, failed=failed, full=whole)
    return found.stays, sorted(found.open)


FABRIC = ["fabric/fabric_bad"]
QUICK = node("PASS", check("facts", "facts_state"))
PAIRS = node("PASS", check("facts", "facts_state"), check("fabric", "fabric_bad"))


def test_what_failed_and_what_was_missing_is_open():
    reported = node(
        "FAIL", check("fabric", "fabric_bad", "fail"), check("deepspeed", "deepspeed_state", "missing"),
        check("", "identity", "fail"), check("facts", "wish", "fail", "advisory"), check("facts", "facts_state"),
    )  # fmt: skip
    assert decide(None, reported, failed=False) == (False, ["/identity", "deepspeed/", "fabric/fabric_bad"])


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_without_the_stage_takes_no_mark_of_a_search_off(whole):
    assert decide(FABRIC, QUICK, whole=whole) == (True, FABRIC)


@pytest.mark.parametrize("whole", [True, False])
def test_a_search_that_finds_the_node_healthy_does(whole):
    assert decide(FABRIC, PAIRS, whole=whole) == (False, [])


def test_what_is_passed_in_one_run_need_not_be_passed_in_the_next():
    both = [*FABRIC, "training/loss"]
    assert decide(both, PAIRS, whole=False) == (True, ["training/loss"])
    trained = node("PASS", check("training", "loss"))
    assert decide(["training/loss"], trained, whole=False) == (False, [])


def test_a_new_failure_is_added_and_what_is_passed_now_goes():
    reported = node("FAIL", check("fabric", "fabric_bad"), check("training", "loss", "fail"))
    assert decide(["collective/", *FABRIC], reported, whole=False) == (False, ["collective/", "training/loss"])


@pytest.mark.parametrize("whole", [True, False])
def test_where_evidence_is_missing_nothing_is_settled(whole):
    reported = node("INCOMPLETE", check("fabric", "fabric_bad"), check("training", "loss", "missing"))
    assert decide(FABRIC, reported, whole=whole) == (True, FABRIC)


def test_a_stage_that_lacked_evidence_has_to_end_well():
    checks = [check("deepspeed", "deepspeed_state")]
    crashed = node("PASS", *checks, stages=[{"name": "deepspeed", "state": "crash"}])
    assert decide(["deepspeed/"], crashed) == (True, ["deepspeed/"])
    assert decide(["deepspeed/"], node("PASS", *checks), whole=False) == (False, [])


def test_a_check_that_was_skipped_settles_nothing_in_a_part_of_the_nodes():
    alone = node("PASS", check("training", "same_loss", "skipped"))
    assert decide(["training/same_loss"], alone, whole=False)[0]
    assert not decide(["training/same_loss"], alone, whole=True)[0]


def test_a_machine_that_was_listed_twice_is_settled_by_a_whole_run():
    reported = node("PASS", check("", "identity"))
    assert decide(["/identity"], reported, whole=False)[0]
    assert not decide(["/identity"], reported, whole=True)[0]


def test_a_mark_that_does_not_say_why_goes_with_a_whole_run_alone():
    assert decide(None, PAIRS, whole=False) == (True, ["?"])
    assert decide(None, PAIRS, whole=True) == (False, [])


def test_many_are_shown_by_stage_and_damaged_ones_are_unknown():
    many = node("FAIL", *(check("training", f"check_{number}", "fail") for number in range(500)))
    assert decide(None, many, failed=False)[1] == ["training/"]
    assert failed_checks.parse("x" * 40_000) is failed_checks.parse("") is None
    assert failed_checks.parse(failed_checks.text_of(["b/", "a/c"])) == {"a/c", "b/"}
    assert failed_checks.text_of([]) is None


# --- on a cluster ----------------------------------------------------------------------------------------------------


def act(project, *, check_mode=False, **options):
    options = {"results_dir": str(project.directory / "results"), "kubeconfig": str(project.kit.kubeconfig), **options}
    done = run_action("mark_nodes", options, check_mode=check_mode)
    assert not done.failed, done.text
    return done


def mark(project: Project, change, *, check_mode=False, narrowed_by=(), profile="standard", run_id=RUN):
    path = project.folder.path / "report.json"
    report = folder.read_json(path)
    report["run"].update(narrowed_by=list(narrowed_by), profile=profile, run_id=run_id)
    for one in report["nodes"]:
        change(one)
    folder.write_json(path, report)
    return act(project, check_mode=check_mode, taint=True)


def becomes(verdict, **checks):
    def change(one):
        template = one["checks"][0]
        one.update(verdict=verdict, checks=[
            {**template, "stage": name.partition("_")[0], "name": name, "severity": "required", "verdict": what}
            for name, what in checks.items()
        ])  # fmt: skip
        stage = one["stages"][0]
        one["stages"] = [{**stage, "name": name.partition("_")[0], "state": "success"} for name in checks]

    return change


def test_a_mark_of_a_search_stays_through_quick_and_goes_with_fabric(project):
    def bears():
        meta = project.kit.get("Node", "node-001", "")
        return (
            meta["metadata"]["labels"].get("gpuval.io/verdict"),
            meta["metadata"].get("annotations", {}).get("gpuval.io/failed-checks"),
            [taint["key"] for taint in meta["spec"].get("taints", ())],
        )

    failed = ("FAIL", "fabric/fabric_bad", ["gpuval.io/failed"])
    found = becomes("FAIL", facts_state="pass", fabric_bad="fail")
    mark(project, found, check_mode=True)
    assert bears() == (None, None, [])
    mark(project, found)
    assert bears() == failed
    assert not mark(project, found).result["changed"]
    later = mark(project, becomes("PASS", facts_state="pass"), profile="quick", run_id="later")
    assert bears() == failed
    assert "still FAIL: node-001 (fabric/fabric_bad), node-002 (fabric/fabric_bad): a run" in later.text
    pairs = becomes("PASS", facts_state="pass", fabric_bad="pass")
    mark(project, pairs, narrowed_by=["stages"], profile="custom", run_id="pairs")
    assert bears() == ("INCOMPLETE", None, [])
    mark(project, becomes("PASS", facts_state="pass", fabric_bad="pass"), run_id="whole")
    assert bears() == ("PASS", None, [])
    mark(project, pairs, narrowed_by=["stages"], profile="custom", run_id="pairs-again")
    assert bears() == ("PASS", None, [])
    mark(project, found)
    act(project, state="absent")
    assert bears() == (None, None, [])
    mark(project, pairs, narrowed_by=["stages"], profile="custom", run_id="pairs")
    assert bears() == (None, None, []), "stages were left out, which its PASS does not cover"
