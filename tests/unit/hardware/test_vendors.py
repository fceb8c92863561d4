import json
import re
import xml.etree.ElementTree as ET

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import amd_gpus, gaudi_gpus, nvidia_gpus
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.gpu import Gpu
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tools import ToolResult

MIB = 1024**2


def metrics(gpu):
    return {metric["name"]: metric["value"] for metric in gpu.metrics()}


def test_nvidia_h200(golden):
    gpus, lost = nvidia_gpus.parse(golden("nvidia_smi_v13_h200.xml"))
    assert lost == []
    assert [gpu.index for gpu in gpus] == [0, 1]
    first = gpus[0]
    assert (first.name, first.serial, first.pci_address) == ("NVIDIA H200", "1654922001234", "0000:18:00.0")
    assert (first.driver_version, first.runtime_version) == ("590.44.01", "13.1")
    assert first.firmware_version == "96.00.BC.00.01"
    assert first.memory_bytes == 143771 * MIB
    assert first.power_draw_watts == 77.02
    assert first.power_limit_watts == 700
    assert (first.core_clock_hertz, first.core_clock_max_hertz) == (345_000_000, 1_980_000_000)
    assert (first.ecc_uncorrected_count, first.ecc_uncorrected_aggregate_count) == (0, 3)
    assert (first.pcie_generation, first.pcie_width, first.pcie_width_max) == (5, 16, 16)
    assert first.partition_mode == "mig disabled"
    assert (first.persistence_mode, first.fabric_state) == ("enabled", "completed")
    assert first.recovery_action is None
    assert first.processes == [{"pid": 4711, "type": "C", "name": "python3", "memory_used_bytes": 520 * MIB}]
    assert not first.faulty
    assert not first.pcie_degraded


def test_nvidia_h200_as_four_of_them_really_answer(golden):
    gpus, lost = nvidia_gpus.parse(golden("nvidia_smi_v13_h200x4.xml"))
    assert lost == []
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert {gpu.name for gpu in gpus} == {"NVIDIA H200"}
    assert len({gpu.uuid for gpu in gpus}) == len({gpu.serial for gpu in gpus}) == 4
    for gpu in gpus:
        assert (gpu.driver_version, gpu.runtime_version) == ("580.159.04", "13.0")
        assert gpu.memory_bytes == 143771 * MIB
        assert gpu.power_limit_watts == 700
        assert (gpu.pcie_generation, gpu.pcie_width, gpu.pcie_width_max) == (5, 16, 16)
        assert (gpu.ecc_uncorrected_count, gpu.faulty, gpu.pcie_degraded) == (0, False, False)
        assert 20 < gpu.temperature_celsius < 90


def test_nvidia_faults_reach_the_metrics(golden):
    gpus, _lost = nvidia_gpus.parse(golden("nvidia_smi_v13_h200_faulty.xml"))
    good, bad = (metrics(gpu) for gpu in gpus)
    assert good["gpu_ecc_uncorrected_count"] == 0
    assert bad["gpu_ecc_uncorrected_count"] == 2
    assert bad["gpu_row_remap_pending_count"] == 1
    assert bad["gpu_row_remap_failed_count"] == 0
    assert (bad["gpu_pcie_width_count"], bad["gpu_pcie_width_max_count"]) == (8, 16)
    assert gpus[1].faulty
    assert gpus[1].pcie_degraded
    assert gpus[1].recovery_action == "Reset"
    assert {metric["scope"] for metric in gpus[1].metrics()} == {"gpu:1"}


@pytest.mark.parametrize(
    ("action", "faulty"),
    [
        (None, False),
        ("Unknown", False),
        ("Reset", True),
        ("Reboot", True),
        ("Drain P2P", True),
        ("Drain and Reset", True),
    ],
)
def test_a_gpu_whose_driver_asks_for_recovery_is_faulty(action, faulty):
    assert Gpu("nvidia", 0, ecc_uncorrected_count=0, recovery_action=action).faulty is faulty


@pytest.mark.parametrize(
    ("tag", "word"),
    [
        ("dram_uncorrectable", "3"),
        ("sram_uncorrectable_parity", "1"),
        ("sram_threshold_exceeded", "Yes"),
        ("channel_repair_pending", "Yes"),
        ("tpc_repair_pending", "Yes"),
        ("unrepairable_memory", "Yes"),
        ("pending_blacklist", "Yes"),
        ("pending_retirement", "Yes"),
        ("remapped_row_pending", "Yes"),
    ],
)
def test_each_word_for_broken_memory_makes_a_gpu_faulty(golden, tag, word):
    """Also where all other counters are N/A."""
    log = golden("nvidia_smi_v13_h200x4.xml")
    log = re.sub(r"<(sram|dram)_(un)?correctable(\w*)>0<", r"<\1_\2correctable\3>N/A<", log)
    changed, times = re.subn(f"<{tag}>[^<]*<", f"<{tag}>{word}<", log, count=1)
    assert times == 1
    assert [gpu.faulty for gpu in nvidia_gpus.parse(log)[0]] == [False] * 4
    assert [gpu.faulty for gpu in nvidia_gpus.parse(changed)[0]] == [True, False, False, False]


def test_ecc_counts_stand_where_others_are_not_available(golden):
    log = golden("nvidia_smi_v13_h200x4.xml").replace("<dram_uncorrectable>0<", "<dram_uncorrectable>3<", 1)
    log = re.sub(r"<sram_(\w+)>0<", r"<sram_\1>N/A<", log)
    gpu = nvidia_gpus.parse(log)[0][0]
    assert (gpu.ecc_uncorrected_count, gpu.ecc_corrected_count, gpu.ecc_uncorrected_aggregate_count) == (3, 0, 0)
    old = log.replace("sram_uncorrectable_secded>", "sram_uncorrectable>").replace(
        "sram_uncorrectable>N/A<", "sram_uncorrectable>2<", 1
    )
    assert nvidia_gpus.parse(old)[0][0].ecc_uncorrected_count == 5


@pytest.mark.parametrize(
    ("tag", "word", "bad"),
    [
        ("status", "Insufficient Resources", True),
        ("status", "Unknown Error", True),
        ("summary", "Unhealthy", True),
        ("summary", "Limited Capacity", True),
        ("bandwidth", "Degraded", True),
        ("route_recovery_in_progress", "True", True),
        ("route_unhealthy", "True", True),
        ("access_timeout_recovery", "True", True),
        ("incorrect_configuration", "Incompatible GPU Firmware", True),
        ("summary", "Healthy", False),
        ("bandwidth", "Full", False),
        ("route_unhealthy", "False", False),
        ("incorrect_configuration", "None", False),
        ("partition_assigned", "True", False),
    ],
)
def test_the_health_of_the_nvlink_fabric(golden, tag, word, bad):
    log, times = re.subn(
        f"(<fabric>.*?<{tag}>)[^<]*<", rf"\g<1>{word}<", golden("nvidia_smi_v13_h200x4.xml"), count=1, flags=re.DOTALL
    )
    gpus, _lost = nvidia_gpus.parse(log)
    assert times == 1
    assert [gpu.fabric_not_ready for gpu in gpus] == [bad, False, False, False]
    assert gpus[0].fabric_problem == (f"{tag} {word}" if bad else None)


def test_a_header_that_counts_more_gpus_than_it_lists(golden):
    log = golden("nvidia_smi_v13_h200x4.xml").replace("<attached_gpus>4<", "<attached_gpus>8<")
    found = nvidia_gpus.detect(lambda tool, *arguments, timeout: ToolResult(tool, log, returncode=0))
    assert (len(found.gpus), found.unlisted, found.problem) == (4, 4, "nvidia-smi counts 8 GPUs and lists 4")


@pytest.mark.parametrize("word", ["", "Not Found", "N/A", "NVIDIA-SMI has failed because it couldn't communicate"])
def test_a_version_that_is_none(golden, word):
    log = re.sub("<(driver|cuda)_version>[^<]*<", rf"<\1_version>{word}<", golden("nvidia_smi_v13_h200x4.xml"))
    gpu = nvidia_gpus.parse(log)[0][0]
    assert (gpu.driver_version, gpu.runtime_version) == (None, None)
    card = {"card0": {"PCI Bus": "0000:03:00.0"}, "system": {"Driver version": word}}
    assert [gpu.driver_version for gpu in amd_gpus.parse_rocm_smi(card)] == [None]


def test_partitions_that_rocm_smi_lists_as_cards_are_one_gpu(golden):
    cards = json.loads(golden("rocm_smi_6_mi100.json"))
    answer = dict.fromkeys(("card0", "card1", "card2"), cards["card0"]) | {"card9": cards["card1"]}
    gpus = amd_gpus.parse_rocm_smi(answer)
    assert [(gpu.index, gpu.partitioned) for gpu in gpus] == [(0, True), (9, False)]
    found = amd_gpus.detect(
        lambda tool, *arguments, timeout=0: (
            ToolResult(tool, json.dumps(answer), returncode=0) if tool == "rocm-smi" else ToolResult(tool, missing=True)
        )
    )
    assert found.problem == "1 of 2 GPUs are partitions or listed more than once"


def test_nvidia_mig_and_missing_counters(golden):
    gpus, _lost = nvidia_gpus.parse(golden("nvidia_smi_v12_a100_mig.xml"))
    (gpu,) = gpus
    assert gpu.partition_mode == "mig enabled"
    assert gpu.memory_bytes == 81920 * MIB, "the GPU's memory, not that of a MIG slice"
    assert gpu.ecc_uncorrected_count == 4
    assert gpu.row_remap_pending_count is None
    assert "gpu_row_remap_pending_count" not in metrics(gpu)


def test_nvidia_old_format(golden):
    (gpu,), _lost = nvidia_gpus.parse(golden("nvidia_smi_v6_k20.xml"))
    assert (gpu.ecc_corrected_count, gpu.ecc_uncorrected_count) == (0, 1)
    assert (gpu.ecc_corrected_aggregate_count, gpu.ecc_uncorrected_aggregate_count) == (7, 2)
    assert (gpu.power_draw_watts, gpu.power_limit_watts) == (15.87, 225)
    assert gpu.runtime_version is None


def test_nvidia_lost_gpu_is_not_usable(golden):
    gpus, lost = nvidia_gpus.parse(golden("nvidia_smi_v13_h200_lost.xml"))
    assert [gpu.pci_address for gpu in gpus] == ["0000:18:00.0"]
    assert lost == ["0000:9d:00.0"]


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU0000:9D:00.0: Unknown Error",
        "Unable to determine the device handle for GPU 0000:9D:00.0: GPU is lost.  Reboot the system",
        "Unable to determine the device handle for GPU1: 0000:9D:00.0: Unknown Error",
    ],
)
def test_nvidia_complaint_around_the_log(golden, line):
    output = f"{line}\n{golden('nvidia_smi_v13_h200_lost.xml')}{line}\n"
    detection = nvidia_gpus.detect(lambda tool, *arguments, timeout: ToolResult(tool, output, returncode=15))
    assert len(detection.gpus) == 1
    assert detection.lost == ["0000:9d:00.0"]
    assert "0000:9d:00.0" in detection.problem


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (
            ToolResult(
                "nvidia-smi",
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
                returncode=9,
            ),
            "couldn't communicate with the NVIDIA driver",
        ),
        (ToolResult("nvidia-smi", "No devices were found\n", returncode=6), "No devices were found"),
        (ToolResult("nvidia-smi", timeout_seconds=60), "did not answer within 60 s"),
        (ToolResult("nvidia-smi", "<nvidia_smi_log><gpu>", returncode=0), "did not write XML"),
        (ToolResult("nvidia-smi", "<nvidia_smi_log></nvidia_smi_log>", returncode=0), "lists no GPU"),
    ],
)
def test_nvidia_without_a_working_driver(result, said):
    detection = nvidia_gpus.detect(lambda tool, *arguments, timeout: result)
    assert detection.gpus == []
    assert detection.installed
    assert said in detection.problem


def test_nvidia_parse_refuses_what_is_no_xml():
    with pytest.raises(ET.ParseError):
        nvidia_gpus.parse("No devices were found")


def test_amd_smi_new_format(golden):
    answers = [json.loads(golden(f"amd_smi_26_{view}.json")) for view in ("static", "list", "metric", "version")]
    first, second = amd_gpus.parse_amd_smi(*answers)
    assert first.name == "AMD Instinct MI350X"
    assert first.uuid == "64ff75a0-0000-1000-80ac-21a676f77a5b"
    assert first.serial == "0x64AC21A676F77A5B"
    assert (first.driver_version, first.runtime_version) == ("6.16.6", "7.2.0")
    assert first.memory_bytes == 294896 * MIB
    assert first.temperature_celsius == 44
    assert (first.power_draw_watts, first.power_limit_watts) == (246, 1000)
    assert (first.pcie_generation, first.pcie_generation_max, first.pcie_width) == (5, 5, 16)
    assert first.core_clock_max_hertz == 2_400_000_000
    assert first.partition_mode == "spx"
    assert not first.faulty
    assert second.faulty
    assert second.pci_address == "0000:15:00.0"


def test_amd_smi_old_format(golden):
    (gpu,) = amd_gpus.parse_amd_smi(
        json.loads(golden("amd_smi_24_static.json")), None, json.loads(golden("amd_smi_24_metric.json"))
    )
    assert (gpu.serial, gpu.uuid) == ("692432001000", "0x123456789ABCDEF0")
    assert gpu.pci_address == "0000:0c:00.0"
    assert (gpu.power_draw_watts, gpu.power_limit_watts) == (131, 750)
    assert gpu.ecc_uncorrected_count is None
    assert "gpu_ecc_uncorrected_count" not in metrics(gpu)
    assert gpu.pcie_degraded
    assert gpu.module_id == 7


def test_rocm_smi(golden):
    first, second = amd_gpus.parse_rocm_smi(json.loads(golden("rocm_smi_6_mi100.json")))
    assert (first.uuid, first.pci_address, first.driver_version) == ("0x79ccd55167a2124a", "0000:83:00.0", "6.3.6")
    assert first.memory_bytes == 34342961152
    assert (first.temperature_celsius, first.power_limit_watts) == (55.0, 290.0)
    assert second.pci_address == "0000:a3:00.0"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('[{"gpu": 0}]', [{"gpu": 0}]),
        ('WARNING: User is missing the following required groups: render [1]\n{"gpu_data": []}\n', {"gpu_data": []}),
        ("ERROR:root:Unable to get devices, driver not initialized", None),
        ("", None),
    ],
)
def test_json_after_warnings(output, expected):
    assert amd_gpus.find_json(output) == expected


def runner(answers):
    """A `Run` that answers from a mapping by the tool and its first argument, or by the tool alone."""

    def run(tool, *arguments, timeout=None):
        result = answers.get((tool, arguments[0]), answers.get(tool))
        return ToolResult(tool, missing=True) if result is None else result

    return run


def test_amd_falls_back_to_rocm_smi(golden):
    answers = {
        "amd-smi": ToolResult("amd-smi", stderr="amdsmi_exception.AmdSmiLibraryException", returncode=1),
        "rocm-smi": ToolResult("rocm-smi", golden("rocm_smi_6_mi100.json"), returncode=0),
    }
    assert len(amd_gpus.detect(runner(answers)).gpus) == 2


@pytest.mark.parametrize(
    ("answers", "installed", "said"),
    [
        ({}, False, "neither amd-smi nor rocm-smi is installed"),
        ({"rocm-smi": ToolResult("rocm-smi", "ERROR: GPU not detected", returncode=0)}, True, "rocm-smi lists no GPU"),
        ({"amd-smi": ToolResult("amd-smi", stderr="driver not loaded", returncode=5)}, True, "driver not loaded"),
        ({"amd-smi": ToolResult("amd-smi", timeout_seconds=60)}, True, "did not answer"),
    ],
)
def test_amd_without_a_working_driver(answers, installed, said):
    detection = amd_gpus.detect(runner(answers))
    assert (detection.gpus, detection.installed) == ([], installed)
    assert said in detection.problem


def test_gaudi(golden):
    first, second = gaudi_gpus.parse(golden("hl_smi_gaudi2.csv"), gaudi_gpus.FULL_QUERY)
    assert (first.name, first.index, first.module_id) == ("HL-225", 0, 2)
    assert first.uuid == "01P0-HL2080A0-15-TNPS34-20-07-05"
    assert first.memory_bytes == 98304 * MIB
    assert (first.temperature_celsius, first.power_draw_watts) == (35, 80)
    assert (first.ecc_uncorrected_count, second.ecc_uncorrected_count) == (0, 21)
    assert second.faulty


def test_gaudi_release_that_refuses_the_full_query(golden):
    def run(tool, *arguments, timeout):
        if arguments[1] == ",".join(gaudi_gpus.FULL_QUERY):
            return ToolResult(tool, stderr="Field is not a valid field to query.", returncode=2)
        return ToolResult(tool, golden("hl_smi_gaudi2_short.csv"), returncode=0)

    detection = gaudi_gpus.detect(run)
    (gpu,) = detection.gpus
    assert detection.problem is None
    assert gpu.temperature_celsius is None
    assert gpu.pci_address == "0000:33:00.0"


def test_gaudi_without_a_working_driver():
    answers = {"hl-smi": ToolResult("hl-smi", "Can't open device, driver not loaded\n", returncode=1)}
    detection = gaudi_gpus.detect(runner(answers))
    assert detection.gpus == []
    assert "driver not loaded" in detection.problem
