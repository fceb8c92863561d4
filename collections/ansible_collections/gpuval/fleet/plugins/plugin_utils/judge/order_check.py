"""Whether a node is the machine that was ordered: its model, as many GPUs, as many RDMA ports with a link."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core import units
from ..core.errors import GpuvalError
from ..core.text import some_of
from ..core.vendors import GPU_VENDORS
from ..records.documents import Record
from . import sku_catalogue
from .entries import Entry, own_entry
from .subject import FACTS, Subject

ACTIVE = "ACTIVE"
MOST_BITS = 1e14
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?(\S+)")


class OrderError(GpuvalError, ValueError):
    """What was ordered cannot be understood; the message says why."""


def nics_ordered(count: Any, rate: Any) -> dict[str, Any]:
    """``gpuval_nic_count`` and ``gpuval_nic_rate`` as run.json keeps them; empty where none are declared."""
    if count in (None, ""):
        if rate:
            raise OrderError("gpuval_nic_rate needs gpuval_nic_count: how many ports have that rate")
        return {}
    if isinstance(count, bool) or not str(count).strip().isdecimal():
        raise OrderError(f"gpuval_nic_count {count!r} is not a whole number")
    found: dict[str, Any] = {"count": int(count)}
    if rate:
        found["rate_bits_per_second"] = nic_rate(rate)
    return found


def nic_rate(text: Any) -> float:
    """A rate in bits/s. Raises OrderError."""
    words = _RATE.fullmatch(str(text).strip())
    try:
        bits = 8 * float(units.convert(float(words[1]), words[2], "bytes/s")) if words else 0.0
    except units.UnitError:
        bits = 0.0
    if not 1e9 <= bits <= MOST_BITS:
        raise OrderError(
            f"gpuval_nic_rate {str(text)[:40]!r}: write the rate of a port with its unit, such as 400 Gb/s"
        )
    return bits


def nic_checks(ordered: Mapping[str, Any], facts: Record | None) -> list[Entry]:
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
    found: dict[str, tuple[str, float]] = {}
    for nic in nics:
        ports = nic.get("ports") if isinstance(nic, dict) and nic.get("kind") == "rdma" else None
        for port in ports if isinstance(ports, list) else ():
            if isinstance(port, dict):
                speed = port.get("rate_bits_per_second")
                name = f"{nic.get('name')}:{port.get('port')}"[:64]
                bits = min(max(speed, 0), MOST_BITS) if isinstance(speed, (int, float)) else 0
                found[name] = str(port.get("state"))[:32], bits
    return found


def _lacks(state: str, speed: float, rate: float | None) -> str:
    """What a port lacks of what was ordered; empty for nothing."""
    if state != ACTIVE:
        return state
    return f"{speed / 1e9:g} Gb/s" if rate and speed < rate else ""


def checks(subject: Subject, has_facts: bool, models: Sequence[str]) -> list[Entry]:
    """The entries of the SKU; ``models`` are those of the GPUs, by the facts, if there are any."""
    if subject.sku == sku_catalogue.CPU or (has_facts and subject.accelerator not in GPU_VENDORS):
        return []  # the accelerator's own check says what there is to say
    ordered = sku_catalogue.named(subject.sku)
    models_text = ", ".join(sorted(set(models))[:8])
    entry = functools.partial(
        own_entry, "sku", FACTS, "identity", value=models_text or None, expected=f"sku {subject.sku}",
        source="gpuval_sku of the inventory, and the models that the facts report",
    )  # fmt: skip
    if not models:
        remedy = "let the facts stage run and succeed; check the GPUs with the vendor's tool"
        return [entry("missing", "no facts report the models of the GPUs", remedy)]
    found = sku_catalogue.by_name(subject.catalogue_sku)
    several = found is None and len({sku.name if sku else None for sku in map(sku_catalogue.of_model, models)}) > 1
    # a mixed machine has a name of its own, which may hold that of a part of it
    expected = ordered or (None if several else sku_catalogue.hinted(subject.sku))
    if expected is not None and found is not expected:
        remedy = "the wrong machine was delivered, or gpuval_sku is wrong: compare with the order"
        return [entry("fail", f"{expected.title} was ordered, the facts report {models_text}", remedy)]
    if found is None:
        reason = (
            f"{'several models' if several else 'not in the catalogue'}: {models_text}; only the general criteria apply"
        )
        if several and subject.sku in (sku_catalogue.AUTO, *GPU_VENDORS):
            remedy = (
                "see which GPU is not the one that was ordered; a mixed machine that was ordered so has a name of its "
                "own in gpuval_sku"
            )
            return [entry("fail", reason, remedy)]
        remedy = "compare with the order; set gpuval_sku, and add a SKU with floors of your own (docs/criteria.md)"
        return [entry("warn", reason, remedy, severity="advisory")]
    if found.vendor != subject.accelerator:
        remedy = "run the facts again, and compare with lspci: which checks apply depends on the vendor"
        return [entry("fail", f"the facts report {models_text}, and accelerators of {subject.accelerator}", remedy)]
    size = _node_size_check(subject, found, ordered=ordered is not None)
    return [entry("pass", f"{models_text}: {found.title}"), *size]


def _node_size_check(subject: Subject, sku: sku_catalogue.Sku, *, ordered: bool) -> list[Entry]:
    """How many GPUs such a node has, where it is not declared.

    Who orders an H200 node means a whole one. Where the SKU is only found, a part of a node is what virtual machines
    are sold as; but no machine is sold with seven of eight GPUs.
    """
    if subject.declared_gpus is not None or sku.node_gpus is None:
        return []
    count = subject.detected_gpus
    entry = functools.partial(
        own_entry, "sku_gpu_count", FACTS, "identity", value=count, unit="count", metric="gpu_count",
        expected=units.number_text(sku.node_gpus), source=f"SKU catalogue: {sku.title}",
        remedy="look for the missing GPU on the PCI bus and in the kernel log (XID 79); a machine that was ordered "
        "with fewer declares gpuval_gpu_count",
    )  # fmt: skip
    if count is None:
        return [entry("missing", "the facts have no gpu_count")]
    reason = f"{units.number_text(count)} GPUs; a node of {sku.title} has {sku.node_gpus}"
    if count == sku.node_gpus:
        return [entry("pass", reason)]
    if ordered or count not in sku.part_gpus:
        return [entry("fail", reason)]
    return [entry("warn", reason, severity="advisory")]
