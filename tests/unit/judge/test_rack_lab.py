"""Racks of the laboratory: healthy ones pass whatever IMEX, partitions and site they have, and 20 faults are named."""

import re

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file

from tests.kit.rack_lab.laboratory import FAULTS, GPUS, RACKS, TRAYS, Laboratory, name_of, racks_of, stages_of
from tests.kit.rack_lab.naming import named_by, statements


def rack_statements(report):
    return [statement for statement in statements(report) if statement.part == "rack"]


def test_the_faults_are_twenty_and_their_parts_exist():
    assert sorted(FAULTS) == list(range(1, 21))
    nodes = {name_of(rack, tray) for rack in RACKS for tray in range(1, TRAYS + 1)}
    parts = {*nodes, *(f"rack {rack}" for rack in RACKS), *(f"GPU {gpu}" for gpu in range(GPUS))}
    for fault in FAULTS.values():
        names = set(fault["expected"]["names"])
        assert all(name in parts or re.fullmatch(r"link \d+", name) for name in names), fault["fault"]


@pytest.mark.parametrize("number", FAULTS)
def test_each_fault_is_named_with_its_part(tmp_path, number):
    fault = FAULTS[number]
    laboratory = Laboratory(tmp_path, seed=number, racks=racks_of(fault), stages=stages_of(fault))
    laboratory.apply(fault)
    report = laboratory.report()
    assert list(report_file.lines(report, what="the report"))
    naming, missing = named_by(report, fault)
    assert (missing, bool(naming)) == ([], True)


def test_healthy_racks_pass(tmp_path):
    report = Laboratory(tmp_path, stages=("facts",)).report()
    assert [rack["verdict"] for rack in report["racks"]] == ["PASS"] * len(RACKS)
    assert {node["verdict"] for node in report["nodes"]} == {"PASS"}
    assert rack_statements(report) == []
    assert {statement.check for statement in statements(report)} <= {"facts_gpu_firmware_agrees"}, (
        "racks with their own VBIOS"
    )


def test_a_healthy_rack_passes_in_all_stages(tmp_path):
    report = Laboratory(tmp_path, racks=[1]).report()
    assert (report["racks"][0]["verdict"], report["racks"][0]["gpus"]) == ("PASS", TRAYS * GPUS)
    assert list(statements(report)) == []


def test_declared_partitions_have_a_clique_each(tmp_path):
    laboratory = Laboratory(tmp_path, racks=[1], stages=("facts",))
    for (_rack, number), tray in laboratory.trays.items():
        tray.partition = "a" if number <= 9 else "b"
        for gpu in tray.gpus:
            gpu.xml["fabric/cliqueId"] = "1" if number <= 9 else "2"
    report = laboratory.report()
    assert (report["racks"][0]["verdict"], report["racks"][0]["cliques"]) == ("PASS", ["1", "2"])
    assert list(statements(report)) == []


def test_six_trays_of_a_rack_pass_and_their_rack_is_incomplete(tmp_path):
    report = Laboratory(tmp_path, racks=[1], stages=("facts",)).report(trays=range(1, 7))
    assert {node["verdict"] for node in report["nodes"]} == {"PASS"}
    assert (report["racks"][0]["verdict"], report["racks"][0]["class"]) == ("INCOMPLETE", "rack_trays")
    assert [statement.check for statement in rack_statements(report)] == ["rack_trays"]
