"""The fleets of benchmarks/detection: what is planted is there, and the shipped criteria find the plain cases."""

import fleets
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict

from tests.kit.builders import SHIPPED, TIME, accepted


@pytest.fixture(scope="module", params=["drawn", "replayed"])
def fleet(request):
    if request.param == "drawn":
        return fleets.drawn(60, 0.005, 0.003, 7, each=1)
    return fleets.replayed(60, 0.003, 7, each=1)


@pytest.fixture(scope="module")
def report(fleet):
    return verdict.judge(fleet.run, fleet.evidence, SHIPPED, judged_at=TIME)


def verdicts(report):
    return {node["name"]: node["verdict"] for node in report["nodes"]}


def test_every_defect_is_planted_on_a_node_of_its_own(fleet):
    planted = {(defect.kind, defect.effect) for defect in fleet.defects.values()}
    wanted = set(fleets.kinds())
    assert {one for one in wanted - planted if one[0] != "bad rack of 8"} == set()
    assert planted <= wanted
    racks = sorted(int(name[-4:]) for name, defect in fleet.defects.items() if defect.kind == "bad rack of 8")
    assert racks == list(range(racks[0], racks[0] + 8))
    assert len(fleet.defects) < len(fleet.skus) / 1.5


def test_records_are_such_as_are_accepted(fleet):
    fleet.run["folder"] = "folder"
    schemas.validate("run", fleet.run, what="run")
    for name in list(fleet.evidence.records)[:3]:
        for record in fleet.evidence.records[name].values():
            assert accepted(record)["node"] == name


def test_healthy_nodes_pass(fleet, report):
    assert {name for name, said in verdicts(report).items() if said != "PASS"} <= fleet.defects.keys()


def test_missing_evidence_and_wrong_results_are_caught(fleet, report):
    said = verdicts(report)
    for name, defect in fleet.defects.items():
        if defect.effect is None:
            assert said[name] != "PASS", defect


def test_a_tenth_of_the_speed_is_never_missed_and_the_part_is_named(fleet, report):
    found = {
        node["name"]: {entry["part"] for entry in node["checks"] if entry["verdict"] == "fail"}
        for node in report["nodes"]
    }
    for name, defect in fleet.defects.items():
        if defect.effect == 0.1:
            assert found[name], defect
            assert defect.part is None or defect.part in found[name]


def test_without_defects_the_other_rules_accept_too(fleet):
    bad = {name for name, defect in fleet.defects.items() if defect.effect}
    limits = {key: 0.95 * value for key, value in fleet.nominal.items()}
    assert fleets.under(fleet, limits) <= bad
    assert fleets.under(fleet, {key: 0.95 * value for key, value in fleets.means(fleet).items()}) <= bad
    assert fleets.under(fleet, fleet.nominal) - bad  # half of the healthy ones are under the median


def test_the_same_seed_draws_the_same_fleet():
    one, other = (fleets.drawn(30, 0.015, 0.01, 3, each=1) for _ in range(2))
    assert one.evidence.records == other.evidence.records
    assert fleets.drawn(30, 0.015, 0.01, 4, each=1).defects != one.defects
