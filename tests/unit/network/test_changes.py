"""From what is and what is declared to what is changed; what would cut the connection is refused."""

import dataclasses

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.network.changes import NetworkChange, plan_changes
from ansible_collections.gpuval.fleet.plugins.module_utils.network.declaration import parse_declaration
from ansible_collections.gpuval.fleet.plugins.module_utils.network.management import (
    ManagementConnection,
    with_dependencies,
)
from ansible_collections.gpuval.fleet.plugins.module_utils.network.state import HostInterface, NetworkState

LOCAL = ManagementConnection()


def interface(name, **given):
    return HostInterface(name, **{"up": True, "carrier": True, "mtu": 1500, **given})


def route(dst, dev, metric=0, **given):
    version = 6 if ":" in dst else 4
    return {"type": "unicast", "dst": dst, "dev": dev, "metric": metric, "version": version, "flags": [], **given}


MACHINE = NetworkState(
    interfaces={
        "lo": interface("lo", mtu=65536),
        "eth0": interface("eth0", addresses=("192.0.2.10/24",)),
        "ib0": interface("ib0"),
        "ib1": interface("ib1", up=False, carrier=False),
    },
    routes=(route("0.0.0.0/0", "eth0", gateway="192.0.2.1"), route("192.0.2.0/24", "eth0", protocol="kernel")),
    sysctls={"net.core.somaxconn": "128", "net.ipv4.tcp_rmem": "4096\t87380\t6291456"},
)
MANAGEMENT = ManagementConnection(("eth0",), frozenset({"eth0"}), "198.51.100.7", "SSH from 198.51.100.7")


def plan(parameters, state=MACHINE, management=LOCAL, flapped=frozenset()):
    found = plan_changes(parse_declaration(parameters), state, flapped)
    found.problems += management.refusals(found.changes, state)
    return found


def test_nothing_declared_changes_nothing():
    nothing = plan({})
    assert (nothing.changes, nothing.problems, nothing.links) == ([], [], [])


def test_only_the_difference_is_changed_and_in_order():
    wanted = plan(
        {
            "sysctls": {"net.core.somaxconn": 4096, "net.ipv4.tcp_rmem": "4096 87380 6291456"},
            "interfaces": [
                {
                    "name": "ib1",
                    "mtu": 4000,
                    "addresses": ["10.1.0.1/16"],
                    "routes": [{"to": "10.2.0.0/16", "via": "10.1.0.9"}],
                },
                {"name": "ib0", "mtu": 1500},
            ],
            "hosts": {"node-1": "10.1.0.1", "node-2": "10.1.0.2", "one": "10.1.0.1"},
        }
    )
    assert [str(change) for change in wanted.changes] == [
        "ib1 mtu: 1500 -> 4000",
        "ib1 state: down -> up",
        "ib1: add address 10.1.0.1/16",
        "route 10.2.0.0/16 metric 0: none -> via 10.1.0.9 dev ib1",
        "net.core.somaxconn: 128 -> 4096",
        "/etc/hosts: write",
    ]
    assert wanted.changes[-1].after == "10.1.0.1 node-1 one\n10.1.0.2 node-2\n"
    assert wanted.links == ["ib1", "ib0"]
    assert not wanted.problems


def test_all_of_a_group_go_down_before_one_comes_up_and_only_when_there_is_reason():
    group = {"interfaces": [{"pattern": "ib*", "flap": True, "mtu": 4000}]}
    kinds = [(change.kind, change.interface) for change in plan(group).changes]
    assert kinds == [("flap", "ib0"), ("mtu", "ib0"), ("mtu", "ib1"), ("state", "ib1")]
    good = dataclasses.replace(MACHINE, interfaces={name: interface(name, mtu=4000) for name in ("ib0", "ib1")})
    assert [change.interface for change in plan(group, good).changes] == ["ib0", "ib1"]
    assert plan(group, good, flapped=frozenset({"ib0"})).changes, "one of them was not down yet"
    assert not plan(group, good, flapped=frozenset({"ib0", "ib1"})).changes
    lost = dataclasses.replace(good, interfaces={**good.interfaces, "ib1": interface("ib1", mtu=4000, carrier=False)})
    assert len(plan(group, lost, flapped=frozenset({"ib0", "ib1"})).changes) == 2, "one lost its carrier: all again"


def test_what_goes_lost_by_going_down_is_remembered():
    state = dataclasses.replace(
        MACHINE,
        interfaces={
            "ib0": interface(
                "ib0", addresses=("10.1.0.1/16", "fd00::1/64", "fd00::2/64"), dynamic=frozenset({"fd00::2/64"})
            )
        },
        routes=(route("10.1.0.0/16", "ib0", protocol="kernel"), route("10.2.0.0/16", "ib0", protocol="static")),
    )
    (change,) = plan({"interfaces": [{"name": "ib0", "flap": True}]}, state).changes
    assert change.before["addresses"] == ["fd00::1/64"]
    assert [entry["dst"] for entry in change.before["routes"]] == ["10.2.0.0/16"]


def test_interfaces_are_found_by_driver_and_those_that_are_missing_are_counted():
    ports = {f"ens{n}": interface(f"ens{n}", driver="habanalabs_en.en") for n in range(3)}
    state = dataclasses.replace(MACHINE, interfaces={**MACHINE.interfaces, **ports})
    found = plan({"interfaces": [{"driver": "habanalabs*", "count": 3, "mtu": 9000, "exclude": ["ens2"]}]}, state)
    assert [change.interface for change in found.changes] == ["ens0", "ens1"]
    assert "2 of 3 interface(s) with driver habanalabs* found (ens0, ens1)" in found.problems[0]


def test_an_interface_that_two_entries_mean_is_a_problem():
    (problem,) = plan({"interfaces": [{"name": "ib0"}, {"pattern": "ib*"}]}).problems
    assert "ib0 matches two entries" in problem


def test_an_unknown_kernel_parameter_is_a_problem():
    (problem,) = plan({"sysctls": {"net.core.no_such": 1}}).problems
    assert "no parameter net.core.no_such" in problem


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "eth0", "mtu": 9000},
        {"name": "eth0", "state": "down"},
        {"pattern": "eth*", "flap": True},
        {"name": "eth0", "addresses": ["10.3.0.1/16"]},
        # the controller would be looked for behind another interface
        {"name": "ib0", "addresses": ["198.51.100.1/24"]},
        {"name": "ib0", "routes": [{"to": "198.51.100.0/25"}]},
        {"name": "ib0", "routes": [{"to": "default", "metric": 0}]},
    ],
)
def test_what_would_cut_the_management_connection_is_refused(entry):
    problems = plan({"interfaces": [entry]}, management=MANAGEMENT).problems
    assert problems and "refused" in problems[0]


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "eth0"},
        {"name": "eth0", "mtu": 1500},
        {"name": "ib0", "mtu": 9000, "addresses": ["10.3.0.1/16"]},
        {"name": "ib0", "routes": [{"to": "10.9.0.0/16"}]},
        {"name": "ib0", "routes": [{"to": "default", "metric": 500}]},
    ],
)
def test_what_does_not_touch_it_is_not_refused(entry):
    assert not plan({"interfaces": [entry]}, management=MANAGEMENT).problems


def test_ports_below_the_management_interface_are_protected_and_others_are_not():
    state = NetworkState(
        interfaces={
            "bond0.7": interface("bond0.7", below="bond0"),
            "bond0": interface("bond0"),
            "eth0": interface("eth0", above="bond0"),
            "eth1": interface("eth1", above="bond0"),
            "ib0": interface("ib0"),
        }
    )
    assert with_dependencies(state, ["bond0.7"]) == {"bond0.7", "bond0", "eth0", "eth1"}
    assert with_dependencies(state, ["gone"]) == set()


def test_a_route_that_could_not_be_put_back_is_not_replaced():
    state = dataclasses.replace(MACHINE, routes=(route("10.9.0.0/16", "eth0", nexthops=[{}, {}]),))
    result = plan({"interfaces": [{"name": "ib0", "routes": [{"to": "10.9.0.0/16"}]}]}, state)
    assert not result.changes
    assert "cannot restore" in result.problems[0]


def test_a_change_and_its_inverse():
    change = NetworkChange("mtu", "ib0 mtu", 1500, 9000, "ib0")
    assert change.inverse() == NetworkChange("mtu", "ib0 mtu", 9000, 1500, "ib0")
    assert change.inverse().identity == change.identity
    assert NetworkChange(**dataclasses.asdict(change)) == change
    assert NetworkChange("sysctl", "x", None, None).is_same("1\t2", "1 2")
    assert not NetworkChange("route", "x", None, None).is_same(None, {"gateway": "10.0.0.1"})
