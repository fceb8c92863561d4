"""Which racks an acceptance accepts; the reports are the real judge's."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.acceptance.accepted_racks import decide_racks
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.repairs import ReportedRun
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.labels import CLIQUE_LABEL

from tests.kit.rack_fleet import RackFleet, uuid_of

NAMES = [f"r00-t{number:02}" for number in range(18)]


def run_on(day, spoil=lambda fleet: None, nodes=NAMES):
    """The reported run of these trays of one rack, on a day of November."""
    narrowed = [] if nodes is NAMES else ["limit"]
    fleet = RackFleet(1, run_id=f"run-{day}", finished_at=f"2026-11-{day:02}T10:00:00Z", narrowed_by=narrowed)
    for name in set(NAMES) - set(nodes):
        fleet.drop(name)
    for record in (record for records in fleet.evidence.records.values() for record in records.values()):
        record["run_id"] = f"run-{day}"
    spoil(fleet)
    return ReportedRun(fleet.judged(), "site", "")


def accepted(**changes):
    """The trays in acceptance.json, all accepted; ``changes``: by the number of a tray."""
    trays = [{"name": name, "rack": "r00", "verdict": "PASS", "repaired": False, "tested_at": "2026-11-01T10:00:00Z"}
             for name in NAMES]  # fmt: skip
    for number, change in changes.items():
        trays[int(number[1:])] |= change
    return trays


def decided(runs, trays=None):
    (rack,) = decide_racks(runs, trays or accepted())
    return rack["verdict"], rack["reason"], rack["run_id"]


def other_vbios(fleet):
    fleet.set("r00-t03", firmware_version="1.2")


def test_a_rack_is_accepted_by_the_last_run_that_had_it_whole():
    assert decided([run_on(1), run_on(2, nodes=NAMES[:3])]) == ("PASS", "", "run-1")
    assert decided([run_on(2, other_vbios), run_on(1)])[::2] == ("FAIL", "run-2")
    assert decided([run_on(1, other_vbios), run_on(2)]) == ("PASS", "", "run-2")


def test_parts_of_a_rack_never_make_it_accepted():
    verdict, reason, run_id = decided([run_on(1, nodes=NAMES[:9]), run_on(2, nodes=NAMES[9:])])
    assert (verdict, reason, run_id) == ("INCOMPLETE", "no run had all of its trays", None)
    assert decide_racks([run_on(1, nodes=NAMES[:9])], accepted())[0]["next"].startswith(
        '`make validate ARGS="--limit r00-t00,'
    )


def test_a_tray_that_only_a_label_attributes_was_not_there():
    lost = run_on(1, lambda fleet: fleet.lose("r00-t05"))
    assert decided([lost])[0] == "INCOMPLETE"


def test_a_tray_that_only_the_label_of_kubernetes_attributes_was_not_there():
    def lose(fleet):
        fleet.lose("r00-t05")
        fleet.run["nodes"]["r00-t05"]["labels"] = {CLIQUE_LABEL: f"{uuid_of(0)}.1"}

    later = run_on(2, nodes=["r00-t05"])
    assert decided([run_on(1, lose), later])[:2] == ("INCOMPLETE", "no run had all of its trays")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("firmware_version", "1.2", "VBIOS 1.2"), ("driver_version", "570.1", "driver 570.1"),
     ("fabric_clique", 9, "clique 9"), ("fabric_cluster_uuid", uuid_of(9), f"ClusterUUID {uuid_of(9)}")],
)  # fmt: skip
def test_a_tray_that_changed_alone_needs_a_run_of_the_whole_rack(field, value, words):
    later = run_on(2, lambda fleet: fleet.set("r00-t05", **{field: value}), nodes=["r00-t05"])
    reason = f"run run-2 reports {words}, unlike run run-1 of the whole rack"
    assert decided([run_on(1), later])[:2] == ("INCOMPLETE", reason)


def test_trays_that_came_or_went_need_a_run_of_the_whole_rack():
    reason = "other trays than in run run-1, the last one of the whole rack: r00-t05"
    assert decided([run_on(1)], [*accepted()[:5], *accepted()[6:]])[:2] == ("INCOMPLETE", f"{reason}")
    came = {**accepted()[0], "name": "r00-t18"}
    assert decided([run_on(1)], [*accepted()[:5], *accepted()[6:], came])[1] == f"{reason}, r00-t18"


def test_what_a_later_run_of_some_trays_finds_counts():
    later = run_on(2, other_vbios, nodes=NAMES[:4])
    verdict, reason, run_id = decided([run_on(1), later])
    assert (verdict, run_id) == ("FAIL", "run-1")
    assert "r00-t03" in reason
    assert "(run run-2)" in reason


def test_a_repaired_tray_needs_a_run_of_the_whole_rack():
    trays = accepted(t4={"repaired": True, "tested_at": "2026-11-05T10:00:00Z"})
    verdict, reason, _ = decided([run_on(1), run_on(5, nodes=NAMES[3:7])], trays)
    assert (verdict, reason) == ("INCOMPLETE", "r00-t04 repaired after run run-1, the last one of the whole rack")
    assert decided([run_on(1), run_on(6)], trays)[0] == "PASS"


@pytest.mark.parametrize("verdict", ["FAIL", "INCOMPLETE"])
def test_a_rack_is_at_most_as_good_as_its_trays(verdict):
    assert decided([run_on(1)], accepted(t7={"verdict": verdict}))[:2] == (verdict, f"{verdict} of r00-t07")


def test_nodes_without_rack_have_none():
    nodes = [{key: value for key, value in tray.items() if key != "rack"} for tray in accepted()]
    assert decide_racks([run_on(1)], nodes) == []
