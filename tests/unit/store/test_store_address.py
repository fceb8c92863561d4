"""The address that nodes are to use: the controller's own, and one that can be reached at all."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import address as store_address
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.address import (
    bracketed,
    canonical,
    listening_addresses,
    own_addresses,
)

from tests.kit.actions import run_action

OWN = {"127.0.0.1", "::1", "192.0.2.7", "2001:db8::7", "fe80::1"}
NAMES = {
    "controller": {"192.0.2.7"},
    "both.example": {"127.0.1.1", "192.0.2.7", "2001:db8::7"},
    "debian": {"127.0.1.1"},
    "elsewhere": {"203.0.113.5"},
}


@pytest.fixture
def machine(monkeypatch):
    """A machine with the addresses of OWN, where NAMES are known."""

    def look_up(name):
        if name not in NAMES:
            raise OSError(-2, "Name or service not known")
        return NAMES[name]

    monkeypatch.setattr(store_address, "own_addresses", lambda: OWN)
    monkeypatch.setattr(store_address, "look_up", look_up)


@pytest.mark.parametrize(
    "address, bound",
    [
        ("192.0.2.7", ["192.0.2.7"]),
        ("2001:db8::7", ["2001:db8::7"]),
        ("controller", ["192.0.2.7"]),
        ("both.example", ["192.0.2.7", "2001:db8::7"]),
    ],
)
def test_an_address_of_this_machine_is_listened_on(machine, address, bound):
    assert listening_addresses(address) == bound


@pytest.mark.parametrize(
    "address, told",
    [
        ("198.51.100.1", "no address of this controller; it has 192.0.2.7, 2001:db8::7.*NAT.*cannot load models"),
        ("elsewhere", "203.0.113.5.*no address of this controller"),
        ("debian", "means 127.0.1.1.*/etc/hosts.*192.0.2.7"),
        ("127.0.0.1", "no node reaches"),
        ("0.0.0.0", "no node reaches"),
        ("fe80::1", "no node reaches"),
        ("unknown", "has no address here.*Name or service not known"),
        ("https://controller", "without scheme"),
        ("controller:9000", "without scheme"),
        ("[2001:db8::7]", "without scheme"),
        ("a b", "without scheme"),
        ("--addr", "without scheme"),
    ],
)
def test_any_other_says_what_to_do(machine, address, told):
    with pytest.raises(StoreError, match=told):
        listening_addresses(address)


def test_one_address_has_one_spelling():
    assert canonical(" Controller.Example. ") == "controller.example"
    assert canonical("2001:DB8:0::7") == "2001:db8::7"
    assert bracketed("2001:db8::7") == "[2001:db8::7]"
    assert bracketed("192.0.2.7") == "192.0.2.7"


def test_the_loopback_is_an_own_address():
    assert "127.0.0.1" in own_addresses()


@pytest.mark.parametrize(("endpoint", "warned"), [("http://10.0.0.5:9000", True), ("https://10.0.0.5:9000", False)])
def test_a_store_without_tls_is_warned_of(tmp_path, endpoint, warned):
    options = {"store": {"endpoint": endpoint, "bucket": "b", "state_dir": str(tmp_path)}, "state": "started"}
    outcome = run_action("serve_store", options, check_mode=True)
    assert ("has no TLS" in outcome.text) is warned
    assert not outcome.failed
