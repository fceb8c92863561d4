"""What may be declared for a node's network."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.network.declaration import parse_declaration
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError


def test_nothing_declared_is_nothing():
    assert parse_declaration({}).is_empty
    assert parse_declaration({"interfaces": [], "hosts": {}, "sysctls": {}, "limits": []}).is_empty
    assert not parse_declaration({"sysctls": {"net.core.somaxconn": 4096}}).is_empty


def test_values_come_out_in_one_form():
    settings = parse_declaration(
        {
            "interfaces": [
                {
                    "name": "ib0",
                    "addresses": ["10.0.0.1/16", "FD00::1/64"],
                    "routes": [{"to": "default", "via": "10.0.0.254"}, {"to": "10.9.1.1/16", "metric": 7}],
                }
            ],
            "sysctls": {"net.ipv4.tcp_rmem": "4096\t87380  6291456", "net.ipv4.ip_forward": True},
            "limits": [
                {"item": "memlock", "value": "unlimited"},
                {"domain": "@gpu", "type": "soft", "item": "nofile", "value": 9},
            ],
        }
    )
    (interface,) = settings.interfaces
    assert interface.addresses == ("10.0.0.1/16", "fd00::1/64")
    assert interface.routes == (
        {"dst": "0.0.0.0/0", "version": 4, "metric": 0, "gateway": "10.0.0.254"},
        {"dst": "10.9.0.0/16", "version": 4, "metric": 7},
    )
    assert settings.sysctls == {"net.ipv4.tcp_rmem": "4096 87380 6291456", "net.ipv4.ip_forward": "1"}
    assert settings.limits == ("* - memlock unlimited", "@gpu soft nofile 9")


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"interfaces": [{"mtu": 9000}]}, "needs a name"),
        ({"interfaces": [{"name": "a", "mtu": 1000}]}, "1280"),
        ({"interfaces": [{"name": "a", "addresses": ["10.0.0.1"]}]}, "prefix length"),
        ({"interfaces": [{"name": "a", "addresses": ["10.0.0.300/24"]}]}, "10.0.0.300/24"),
        ({"interfaces": [{"pattern": "a*", "addresses": ["10.0.0.1/24"]}]}, "give its name"),
        ({"interfaces": [{"name": "a", "state": "down", "flap": True}]}, "to be down"),
        ({"interfaces": [{"name": "a", "routes": [{"to": "10.0.0.0/8", "via": "fd00::1"}]}]}, "another IP version"),
        ({"interfaces": [{"name": "a", "routes": [{"to": "nowhere"}]}]}, "nowhere"),
        ({"hosts": {"node 1": "10.0.0.1"}}, "node 1"),
        ({"hosts": {"node-1": "node-1.example.com"}}, "node-1"),
        ({"hosts": {"-x\n": "10.0.0.1"}}, "cannot be a name"),
        ({"sysctls": {"../../etc/passwd": 1}}, "kernel parameter"),
        ({"sysctls": {"net/../../etc": 1}}, "kernel parameter"),
        ({"sysctls": {"net.core.somaxconn": ""}}, "value"),
        ({"limits": [{"item": "memlock", "value": "1\n* - nofile 2"}]}, "limits"),
    ],
)
def test_what_is_wrong_is_named(parameters, told):
    with pytest.raises(NodeError, match=told):
        parse_declaration(parameters)
