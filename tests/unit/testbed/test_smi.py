"""The vendors' tools of the test bed, read by the parsers that read the real ones."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import amd_gpus, gaudi_gpus, nvidia_gpus
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tools import ToolResult

SMI = Path(__file__).resolve().parents[3] / "roles/testbed/files/node/smi"
VENDORS = {"nvidia": ("nvidia-smi", nvidia_gpus), "amd": ("amd-smi", amd_gpus), "gaudi": ("hl-smi", gaudi_gpus)}


@pytest.fixture
def machine(tmp_path):
    """`machine(gpus)` returns what finds and runs the tools there, as the hardware facts do."""
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    for tool, _ in VENDORS.values():
        shutil.copy(SMI, tmp_path / tool)

    def declare(gpus):
        (tmp_path / "gpus.json").write_text(json.dumps(gpus))
        environment = {
            "TESTBED_GPUS": str(tmp_path / "gpus.json"),
            "TESTBED_MACHINE_ID": str(tmp_path / "machine-id"),
        }

        def run(tool, *arguments, timeout=10):
            if tool != VENDORS[gpus["vendor"]][0]:
                return ToolResult(tool, missing=True)
            command = [sys.executable, str(tmp_path / tool), *arguments]
            try:
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=min(timeout, 2), check=False
                )
            except subprocess.TimeoutExpired:
                return ToolResult(tool, timeout_seconds=timeout)
            return ToolResult(tool, done.stdout, done.stderr, done.returncode)

        return run

    return declare


def detect(machine, vendor, **gpus):
    return VENDORS[vendor][1].detect(machine({"vendor": vendor, **gpus}))


@pytest.mark.parametrize("vendor", VENDORS)
def test_healthy_gpus_are_all_seen_with_an_identity_of_their_own(machine, vendor):
    found = detect(machine, vendor, count=8)
    assert found.problem is None
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    for attribute in ("uuid", "pci_address"):
        assert len({getattr(gpu, attribute) for gpu in found.gpus}) == 8, attribute
    for gpu in found.gpus:
        assert gpu.serial
        assert gpu.driver_version
        assert gpu.memory_bytes > 80 * 2**30
        assert gpu.ecc_uncorrected_count == 0
        assert 20 < gpu.temperature_celsius < 60


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_missing_gpu_is_not_listed(machine, vendor):
    found = detect(machine, vendor, count=8, state="missing", on=[3])
    assert [gpu.pci_address for gpu in found.gpus] == [
        f"0000:{0x18 + index:02x}:00.0" for index in (0, 1, 2, 4, 5, 6, 7)
    ]


@pytest.mark.parametrize("vendor", VENDORS)
def test_errors_and_heat_show_on_the_gpu_that_has_them(machine, vendor):
    broken = detect(machine, vendor, count=4, state="ecc", on=[1])
    assert [gpu.ecc_uncorrected_count for gpu in broken.gpus] == [0, 21, 0, 0]
    hot = detect(machine, vendor, count=4, state="hot")
    assert [gpu.temperature_celsius > 90 for gpu in hot.gpus] == [False, False, False, True]


@pytest.mark.parametrize("vendor", VENDORS)
def test_model_and_driver_are_as_declared(machine, vendor):
    found = detect(machine, vendor, count=1, model="Odd Part", driver="1.2.3")
    assert [(gpu.name, gpu.driver_version) for gpu in found.gpus] == [("Odd Part", "1.2.3")]


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("state", ["no-driver", "fails"])
def test_a_tool_that_fails_lists_nothing_and_says_why(machine, vendor, state):
    found = detect(machine, vendor, count=8, state=state)
    assert found.gpus == []
    assert found.problem


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_tool_that_hangs(machine, vendor):
    found = detect(machine, vendor, count=8, state="hangs")
    assert (found.gpus, found.hung) == ([], True)


def test_a_gpu_that_fell_off_the_bus(machine):
    found = detect(machine, "nvidia", count=8, state="lost", on=[5])
    assert len(found.gpus) == 7
    assert found.lost == ["0000:1d:00.0"]


def test_a_foreign_process_is_shown_in_the_log_and_in_the_query(machine):
    run = machine({"vendor": "nvidia", "count": 2, "state": "foreign"})
    found = nvidia_gpus.detect(run)
    assert [gpu.processes for gpu in found.gpus] == [
        [],
        [{"pid": 4711, "type": "C", "name": "python3", "memory_used_bytes": 60000 << 20}],
    ]
    asked = run("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader")
    assert asked.stdout == f"{found.gpus[1].uuid}, 4711, python3\n"
