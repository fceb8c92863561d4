"""A node's interfaces as they are shown and compared with those of other nodes; pure."""

from __future__ import annotations

from typing import Any

from .state import State

MOST_INTERFACES, MOST_ADDRESSES = 128, 32


def shown(state: State) -> dict[str, dict[str, Any]]:
    """Interfaces by name. Where many are not hardware (containers' ends), those without hardware are left out."""
    chosen = [interface for interface in state.interfaces.values() if interface.name != "lo"]
    if len(chosen) > MOST_INTERFACES:
        chosen = [interface for interface in chosen if interface.physical][:MOST_INTERFACES]
    return {
        interface.name: {
            "state": interface.state,
            "carrier": interface.carrier,
            "mtu": interface.mtu,
            "addresses": list(interface.addresses[:MOST_ADDRESSES]),
            "driver": interface.driver,
            "physical": interface.physical,
        }
        for interface in chosen
    }
