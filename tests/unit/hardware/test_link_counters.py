"""Which failures of links count within a stage, and how many symbol errors chance explains."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import link_counters
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree

HOUR = 3600


def failures(machine, changes, seconds=HOUR):
    before = link_counters.network_ports(Tree(str(machine)))
    for path, value in changes.items():
        machine.write(path, f"{value}\n")
    return link_counters.failures(before, link_counters.network_ports(Tree(str(machine))), seconds)


def counter(name, device="mlx5_1"):
    return f"sys/class/infiniband/{device}/ports/1/counters/{name}"


@pytest.mark.parametrize(
    ("old", "new", "failed"),
    [
        (0, 0, {}),
        (5, 5, {}),
        (5, 7, {"mlx5_1:1": 2}),
        (7, 5, None),  # reset
        (255, 255, None),  # full
        (254, 255, {"mlx5_1:1": 1}),
        (3, "N/A (no PMA)", None),
    ],
)
def test_a_loss_of_the_link_is_a_rise_of_its_counter(machine, old, new, failed):
    machine.infiniband_port(**{"counters/link_downed": old})
    assert failures(machine, {counter("link_downed"): new}).get("link_down") == failed


def test_a_link_that_was_lost_and_stays_down_counts_and_one_that_was_down_before_does_not(machine):
    machine.infiniband_port("mlx5_1")
    machine.infiniband_port("mlx5_2", phys_state="2: Polling")
    state = "sys/class/infiniband/mlx5_1/ports/1/phys_state"
    changes = {counter("link_downed"): 1, state: "2: Polling", counter("link_downed", "mlx5_2"): 1}
    assert failures(machine, changes) == {"link_down": {"mlx5_1:1": 1}}


def test_ports_of_ethernet_count_carrier_and_checksums(machine):
    machine.network_port("ens1", downs=2)
    machine.network_port("ens2")
    changes = {"sys/class/net/ens1/carrier_down_count": 4, "sys/class/net/ens2/statistics/rx_crc_errors": 9}
    assert failures(machine, changes) == {"link_carrier_down": {"ens1": 2}, "link_crc_error": {"ens2": 9}}


def test_symbol_errors_of_a_link_that_was_lost_are_those_of_the_loss(machine):
    machine.infiniband_port(**{"counters/symbol_error": 0})
    changes = {counter("symbol_error"): 60_000, counter("link_downed"): 1}
    assert failures(machine, changes) == {"link_down": {"mlx5_1:1": 1}, "link_symbol_error_ratio": {}}


def test_functions_and_representors_are_no_ports(machine):
    for name in ("ens1f0np0", "ens1f0npf0vf3", "ens1f0npf0sf88", "ens1f0s88", "ens1f0v1"):
        machine.network_port(name)
    machine.write("sys/class/net/ens1f0np0/phys_port_name", "p0")
    machine.write("sys/class/net/ens1f0npf0vf3/phys_port_name", "pf0vf3")
    machine.write("sys/class/net/ens1f0npf0sf88/phys_port_name", "c1pf0sf88")
    subfunction = machine.root / "sys/class/net/ens1f0s88/device"
    subfunction.unlink()
    subfunction.symlink_to("../../../mlx5_core.sf.4")
    machine.write("sys/class/net/ens1f0v1/device/physfn", "")
    assert [port.name for port in link_counters.network_ports(Tree(str(machine)))] == ["ens1f0np0"]


@pytest.mark.parametrize(
    ("errors", "seconds", "over_ib", "over_nvidia"),
    [
        (0, HOUR, False, False),
        (9, 2, False, False),  # 1e-11, of a few errors, which may be chance
        (9, HOUR, False, False),
        (30, HOUR, False, True),
        (1440, HOUR, False, True),  # exactly 1e-12: chance
        (1700, HOUR, True, True),
    ],
)
def test_symbol_errors_count_by_what_chance_does_not_explain(machine, errors, seconds, over_ib, over_nvidia):
    machine.infiniband_port(**{"counters/symbol_error": 0})
    ratio = failures(machine, {counter("symbol_error"): errors}, seconds)["link_symbol_error_ratio"].get("mlx5_1:1", 0)
    assert (ratio > 1e-12, ratio > 1e-15) == (over_ib, over_nvidia)


def test_a_port_without_a_rate_gives_no_ratio(machine):
    machine.infiniband_port(rate="", **{"counters/symbol_error": 0})
    assert failures(machine, {counter("symbol_error"): 9000}) == {"link_down": {}, "link_symbol_error_ratio": {}}
