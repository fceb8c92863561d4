import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import engines
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import (
    clock,
    cpu,
    disks,
    memory,
    nics,
    osinfo,
    pci,
    services,
    tools,
    tuning,
)
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import FIRST_READ_BYTES, READ_LIMIT_BYTES, Tree

from tests.kit import sysfs_tree

CPUINFO = "".join(
    f"processor\t: {n}\nmodel name\t: Xeon\nphysical id\t: {n // 4}\ncore id\t\t: {n % 4 // 2}\n\n" for n in range(8)
)


@pytest.fixture
def tree(machine):
    return Tree(str(machine))


def test_nothing_to_read_is_unknown_not_an_error(tree):
    run = tools.toolbox(tree.root)
    assert cpu.facts(tree)["logical_count"] is None
    assert memory.facts(tree)["total_bytes"] is None
    assert disks.facts(tree) == []
    assert nics.facts(tree) == []
    assert pci.accelerators(tree) == []
    assert clock.facts(tree, run) == {"synchronised": None, "source": None, "offset_seconds": None}
    assert engines.facts(tree, run)["docker"] is None
    assert set(osinfo.firmware_facts(tree).values()) == set(tuning.facts(tree).values()) == {None}
    assert tuning.clock_is_fast(tuning.facts(tree)) is None
    assert (cpu.facts(tree)["slow_governor_count"], memory.facts(tree)["ecc_uncorrected_count"]) == (None, None)
    assert "no EDAC driver" in memory.facts(tree)["ecc_problem"]
    assert osinfo.machine_id(tree) is None


@pytest.mark.parametrize("size", [FIRST_READ_BYTES - 1, FIRST_READ_BYTES, FIRST_READ_BYTES + 1, READ_LIMIT_BYTES + 1])
def test_a_long_file_is_read_up_to_the_limit(machine, tree, size):
    machine.write("/proc/cpuinfo", "x" * size)
    assert len(tree.read("/proc/cpuinfo")) == min(size, READ_LIMIT_BYTES)


def test_cpu(machine, tree):
    machine.write("/proc/cpuinfo", CPUINFO)
    for number, governor in enumerate(["performance", "powersave"]):
        machine.write(f"/sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", f"{governor}\n")
    machine.write("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3500000\n")
    for node in (0, 1):
        machine.write(f"/sys/devices/system/node/node{node}/cpulist", "0\n")
    facts = cpu.facts(tree)
    assert (facts["logical_count"], facts["core_count"], facts["socket_count"]) == (8, 4, 2)
    assert facts["numa_node_count"] == 2
    assert (facts["governor"], facts["governors"]) == ("mixed", {"performance": 1, "powersave": 1})
    assert facts["slow_governor_count"] == 1
    machine.write("/sys/devices/system/cpu/cpu1/cpufreq/energy_performance_preference", "performance\n")
    assert cpu.facts(tree)["slow_governor_count"] == 0  # intel_pstate calls it powersave all the same
    assert facts["frequency_max_hertz"] == 3_500_000_000
    assert facts["model"] == "Xeon"


def test_memory(machine, tree):
    machine.write("/proc/meminfo", "MemTotal:  2048 kB\nMemAvailable: 1024 kB\nHugePages_Total:  3\n")
    machine.write("/sys/fs/cgroup/memory.max", "1048576\n")
    for controller, errors in (("mc0", 1), ("mc1", 2)):
        machine.write(f"/sys/devices/system/edac/mc/{controller}/ue_count", f"{errors}\n")
    facts = memory.facts(tree)
    assert (facts["total_bytes"], facts["available_bytes"], facts["limit_bytes"]) == (2048 * 1024, 1024 * 1024, 1048576)
    assert (facts["ecc_uncorrected_count"], facts["ecc_corrected_count"]) == (3, None)
    assert facts["ecc_problem"] is None


def test_tuning(machine, tree):
    clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    machine.write(clock, "tsc\n")
    machine.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    for size, count in (("2048kB", 0), ("1048576kB", 64)):
        machine.write(f"/sys/kernel/mm/hugepages/hugepages-{size}/nr_hugepages", f"{count}\n")
    states = (("POLL", 0, 0), ("C1", 1, 0), ("C1E", 4, 0), ("C6", 170, 0))  # Xeon, intel_idle
    for number, (name, latency, disabled) in enumerate(states):
        folder = f"/sys/devices/system/cpu/cpu0/cpuidle/state{number}"
        for file, value in (("name", name), ("latency", latency), ("disable", disabled)):
            machine.write(f"{folder}/{file}", f"{value}\n")
    for group, kind in ((0, "DMA-FQ"), (1, "identity"), (2, "DMA-FQ")):
        machine.write(f"/sys/kernel/iommu_groups/{group}/type", f"{kind}\n")
    facts = tuning.facts(tree)
    assert facts == {
        "clock_source": "tsc",
        "transparent_huge_pages": "madvise",
        "huge_pages": {"1048576kB": 64},
        "idle_latency_max_seconds": pytest.approx(170e-6),
        "iommu": ["DMA-FQ", "identity"],
    }
    assert tuning.clock_is_fast(facts) is True
    machine.write(clock, "hpet\n")
    machine.write("/sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "1\n")
    facts = tuning.facts(tree)
    assert tuning.clock_is_fast(facts) is False
    assert facts["idle_latency_max_seconds"] == pytest.approx(4e-6)


def test_disks(machine, tree):
    for name, sectors in (("nvme0n1", 4), ("nvme0c0n1", 4), ("md_home", 4), ("loop0", 8), ("sda", 0)):
        machine.write(f"/sys/block/{name}/size", f"{sectors}\n")
        machine.write(f"/sys/block/{name}/queue/rotational", "0\n")
    machine.write("/sys/block/nvme0n1/device/model", "SAMSUNG MZ \n")
    machine.write("/proc/mounts", "/dev/nvme0n1 /mnt/a\\040b ext4 ro,noatime 0 0\nserver:/x /nfs nfs rw 0 0\n")
    disk, filesystem = disks.facts(tree)
    assert (disk["name"], disk["size_bytes"], disk["rotational"], disk["model"]) == (
        "nvme0n1",
        2048,
        False,
        "SAMSUNG MZ",
    )
    assert (filesystem["mount"], filesystem["read_only"], filesystem["free_bytes"]) == ("/mnt/a b", True, None)


def test_how_full_a_file_system_is_as_df_has_it():
    assert disks.used_ratio(blocks=1000, free=150, available=100) == pytest.approx(850 / 950, abs=1e-4)
    assert disks.used_ratio(0, 0, 0) is None


def test_services_and_mounts(machine, tree):
    units = "chronyd.service loaded active running NTP client\nnvsm.service loaded failed failed NVSM\nx loaded active"
    machine.write("units", units)
    machine.tool("systemctl", f"cat {machine}/units")
    machine.write(
        "/proc/mounts",
        "/dev/sda / ext4 rw 0 0\nserver:/x /data\\040set nfs rw 0 0\nproc /proc proc rw 0 0\n"
        "auto /home autofs rw 0 0\nshm /run/containerd/x/shm tmpfs rw 0 0\n",
    )
    facts = services.facts(tree, tools.toolbox(tree.root))
    assert facts == {"active": ["chronyd"], "failed": ["nvsm"], "mounts": ["/", "/data set"], "automounts": ["/home"]}
    machine.tool("systemctl", "echo 'System has not been booted with systemd' >&2; exit 1")  # as in a container
    machine.write("/proc/mounts", "")
    assert set(services.facts(tree, tools.toolbox(tree.root)).values()) == {None}


def test_nics(machine, tree):
    net = "/sys/class/net"
    machine.write(f"{net}/eth0/speed", "400000\n")
    machine.write(f"{net}/eth0/mtu", "9000\n")
    machine.write(f"{net}/eth0/operstate", "up\n")
    machine.write(f"{net}/veth1/speed", "10000\n")
    machine.write("/sys/devices/0000:3b:00.0/numa_node", "1\n")
    (machine.root / "sys/class/net/eth0/device").symlink_to("../../../devices/0000:3b:00.0")
    rdma = "/sys/class/infiniband/mlx5_0"
    machine.write(f"{rdma}/fw_ver", "28.39.1002\n")
    machine.write(f"{rdma}/ports/1/state", "4: ACTIVE\n")
    machine.write(f"{rdma}/ports/1/phys_state", "5: LinkUp\n")
    machine.write(f"{rdma}/ports/1/rate", "400 Gb/sec (4X NDR)\n")
    interface, device = nics.facts(tree)
    assert (interface["name"], interface["speed_bits_per_second"], interface["mtu_bytes"]) == (
        "eth0",
        400 * 10**9,
        9000,
    )
    assert (interface["pci_address"], interface["numa_node"]) == ("0000:3b:00.0", 1)
    assert device["firmware_version"] == "28.39.1002"
    assert device["ports"] == [
        {
            "port": 1,
            "state": "ACTIVE",
            "physical_state": "LinkUp",
            "link_layer": None,
            "rate_bits_per_second": 400 * 10**9,
        }
    ]


@pytest.mark.parametrize(("speed", "expected"), [("-1", None), ("", None), ("25000", 25 * 10**9)])
def test_speed_of_a_link_that_is_down(machine, tree, speed, expected):
    machine.write("/sys/class/net/eth0/speed", speed)
    assert nics.facts(tree)[0]["speed_bits_per_second"] == expected


CHRONY = "A29FC87B,162.159.200.123,4,1764237600.1,{offset},-0.00001,0.00002,-12.3,-0.001,0.02,0.01,0.0008,64.2,{leap}\n"


@pytest.mark.parametrize(
    ("scripts", "expected"),
    [
        (
            {"chronyc": f"printf '{CHRONY.format(offset='0.000123', leap='Normal')}'"},
            {"synchronised": True, "source": "chronyc", "offset_seconds": 0.000123},
        ),
        (
            {"chronyc": f"printf '{CHRONY.format(offset='0.0', leap='Not synchronised')}'"},
            {"synchronised": False, "source": "chronyc", "offset_seconds": None},
        ),
        (
            {"chronyc": "echo '506 Cannot talk to daemon'; exit 1", "timedatectl": "echo yes"},
            {"synchronised": True, "source": "timedatectl", "offset_seconds": None},
        ),
        ({"timedatectl": "echo no"}, {"synchronised": False, "source": "timedatectl", "offset_seconds": None}),
        (
            {"timedatectl": "echo 'Failed to connect to bus' >&2; exit 1"},
            {"synchronised": None, "source": None, "offset_seconds": None},
        ),
    ],
)
def test_clock(machine, tree, scripts, expected):
    for name, script in scripts.items():
        machine.tool(name, script)
    assert clock.facts(tree, tools.toolbox(tree.root)) == expected


def test_clock_of_this_machine_is_asked_from_its_kernel():
    facts = clock.facts(Tree("/"), lambda tool, *arguments, timeout: tools.ToolResult(tool, missing=True))
    assert facts["synchronised"] in (True, False)
    assert facts["source"].startswith("adjtimex")


def test_engines(machine, tree):
    machine.tool(
        "docker", """echo '{"Client":{"Version":"28.2.2"},"Server":null}'; echo 'Cannot connect' >&2; exit 1"""
    )
    machine.tool("podman", "echo 'podman version 5.4.0'")
    machine.tool("nvidia-ctk", "echo 'NVIDIA Container Toolkit CLI version 1.17.4'; echo 'commit: 9b69'")
    machine.write("/etc/cdi/nvidia.yaml", "")
    facts = engines.facts(tree, tools.toolbox(tree.root))
    assert (facts["docker"]["client_version"], facts["docker"]["usable"]) == ("28.2.2", False)
    assert "Cannot connect" in facts["docker"]["problem"]
    assert (facts["podman"], facts["containerd"], facts["nvidia_container_toolkit"]) == ("5.4.0", None, "1.17.4")
    assert facts["cdi_specs"] == ["/etc/cdi/nvidia.yaml"]


def test_os_and_firmware(machine, tree):
    machine.write("/etc/os-release", '# comment\nID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"\n')
    machine.write("/proc/sys/kernel/osrelease", "6.8.0\n")
    machine.write("/sys/class/dmi/id/product_serial", "To be filled by O.E.M.\n")
    machine.write("/sys/class/dmi/id/board_serial", "ABC123\n")
    machine.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    system = osinfo.os_facts(tree)
    assert (system["id"], system["version"], system["name"]) == ("ubuntu", "24.04", "Ubuntu 24.04")
    assert (system["kernel"], system["container"]) == ("6.8.0", None)
    firmware = osinfo.firmware_facts(tree)
    assert (firmware["product_serial"], firmware["board_serial"]) == (None, "ABC123")
    assert osinfo.machine_id(tree) == "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("/.dockerenv", "", "docker"),
        ("/run/.containerenv", "", "podman"),
        ("/run/secrets/kubernetes.io/serviceaccount/token", "", "kubernetes"),
        ("/run/systemd/container", "systemd-nspawn\n", "systemd-nspawn"),
        ("/proc/1/cgroup", "11:cpu:/kubepods/burstable/pod1\n", "kubepods"),
    ],
)
def test_the_machine_id_of_a_container_identifies_no_machine_but_one_that_is_mounted(machine, tree, path, text, kind):
    machine.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    machine.write(path, text)
    assert osinfo.container(tree) == kind
    assert osinfo.machine_id(tree) is None
    mounted = "2341 2330 0:415 /..data/machine-id /etc/machine-id ro,relatime - tmpfs tmpfs rw,size=64Ki\n"
    machine.write("/proc/self/mountinfo", f"2330 2201 0:390 / / rw,relatime - overlay overlay rw\n{mounted}")
    assert osinfo.machine_id(tree) == "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("vendor", "device_class", "expected"),
    [
        (0x10DE, 0x030200, True),  # H100, H200: 3D controller
        (0x10DE, 0x030000, True),  # GeForce: VGA
        (0x10DE, 0x068000, None),  # NVSwitch
        (0x10DE, 0x040300, None),  # audio of a GeForce
        (0x1002, 0x120000, True),  # MI300X
        (0x1002, 0x038000, True),  # MI250
        (0x1002, 0x030000, False),  # Radeon, or the graphics of a Ryzen
        (0x1002, 0x040300, None),
        (0x1DA3, 0x120000, True),  # Gaudi
        (0x1A03, 0x030000, None),  # ASPEED
        (0x102B, 0x030000, None),  # Matrox
        (0x8086, 0x030000, None),
        (0x10DE, None, None),
        (None, 0x030000, None),
    ],
)
def test_what_is_an_accelerator(vendor, device_class, expected):
    assert pci.counts_as_accelerator(vendor, device_class) is expected


def test_virtual_functions_beside_their_physical_function_do_not_count(machine, tree):
    machine.pci("0000:3b:00.0", "0x10de", "0x030200", driver="nvidia")
    machine.pci("0000:3b:00.4", "0x10de", "0x030200", driver="nvidia", physfn=True)
    machine.pci("0000:3c:00.0", "0x1002", "0x120000")
    found = pci.accelerators(tree)
    assert [(device.address, device.kernel_driver) for device in found] == [
        ("0000:3b:00.0", "nvidia"),
        ("0000:3c:00.0", None),
    ]
    assert found[0].facts()["numa_node"] is None


@pytest.mark.parametrize(
    ("operstates", "phys_state", "unlinked"),
    [
        (["down"], "3: Disabled", True),
        (["down"], "5: LinkUp", False),
        (["up"], "3: Disabled", False),
        (["down", "up"], None, False),
        (["lowerlayerdown"], None, True),
        (["unknown"], None, False),
        ([], "2: Polling", True),
        ([], None, False),
    ],
)
def test_a_device_is_without_a_link_where_none_of_its_ports_has_one(tmp_path, operstates, phys_state, unlinked):
    address, sys = "0000:01:00.0", sysfs_tree.Tree(tmp_path)
    sys.pci("pci0000:00", address)
    for number, state in enumerate(operstates):
        sys.write(f"class/net/eth{number}/operstate", state)
        (sys.sys / f"class/net/eth{number}/device").symlink_to((sys.sys / "bus/pci/devices" / address).resolve())
    if phys_state:
        sys.rdma(pci=address)
        sys.port(phys_state=phys_state)
    sys.write("class/net/lo/operstate", "down")
    assert nics.without_link(Tree(str(tmp_path))) == ({address} if unlinked else set())
