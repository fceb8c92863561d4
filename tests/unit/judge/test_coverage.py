"""Every metric has a criterion or a reason to have none, and every criterion a metric that its stage reports."""

from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.collect import facts_result
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import coverage, criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.check import ANY, Informational
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import markdown_report

from tests.kit.builders import SHIPPED, healthy, judge, make_run, metric
from tests.kit.builders import check as make_check
from tests.kit.reported import ANYWHERE, REPORTED, names_of

#: Declared by its role: which of its figures there are depends on the vendor's tools.
ELSEWHERE = {"vendor_tools"}


def test_every_metric_has_a_criterion_or_a_reason_to_have_none():
    reported = {stage: {*names, *ANYWHERE} for stage, names in REPORTED.items()}
    assert coverage.compare(reported, SHIPPED, SHIPPED.informational).unjudged == ()


def test_every_criterion_has_a_metric_that_its_stage_reports():
    reported = {stage: {*names, *ANYWHERE} for stage, names in REPORTED.items()}
    checks = [check for check in SHIPPED if check.stage not in ELSEWHERE]
    assert coverage.compare(reported, checks).unreported == ()
    assert {check.stage for check in checks} <= REPORTED.keys()


def test_what_is_informational_is_reported_by_some_stage():
    """A pattern that fits nothing is left over from a metric that is gone."""
    for one in SHIPPED.informational:
        names = ANYWHERE if one.stage == ANY else {*REPORTED.get(one.stage, ()), *ANYWHERE}
        if one.stage not in ELSEWHERE and one.metrics != ("diagnostics_*",):
            known = coverage.compare({one.stage: names}, [], [one]).unjudged
            assert len(known) < len(names), one


def test_facts_of_this_machine_are_covered():
    names = names_of(facts_result())
    assert names <= set(REPORTED["facts"])
    assert coverage.compare({"facts": names}, SHIPPED, SHIPPED.informational).unjudged == ()


def test_gaps_are_named_both_ways():
    checks = [
        make_check(),
        make_check("loss", metric="loss_last", kind="trend", baseline_metric="loss_first", direction="falling",
                   min_change=0.1),
        make_check("parts", metric="per_rank", scope="rank", parts_from="ranks_count"),
        make_check("hash", metric="a_sha256", kind="same"),
    ]  # fmt: skip
    informational = [
        Informational("training", ("step_*_seconds",), "shown"),
        Informational("any", ("host_*",), "shown"),
    ]
    reported = {
        "training": {"training_tokens_per_second", "loss_last", "per_rank", "step_p50_seconds", "host_memory", "new"},
        "loading": {"training_answer", "host_memory"},
    }
    gaps = coverage.compare(reported, checks, informational)
    assert gaps.unjudged == ("loading/training_answer", "training/new")
    assert gaps.unreported == ("loss (training/loss_first)", "parts (training/ranks_count)")


def test_the_report_tells_gaps_as_advice():
    run = make_run()
    evidence = healthy(run)
    evidence.records["node-1"]["training"]["metrics"].append(metric("training_new_thing", 1))
    checks = [make_check(), make_check("old", metric="training_old_thing", severity="advisory"),
              make_check("later", stage="loading", metric="later", applies={"sku": ["mine"]})]  # fmt: skip
    report = judge(run, evidence, criteria.Criteria(checks, [Informational("any", ("[!x]*",), "a star alone counts")]))
    schemas.validate("report", report, what="report")
    gaps = report["fleet"]["coverage"]
    assert "training/training_new_thing" in gaps["unjudged"]
    assert gaps["unreported"] == ["old (training/training_old_thing)"]
    assert "## Not covered" in markdown_report(report)
    assert report["verdict"] == "PASS"
    everything = [Informational("any", ("*",), "all")]
    assert "coverage" not in judge(run, evidence, criteria.Criteria([make_check()], everything))["fleet"]


def test_a_stage_that_did_not_end_well_owes_no_figures():
    run = make_run()
    evidence = healthy(run)
    evidence.records["node-1"]["training"].update(state="crash", metrics=[])
    evidence.records["node-1"]["loading"]["metrics"].append(metric("loading_new_thing", 1))
    assert judge(run, evidence, [make_check()])["fleet"]["coverage"]["unreported"] == []


def test_names_that_nodes_make_up_are_bounded():
    run = make_run()
    evidence = healthy(run)
    evidence.records["node-1"]["training"]["metrics"] += [metric(f"x{number}", 1) for number in range(5000)]
    unjudged = judge(run, evidence, [make_check()])["fleet"]["coverage"]["unjudged"]
    assert len(unjudged) == coverage.MAX_SHOWN + 1
    assert unjudged[-1].startswith("and 49")
