"""The NVLink fabric of GPUs, by nvidia-smi and by NVML: each state that a dead fabric was seen in, and mixed nodes."""

import re

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import collect, nvidia_gpus, nvml_gpus
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.gpu import Gpu, differing_fabrics
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tools import ToolResult

from tests.kit.telemetry import build_nvml

ZERO, CLUSTER = "00000000-0000-0000-0000-000000000000", "00000001-0000-0000-0000-000000000001"
#: What the driver says of one GPU by nvidia-smi, and by NVML (state, status, clique, byte of the UUID, health mask,
#: summary); and what that comes to: joined, has a clique, is not ready whatever its SKU.
STATES = {
    "joined": (("Completed", "Success", "2", CLUSTER, "Healthy"), (3, 0, 2, 0x9C, 426, 1), (1, 1, False)),
    "not supported": (("Not Supported", "Success", "0", ZERO, "Not Supported"), (0, 0, 0, 0, 0, 0), (0, 0, False)),
    "n/a": (("N/A", "N/A", "N/A", "N/A", "N/A"), None, (0, 0, False)),
    "in progress": (("In Progress", "N/A", "N/A", "N/A", "N/A"), (2, 0, 0, 0, 0, 0), (0, 0, True)),
    "not started": (("Not Started", "N/A", "N/A", "N/A", "N/A"), (1, 0, 0, 0, 0, 0), (0, 0, True)),
    "no resources": (("Completed", "Insufficient Resources", "0", ZERO, "N/A"), (3, 23, 0, 0, 0, 0), (0, 0, True)),
    "unhealthy": (("Completed", "Success", "2", CLUSTER, "Unhealthy"), (3, 0, 2, 0x9C, 0, 2), (0, 1, True)),
    "limited": (("Completed", "Success", "2", CLUSTER, "Limited Capacity"), (3, 0, 2, 0x9C, 0b01, 3), (0, 1, True)),
    "no clique": (("Completed", "Success", "0", CLUSTER, "Healthy"), (3, 0, 0, 0x9C, 0, 1), (1, 0, False)),
    "no cluster": (("Completed", "Success", "2", ZERO, "Healthy"), (3, 0, 2, 0, 0, 1), (1, 0, False)),
}


def outcome(gpu):
    return gpu.fabric_joined_count, gpu.fabric_clique_count, gpu.fabric_not_ready


def with_fabric(log, words, count=4):
    """The log with these words for the fabric of its first GPUs: state, status, clique, cluster and summary."""
    for tag, word in zip(("state", "status", "cliqueId", "clusterUuid", "summary"), words, strict=True):
        pattern = re.compile(rf"(<fabric>(?:(?!</fabric>).)*?<{tag}>)[^<]*<", re.DOTALL)
        log, times = pattern.subn(rf"\g<1>{word}<", log, count=count)
        assert times == count
    return log


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return str(build_nvml(tmp_path_factory.mktemp("nvml")))


@pytest.fixture
def driver(tmp_path, monkeypatch):
    monkeypatch.setenv("NVIDIA_STAND_IN", str(tmp_path))
    return lambda name, text: (tmp_path / name).write_text(text)


@pytest.mark.parametrize("golden_file", ["nvidia_smi_v13_gb200.xml", "nvidia_smi_v13_gb300.xml"])
def test_a_real_tray_has_joined_its_rack(golden, golden_file):
    gpus, lost = nvidia_gpus.parse(golden(golden_file))
    assert (len(gpus), lost, differing_fabrics(gpus)) == (4, [], [])
    assert [outcome(gpu) for gpu in gpus] == [(1, 1, False)] * 4
    assert {gpu.chassis_serial for gpu in gpus} == {"1820000000001"}
    assert {gpu.peer_type for gpu in gpus} == {"Switch Connected"}
    assert {gpu.module_id for gpu in gpus} == {1, 2, 3, 4}
    assert len({gpu.fabric_guid for gpu in gpus}) == 4
    assert gpus[0].fabric_health["bandwidth"] == "Full"
    first = gpus[0]
    if "gb200" in golden_file:
        assert (first.chassis_slot, first.tray_index, first.host_id) == (14, 4, 1)
        assert (first.fabric_clique, first.fabric_cluster_uuid) == (2, CLUSTER)
    else:
        assert (first.chassis_slot, first.tray_index, first.fabric_clique) == (25, 15, 32766)


@pytest.mark.parametrize("state", STATES)
def test_nvidia_smi_tells_each_state(golden, state):
    words, _, expected = STATES[state]
    gpus, _lost = nvidia_gpus.parse(with_fabric(golden("nvidia_smi_v13_gb200.xml"), words))
    assert [outcome(gpu) for gpu in gpus] == [expected] * 4


@pytest.mark.parametrize("state", STATES)
def test_nvml_tells_each_state_in_the_same_words(golden, library, driver, state):
    words, values, expected = STATES[state]
    if values is not None:
        driver("fabric-0", " ".join(map(str, values)))
    gpu = nvml_gpus.NvmlGpus(library).gpus()[0]
    by_tool = nvidia_gpus.parse(with_fabric(golden("nvidia_smi_v13_gb200.xml"), words))[0][0]
    assert outcome(gpu) == outcome(by_tool) == expected
    assert gpu.fabric_state == by_tool.fabric_state
    if values is not None and words[1] != "N/A":
        assert (gpu.fabric_status, gpu.fabric_clique) == (by_tool.fabric_status, by_tool.fabric_clique)


def test_a_driver_of_the_version_before_has_no_summary(library, driver):
    driver("older_fabric", "0")
    driver("fabric-0", "3 0 2 156 426 2")
    gpu = nvml_gpus.NvmlGpus(library).gpus()[0]
    assert (gpu.fabric_health["summary"], gpu.fabric_health["bandwidth"], outcome(gpu)) == (
        "N/A",
        "Full",
        (1, 1, False),
    )


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (0b01, "bandwidth Degraded"),
        (0b01 << 2, "route_recovery_in_progress True"),
        (0b01 << 4, "route_unhealthy True"),
        (0b01 << 6, "access_timeout_recovery True"),
        (3 << 8, "incorrect_configuration Incorrect Chassis Serial Number"),
        (1 << 8, None),
    ],
)
def test_nvml_tells_what_is_unhealthy(library, driver, mask, problem):
    driver("fabric-0", f"3 0 2 156 {mask} 0")
    gpu = nvml_gpus.NvmlGpus(library).gpus()[0]
    assert (gpu.fabric_problem, gpu.fabric_joined_count) == (problem, int(problem is None))


@pytest.mark.parametrize(
    ("driver_version", "expected"), [("580.173.02", 0), ("570.00", 0), ("535.54.03", None), (None, None), ("no", None)]
)
def test_a_missing_block_counts_only_where_the_driver_would_print_it(golden, driver_version, expected):
    log = re.sub("<fabric>.*?</fabric>", "", golden("nvidia_smi_v13_gb200.xml"), flags=re.DOTALL)
    log = re.sub("<driver_version>[^<]*<", f"<driver_version>{driver_version or 'N/A'}<", log)
    gpus, _lost = nvidia_gpus.parse(log)
    assert {(gpu.fabric_joined_count, gpu.fabric_clique_count) for gpu in gpus} == {(expected, expected)}
    reported = {name for gpu in gpus for name in (each["name"] for each in gpu.metrics())}
    assert ("gpu_fabric_joined_count" in reported) is (expected is not None)
    assert differing_fabrics(gpus) == []


def test_driver_535_prints_a_state_and_no_clique(golden):
    log = with_fabric(golden("nvidia_smi_v13_gb200.xml"), ("Completed", "Success", "", "", ""))
    log = re.sub("<(cliqueId|clusterUuid)></.*?>", "", log).replace("580.173.02", "535.54.03")
    gpu = nvidia_gpus.parse(log)[0][0]
    assert (gpu.fabric_joined_count, gpu.fabric_clique_count) == (1, None)


def test_other_vendors_have_no_fabric():
    assert outcome(Gpu("amd", 0, driver_version="6.10.5")) == outcome(Gpu("gaudi", 0)) == (None, None, False)


@pytest.mark.parametrize("state", [state for state in STATES if state != "joined"])
@pytest.mark.parametrize("golden_file", ["nvidia_smi_v13_gb200.xml", "nvidia_smi_v13_h200x4.xml"])
def test_one_gpu_that_differs_is_named(golden, golden_file, state):
    words = STATES[state][0]
    gpus, _lost = nvidia_gpus.parse(with_fabric(golden(golden_file), words, count=1))
    assert differing_fabrics(gpus) == gpus[:1]


def test_a_split_tray_names_all_of_its_gpus_and_models_are_not_compared(golden):
    log = golden("nvidia_smi_v13_gb200.xml")
    gpus, _lost = nvidia_gpus.parse(with_fabric(log, ("Completed", "Success", "3", CLUSTER, "Healthy"), count=2))
    assert differing_fabrics(gpus) == gpus
    for gpu in gpus[2:]:
        gpu.name = "NVIDIA L40S"
    assert differing_fabrics(gpus) == []
    assert differing_fabrics(gpus[:1]) == []


def facts_of(machine, log):
    machine.write("log.xml", log)
    machine.tool("nvidia-smi", f"[ $1 = -q ] && exec cat {machine}/log.xml; exit 1")
    return collect.facts_result(str(machine), "auto")


def test_facts_name_the_gpu_that_differs_and_its_state(machine, golden):
    words = STATES["n/a"][0]
    result = facts_of(machine, with_fabric(golden("nvidia_smi_v13_h200x4.xml"), words, count=1))
    found = {each["scope"]: each["value"] for each in result["metrics"] if each["name"] == "gpu_fabric_differs_count"}
    assert found == {"gpu:0": 1, "gpu:1": 0, "gpu:2": 0, "gpu:3": 0}
    assert "NVLink fabric of gpu:0: n/a, n/a" in result["message"]
    healthy = facts_of(machine, golden("nvidia_smi_v13_gb200.xml"))
    assert healthy["message"] == "4 x NVIDIA GB200; driver 580.173.02"


def test_facts_name_the_fabric_of_a_tray_that_is_in_no_domain(machine, golden):
    for state, text in (("n/a", "n/a, n/a"), ("no cluster", f"completed, clique 2 of {ZERO}, success")):
        log = with_fabric(golden("nvidia_smi_v13_gb200.xml"), STATES[state][0])
        assert facts_of(machine, log)["message"].endswith(f"NVLink fabric of gpu:0, gpu:1, gpu:2, gpu:3: {text}")
    without_rack = with_fabric(golden("nvidia_smi_v13_h200x4.xml"), STATES["n/a"][0])
    assert "NVLink" not in facts_of(machine, without_rack)["message"]


def missing(tool, *_arguments, timeout=0):
    return ToolResult(tool, missing=True)


def test_nvml_lists_the_gpus_of_a_machine_without_nvidia_smi(library, driver):
    driver("platform", "1")
    driver("fabric-3", "3 0 2 156 426 1")
    driver("down", "5")
    detection = nvml_gpus.detect(missing, library)
    assert (detection.problem, detection.installed, len(detection.gpus)) == (None, True, 8)
    gpu = detection.gpus[3]
    assert (gpu.name, gpu.uuid, gpu.serial) == ("NVIDIA GB200", "GPU-00000003", "1650000000001")
    assert (gpu.driver_version, gpu.runtime_version, gpu.ecc_mode) == ("580.173.02", "13.0", "enabled")
    assert (gpu.memory_bytes, gpu.power_limit_watts, gpu.pcie_width_max) == (150754820096, 700, 16)
    place = (gpu.chassis_serial, gpu.chassis_slot, gpu.tray_index, gpu.host_id, gpu.module_id, gpu.fabric_guid)
    assert place == ("1820000000001", 14, 4, 1, 4, "0x0000000000000013")
    assert (gpu.peer_type, outcome(gpu)) == ("Switch Connected", (1, 1, False))
    assert (gpu.nvlinks_up_count, detection.gpus[5].nvlinks_up_count) == (18, 17)
    link = detection.gpus[5].nvlinks[7]
    assert (link["is_up"], link["errors"], detection.gpus[5].nvlinks[6]["bytes_per_second"]) == (
        False,
        None,
        53_125_000_000,
    )


def test_a_gpu_in_no_rack_has_a_module_and_no_slot(library, driver):
    driver("platform", "0")
    gpu = nvml_gpus.NvmlGpus(library).gpus()[2]
    assert (gpu.module_id, gpu.chassis_serial, gpu.chassis_slot, gpu.peer_type) == (3, None, None, None)


def test_nvml_adds_what_an_older_nvidia_smi_does_not_print(golden, library, driver):
    log = re.sub("<fabric>.*?</fabric>", "", golden("nvidia_smi_v13_gb200.xml"), flags=re.DOTALL)
    first = nvidia_gpus.parse(log)[0][0]
    log = log.replace(first.uuid, "GPU-00000003")
    driver("fabric-3", "2 0 0 0 0 0")

    def run(tool, *_arguments, timeout=0):
        return ToolResult(tool, log, returncode=0)

    gpus = nvml_gpus.detect(run, library).gpus
    assert [gpu.fabric_state for gpu in gpus] == ["in progress", None, None, None]
    assert gpus[0].chassis_serial == "1820000000001", "of nvidia-smi, which counts first"


def test_a_driver_that_hangs_or_is_missing_does_not_stop_the_facts(library, driver, monkeypatch):
    monkeypatch.setattr(nvml_gpus, "VENDOR_TOOL_TIMEOUT_SECONDS", 0.5)
    driver("hang", "2")
    assert nvml_gpus.detect(missing, library).problem == "nvidia-smi is not installed"
    assert not nvml_gpus.detect(missing, "libno-such-nvml.so.1").installed


#: `nvidia-imex-ctl -N`: one node of an early release (kubernetes-sigs/dra-driver-nvidia-gpu), and four of a later one.
LEGEND = "Connectivity Table Legend:\nI - Invalid - Node wasn't reachable, no connection status available\n\n"
ALONE = f"{LEGEND}3/25/2025 10:39:43.659\nNodes:\nNode #0   - 10.136.206.48   - READY\n\nDomain State: UP\n"
FOUR = f"""{LEGEND}5/12/2025 06:08:10.580
Nodes:
Node #0   * 10.0.0.1 *    - READY                - Version: 570.172.08
Node #1   - 10.0.0.2      - READY                - Version: 570.172.08
Node #2   - 10.0.0.3      - WAITING_FOR_PEERS    - Version: 570.172.08
Node #3   - 10.0.0.4      - UNAVAILABLE

 Nodes From\\To  0   1   2   3
       0        C   C   N   N
Domain State: DEGRADED
"""


@pytest.mark.parametrize(("answer", "domain", "bad"), [(ALONE, "UP", 0), (FOUR, "DEGRADED", 2)])
def test_the_nodes_of_an_imex_domain(machine, answer, domain, bad):
    machine.write("answer", answer)
    machine.write("etc/nvidia-imex/nodes_config.cfg", "# nodes\n10.0.0.1\n10.0.0.2  # second\n")
    machine.tool("nvidia-imex-ctl", f"[ $1 = -N ] && cat {machine}/answer")
    machine.tool("systemctl", "echo 'nvidia-imex.service loaded active running NVIDIA IMEX service'")
    result = collect.facts_result(str(machine), "auto")
    facts = result["environment"]["imex"]
    assert (facts["service"], facts["domain"], facts["problem"]) == ("active", domain, None)
    assert facts["configured"] == ["10.0.0.1", "10.0.0.2"]
    assert [each["value"] for each in result["metrics"] if each["name"] == "imex_not_ready_count"] == [bad]
    if bad:
        assert facts["nodes"][0] == {"node": 0, "address": "10.0.0.1", "state": "READY", "version": "570.172.08"}
        assert [node["version"] for node in facts["nodes"]] == ["570.172.08"] * 3 + [None]


@pytest.mark.parametrize("answer", ["echo 'Failed to connect to remote IMEX' >&2; exit 1", "echo 'Nodes:'", None])
def test_idle_imex_is_no_fault(machine, answer):
    if answer:
        machine.tool("nvidia-imex-ctl", answer)
    result = collect.facts_result(str(machine), "auto")
    assert (result["environment"]["imex"]["nodes"], result["environment"]["imex"]["service"]) == ([], None)
    assert "imex_not_ready_count" not in {each["name"] for each in result["metrics"]}


STATUS = "\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n\t Link 2: <inactive>\n\t Link 3: Active\n"
OLDER = (
    "\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: 2\n\t Link 0: CRC Errors: 1\n\t Link 1: CRC Errors: 0\n"
)
NEWER = (
    "\t Link 0: Tx packets: 39\n\t Link 0: Malformed packet Errors: 0\n\t Link 0: Rx Errors: 3\n"
    "\t Link 0: Total link recovery events: 505\n\t Link 0: Effective BER: 15e-255\n\t Link 0: FEC Errors - 0: 40428\n"
    "\t Link 1: Rx Errors: 0\n\t Link 1: Total link recovery events: 0\n"
)


@pytest.mark.parametrize(
    ("errors", "counts"), [(OLDER, [(3, 2), (0, 0)]), (NEWER, [(3, 505), (0, 0)]), ("", [(None, None)] * 2)]
)
def test_links_one_by_one(machine, golden, errors, counts):
    log = golden("nvidia_smi_v13_h200x4.xml")
    header = [f"GPU {gpu.index}: NVIDIA H200 (UUID: {gpu.uuid})" for gpu in nvidia_gpus.parse(log)[0]]
    machine.write("log.xml", log)
    down = "NVML: Unable to retrieve NVLink information as all links are inActive"
    machine.write("status", f"{header[0]}\n{STATUS}{header[1]}\n{down}\n{header[2]} {down}\n{header[3]}\n")
    machine.write("errors", f"{header[0]}\n{errors}")
    files = 'case "$1 $2" in "-q -x") f=log.xml;; "nvlink -s") f=status;; "nvlink -e") f=errors;; *) exit 1;; esac'
    machine.tool("nvidia-smi", f"{files}; cat {machine}/$f")
    result = collect.facts_result(str(machine), "auto")
    links = [gpu["nvlinks"] for gpu in result["environment"]["gpus"]]
    assert links[1:] == [[], [], None]
    assert [link["is_up"] for link in links[0]] == [True, True, False, False], "only a speed proves that a link is up"
    assert links[0][0]["bytes_per_second"] == 26_562_000_000
    assert [(link["errors"], link["recoveries"]) for link in links[0][: len(counts)]] == counts
    assert result["message"].endswith("; down NVLinks of gpu:0: link 2, link 3"), "gpu:1 may have no bridge at all"
    up = {each["scope"]: each["value"] for each in result["metrics"] if each["name"] == "gpu_nvlinks_up_count"}
    assert up == {"gpu:0": 2, "gpu:1": 0, "gpu:2": 0}
