"""What `ip -json` says, as it was seen on real machines."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.network.host import sysctl_path
from ansible_collections.gpuval.fleet.plugins.module_utils.network.state import (
    is_restorable,
    parse_interfaces,
    parse_routes,
    route_words,
)
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError

ADDRESS = """[{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP","LOWER_UP"],"mtu":65536,
"operstate":"UNKNOWN","addr_info":[{"family":"inet","local":"127.0.0.1","prefixlen":8,"scope":"host"}]},
{"ifindex":3,"link":"v1","ifname":"v0","flags":["NO-CARRIER","BROADCAST","MULTICAST","UP","M-DOWN"],"mtu":1500,
"operstate":"LOWERLAYERDOWN","linkinfo":{"info_kind":"veth"},"addr_info":[{"family":"inet","local":"10.9.0.1","prefixlen":24,
"scope":"global","label":"v0"},{"family":"inet6","local":"fe80::1","prefixlen":64,"scope":"link"},
{"family":"inet6","local":"fd00::5","prefixlen":64,"scope":"global","tentative":true,"dadfailed":true},
{"family":"inet6","local":"fd00::6","prefixlen":64,"scope":"global","dynamic":true,"tentative":true}]},
{"ifname":"bond0.7","link":"bond0","flags":["UP","LOWER_UP"],"mtu":9000,"linkinfo":{"info_kind":"vlan"},"addr_info":[]},
{"ifname":"eth0","master":"bond0","flags":["UP","LOWER_UP"],"mtu":9000,"addr_info":[]},{}]"""
ROUTES = """[{"type":"unicast","dst":"default","gateway":"172.17.0.1","dev":"eth0","protocol":"boot",
"scope":"global","flags":[]},
{"type":"unicast","dst":"10.9.0.0/24","dev":"v0","protocol":"kernel","scope":"link","prefsrc":"10.9.0.1","flags":["linkdown"]},
{"type":"blackhole","dst":"10.0.0.7","protocol":"static","scope":"global","metric":9,"flags":[]},
{"type":"unicast","dst":"10.3.0.0/16","protocol":"boot","flags":[],"nexthops":[{"gateway":"10.9.0.2"}]}]"""


def test_interfaces():
    found = parse_interfaces(ADDRESS, {"v0": "mlx5_core", "eth0": None})
    assert list(found) == ["lo", "v0", "bond0.7", "eth0"]
    veth = found["v0"]
    assert (veth.up, veth.carrier, veth.mtu, veth.state, veth.driver) == (True, False, 1500, "up", "mlx5_core")
    assert veth.addresses == ("10.9.0.1/24", "fd00::5/64", "fd00::6/64")
    assert veth.link_local == ("fe80::1/64",)
    assert veth.below is None, "the other end of a veth pair is not below it"
    assert (veth.duplicate, veth.pending, veth.dynamic) == ({"fd00::5/64"}, {"fd00::6/64"}, {"fd00::6/64"})
    assert (found["bond0.7"].below, found["eth0"].above, found["eth0"].physical) == ("bond0", "bond0", True)


def test_routes_as_they_are_given_back():
    default, kernel, blackhole, many = parse_routes(ROUTES, 4)
    assert (default["dst"], default["metric"]) == ("0.0.0.0/0", 0)
    assert route_words(default) == ["0.0.0.0/0", "via", "172.17.0.1", "dev", "eth0", "proto", "boot"]
    assert route_words(kernel) == ["10.9.0.0/24", "dev", "v0", "proto", "kernel", "src", "10.9.0.1", "scope", "link"]
    assert route_words(blackhole) == ["blackhole", "10.0.0.7/32", "proto", "static", "metric", "9"]
    assert [is_restorable(each) for each in (default, kernel, blackhole, many)] == [True, True, True, False]
    (six,) = parse_routes('[{"dst":"default","gateway":"fe80::1","dev":"eth0","metric":100,"pref":"medium"}]', 6)
    assert (six["dst"], six["metric"], six["version"]) == ("::/0", 100, 6)


def test_an_ip_command_without_json_is_named():
    with pytest.raises(NodeError, match="iproute2"):
        parse_routes("default via 10.0.0.1 dev eth0", 4)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.ipv4.tcp_rmem", "/proc/sys/net/ipv4/tcp_rmem"),
        ("net.ipv4.conf.eth0/7.arp_ignore", "/proc/sys/net/ipv4/conf/eth0.7/arp_ignore"),
        ("net/ipv4/conf/eth0.7/arp_ignore", "/proc/sys/net/ipv4/conf/eth0.7/arp_ignore"),
    ],
)
def test_names_of_kernel_parameters(name, path):
    assert str(sysctl_path(name)) == path
