"""Which nodes several runs accept; the reports are the real judge's. Each way to cheat is a test."""

import dataclasses
import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import repairs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import health
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import failed_checks
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import drains

from tests.kit.accepted_site import (
    CHECKS,
    STAGES,
    AcceptedSite,
    Machine,
    crashed,
    outcome,
    slow_gpu,
    slow_together,
    unreachable,
    unsteady,
)
from tests.kit.judged_fleets import comparisons

RATE = comparisons.NAME
BAD, GOOD, NEIGHBOURS = "node-001", "node-010", ["node-002", "node-003"]
AGAIN = [BAD, *NEIGHBOURS]
PASS = ("PASS", "accepted", "")


@pytest.fixture
def site(tmp_path):
    return AcceptedSite(tmp_path / "results", 12)


@pytest.fixture
def tested(site):
    """A site whose first run passed every node."""
    assert site.run("first", 2)["verdict"] == "PASS"
    return site


@pytest.fixture
def failed(site):
    """A site whose first run found a slow GPU."""
    assert site.run("first", 2, faults={BAD: slow_gpu(3)})["counts"]["FAIL"] == 1
    return site


def test_a_fleet_of_100_is_accepted_after_its_repairs_step_by_step(tmp_path):
    site = AcceptedSite(tmp_path / "results", 100)
    slow, lost, cable = ["node-011", "node-012"], ["node-021", "node-022"], "node-031"
    away = ["node-041", "node-042"]
    first = site.run("acceptance-1", 2, faults={
        **dict.fromkeys(slow, slow_gpu(3)), **dict.fromkeys(lost, crashed), cable: slow_gpu(5),
        **dict.fromkeys(away, unreachable),
    })  # fmt: skip
    assert first["counts"] == {"expected": 100, "PASS": 93, "FAIL": 5, "INCOMPLETE": 2, "flaky": 0}
    document = site.accept("acceptance-1", day=3)
    assert (document["verdict"], document["counts"]["PASS"]) == ("FAIL", 93)

    # Tested again without a repair: what passes now is not accepted.
    repaired = [*slow, *lost, cable, *away]
    neighbours = ["node-001", "node-002"]
    again = site.run("acceptance-2", 4, [*repaired, *neighbours], part_of="acceptance-1")
    assert again["verdict"] == "PARTIAL"
    document = site.accept("acceptance-1", "acceptance-2", day=5)
    assert (document["verdict"], document["counts"]["PASS"]) == ("FAIL", 95)  # the unreachable ones are there now
    assert {outcome(document, name)[:2] for name in [*slow, *lost, cable]} == {("FAIL", "not_repaired")}

    # Two GPUs replaced, one machine replaced, the GPU of another swapped into a healthy node, a cable declared.
    for name in slow:
        site.replace_gpu(name, 3)
    site.replace_machine(lost[0])
    site.swap_gpus(lost[1], "node-050", 0)
    site.declare(cable, "riser seated again", "2026-11-05T12:00:00Z", "gpu:5")
    site.run("acceptance-3", 6, [*repaired, *neighbours], part_of="acceptance-1")
    document = site.accept("acceptance-1", "acceptance-2", "acceptance-3", day=7)
    assert document["counts"] == {"expected": 100, "PASS": 99, "FAIL": 0, "INCOMPLETE": 1, "repaired": 5}
    verdict, rule, reason = outcome(document, "node-050")
    assert (verdict, rule) == ("INCOMPLETE", "parts_changed")
    assert "gpu serial 165400500 is in node-022, gpu uuid GPU-165400500 is in node-022 by run acceptance-3" in reason

    site.run("acceptance-4", 8, ["node-050", *neighbours], part_of="acceptance-1")
    document = site.accept("acceptance-1", "acceptance-2", "acceptance-3", "acceptance-4", day=9)
    assert (document["verdict"], document["counts"]["PASS"]) == ("PASS", 100)
    nodes = {node["name"]: node for node in document["nodes"]}
    assert nodes[lost[0]]["replaced"] == {"machine": "serial S4X0021", "by": "serial S4X0902", "run_id": "acceptance-2"}
    assert [change["node"] for change in nodes["node-050"]["changes"]] == [lost[1], lost[1]]
    assert nodes[cable]["multi_node"]["collective"]["neighbours"][:2] == neighbours
    assert [row["effect"] for row in nodes[cable]["runs"]] == ["settled", "none", "accepts"]
    assert {run["run_id"]: run["accepts"] for run in document["runs"]} == {
        "acceptance-1": 90, "acceptance-2": 0, "acceptance-3": 7, "acceptance-4": 3,
    }  # fmt: skip


def test_one_whole_run_of_all_nodes_is_an_acceptance(tested):
    document = tested.accept("first", day=3)
    assert (document["verdict"], document["counts"]["repaired"]) == ("PASS", 0)
    assert {node["run_id"] for node in document["nodes"]} == {"first"}


def test_tested_until_it_passes_is_not_accepted_and_a_repair_of_each_kind_is(failed):
    failed.run("again", 3, AGAIN, part_of="first")
    verdict, rule, reason = outcome(failed.accept("first", "again"), BAD)
    assert (verdict, rule) == ("FAIL", "not_repaired")
    assert "slow of gpu serial 165400013 in run first" in reason


@pytest.mark.parametrize(
    ("repair", "rule"),
    [
        (lambda site: site.replace_gpu(BAD, 3), "accepted"),
        (lambda site: site.replace_gpu(BAD, 4), "not_repaired"),
        (lambda site: site.replace_machine(BAD), "accepted"),
        (lambda site: setattr(site.machines[BAD], "bios", "1.3"), "accepted"),
        (lambda site: site.declare(BAD, "seated again", "2026-11-02T15:00:00Z"), "accepted"),
        (lambda site: site.declare(BAD, "before the fault", "2026-11-01T15:00:00Z"), "not_repaired"),
        (lambda site: site.declare(BAD, "after it passed", "2026-11-03T15:00:00Z"), "not_repaired"),
        (lambda site: site.declare(GOOD, "another node", "2026-11-02T15:00:00Z"), "not_repaired"),
        (lambda site: site.declare(BAD, "riser seated again", "2026-11-02T15:00:00Z", "gpu:3"), "accepted"),
        (lambda site: site.declare(BAD, "another GPU", "2026-11-02T15:00:00Z", "gpu:5"), "not_repaired"),
    ],
)
def test_a_pass_after_a_fail_needs_a_repair_of_what_failed(failed, repair, rule):
    repair(failed)
    failed.run("again", 3, AGAIN, part_of="first")
    assert outcome(failed.accept("first", "again"), BAD)[1] == rule


def test_a_hidden_serial_does_not_hide_a_fault(failed):
    def hides(fleet, name):
        for gpu in fleet.facts(name)["gpus"]:
            del gpu["serial"]

    failed.run("again", 3, AGAIN, part_of="first", faults={BAD: hides})
    assert outcome(failed.accept("first", "again"), BAD)[1] == "not_repaired"


def test_fewer_gpus_than_in_the_first_run_do_not_count(site):
    def without_the_bad_one(fleet, name):
        fleet.node(name)["gpu_count"] = 7
        environment = fleet.facts(name)
        del environment["gpus"][3]
        for index, gpu in enumerate(environment["gpus"]):
            gpu["index"] = index
        del environment["identity"]["gpu_uuids"][3]
        environment["accelerator"]["count"] = 7
        for stage in ("diagnostics", "training"):
            record = fleet.record(name, stage)
            record["metrics"] = [one for one in record["metrics"] if one["scope"] != "gpu:7"]
        fleet.set(name, "facts", "gpu_count", 7)
        fleet.set(name, "facts", "gpu_hardware_count", 7)

    site.run(
        "first",
        2,
        checks=CHECKS[:1],
        faults={BAD: lambda fleet, name: fleet.set(name, "diagnostics", RATE, 1, "gpu:3")},
    )
    report = site.run("again", 3, AGAIN, checks=CHECKS[:1], part_of="first", faults={BAD: without_the_bad_one})
    assert report["verdict"] == "PARTIAL"
    verdict, rule, reason = outcome(site.accept("first", "again"), BAD)
    assert (verdict, rule) == ("INCOMPLETE", "other_work")
    assert "tested another SKU or number of GPUs" in reason


def test_a_fault_of_the_machine_is_settled_by_any_new_part(site):
    site.run("first", 2, faults={BAD: crashed})
    site.replace_gpu(BAD, 6)
    site.run("again", 3, AGAIN, part_of="first")
    assert outcome(site.accept("first", "again"), BAD) == PASS


def test_a_lost_gpu_that_is_back_is_no_repair(site):
    def lost(fleet, name):
        environment = fleet.record(name, "facts")["environment"]
        del environment["gpus"][7]
        del environment["identity"]["gpu_uuids"][7]
        next(one for one in fleet.record(name, "facts")["metrics"] if one["name"] == "gpu_count")["value"] = 7

    site.run("first", 2, faults={BAD: lost})
    site.run("again", 3, AGAIN, part_of="first")
    verdict, rule, reason = outcome(site.accept("first", "again"), BAD)
    assert (verdict, rule) == ("FAIL", "not_repaired")
    assert "gpus of serial S4X0001 in run first" in reason


def test_a_fault_is_not_one_of_all_nodes_with_the_machine_id_of_one_cloned_disk(site):
    for machine in site.machines.values():
        machine.serial, machine.machine_id = "None", "6cd1b3a2f07c4f0f8a9d2f4f5c6b7a81"
    site.run("first", 2)
    site.run("later", 3, [BAD], faults={BAD: crashed}, part_of="first")
    document = site.accept("first")
    assert {node["name"] for node in document["nodes"] if node["verdict"] != "PASS"} == {BAD}
    assert outcome(document, BAD)[1] == "withdrawn"


def change_node(site, run_id, **fields):
    path = site.results / f"site/{run_id}/report.json"
    report = json.loads(path.read_text())
    next(node for node in report["nodes"] if node["name"] == BAD).update(fields)
    path.write_text(json.dumps(report))


@pytest.mark.parametrize(("word", "rule"), [("sku", "accepted"), ("slow", "not_repaired")])
def test_another_sku_in_the_settings_settles_only_what_the_settings_caused(failed, word, rule):
    fault = {"class": word, "of": "serial S4X0001"}
    action = {"name": "inspect", "class": word, "parts": [], "earlier_runs": [], "faults": [fault]}
    change_node(failed, "first", sku="h100", **{"class": word}, action=action)
    failed.run("again", 3)
    assert outcome(failed.accept("again"), BAD)[1] == rule


def test_a_speed_that_changed_needs_a_repair_too_but_is_no_fail(site):
    site.run("first", 2, faults={BAD: unsteady})
    site.run("again", 3, AGAIN, part_of="first")
    assert outcome(site.accept("first", "again"), BAD)[:2] == ("INCOMPLETE", "not_repaired")


def test_a_declared_repair_at_another_time_is_named(failed):
    failed.declare(BAD, "seated again", "2025-11-02T15:00:00Z")
    failed.run("again", 3, AGAIN, part_of="first")
    reason = outcome(failed.accept("first", "again"), BAD)[2]
    assert "at 2025-11-02T15:00:00Z: another part, or not between these runs" in reason


def test_a_node_that_only_was_unreachable_counts_as_accepted_without_a_repair(site):
    site.run("first", 2, faults={BAD: unreachable})
    site.run("again", 3, [BAD, NEIGHBOURS[0]], part_of="first")
    assert outcome(site.accept("first", "again"), BAD)[1] == "not_together"
    site.run("last", 4, AGAIN, part_of="first")
    document = site.accept("first", "last")
    assert outcome(document, BAD) == PASS
    assert document["counts"]["repaired"] == 0


def test_an_unreachable_node_of_a_later_run_withdraws_nothing(tested):
    tested.run("later", 3, faults={BAD: unreachable})
    assert outcome(tested.accept("first"), BAD) == PASS


def test_waiting_hides_no_fault(failed):
    failed.run("again", 9)
    assert outcome(failed.accept("again", day=17), BAD)[1] == "not_repaired"


def test_if_most_nodes_were_repaired_a_new_whole_run_accepts_them(tmp_path):
    site = AcceptedSite(tmp_path / "results", 4)
    names = list(site.machines)
    site.run("first", 2, faults={names[0]: crashed})
    for name in names[1:]:
        site.replace_gpu(name, 0)
    site.replace_gpu(names[0], 0)
    site.run("second", 3, names, part_of="first")
    document = site.accept("first", "second")
    assert {node["rule"] for node in document["nodes"]} == {"not_together"}
    assert {node["next"] for node in document["nodes"]} == {"`make validate`, and start RUNS with that run"}
    site.run("whole", 4)
    assert site.accept("whole")["verdict"] == "PASS"


@pytest.mark.parametrize("stages", [STAGES, ["facts", "diagnostics"], None])
@pytest.mark.parametrize(("fault", "verdict"), [(slow_gpu(1), "FAIL"), (unsteady, "INCOMPLETE")])
def test_a_fault_in_a_later_run_withdraws_whole_or_narrowed_named_or_not(tested, stages, fault, verdict):
    fields = {} if stages is None else {"stages": stages, "narrowed_by": ["limit", "stages"]}
    tested.run("later", 3, AGAIN, faults={BAD: fault}, part_of="first", **fields)
    for named in (["first"], ["first", "later"]):
        document = tested.accept(*named)
        assert outcome(document, BAD)[:2] == (verdict, "withdrawn")
        assert document["verdict"] == verdict
        (node,) = [node for node in document["nodes"] if node["name"] == BAD]
        assert [row["effect"] for row in node["runs"]] == ["counts", "withdraws"]


def test_what_a_later_run_says_of_others_withdraws_nothing(tested):
    tested.run("later", 3, AGAIN, faults={BAD: slow_together("collective")}, part_of="first")
    assert outcome(tested.accept("first", "later"), BAD) == PASS


def test_leaving_out_the_run_that_failed_does_not_help(failed):
    failed.run("again", 3)
    document = failed.accept("again")
    assert outcome(document, BAD)[1] == "not_repaired"
    assert [(run["run_id"], run["named"]) for run in document["runs"]] == [("first", False), ("again", True)]


def test_a_short_window_does_not_hide_a_fault(failed):
    failed.run("again", 9)
    assert outcome(failed.accept("again", day=9, window_days=1), BAD)[1] == "not_repaired"


def test_a_new_name_does_not_hide_a_fault(failed):
    failed.machines["node-013"] = failed.machines.pop(BAD)
    failed.run("again", 3)
    document = failed.accept("again")
    assert outcome(document, "node-013")[1] == "not_repaired"
    assert outcome(document, BAD)[0] == "FAIL"  # it is expected still, until its removal is declared
    failed.declare(BAD, "removed", "2026-11-02T15:00:00Z")
    document = failed.accept("again")
    assert BAD not in {node["name"] for node in document["nodes"]}
    assert "Nodes removed: node-001 (removed 2026-11-02T15:00:00Z, by K. Weber)" in document["summary"]


def test_another_inventory_does_not_hide_a_fault(failed):
    failed.inventory = "inventories/other"
    failed.run("again", 3)
    document = failed.accept("again")
    assert outcome(document, BAD)[1] == "not_repaired"
    assert [run["inventory"] for run in document["runs"]] == ["inventories/site", "inventories/other"]


def test_a_bad_gpu_in_another_node_is_not_accepted_there(failed):
    failed.swap_gpus(BAD, GOOD, 3)
    failed.run("again", 3, [*AGAIN, GOOD], part_of="first")
    document = failed.accept("first", "again")
    assert outcome(document, BAD) == PASS
    assert outcome(document, GOOD)[1] == "not_repaired"
    assert "GPUs that moved: gpu serial 165400013 from node-001 to node-010" in "\n".join(document["summary"])


def test_a_node_that_left_the_inventory_stays_expected(tested):
    tested.run("again", 3, left_out=[GOOD])
    tested.machines.pop(GOOD)
    document = tested.accept("again")
    assert outcome(document, GOOD)[1] == "not_named"


def test_other_criteria_do_not_count(tested):
    weaker = [dataclasses.replace(one, value=1) if one.name == "floor" else one for one in CHECKS]
    tested.run("again", 3, AGAIN, checks=weaker, part_of="first")
    assert outcome(tested.accept("first", "again"), BAD)[1] == "other_criteria"


@pytest.mark.parametrize(
    ("fields", "rule", "words"),
    [
        ({"profile": "quick"}, "other_work", "profile quick"),
        ({"part_of": ""}, "other_groups", "no other run"),
        ({"part_of": "else"}, "other_groups", "with else"),
    ],
)
def test_a_run_of_other_work_or_other_groups_does_not_count(tested, fields, rule, words):
    tested.run("again", 3, AGAIN, **{"part_of": "first", **fields})
    verdict, ruled, reason = outcome(tested.accept("first", "again"), BAD)
    assert (verdict, ruled) == ("INCOMPLETE", rule)
    assert words in reason


def test_weaker_settings_than_the_profiles_do_not_count(failed):
    failed.replace_gpu(BAD, 3)
    failed.run("again", 3, AGAIN, part_of="first", shortened=["training_seconds 5 of 600"])
    verdict, rule, reason = outcome(failed.accept("first", "again"), BAD)
    assert (verdict, rule) == ("FAIL", "failed")
    assert "shorter than the profile: training_seconds 5 of 600" in reason


def test_a_stage_with_other_arguments_does_not_count(tested):
    def weaker(fleet, name):
        fleet.record(name, "training")["command"] = ["true", "--tiny"]

    tested.run("again", 3, AGAIN, part_of="first", faults={BAD: weaker})
    assert outcome(tested.accept("first", "again"), BAD)[1:] == (
        "other_work", "run again ran training with other settings than run first",
    )  # fmt: skip


def test_runs_of_some_stages_are_not_added_up(failed):
    failed.replace_gpu(BAD, 3)
    failed.run("half", 3, AGAIN, part_of="first", stages=["facts", "diagnostics"], narrowed_by=["limit", "tags"])
    failed.run("rest", 4, AGAIN, part_of="first", stages=["facts", "training"], narrowed_by=["limit", "tags"])
    document = failed.accept("first", "half", "rest")
    assert outcome(document, BAD)[0] == "FAIL"
    assert [run["excluded"] for run in document["runs"]] == ["", "narrowed by limit, tags", "narrowed by limit, tags"]


def test_parts_that_change_after_the_run_withdraw_it(tested):
    tested.replace_gpu(BAD, 3)
    tested.run("facts", 3, AGAIN, stages=["facts"], narrowed_by=["limit", "stages"])
    verdict, rule, reason = outcome(tested.accept("first"), BAD)
    assert (verdict, rule) == ("INCOMPLETE", "parts_changed")
    assert "gpu serial 165400013 went, gpu serial 165409003 came by run facts" in reason


def test_a_replaced_machine_is_accepted_by_its_own_run_only(tested):
    tested.replace_machine(BAD)
    tested.run("facts", 3, AGAIN, stages=["facts"], narrowed_by=["limit", "stages"])
    assert outcome(tested.accept("first"), BAD)[1] == "parts_changed"
    tested.run("again", 4, AGAIN, part_of="first")
    document = tested.accept("first", "again")
    assert outcome(document, BAD) == PASS
    assert "Machines replaced: node-001 (serial S4X0900 for serial S4X0001)" in document["summary"]


def test_the_repaired_are_tested_together_with_accepted_nodes(failed):
    failed.machines["node-002"].gpus[0] = "1"
    failed.replace_gpu(BAD, 3)
    failed.run("again", 3, [BAD, "node-002", "node-003"], part_of="first")
    document = failed.accept("first", "again")
    verdict, rule, reason = outcome(document, BAD)
    assert (verdict, rule) == ("INCOMPLETE", "not_together")  # node-002 was changed itself
    assert "collective, fabric did not run together with 2 accepted neighbours" in reason
    failed.run("fabric", 4, [BAD, "node-003", "node-004"], stages=["facts", "collective", "fabric"],
               narrowed_by=["limit", "stages"], profile="custom")  # fmt: skip
    assert outcome(failed.accept("first", "again"), BAD) == PASS


def test_its_last_whole_run_must_be_named_and_young_enough(tested):
    tested.run("again", 3, AGAIN, part_of="first")
    document = tested.accept("first")
    assert outcome(document, BAD)[1] == "not_named"
    assert next(node for node in document["nodes"] if node["name"] == BAD)["next"] == "`make accept RUNS=first,again`"
    assert outcome(tested.accept("first", "again", day=10, window_days=7), GOOD)[1] == "too_old"


def test_a_new_node_is_expected_and_compared_with_the_first_runs_groups(tested):
    tested.machines["node-013"] = Machine(13)
    assert outcome(tested.accept("first"), "node-013")[1] == "never_whole"
    tested.run("joined", 3, ["node-013", *NEIGHBOURS], part_of="first")
    assert outcome(tested.accept("first", "joined"), "node-013") == PASS


def test_every_run_of_a_node_stands_in_the_document(failed):
    failed.run("again", 3, AGAIN, part_of="first")
    failed.replace_gpu(BAD, 3)
    failed.run("last", 4, AGAIN, part_of="first")
    (node,) = [one for one in failed.accept("first", "last")["nodes"] if one["name"] == BAD]
    assert [(row["run_id"], row["effect"]) for row in node["runs"]] == [
        ("first", "settled"), ("again", "none"), ("last", "accepts"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"node": "node-001"}, "an entry has node, part, action, at, by"),
        ("node-001", "an entry has node"),
        ({"node": "a", "part": "b", "action": "c", "at": "yesterday", "by": "d"}, "at: yesterday of a is no time"),
        ({"node": "a", "part": "b", "action": "c", "at": "2026-11-04T09:00:00", "by": "d"}, "is no time such as"),
        ({"node": "a", "part": "b", "action": "c", "at": "0001-01-01T00:00:00+14:00", "by": "d"}, "is no time such as"),
    ],
)
def test_a_repair_that_is_mistyped_is_refused(entry, words):
    with pytest.raises(SettingError, match=words):
        repairs.parse_repairs([entry])


def test_a_damaged_report_is_no_report_less(failed):
    path = failed.results / "site/first/report.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(run_folder.RunError, match=r"damaged .*`make report RUN=first`"):
        failed.accept("first")


def test_a_damaged_report_of_another_run_stops_no_mark_and_is_named(failed):
    failed.run("again", 3, part_of="first")
    failed.run("old", "2026-06-02")
    for run_id in ("first", "old"):
        (failed.results / f"site/{run_id}/report.json").write_text("{")
    folder, warnings = run_folder.RunFolder(failed.results / "site/again"), []
    repairs.withhold_acceptance(run_folder.read_report(folder), folder, [], warnings.append)
    (warning,) = warnings  # no warning of a run that is too old to count
    assert "site/first/report.json is damaged" in warning
    assert "`make report RUN=first` writes it again; until then faults of this run keep no mark" in warning


def test_marks_drains_and_the_health_file_ask_the_same_rule(failed):
    failed.run("again", 3, part_of="first")
    before = health.merged({}, run_folder.read_report(run_folder.RunFolder(failed.results / "site/first")))
    folder = run_folder.RunFolder(failed.results / "site/again")
    drained, open_checks = drains.SlurmNode(frozenset({"DRAIN"}), "gpuval:first:slow"), frozenset({"diagnostics/slow"})

    def marked(setting):
        report = run_folder.read_report(folder)
        repairs.withhold_acceptance(report, folder, setting, pytest.fail)
        nodes = {node["name"]: node for node in report["nodes"]}
        assert [name for name, node in nodes.items() if "unrepaired" in node] in ([], [BAD])
        drain = drains.decide(drained, nodes[BAD], report["run"], open_checks)
        entry = health.merged(before, report)[BAD]
        return drain.state, drain.open, entry["verdict"], failed_checks.accepts(report["run"], nodes[BAD])

    assert marked([]) == ("KEEP", {failed_checks.REPAIR}, "FAIL", False)
    failed.declare(BAD, "seated again", "2026-11-02T15:00:00Z")
    assert marked(failed.repairs) == ("RESUME", frozenset(), "PASS", True)
    kept = failed_checks.decide(
        frozenset({failed_checks.REPAIR}), {"verdict": "PASS", "checks": []}, failed=True, full=False
    )
    assert kept == failed_checks.Decision(False, frozenset())
