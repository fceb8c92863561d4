"""Readings of GPUs by tools and sysfs, and of the host: parsers against the tools' real formats.

`nvidia-smi --query-gpu ... --format=csv`: header with units in brackets, values with units, `[N/A]`, as
docs.nvidia.com/deploy/nvidia-smi and `nvidia-smi --help-query-gpu` (driver 580) describe; `amd-smi`, `rocm-smi` and
`hl-smi`: the golden files of the facts (tests/unit/hardware/data/README.md); `xgmi_err`: ROCm/amdsmi
amdsmi_cli/amdsmi_commands.py; amdgpu's files: kernel documentation gpu/amdgpu; /proc: proc_stat(5), proc_meminfo(5).
"""

import json
import os
import threading
import time
from pathlib import Path

import pytest
from gpuval_node.hardware import amd_gpus, nvidia_gpus
from gpuval_node.hardware import amd_gpus as amd_smi
from gpuval_node.hardware import gaudi_gpus as hl_smi
from gpuval_node.hardware import nvidia_gpus as nvidia_smi
from gpuval_node.hardware.source import SourceError
from gpuval_runner.telemetry import child

GOLDEN = Path(__file__).resolve().parents[1] / "hardware" / "data"
HEADER = (
    "index, uuid, pci.bus_id, temperature.gpu, power.draw [W], enforced.power.limit [W], clocks.current.sm [MHz], "
    "clocks.current.memory [MHz], utilization.gpu [%], memory.used [MiB], pcie.link.width.current, "
    "pcie.link.gen.current, temperature.memory, ecc.errors.corrected.volatile.total, "
    "ecc.errors.uncorrected.volatile.total, clocks_event_reasons.active"
)
ROW = (
    "{0}, GPU-0{0}, 00000000:1{0}:00.0, 41, 690.53 W, 700.00 W, 1980 MHz, 3201 MHz, 99 %, 95367 MiB, 16, 5, 52, 0, 3, "
    "0x0000000000000004"
)


def test_a_row_of_nvidia_smi():
    [row] = nvidia_smi.parse_rows(f"{HEADER}\n{ROW.format(2)}\ncut off, 1\n")
    gpu = nvidia_smi.parse_row(row)
    assert gpu.index == 2
    sample, counters = gpu.sample(), gpu.counters()
    assert sample["power_watts"] == 690.53 and sample["sm_clock_hertz"] == 1_980_000_000
    assert sample["utilisation_ratio"] == 0.99 and sample["memory_used_bytes"] == 95367 * 1024**2
    assert (sample["throttle_power"], sample["throttle_thermal"], sample["memory_temperature_celsius"]) == (1, 0, 52)
    assert counters["pci_address"] == "0000:12:00.0"
    assert (counters["ecc_corrected"], counters["ecc_uncorrected"]) == (0, 3)


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "N/A", ""])
def test_what_nvidia_smi_does_not_tell_is_left_out(word):
    row = dict.fromkeys(nvidia_smi.QUERIES[0], word) | {"index": "1"}
    gpu = nvidia_smi.parse_row(row)
    assert (gpu.index, gpu.sample(), gpu.counters()) == (1, {}, {})


def smi(folder, body):
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_nvidia_smi_is_asked_for_all_gpus_at_once(tools):
    rows = "; ".join(f"echo '{ROW.format(index)}'" for index in range(8))
    smi(
        tools,
        f'echo "$@" >> {tools}/asked; echo "{HEADER}"; {rows}; echo "Unable to determine the device handle"; exit 15',
    )
    source = nvidia_gpus.NvidiaSmi()
    assert set(source.sample()) == set(range(8))
    assert source.counters(1)[7]["uuid"] == "GPU-07"
    assert len((tools / "asked").read_text().splitlines()) == 4  # the last call is for the counters of throttling


def test_nvidia_smi_of_another_driver_is_asked_for_what_it_knows(tools):
    older = HEADER.replace("clocks_event_reasons", "clocks_throttle_reasons")
    refusal = 'Field "clocks_event_reasons.active" is not a valid field to query.'
    smi(
        tools,
        f"case \"$1\" in *event_reasons*) echo '{refusal}'; exit 2;; esac\necho '{older}'; echo '{ROW.format(0)}'",
    )
    source = nvidia_gpus.NvidiaSmi()
    assert source.sample()[0]["throttle_power"] == 1
    assert source.absent["row_remaps"] == nvidia_gpus.NOT_REPORTED


COUNTED = """\
index, uuid, clocks_event_reasons_counters.sw_thermal_slowdown [us], \
clocks_event_reasons_counters.hw_thermal_slowdown [us], clocks_event_reasons_counters.sw_power_cap [us], \
clocks_event_reasons_counters.hw_power_brake_slowdown [us]
0, GPU-00, 5 us, 7 us, 25483012608 us, 1 us
1, GPU-01, [N/A], 7 us, 3 us, 2 us
"""


def test_counters_of_throttling(tools):
    (tools / "counted").write_text(COUNTED)
    smi(tools, f"cat {tools}/counted")
    run = nvidia_gpus.toolbox()
    by_uuid, _problem = nvidia_gpus.throttle_counters(run, 5)
    assert by_uuid == {
        "GPU-00": {
            "throttle_thermal_microseconds": 12,
            "throttle_power_microseconds": 25483012609,
            "throttle_hardware_microseconds": 8,
        },
        "GPU-01": {"throttle_power_microseconds": 5, "throttle_hardware_microseconds": 9},
    }
    by_gpu, absent = {0: {"uuid": "GPU-00"}, 3: {"lost": True}}, {}
    nvidia_gpus.add_throttle_counters(by_gpu, absent, 5)
    assert (by_gpu[0]["throttle_thermal_microseconds"], by_gpu[3], absent) == (12, {"lost": True}, {})


@pytest.mark.parametrize(
    ("body", "reason"),
    [("echo 'is not a valid field to query'; exit 2", nvidia_gpus.NOT_ASKED), (None, "not installed")],
)
def test_without_counters_of_throttling_the_reason_is_reported(tools, body, reason):
    if body:
        smi(tools, body)
    absent = {}
    nvidia_gpus.add_throttle_counters({0: {"uuid": "GPU-00"}}, absent, 5)
    assert reason in absent["throttle_counters"]


def test_amd_counters_of_violations():
    section = {
        "accumulation_counter": {"value": 2000, "unit": ""}, "prochot_accumulated": 0, "ppt_accumulated": 1500,
        "socket_thermal_accumulated": 20, "vr_thermal_accumulated": "N/A", "hbm_thermal_accumulated": 40,
        "ppt_violation_status": "ACTIVE",
    }  # fmt: skip
    answer = [{"gpu": 0, "throttle": section}]
    (gpu,) = amd_gpus.parse_amd_smi(None, answer, answer)
    assert {name: value for name, value in gpu.counters().items() if name.startswith("throttle")} == {
        "throttle_ticks": 2000, "throttle_thermal_ticks": 40,
        "throttle_power_ticks": 1500, "throttle_hardware_ticks": 0,
    }  # fmt: skip
    assert amd_gpus.violations({"accumulation_counter": "N/A"}) is amd_gpus.violations(None) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [("echo 'No devices were found'; exit 6", "No devices were found"), ("exit 0", "lists no device")],
)
def test_nvidia_smi_that_gives_nothing_is_reported(tools, body, words):
    smi(tools, body)
    with pytest.raises(SourceError, match=words):
        nvidia_gpus.NvidiaSmi()


def test_nvidia_smi_that_hangs_is_given_up_in_time(tools, monkeypatch):
    monkeypatch.setattr(nvidia_gpus.NvidiaSmi, "first_seconds", 0.3)
    smi(tools, "exec sleep 60")
    begun = time.monotonic()
    with pytest.raises(SourceError, match="did not answer within"):
        nvidia_gpus.NvidiaSmi()
    assert time.monotonic() - begun < 40


def test_amd_smi_of_two_releases():
    newer, older = (json.loads((GOLDEN / f"amd_smi_{release}_metric.json").read_text()) for release in (26, 24))
    gpu = amd_smi.parse_amd_smi(None, newer, newer)[0]
    sample, counters = gpu.sample(), gpu.counters()
    assert sample["power_watts"] == 246 and sample["temperature_celsius"] == 44
    assert sample["memory_temperature_celsius"] == 38 and sample["pcie_generation"] == 5
    assert counters["ecc_corrected"] == 3 and counters["pcie_replays"] == 0
    [gpu] = amd_smi.parse_amd_smi(None, older, older)
    assert gpu.sample()["power_watts"] == 131 and "ecc_corrected" not in gpu.counters()


@pytest.mark.parametrize("answer", [None, [], {}, "x", {"gpu_data": "x"}, [{"gpu": "0"}], [3], {"gpu_data": [None]}])
def test_rubbish_of_amd_smi_is_nothing(answer):
    assert amd_smi.parse_amd_smi(None, answer, answer) == []
    assert amd_smi.parse_rocm_smi(answer) == []


def test_rocm_smi():
    gpu = amd_smi.parse_rocm_smi(json.loads((GOLDEN / "rocm_smi_6_mi100.json").read_text()))[1]
    assert gpu.sample()["power_watts"] == 44 and gpu.counters()["pci_address"] == "0000:a3:00.0"


@pytest.mark.parametrize(
    ("value", "errors"),
    [
        ("0", 0),
        (4, 4),
        ("No errors detected", 0),
        ("AMDSMI_XGMI_STATUS_NO_ERRORS", 0),
        ("AMDSMI_XGMI_STATUS_MULTIPLE_ERRORS", 1),
        ({"read_error_count": 2, "write_error_count": 1, "data_kb": 999}, 3),
        ("N/A", None),
        (None, None),
    ],
)
def test_xgmi_errors(value, errors):
    assert amd_smi.xgmi_errors(value) == (None if errors is None else {"xgmi": errors})


def put(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.fixture
def amd_machine(tmp_path, monkeypatch):
    """Two MI300X, found in sysfs in the wrong order, and a screen adapter."""
    monkeypatch.setenv("PATH", str(tmp_path / "no-tools"))
    drm = tmp_path / "sys/class/drm"
    for card, address in (("card1", "0000:26:00.0"), ("card2", "0000:05:00.0")):
        device = tmp_path / "sys/devices" / address
        put(
            device,
            vendor="0x1002",
            mem_info_vram_used=299_892_736,
            gpu_busy_percent=98,
            unique_id=f"feed{address[5:7]}",
            current_link_width=16,
            current_link_speed="32.0 GT/s PCIe",
            pcie_replay_count=1,
            ras__umc_err_count="ue: 1\nce: 4",
            ras__gfx_err_count="ue: 0\nce: 2",
            hwmon__hwmon5__power1_average=739_000_000,
            hwmon__hwmon5__power1_cap=750_000_000,
            hwmon__hwmon5__temp1_input=64_000,
            hwmon__hwmon5__temp1_label="junction",
            hwmon__hwmon5__temp2_input=51_000,
            hwmon__hwmon5__temp2_label="mem",
            hwmon__hwmon5__freq1_input=2_100_000_000,
            hwmon__hwmon5__freq1_label="sclk",
        )
        (drm / card).mkdir(parents=True)
        (drm / card / "device").symlink_to(device)
    put(tmp_path / "sys/devices/screen", vendor="0x1a03")
    (drm / "card0").mkdir()
    (drm / "card0/device").symlink_to(tmp_path / "sys/devices/screen")
    return tmp_path


def test_amd_gpus_by_the_drivers_files(amd_machine):
    source = amd_gpus.Amd(str(amd_machine))
    samples, counters = source.sample(), source.counters(5)
    assert {index: gpu["pci_address"] for index, gpu in counters.items()} == {0: "0000:05:00.0", 1: "0000:26:00.0"}
    assert samples[0] == {
        "temperature_celsius": 64,
        "memory_temperature_celsius": 51,
        "power_watts": 739,
        "power_limit_watts": 750,
        "sm_clock_hertz": 2_100_000_000,
        "utilisation_ratio": 0.98,
        "memory_used_bytes": 299_892_736,
        "pcie_width": 16,
        "pcie_generation": 5,
    }
    assert (counters[0]["ecc_corrected"], counters[0]["ecc_uncorrected"], counters[0]["pcie_replays"]) == (6, 1, 1)
    assert "amd-smi is not installed" in source.absent["amd-smi"]


def test_amd_gpus_have_the_index_of_their_tool(amd_machine):
    found = {index: amd_gpus.Card(folder) for index, folder in amd_gpus.cards(amd_machine).items()}
    listing = [{"gpu": 0, "bdf": "0000:26:00.0"}, {"gpu": 1, "bdf": "0000:05:00.0"}]
    assert {index: card.address for index, card in amd_gpus.by_tool_index(found, listing).items()} == {
        0: "0000:26:00.0",
        1: "0000:05:00.0",
    }
    assert amd_gpus.by_tool_index(found, listing[:1]) == found  # it does not know them all


def test_without_amd_gpus_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="no AMD GPU in"):
        amd_gpus.Amd(str(tmp_path))


def test_sampling_sysfs_is_cheap(amd_machine):
    source = amd_gpus.Amd(str(amd_machine))
    begun = time.process_time()
    for _ in range(100):
        source.sample()
    assert (time.process_time() - begun) / 100 / 2 * 8 < 0.01  # of a second's core time, for 8 GPUs


def test_hl_smi():
    query = hl_smi.SAMPLE_QUERIES[0]
    text = "0, 01P0-X, 0000:33:00.0, 35 C, 768 MiB, 80 W, 97 %, 1650 MHz, 0, 21, 4, 16\nWARNING: x\n1, , \n"
    [gpu] = hl_smi.parse(text, query)
    sample, counters = gpu.sample(), gpu.counters()
    assert sample["utilisation_ratio"] == 0.97 and sample["power_watts"] == 80 and sample["pcie_generation"] == 4
    assert counters["ecc_uncorrected"] == 21 and counters["uuid"] == "01P0-X"


def test_the_host(tmp_path):
    put(tmp_path, proc__stat="cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3", proc__vmstat="nr_free 1\noom_kill 7")
    put(tmp_path, proc__meminfo="MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB")
    put(tmp_path / "sys/class/hwmon/hwmon0", name="coretemp", temp1_label="Package id 0", temp1_input=61_500)
    put(tmp_path / "sys/class/hwmon/hwmon0", temp2_label="Core 0", temp2_input=99_000)  # not read: it would disturb it
    put(tmp_path / "sys/class/hwmon/hwmon1", name="nvme", temp1_label="Package", temp1_input=88_000)
    machine = child.HostSensors(str(tmp_path))
    put(tmp_path, proc__stat="cpu  160 0 130 705 105 0 0 0 0 0")
    assert machine.sample() == {
        "cpu_utilisation_ratio": pytest.approx(0.9),
        "memory_used_bytes": 600 * 1024,
        "cpu_temperature_celsius": 61.5,
    }
    assert machine.oom_kills() == 7
    assert machine.memory_errors() == {} and "no EDAC driver" in machine.absent["ecc_uncorrected_count"]


def test_pcie_errors_are_those_of_the_stage_by_device(tmp_path):
    assert child.HostSensors(str(tmp_path)).pcie_errors() == {}
    gpu, switch, bridge = (tmp_path / f"sys/bus/pci/devices/0000:{place}.0" for place in ("3b:00", "3a:00", "00:01"))
    bridge.mkdir(parents=True)
    for device in (gpu, switch):
        put(device, aer_dev_correctable="RxErr 2\nBadTLP 0\nTOTAL_ERR_COR 2")
        put(device, aer_dev_nonfatal="Undefined 0\nTOTAL_ERR_NONFATAL 0", aer_dev_fatal="DLP 1\nTOTAL_ERR_FATAL 1")
    machine = child.HostSensors(str(tmp_path))
    assert machine.pcie_errors() == {"pcie_corrected": {}, "pcie_nonfatal": {}, "pcie_fatal": {}}
    put(gpu, aer_dev_correctable="RxErr 9\nBadTLP 1\nTOTAL_ERR_COR 10", aer_dev_fatal="DLP 2\nTOTAL_ERR_FATAL 2")
    (switch / "aer_dev_fatal").unlink()
    found = machine.pcie_errors()
    assert (found["pcie_corrected"], found["pcie_fatal"]) == ({"0000:3b:00.0": 8}, {"0000:3b:00.0": 1})
    assert not any(name.startswith("pcie_") for name in machine.absent)


def test_failures_of_links_are_those_of_the_stage(tmp_path, monkeypatch):
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    put(port, link_layer="InfiniBand", phys_state="5: LinkUp", rate="400 Gb/sec (4X NDR)", state="4: ACTIVE")
    put(port / "counters", symbol_error=0, link_downed=3, link_error_recovery=0)
    machine = child.HostSensors(str(tmp_path))
    assert not {"link_down", "link_symbol_error_ratio"} & machine.absent.keys()
    assert "network of its own" in machine.absent["link_carrier_down"]
    put(port, phys_state="2: Polling")
    put(port / "counters", link_downed=4)
    assert machine.link_failures == {"link_down": {"mlx5_0:1": 1}, "link_symbol_error_ratio": {}}
    put(port / "counters", link_downed=9)
    assert machine.link_failures["link_down"] == {"mlx5_0:1": 1}, "what came after the stage is not its own"


def test_a_port_whose_firmware_hangs_stops_no_telemetry(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "PORTS_SECONDS", 0.05)
    monkeypatch.setattr(child.link_counters, "network_ports", lambda _tree: threading.Event().wait(60))
    machine = child.HostSensors(str(tmp_path))
    assert machine.link_failures == {}
    assert "link_down" in machine.absent


def test_errors_of_main_memory_are_those_of_the_stage(tmp_path):
    controllers = [tmp_path / f"sys/devices/system/edac/mc/mc{number}" for number in range(2)]
    for controller in controllers:
        put(controller, ce_count=5, ue_count=1)
    machine = child.HostSensors(str(tmp_path))
    assert machine.memory_errors() == {"ecc_corrected_count": 0, "ecc_uncorrected_count": 0}
    put(controllers[1], ce_count=8, ue_count=2)
    assert machine.memory_errors() == {"ecc_corrected_count": 3, "ecc_uncorrected_count": 1}
    put(controllers[1], ce_count=0, ue_count=0)  # its driver was loaded again
    assert machine.memory_errors() == {"ecc_corrected_count": 0, "ecc_uncorrected_count": 0}
    assert "ecc_corrected_count" not in machine.absent


def test_a_host_without_anything_gives_nothing(tmp_path):
    machine = child.HostSensors(str(tmp_path))
    assert machine.sample() == {} and machine.oom_kills() is None
    assert "cpu_temperature_celsius" in machine.absent
    put(tmp_path, proc__stat="rubbish", proc__meminfo="MemTotal: x kB")
    assert machine.sample() == {}


def test_this_machine_is_read():
    machine = child.HostSensors()
    time.sleep(0.1)
    assert 0 < machine.sample()["memory_used_bytes"] < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
