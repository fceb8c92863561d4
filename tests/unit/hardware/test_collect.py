import functools
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import disks, tools
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.collect import collect, facts_result
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree

COLLECTION = Path(__file__).resolve().parents[3] / "collections/ansible_collections/gpuval/fleet"
DATA = Path(__file__).parent / "data"
PARTS = {
    "accelerator",
    "identity",
    "gpus",
    "cpu",
    "memory",
    "tuning",
    "disks",
    "nics",
    "os",
    "clock",
    "engines",
    "firmware",
    "pci_accelerators",
    "topology",
    "peer_access",
    "services",
    "imex",
    "network_ports",
}
NVIDIA = functools.partial(dict, vendor="0x10de", device_class="0x030200")
MI300X = functools.partial(dict, vendor="0x1002", device_class="0x120000")
GAUDI = functools.partial(dict, vendor="0x1da3", device_class="0x120000")


def metrics(result):
    return {(metric["name"], metric["scope"]): metric["value"] for metric in result["metrics"]}


def node_metric(result, name):
    return metrics(result)[name, "node"]


def h200_pair(machine, driver="nvidia"):
    machine.pci("0000:18:00.0", driver=driver, **NVIDIA())
    machine.pci("0000:9d:00.0", driver=driver, **NVIDIA())


def test_a_machine_without_gpus(machine):
    machine.pci("0000:00:02.0", "0x1a03", "0x030000", driver="ast")
    result = facts_result(str(machine), "auto")
    assert result["state"] == "success"
    assert set(result["environment"]) == PARTS
    assert result["environment"]["accelerator"]["vendor"] == "cpu"
    assert node_metric(result, "gpu_hardware_count") == 0
    assert "CPU node" in result["message"]


def test_this_machine():
    result = facts_result("/", "cpu")
    assert result["state"] == "success"
    assert node_metric(result, "cpu_logical_count") >= 1
    assert node_metric(result, "memory_bytes") > 100_000_000
    assert result["environment"]["os"]["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    json.dumps(result, allow_nan=False)


def test_a_healthy_gpu_machine(machine):
    h200_pair(machine)
    machine.pci("0000:07:00.0", "0x10de", "0x068000", driver="nvidia-nvswitch")
    machine.answers("nvidia-smi", "nvidia_smi_v13_h200.xml")
    machine.write("sys/bus/pci/slots/21/address", "0000:9d:00\n")
    result = facts_result(str(machine), "auto")
    environment = result["environment"]
    assert (result["state"], result["message"]) == ("success", "2 x NVIDIA H200; driver 590.44.01")
    assert {gpu["pci_address"]: gpu["slot"] for gpu in environment["gpus"]}["0000:9d:00.0"] == "21"
    assert environment["accelerator"] == {
        "vendor": "nvidia",
        "count": 2,
        "hardware_count": 2,
        "without_driver_count": 0,
        "problem": None,
    }
    assert len(environment["identity"]["gpu_uuids"]) == 2
    assert [device["state"] for device in environment["pci_accelerators"]] == ["usable", "usable"]
    assert metrics(result)["gpu_memory_bytes", "gpu:1"] == 143771 * 1024**2
    assert node_metric(result, "gpu_faulty_count") == 0
    for name in ("gpu_ecc_off_count", "gpu_partitioned_count", "gpu_fabric_not_ready_count"):
        assert node_metric(result, name) == 0


def test_faulty_gpus_are_counted(machine):
    h200_pair(machine)
    machine.answers("nvidia-smi", "nvidia_smi_v13_h200_faulty.xml")
    result = facts_result(str(machine), "auto")
    assert result["state"] == "success", "judging counters is the business of checks"
    assert (node_metric(result, "gpu_faulty_count"), node_metric(result, "gpu_pcie_degraded_count")) == (1, 1)


@pytest.mark.parametrize(
    ("device", "vendor", "words"),
    [
        (NVIDIA(), "nvidia", ["NVIDIA", "nvidia-smi is not installed", "NVIDIA driver"]),
        (NVIDIA(device_class="0x030000", driver="nouveau"), "nvidia", ["kernel driver nouveau"]),
        (NVIDIA(driver="vfio-pci"), "nvidia", ["kernel driver vfio-pci"]),
        (MI300X(), "amd", ["AMD", "neither amd-smi nor rocm-smi", "amdgpu"]),
        (GAUDI(), "gaudi", ["Intel Gaudi", "hl-smi is not installed", "habanalabs"]),
    ],
)
def test_hardware_without_a_driver_is_a_failure_and_never_a_cpu_node(machine, device, vendor, words):
    machine.pci("0000:3b:00.0", **device)
    result = facts_result(str(machine), "auto")
    assert result["state"] == "failure"
    assert (result["environment"]["accelerator"]["vendor"], result["environment"]["accelerator"]["count"]) == (
        vendor,
        0,
    )
    assert (node_metric(result, "gpu_count"), node_metric(result, "gpu_without_driver_count")) == (0, 1)
    for word in ["0000:3b:00.0", "reboot", "gpuval_sku=cpu", *words]:
        assert word in result["message"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9',
            "communicate",
        ),
        ("echo 'No devices were found'; exit 6", "No devices were found"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
    ],
)
def test_a_tool_that_cannot_reach_the_driver(machine, script, said):
    h200_pair(machine)
    machine.tool("nvidia-smi", script)
    result = facts_result(str(machine), "auto")
    assert result["state"] == "failure"
    assert said in result["message"]
    assert node_metric(result, "gpu_without_driver_count") == 2


def test_a_driver_package_on_a_machine_without_gpus_makes_no_gpu_node(machine):
    machine.tool("nvidia-smi", 'echo "NVIDIA-SMI has failed because it couldn\'t communicate"; exit 9')
    assert facts_result(str(machine), "auto")["environment"]["accelerator"]["vendor"] == "cpu"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Unable to load firmware'", "did not write XML"),
        ("echo '<html>'", "did not write XML"),
        ("exit 255", "status 255"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
        ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", "Unknown Error"),
    ],
)
def test_a_tool_that_says_nothing_of_gpus_makes_no_cpu_node(machine, script, said):
    machine.tool("nvidia-smi", script)
    result = facts_result(str(machine), "auto")
    assert (result["state"], result["environment"]["accelerator"]["vendor"]) == ("failure", "nvidia")
    assert said in result["message"] and "gpuval_sku=cpu" in result["message"]


@pytest.mark.parametrize(("tool", "vendor"), [("amd-smi", "amd"), ("hl-smi", "gaudi")])
def test_a_tool_that_answers_with_nonsense_makes_no_cpu_node(machine, tool, vendor):
    machine.tool(tool, "echo 'Unable to load firmware'")
    result = facts_result(str(machine), "auto")
    assert (result["state"], result["environment"]["accelerator"]["vendor"]) == ("failure", vendor)


def test_gpus_that_are_counted_and_not_listed_are_missing(machine):
    golden = (Path(__file__).parent / "data/nvidia_smi_v13_h200.xml").read_text()
    machine.write("log", golden.replace("<attached_gpus>2<", "<attached_gpus>3<"))
    machine.tool("nvidia-smi", f"cat {machine}/log")
    result = facts_result(str(machine), "auto")
    assert result["state"] == "failure"
    assert "nvidia-smi counts 3 GPUs and lists 2" in result["message"]
    assert (node_metric(result, "gpu_without_driver_count"), node_metric(result, "gpu_hardware_count")) == (1, 3)


def test_one_gpu_listed_twice_is_a_failure(machine):
    golden = (Path(__file__).parent / "data/nvidia_smi_v13_h200.xml").read_text()
    first, second = re.findall("<uuid>(.*?)</uuid>", golden)
    machine.write("log", golden.replace(second, first))
    machine.tool("nvidia-smi", f"cat {machine}/log")
    result = facts_result(str(machine), "auto")
    assert result["state"] == "failure"
    assert f"gpu:0, gpu:1 have the same UUID ({first})" in result["message"]


@pytest.mark.parametrize("with_pci", [True, False])
def test_a_hanging_tool_is_a_driver_that_does_not_work(machine, with_pci, monkeypatch):
    if with_pci:
        h200_pair(machine)
    machine.tool("nvidia-smi", "sleep 60")
    box = tools.toolbox(str(machine))
    result = facts_result(str(machine), "auto", lambda tool, *arguments, timeout=0: box(tool, *arguments, timeout=0.3))
    assert result["state"] == "failure"
    assert "did not answer within 0.3 s" in result["message"]
    assert result["environment"]["accelerator"]["vendor"] == "nvidia"


@pytest.mark.parametrize("lost_in_log", [True, False])
def test_a_missing_gpu_is_named(machine, lost_in_log):
    h200_pair(machine)
    machine.pci("0000:bd:00.0", **NVIDIA())
    machine.answers("nvidia-smi", "nvidia_smi_v13_h200_lost.xml" if lost_in_log else "nvidia_smi_v13_h200.xml")
    result = facts_result(str(machine), "auto")
    expected = ["0000:9d:00.0", "0000:bd:00.0"] if lost_in_log else ["0000:bd:00.0"]
    broken = [d["address"] for d in result["environment"]["pci_accelerators"] if d["state"] == "no driver"]
    assert result["state"] == "failure"
    assert broken == expected
    assert all(address in result["message"] for address in expected)
    assert "0000:18:00.0" not in result["message"]
    assert node_metric(result, "gpu_without_driver_count") == len(expected)
    assert node_metric(result, "gpu_hardware_count") == 3
    assert result["environment"]["accelerator"]["vendor"] == "nvidia"


def test_gpus_without_a_visible_pci_bus(machine):
    machine.answers("nvidia-smi", "nvidia_smi_v13_h200.xml")
    result = facts_result(str(machine), "auto")
    assert result["state"] == "success"
    assert (node_metric(result, "gpu_count"), node_metric(result, "gpu_hardware_count")) == (2, 2)


def test_a_lost_gpu_without_a_visible_pci_bus(machine):
    machine.answers("nvidia-smi", "nvidia_smi_v13_h200_lost.xml")
    result = facts_result(str(machine), "auto")
    assert result["state"] == "failure"
    assert "0000:9d:00.0" in result["message"]


@pytest.mark.parametrize("in_container", [True, False])
@pytest.mark.parametrize("masked_by", ["proc", "device file"])
def test_gpus_given_to_others_are_no_fault_of_a_container(machine, in_container, masked_by):
    h200_pair(machine)
    machine.pci("0000:bd:00.0", driver="nvidia", **NVIDIA())
    visible = ["0000:18:00.0", "0000:9d:00.0"] + (["0000:bd:00.0"] if masked_by == "device file" else [])
    for minor, address in enumerate(visible):
        machine.write(f"/proc/driver/nvidia/gpus/{address}/information", f"Model: x\nDevice Minor: \t {minor}\n")
    machine.write("/dev/nvidia0", "")
    machine.write("/dev/nvidia1", "")
    if in_container:
        machine.write("/.dockerenv", "")
    machine.answers("nvidia-smi", "nvidia_smi_v13_h200.xml")
    result = facts_result(str(machine), "auto")
    assert result["state"] == ("success" if in_container else "failure")
    assert node_metric(result, "gpu_without_driver_count") == (0 if in_container else 1)
    assert node_metric(result, "gpu_hardware_count") == (2 if in_container else 3)
    untested = "1 GPU(s) of this machine are not tested: not given to this container"
    assert (untested in result["message"]) is in_container


def test_a_container_that_was_given_no_gpu_of_a_gpu_machine_is_no_cpu_node(machine):
    h200_pair(machine)
    machine.write("/.dockerenv", "")
    machine.write("/proc/driver/nvidia/gpus/0000:18:00.0/information", "Device Minor: 0\n")
    result = facts_result(str(machine), "auto")
    assert result["state"] == "failure"
    assert "in a container: give it the devices" in result["message"]


def test_amd_machine(machine):
    machine.pci("0000:05:00.0", driver="amdgpu", **MI300X())
    machine.pci("0000:15:00.0", driver="amdgpu", **MI300X())
    data = Path(__file__).parent / "data"
    machine.tool("amd-smi", f"cat '{data}'/amd_smi_26_$1.json")
    result = facts_result(str(machine), "amd")
    assert result["state"] == "success"
    assert result["environment"]["accelerator"]["count"] == 2
    assert node_metric(result, "gpu_faulty_count") == 1
    assert result["message"] == "2 x AMD Instinct MI350X; driver 6.16.6"


def test_gaudi_machine(machine):
    machine.pci("0000:33:00.0", driver="habanalabs", **GAUDI())
    machine.pci("0000:34:00.0", driver="habanalabs", **GAUDI())
    machine.answers("hl-smi", "hl_smi_gaudi2.csv")
    result = facts_result(str(machine), "auto")
    assert (result["state"], result["environment"]["accelerator"]["vendor"]) == ("success", "gaudi")


@pytest.mark.parametrize("listed", [True, False])
def test_a_radeon_counts_only_when_rocm_lists_it(machine, listed):
    machine.pci("0000:83:00.0", "0x1002", "0x030000", driver="amdgpu")
    machine.pci("0000:a3:00.0", "0x1002", "0x030000", driver="amdgpu")
    if listed:
        machine.answers("rocm-smi", "rocm_smi_6_mi100.json")
    result = facts_result(str(machine), "auto")
    assert result["state"] == "success"
    assert result["environment"]["accelerator"]["vendor"] == ("amd" if listed else "cpu")
    assert node_metric(result, "gpu_hardware_count") == (2 if listed else 0)


def test_broken_hardware_of_another_vendor_beside_working_gpus(machine):
    h200_pair(machine)
    machine.pci("0000:c1:00.0", **GAUDI())
    machine.answers("nvidia-smi", "nvidia_smi_v13_h200.xml")
    result = facts_result(str(machine), "auto")
    assert (result["state"], result["environment"]["accelerator"]["vendor"]) == ("failure", "nvidia")
    assert "Intel Gaudi" in result["message"]


def test_declared_cpu_ignores_broken_hardware_but_still_shows_it(machine):
    machine.pci("0000:3b:00.0", **NVIDIA())
    result = facts_result(str(machine), "cpu")
    assert result["state"] == "success"
    assert result["environment"]["accelerator"]["vendor"] == "cpu"
    assert result["environment"]["accelerator"]["count"] == 0
    assert len(result["environment"]["pci_accelerators"]) == 1
    assert node_metric(result, "gpu_hardware_count") == 1
    assert "not tested" in result["message"]


@pytest.mark.parametrize("declared", ["nvidia", "amd", "gaudi"])
def test_a_cpu_never_stands_in_for_a_declared_gpu(machine, declared):
    result = facts_result(str(machine), declared)
    assert result["state"] == "failure"
    assert declared in result["message"]
    assert "Remedy" in result["message"]


def test_metrics_fit_the_record_schema(machine):
    h200_pair(machine)
    machine.answers("nvidia-smi", "nvidia_smi_v13_h200.xml")
    machine.write("/proc/cpuinfo", "processor: 0\n")
    result = facts_result(str(machine), "auto")
    schema = json.loads((COLLECTION / "schemas/record.schema.json").read_text())
    metric_schema = {"$defs": schema["$defs"], "$ref": "#/$defs/metric"}
    for metric in result["metrics"]:
        jsonschema.validate(metric, metric_schema)
    pairs = [(metric["name"], metric["scope"]) for metric in result["metrics"]]
    assert len(pairs) == len(set(pairs))


def test_nothing_is_collected_from_outside_the_root(machine, monkeypatch):
    monkeypatch.setenv("PATH", str(machine.root / "elsewhere"))
    environment = collect(str(machine))
    assert environment["os"]["hostname"] is None
    assert environment["cpu"]["usable_count"] is None
    assert environment["clock"]["source"] is None


def test_criteria_fit_their_schema_and_what_is_measured(machine, monkeypatch):
    criteria = yaml.safe_load((COLLECTION / "roles/facts/files/criteria.yml").read_text())
    jsonschema.validate(criteria, json.loads((COLLECTION / "schemas/criteria.schema.json").read_text()))
    names = [check["name"] for check in criteria["checks"]]
    assert len(names) == len(set(names))

    tables = [DATA / name for name in ("nvidia_smi_topo_h100.txt", "nvidia_smi_v13_h200x4.xml")]
    machine.tool("nvidia-smi", f"[ $1 = topo ] && exec cat '{tables[0]}'; cat '{tables[1]}'")
    machine.tool("nvidia-imex-ctl", "echo 'Node #0   * 10.0.0.1 *   - READY   - Version: 580.173.02'")
    for number in range(3):
        machine.network_port(f"ens{number}", rdma=f"mlx5_{number}")
    machine.answers("ethtool", "ethtool_m_qsfp_one_lane.txt")
    machine.answers("mlxlink", "mlxlink_434_400g_dr4.json")
    machine.tool("timedatectl", "echo yes")
    machine.tool("systemctl", "echo 'a.service loaded failed failed text'")
    monkeypatch.setattr(disks, "root_used_ratio", lambda found: 0.5)
    for path, value in (
        ("edac/mc/mc0/ue_count", 0),
        ("cpu/cpu0/cpufreq/scaling_governor", "performance"),
        ("cpu/cpu0/cpuidle/state0/latency", 1),
        ("clocksource/clocksource0/current_clocksource", "tsc"),
    ):
        machine.write(f"/sys/devices/system/{path}", f"{value}\n")
    machine.write("/sys/kernel/iommu_groups/0/type", "identity\n")
    monkeypatch.setattr(Tree, "way", lambda tree, gpu: ("0000:00:01.0", gpu.rpartition("/")[2]))
    full = facts_result(str(machine), "auto")
    machine.pci("0000:3b:00.0", **MI300X())
    (machine.root / "usr/bin/nvidia-smi").unlink()
    broken = metrics(facts_result(str(machine), "auto"))
    units = {metric["name"]: (metric["unit"], metric["scope"].partition(":")[0]) for metric in full["metrics"]}
    for check in criteria["checks"]:
        if check["kind"] == "same":  # reads the environment
            assert re.split(r"\W", check["path"])[0] in full["environment"], check["name"]
            continue
        assert units[check["metric"]] == (check["unit"], check.get("scope", "node")), check["name"]
        if check["severity"] == "required" and check.get("scope", "node") == "node":  # without a driver there is no GPU
            assert (check["metric"], "node") in broken, "required evidence is there even without a driver"
