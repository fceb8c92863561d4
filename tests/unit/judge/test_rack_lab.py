"""Racks of the laboratory: healthy trays pass whatever IMEX and VBIOS their rack has, and faults of trays are named."""

import re

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file

from tests.kit.rack_lab.laboratory import FAULTS, GPUS, RACKS, TRAYS, Laboratory, name_of, racks_of, stages_of
from tests.kit.rack_lab.naming import named_by, statements

#: Faults that one tray shows by itself.
FAULTS_OF_TRAYS = (4, 9, 10, 11, 12, 13, 14, 15, 17, 19)


def test_the_faults_are_twenty_and_their_parts_exist():
    assert sorted(FAULTS) == list(range(1, 21))
    nodes = {name_of(rack, tray) for rack in RACKS for tray in range(1, TRAYS + 1)}
    parts = {*nodes, *(f"rack {rack}" for rack in RACKS), *(f"GPU {gpu}" for gpu in range(GPUS))}
    for fault in FAULTS.values():
        names = set(fault["expected"]["names"])
        assert all(name in parts or re.fullmatch(r"link \d+", name) for name in names), fault["fault"]


@pytest.mark.parametrize("number", FAULTS_OF_TRAYS)
def test_each_fault_of_a_tray_is_named_with_its_part(tmp_path, number):
    fault = FAULTS[number]
    laboratory = Laboratory(tmp_path, seed=number, racks=racks_of(fault), stages=stages_of(fault))
    laboratory.apply(fault)
    report = laboratory.report()
    schemas.validate("report", report_file.packed(report), what="the report")
    naming, missing = named_by(report, fault)
    assert (missing, bool(naming)) == ([], True)


def test_trays_of_healthy_racks_pass(tmp_path):
    report = Laboratory(tmp_path, stages=("facts",)).report()
    assert (report["counts"]["expected"], report["counts"]["PASS"]) == (len(RACKS) * TRAYS,) * 2
    checks = {statement.check for statement in statements(report)}
    assert checks <= {"facts_gpu_firmware_agrees"}, "racks with their own VBIOS"


def test_trays_of_a_healthy_rack_pass_in_all_stages(tmp_path):
    report = Laboratory(tmp_path, racks=[1]).report()
    assert report["counts"]["PASS"] == TRAYS
    assert list(statements(report)) == []


def test_six_trays_of_a_rack_pass(tmp_path):
    report = Laboratory(tmp_path, racks=[1], stages=("facts",)).report(trays=range(1, 7))
    assert (report["counts"]["expected"], report["counts"]["PASS"]) == (6, 6)
