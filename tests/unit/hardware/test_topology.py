"""How GPUs are joined, by what nvidia-smi and rocm-smi print; and what keeps them from sending to each other."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import peer_access, tools, topology
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree

AMD_SMI = """
LINK TYPE TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 SELF         XGMI         PCIE
0000:22:00.0 XGMI         SELF         XGMI
0000:38:00.0 PCIE         XGMI         SELF
"""


def facts(machine, vendor):
    return topology.facts(tools.toolbox(str(machine)), vendor)


def test_eight_gpus_behind_nvswitches_with_a_nic_each(machine):
    machine.answers("nvidia-smi", "nvidia_smi_topo_h100.txt")
    found = facts(machine, "nvidia")
    assert [gpu["links_count"] for gpu in found] == [18] * 8
    assert found[3] == {"index": 3, "links": "NV18 x 7", "links_count": 18, "nic": "PIX NIC4", "nic_way": "PIX"}
    assert topology.far_from_nics(found) == 0


def test_a_link_that_is_down_and_a_nic_that_is_gone_show_at_their_gpu(machine, golden):
    lines = golden("nvidia_smi_topo_h100.txt").splitlines()
    lines = [line.replace("NV18", "NV17", 1) if line.startswith("GPU3") else line for line in lines]
    lines = [line.replace("PIX", "SYS") if line.startswith("GPU5") else line for line in lines]
    machine.write("changed", "\n".join(lines))
    machine.tool("nvidia-smi", f"cat {machine}/changed")
    found = facts(machine, "nvidia")
    assert [gpu["links_count"] for gpu in found] == [18, 18, 18, 17, 18, 18, 18, 18]
    assert found[5]["nic"].startswith("NODE NIC0")
    assert topology.far_from_nics(found) == 1


def test_one_gpu_without_links_beside_it(machine):
    machine.tool("nvidia-smi", "printf '\\tGPU0\\tCPU Affinity\\tNUMA Affinity\\nGPU0\\t X \\t0-47\\t0\\n'")
    (gpu,) = facts(machine, "nvidia")
    assert (gpu["links"], gpu["links_count"], gpu["nic"]) == ("no other GPU", None, "no NIC")
    assert topology.far_from_nics([gpu]) is None  # as in most virtual machines


def test_mi300x_and_what_amd_smi_prints(machine):
    machine.answers("rocm-smi", "rocm_smi_topo_mi300x.txt")
    assert {(gpu["links"], gpu["links_count"]) for gpu in facts(machine, "amd")} == {("XGMI x 7", 7)}
    machine.tool("rocm-smi", "exit 1")
    machine.write("table", AMD_SMI)
    machine.tool("amd-smi", f"cat {machine}/table")
    found = facts(machine, "amd")
    assert [gpu["links_count"] for gpu in found] == [1, 2, 1]
    assert found[0]["links"] == "PCIE x 1, XGMI x 1"


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "echo GPU0", "printf 'GPU0 GPU1\\nGPU0 X\\n'"])
def test_a_tool_that_draws_nothing_gives_nothing(machine, script):
    machine.tool("nvidia-smi", script)
    machine.tool("rocm-smi", script)
    assert facts(machine, "nvidia") == facts(machine, "amd") == facts(machine, "cpu") == []


def config(control):
    """The configuration space of a port with AER, then ACS with that control register."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = (0x000D).to_bytes(4, "little")
    space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "kind", "expected"),
    [
        (config(0x1D), "DMA-FQ", {"iommu_translated": ["0000:18:00.0"], "acs_redirecting": ["0000:16:00.0"]}),
        (config(0), "identity", {"iommu_translated": [], "acs_redirecting": []}),
        (config(0x1D)[:64], "identity", {"iommu_translated": [], "acs_redirecting": None}),  # without privileges
    ],
)
def test_peer_access(machine, space, kind, expected):
    way = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0"
    machine.write(f"{way}/iommu_group/type", f"{kind}\n")
    (machine.root / way).parent.joinpath("config").write_bytes(space)
    machine.write("/sys/kernel/iommu_groups/7/type", f"{kind}\n")
    devices = machine.root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for device in (machine.root / way, (machine.root / way).parent):
        (devices / device.name).symlink_to(device)
    assert peer_access.facts(Tree(str(machine)), ["0000:18:00.0"]) == expected


def test_nothing_is_known_where_no_bus_shows(machine):
    unknown = {"iommu_translated": None, "acs_redirecting": None}
    assert peer_access.facts(Tree(str(machine)), ["0000:18:00.0"]) == unknown
    assert peer_access.facts(Tree(str(machine)), []) == unknown
