"""Whether a node has the NICs that were ordered: as many RDMA ports with a link, at the ordered rate."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core import units
from ..core.errors import SettingError
from ..core.text import some_of
from ..records.documents import Record
from .entries import Entry, own_entry
from .subject import FACTS

ACTIVE = "ACTIVE"
MOST_BITS = 1e14
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?(\S+)")


def ordered(count: Any, rate: Any) -> dict[str, Any]:
    """``gpuval_nic_count`` and ``gpuval_nic_rate`` as run.json keeps them; empty where none are declared."""
    if count in (None, ""):
        if rate:
            raise SettingError("gpuval_nic_rate needs gpuval_nic_count: how many ports have that rate")
        return {}
    if isinstance(count, bool) or not str(count).strip().isdecimal():
        raise SettingError(f"gpuval_nic_count {count!r} is not a whole number")
    order: dict[str, Any] = {"count": int(count)}
    if rate:
        order["rate_bits_per_second"] = port_rate(rate)
    return order


def port_rate(text: Any) -> float:
    """A rate in bits/s. Raises SettingError."""
    words = _RATE.fullmatch(str(text).strip())
    try:
        bits = 8 * float(units.convert(float(words[1]), words[2], "bytes/s")) if words else 0.0
    except units.UnitError:
        bits = 0.0
    if not 1e9 <= bits <= MOST_BITS:
        raise SettingError(
            f"gpuval_nic_rate {str(text)[:40]!r}: write the rate of a port with its unit, such as 400 Gb/s"
        )
    return bits


def checks(ordered: Mapping[str, Any], facts: Record | None) -> list[Entry]:
    """Whether as many RDMA ports have a link, at the ordered rate, as were ordered."""
    if not ordered:
        return []
    count, rate = ordered["count"], ordered.get("rate_bits_per_second")
    at = f" at {rate / 1e9:g} Gb/s" if rate else ""
    entry = functools.partial(
        own_entry, "nic_count", FACTS, "identity", unit="count", metric="nic_count",
        expected=f"{count} RDMA ports with a link{at}", source="gpuval_nic_count and gpuval_nic_rate of the inventory",
        remedy="look at cable, transceiver and switch port of a port without link, for a missing NIC on the PCI bus "
        "(lspci) and its driver (mlx5_ib); or correct gpuval_nic_count",
    )  # fmt: skip
    if facts is None or not isinstance(facts["environment"].get("nics"), list):
        return [entry("missing", "no facts say which NICs the node has")]
    ports = _ports(facts["environment"]["nics"])
    bad = [f"{name} ({why})" for name, (state, speed) in ports.items() if (why := _lacks(state, speed, rate))]
    good = len(ports) - len(bad)
    reason = f"{good} RDMA ports have a link{at}" + (f", not {some_of(bad, 8)}" if bad else "")
    return [entry("pass" if good >= count else "fail", f"{reason}; {count} were ordered", value=good)]


def _ports(nics: Sequence[Any]) -> dict[str, tuple[str, float]]:
    """State and bits/s of each RDMA port by its name, by facts that are not trusted."""
    states: dict[str, tuple[str, float]] = {}
    for nic in nics:
        ports = nic.get("ports") if isinstance(nic, dict) and nic.get("kind") == "rdma" else None
        for port in ports if isinstance(ports, list) else ():
            if isinstance(port, dict):
                speed = port.get("rate_bits_per_second")
                name = f"{nic.get('name')}:{port.get('port')}"[:64]
                bits = min(max(speed, 0), MOST_BITS) if isinstance(speed, (int, float)) else 0
                states[name] = str(port.get("state"))[:32], bits
    return states


def _lacks(state: str, speed: float, rate: float | None) -> str:
    """What a port lacks of what was ordered; empty for nothing."""
    if state != ACTIVE:
        return state
    return f"{speed / 1e9:g} Gb/s" if rate and speed < rate else ""
