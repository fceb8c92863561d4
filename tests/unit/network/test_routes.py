"""Routes as the kernel has them, on this machine and in an answer that was seen on another."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.network import routes


def test_the_route_to_this_host_itself():
    route = routes.route_to("127.0.0.2")
    assert (route.interface, route.gateway, route.is_local) == ("lo", None, True)
    assert routes.next_hop("127.0.0.2") == ("lo", None)
    assert routes.next_hop("") == routes.next_hop("no address") == (None, None)


#: What a Linux 6.18 answered for 8.8.8.8, on a host with one interface and a default route.
ANSWER = bytes.fromhex(
    "700000001800000001000000a64f000002200000fe0000010002000008000f00fe000000080001000808080808000400040000000800"
    "0700c000020208000500c0000201080019000000000024000c0002000000000000000000000000000000000000000000000000000000"
    "00000000"
)


def test_a_route_through_a_gateway():
    route = routes.parse(ANSWER)
    assert (route.gateway, route.source) == ("192.0.2.1", "192.0.2.2")
    assert not route.is_local
    by_loopback = ANSWER.replace(bytes.fromhex("0800040004000000"), bytes.fromhex("0800040001000000"))
    assert routes.parse(by_loopback).interface == "lo"


def test_no_route_is_reported_in_the_kernels_words():
    with pytest.raises(OSError, match="unreachable"):
        routes.parse(bytes.fromhex("240000000200000001000000000000009bffffff") + bytes(16))
    for cut in (b"", ANSWER[:10], ANSWER[:40]):
        with pytest.raises(OSError, match="answer"):
            routes.parse(cut)
