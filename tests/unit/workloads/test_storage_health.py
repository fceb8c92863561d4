"""Health of disks in the formats of nvme-cli 1 and 2 and smartmontools 7: NVMe, SATA, SAS."""

import json

import pytest
from gpuval_node.hardware.disks import disk_sectors
from gpuval_node.hardware.tree import Tree
from gpuval_workloads.common.result import WorkloadResult
from gpuval_workloads.storage import health, program

NVME = {
    "critical_warning": 0, "temperature": 301, "avail_spare": 100, "spare_thresh": 5, "percent_used": 15,
    "endurance_grp_critical_warning_summary": 0, "data_units_read": 499296134, "data_units_written": 1474968593,
    "host_read_commands": 9347931143, "host_write_commands": 51493840602, "controller_busy_time": 1974546,
    "power_cycles": 290, "power_on_hours": 38313, "unsafe_shutdowns": 139, "media_errors": 0, "num_err_log_entries": 17,
    "warning_temp_time": 0, "critical_comp_time": 0, "temperature_sensor_1": 306, "thm_temp1_trans_count": 0,
}  # fmt: skip
DETAILS = {"value": 12, "available_spare": 0, "temp_threshold": 0, "reliability_degraded": 1, "ro": 1}
SMARTCTL = {
    "json_format_version": [1, 0],
    "smartctl": {"version": [7, 3], "argv": ["smartctl", "-j", "-a", "/dev/x"], "exit_status": 0},
}
OF_NVME = {
    **SMARTCTL,
    "smart_status": {"passed": True, "nvme": {"value": 0}},
    "nvme_smart_health_information_log": {
        "critical_warning": 0, "temperature": 36, "available_spare": 100, "available_spare_threshold": 10,
        "percentage_used": 3, "power_cycles": 266, "unsafe_shutdowns": 43, "media_errors": 0, "num_err_log_entries": 0,
    },
    "temperature": {"current": 36},
}  # fmt: skip


def attribute(number, name, raw, when_failed=""):
    return {"id": number, "name": name, "value": 100, "thresh": 10, "when_failed": when_failed, "raw": {"value": raw}}


OF_SATA = {
    **SMARTCTL,
    "smart_status": {"passed": True},
    "ata_smart_attributes": {
        "revision": 1,
        "table": [
            attribute(5, "Reallocated_Sector_Ct", 4),
            attribute(187, "Reported_Uncorrect", 1),
            attribute(197, "Current_Pending_Sector", 8),
        ],
    },
    "temperature": {"current": 31},
}
OF_SAS = {
    **SMARTCTL,
    "smart_status": {"passed": True},
    "temperature": {"current": 34, "drive_trip": 68},
    "scsi_grown_defect_list": 56,
    "scsi_percentage_used_endurance_indicator": 7,
    "scsi_error_counter_log": {
        "read": {
            "total_errors_corrected": 300357663,
            "gigabytes_processed": "176987.332",
            "total_uncorrected_errors": 2,
        },
        "write": {"total_errors_corrected": 0, "gigabytes_processed": "86472.611", "total_uncorrected_errors": 1},
    },
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, health.Health("", 0, 139, 0.15, 1.0, 28.0)),
        (
            {"critical_warning": 1, "media_errors": "3"},
            health.Health("spare below its threshold", 3, 139, 0.15, 1.0, 28),
        ),
        (
            {"critical_warning": DETAILS},
            health.Health("reliability degraded by media or internal errors, read-only", 0, 139, 0.15, 1.0, 28),
        ),
        ({"critical_warning": 128}, health.Health("critical warning 0x80", 0, 139, 0.15, 1.0, 28)),
        ({"critical_warning": None}, None),
        ({"critical_warning": {"ro": 0}}, None),
        ({"media_errors": None}, None),
    ],
)
def test_nvme(changes, expected):
    assert health.parse_nvme(f"a note\n{json.dumps({**NVME, **changes}, indent=1)}") == expected


@pytest.mark.parametrize("text", ["", "{}", "Permission denied", '{"percent_used": 3}', '{"error": "x"}', "[1]"])
def test_what_is_no_log_is_no_health(text):
    assert health.parse_nvme(text) is None
    assert health.parse_smartctl(text)[0] is None


def test_smartctl_of_each_kind_of_disk():
    assert health.parse_smartctl(json.dumps(OF_NVME)) == (health.Health("", 0, 43, 0.03, 1.0, 36), "")
    assert health.parse_smartctl(json.dumps(OF_SATA)) == (health.Health("", 9, None, None, None, 31), "")
    assert health.parse_smartctl(json.dumps(OF_SAS)) == (health.Health("", 3, None, 0.07, None, 34), "")


@pytest.mark.parametrize("document", [OF_NVME, OF_SATA, OF_SAS])
def test_a_disk_that_calls_itself_failing(document):
    found, _ = health.parse_smartctl(json.dumps({**document, "smart_status": {"passed": False}}))
    assert found.warning == "SMART status: failed"


def test_an_attribute_below_its_threshold_now_and_one_of_the_past():
    table = [attribute(5, "Reallocated_Sector_Ct", 900, "now"), attribute(190, "Airflow_Temperature_Cel", 40, "past")]
    found, _ = health.parse_smartctl(json.dumps({**OF_SATA, "ata_smart_attributes": {"table": table}}))
    assert found.warning == "Reallocated_Sector_Ct below its threshold"


@pytest.mark.parametrize("missing", ["critical_warning", "media_errors"])
def test_a_log_of_smartctl_that_lacks_a_field_is_neither_healthy_nor_failing(missing):
    log = {name: value for name, value in OF_NVME["nvme_smart_health_information_log"].items() if name != missing}
    document = {**OF_NVME, "nvme_smart_health_information_log": log}
    found, why = health.parse_smartctl(json.dumps(document))
    assert found is None and "without critical_warning or media_errors" in why
    found, _ = health.parse_smartctl(json.dumps({**document, "smart_status": {"passed": False}}))
    assert found.warning == "SMART status: failed"  # it says so itself


@pytest.mark.parametrize("document", [OF_NVME, OF_SATA, OF_SAS])
def test_a_document_that_is_cut_short_or_has_no_status_is_no_health(document):
    text = json.dumps(document)
    assert health.parse_smartctl(text[:-1])[0] is None
    found, why = health.parse_smartctl(json.dumps({**SMARTCTL, "temperature": document["temperature"]}))
    assert found is None and "no SMART status" in why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Smartctl open device: /dev/sda failed: Permission denied", "Permission denied"),
        ("/dev/vda: Unable to detect device type", "Unable to detect device type"),
    ],
)
def test_without_rights_or_smart_the_reason_is_told(text, why):
    document = {"smartctl": {"version": [7, 3], "messages": [{"string": text, "severity": "error"}], "exit_status": 2}}
    found, problem = health.parse_smartctl(json.dumps(document))
    assert found is None
    assert why in problem


def test_disks_are_those_of_the_kernel_but_virtual_ones(tmp_path):
    for name, sectors in {"nvme0n1": 8, "nvme0c0n1": 8, "sda": 8, "sdb": 0, "loop0": 8, "dm-0": 8, "md127": 8}.items():
        (tmp_path / "sys/block" / name).mkdir(parents=True)
        (tmp_path / "sys/block" / name / "size").write_text(f"{sectors}\n")
    assert list(disk_sectors(Tree(tmp_path))) == ["nvme0n1", "sda"]
    assert disk_sectors(Tree(tmp_path / "none")) == {}


def test_disks_beyond_the_most_are_not_tested_and_said_so(monkeypatch):
    monkeypatch.setattr(health, "MAX_DISKS", 1)
    monkeypatch.setattr(health, "disk_sectors", lambda _tree: {"sda": 8, "sdb": 8})
    monkeypatch.setattr(health, "read", lambda _name: (health.Health(), ""))
    result, read = WorkloadResult(), health.read_all()
    program._report_health(result, read, read)
    assert (result.metric("storage_disks_count"), result.metric("storage_disks_untested_count")) == (1, 1)
    assert "health not tested: sdb: not asked: the node has more than 1 disks" in result.message


def test_smartctl_is_asked_where_nvme_gives_no_answer(tmp_path, monkeypatch):
    (tmp_path / "nvme").write_text("#!/bin/sh\necho 'Failed to open /dev/nvme9n1: Permission denied'; exit 1\n")
    (tmp_path / "smartctl").write_text(f"#!/bin/sh\necho '{json.dumps(OF_NVME)}'\n")
    for name in ("nvme", "smartctl"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert health.read("nvme9n1")[0].unsafe_shutdowns == 43
    (tmp_path / "smartctl").write_text("#!/bin/sh\necho old version\n")
    found, why = health.read("nvme9n1")
    assert found is None
    assert "Permission denied" in why
    assert "version 7 or newer" in why


def test_why_tools_gave_no_health_is_told_in_plain_words(tmp_path, monkeypatch):
    (tmp_path / "nvme").write_text("#!/bin/sh\nprintf '\\033[31mNVMe status: %0400d\\033[0m' 7 >&2; exit 1\n")
    (tmp_path / "smartctl").write_text("#!/bin/sh\nexec sleep 60\n")  # the disk hangs
    for name in ("nvme", "smartctl"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(health, "TOOL_SECONDS", 1.0)
    found, why = health.read("nvme9n1")
    assert found is None
    assert why.isprintable()
    assert why.startswith("nvme ended with status 1: NVMe status: 000")
    assert why.endswith("0…; smartctl did not answer within 1 s")
    assert len(why) < 220


def test_what_rises_during_the_stage_is_new():
    result = WorkloadResult()
    before, now = health.Health("", 2, 10), health.Health("read-only", 5, 11)
    program._report_health(result, {"nvme0n1": (before, ""), "nvme1n1": (before, "")}, {"nvme0n1": (now, "")})
    assert result.metric("storage_disk_media_error_count", "link:nvme0n1") == 5
    assert result.metric("storage_disk_media_error_new_count", "link:nvme0n1") == 3
    assert result.metric("storage_disk_power_loss_new_count", "link:nvme0n1") == 1
    assert result.metric("storage_disk_warning_count", "link:nvme0n1") == 1
    assert (result.metric("storage_disks_count"), result.metric("storage_disks_untested_count")) == (1, 1)
    assert result.metric("storage_disks_with_used_count") == 0
    assert "nvme0n1: read-only" in result.message
    assert result.metric("storage_disks_lost_count") == 1
    assert "health no longer readable: nvme1n1: the kernel no longer has it" in result.message


def test_a_disk_that_is_there_and_gives_no_health_any_more_lacks_evidence():
    """As after a log that is cut short: no FAIL, and no PASS."""
    result, fine, failing = WorkloadResult(), (health.Health("", 0, 1), ""), (health.Health("read-only", 0, 1), "")
    unread = (None, "smartctl printed no JSON")
    program._report_health(
        result, {"sda": fine, "sdb": failing, "sdc": fine}, {"sda": unread, "sdb": unread, "sdc": (health.Health(), "")}
    )
    found = {(metric["name"], metric["scope"]) for metric in result.metrics}
    assert ("storage_disks_lost_count", "node") not in found
    assert ("storage_disk_warning_count", "link:sda") not in found
    assert result.metric("storage_disk_warning_count", "link:sdb") == 1  # it called itself failing before
    # a counter that was there before and is not now is no counter that did not rise
    assert ("storage_disk_media_error_new_count", "link:sdc") not in found
    assert result.metric("storage_disks_with_media_count") == 1
    assert result.metric("storage_disks_untested_count") == 2
    assert "health no longer readable: sda: smartctl printed no JSON" in result.message
