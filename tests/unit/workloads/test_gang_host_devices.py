"""RDMA devices, their counters, PCIe and ACS, read from trees as real machines have them."""

import pytest
from gpuval_node.hardware.acs import redirects
from gpuval_node.hardware.pci import accelerators
from gpuval_node.hardware.tree import Tree as Sysfs
from gpuval_workloads.gang.host import pcie, rdma

from tests.kit.sysfs_tree import IB_GIDS, MLX5_COUNTERS, ROCE_GIDS, Tree, config_space

ROOT_PORT, UP, DOWN_1, DOWN_2 = "0000:40:01.0", "0000:41:00.0", "0000:42:00.0", "0000:42:01.0"
NIC, GPU, FAR_GPU = "0000:43:00.0", "0000:44:00.0", "0000:84:00.0"


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def devices(tree):
    return rdma.devices(Sysfs(tree.root))


def test_a_port_of_infiniband(tree):
    tree.rdma()
    tree.port(gids=IB_GIDS)
    [device] = devices(tree)
    assert (device.firmware, device.board, device.pci_address) == ("14.28.2006", "SM_2001000001034", None)
    [port] = device.ports
    assert (port.name, port.state, port.physical_state, port.is_active) == ("mlx5_0:1", "ACTIVE", "LinkUp", True)
    assert port.rate_bits_per_second == 400e9
    assert [gid.type for gid in port.gids] == ["IB"] and port.roce_v2 is None


def test_roce_has_both_types_and_an_index_for_version_2_over_ipv4(tree):
    tree.pci("pci0000:40", NIC)
    tree.rdma(pci=NIC, interface="gpu0_eth")
    tree.port(link_layer="Ethernet", gids=ROCE_GIDS)
    [device] = devices(tree)
    assert (device.pci_address, device.interfaces) == (NIC, ("gpu0_eth",))
    port = device.ports[0]
    assert [gid.type for gid in port.gids] == ["RoCE v1", "RoCE v2", "RoCE v1", "RoCE v2"]
    assert (port.roce_v2.index, port.roce_v2.is_ipv4) == (3, True)
    assert rdma.describe_gids(device.ports) == "1 x RoCE v1+RoCE v2 (v2 at 3)"


def test_an_address_of_the_link_alone_is_none_to_route_by(tree):
    tree.rdma()
    tree.port(link_layer="Ethernet", gids=ROCE_GIDS[:2])
    assert devices(tree)[0].ports[0].roce_v2 is None


def test_a_global_address_of_ipv6_is_one(tree):
    tree.rdma()
    tree.port(link_layer="Ethernet", gids=[*ROCE_GIDS[:2], ("fc00:0200:0000:0000:0000:0000:0000:000a", "RoCE v2")])
    assert devices(tree)[0].ports[0].roce_v2.index == 2


def test_ports_that_are_down_or_unreadable(tree):
    tree.rdma("mlx5_0")
    tree.port(state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)")
    tree.port(number=2, state="", rate="", link_layer="", phys_state="")
    first, second = devices(tree)[0].ports
    assert (first.is_active, first.physical_state) == (False, "Polling")
    assert (second.state, second.rate_bits_per_second, second.link_layer) == (None, None, None)
    assert rdma.describe_ports((first, second)) == "1 x InfiniBand DOWN, 1 x unknown unknown"


def test_hosts_that_are_alike_are_described_alike_in_whatever_order(tree, tmp_path):
    other = Tree(tmp_path / "other")
    for one, names in ((tree, ["mlx5_0", "mlx5_1", "mlx5_10"]), (other, ["rdma2", "rdma0", "rdma1"])):
        for place, name in enumerate(names):
            one.rdma(name)
            one.port(name, state="4: ACTIVE" if place else "1: DOWN")
    found = [devices(one) for one in (tree, other)]
    described = {rdma.describe_ports([p for d in each for p in d.ports]) for each in found}
    assert described == {"2 x InfiniBand ACTIVE 400 Gb/s, 1 x InfiniBand DOWN"}
    assert rdma.describe_firmware(found[0]) == "3 x SM_2001000001034 14.28.2006"


def test_no_devices(tree):
    assert devices(tree) == [] and rdma.describe_ports([]) == ""


def counters(tree):
    return rdma.counters(Sysfs(tree.root), [port for device in devices(tree) for port in device.ports])


def test_counters_before_and_after(tree):
    tree.rdma()
    tree.port(gids=IB_GIDS)
    before = counters(tree)
    assert before["mlx5_0:1"]["local_ack_timeout_err"] == 131 and "req_cqe_error" not in before["mlx5_0:1"]
    hardware = {**MLX5_COUNTERS["hw_counters"], "local_ack_timeout_err": 140, "out_of_sequence": 50}
    tree.port(counters={"counters": {"symbol_error": 7, "link_downed": 1}, "hw_counters": hardware})
    one = rdma.moved(before, counters(tree))["mlx5_0:1"]
    assert (one.link_errors, one.retransmissions) == (8, 9)
    assert one.words(tuple(rdma.LINK_ERRORS)) == "symbol_error +7, link_downed +1"
    assert one.counts["out_of_sequence"] == 49  # shown, and no error: adaptive routing reorders


def test_a_counter_that_is_full_or_was_set_back_tells_nothing(tree):
    tree.rdma()
    tree.port(counters={"counters": {"symbol_error": 65535, "link_downed": 255, "port_rcv_errors": 9}})
    before = counters(tree)
    tree.port(counters={"counters": {"symbol_error": 65535, "link_downed": 255, "port_rcv_errors": 2}})
    one = rdma.moved(before, counters(tree))["mlx5_0:1"]
    assert set(one.full) == {"symbol_error", "link_downed"} and "port_rcv_errors" not in one.counts
    assert one.link_errors == 0


def test_counters_that_the_driver_does_not_have(tree):
    tree.rdma("efa_0")
    tree.port("efa_0", counters={"counters": {"symbol_error": "N/A (no PMA)"}})
    assert counters(tree) == {}


def lanes(tree, **link):
    tree.pci("pci0000:40", ROOT_PORT, **tree.link())
    tree.pci("pci0000:40", ROOT_PORT, NIC, **tree.link(**link))
    return pcie.link(Sysfs(tree.root), NIC)


def test_a_link_at_full_speed(tree):
    link = lanes(tree)
    assert (str(link.now), link.ratio, link.is_slow) == ("32 GT/s x16", 1.0, False)
    assert link.now.bytes_per_second == pytest.approx(63.0e9, rel=0.001)


def test_a_link_that_lost_half_its_lanes(tree):
    link = lanes(tree, width=8)
    assert (str(link.now), link.ratio, link.is_slow) == ("32 GT/s x8", 0.5, True)


def test_a_card_that_can_more_than_its_slot_is_not_slow(tree):
    tree.pci("pci0000:40", ROOT_PORT, **tree.link("16.0 GT/s PCIe", 16, "16.0 GT/s PCIe", 16))
    tree.pci("pci0000:40", ROOT_PORT, NIC, **tree.link("16.0 GT/s PCIe", 16, "32.0 GT/s PCIe", 16))
    link = pcie.link(Sysfs(tree.root), NIC)
    assert (str(link.most), link.is_slow) == ("16 GT/s x16", False)


@pytest.mark.parametrize("unknown", [{"now": "Unknown"}, {"width": 0}, {"width": 255}, {"now": ""}])
def test_a_virtual_function_tells_no_link(tree, unknown):
    assert lanes(tree, **unknown) is None


def switched(tree, control, size=4096):
    """A NIC and a GPU below one switch, and a GPU elsewhere."""
    gpu = {"class": "0x030200", "vendor": "0x10de"}
    config = config_space(control, size=size)
    way = ("pci0000:40", ROOT_PORT, UP)
    for bridge in (DOWN_1, DOWN_2):
        tree.pci(*way, bridge, config=config, **{"class": "0x060400", "vendor": "0x1000"})
    tree.pci(*way, DOWN_1, NIC, **{"class": "0x020700", "vendor": "0x15b3"})
    tree.pci(*way, DOWN_2, GPU, **gpu)
    tree.pci("pci0000:80", "0000:80:01.0", FAR_GPU, **gpu)
    sysfs = Sysfs(tree.root)
    assert [gpu.address for gpu in accelerators(sysfs)] == [GPU, FAR_GPU]
    return pcie.acs(sysfs, [NIC])


@pytest.mark.parametrize(
    ("control", "redirecting"),
    [
        (0x00, ()),
        (0x01, ()),  # only the source is validated
        (0x1D, (DOWN_1, DOWN_2)),  # what Linux sets with an IOMMU: SV, RR, CR, UF
        (0x5D, ()),  # and what is translated already may go straight, as virtual machines with ATS want it
    ],
)
def test_bridges_that_redirect(tree, control, redirecting):
    acs = switched(tree, control)
    assert (acs.looked_at, acs.redirecting, acs.unknown) == ((DOWN_1, DOWN_2), redirecting, ())


def test_who_may_not_read_the_configuration_space_does_not_know(tree):
    acs = switched(tree, 0x1D, size=64)
    assert (acs.redirecting, acs.unknown) == ((), (DOWN_1, DOWN_2))


def test_a_bridge_without_acs_and_one_that_is_damaged():
    assert redirects(bytes(4096)) is False
    circle = bytearray(4096)
    circle[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert redirects(bytes(circle)) is False
    assert redirects(b"\xff" * 4096) is None  # it has fallen off the bus
