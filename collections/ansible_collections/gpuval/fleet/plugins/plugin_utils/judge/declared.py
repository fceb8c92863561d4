"""What the owner ordered and declares of a node: NICs, versions, services that run, file systems that are mounted, how
hot GPUs may get. All is held against the facts, but for the temperature, which is the limit of a criterion."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import units
from ..core.errors import SettingError
from ..core.stages import DEPTHS
from ..core.text import meant, pattern_of, some_of
from ..records import environment
from ..records.documents import Record
from ..records.properties import PATHS, VERSIONS
from . import sku_catalogue
from .check import FACTS, Subject
from .entries import Entry, own_entry

RACK = "gpuval_rack"
#: Keys of gpuval_rack that are counts, with the largest allowed count.
RACK_COUNTS = {"trays": 1024, "chassis": 64}
PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
SERVICES, MOUNTS, TEMPERATURE = "gpuval_services", "gpuval_mounts", "gpuval_gpu_temperature_max_celsius"
MAX_NAMES, MAX_TEXT = 64, 200
#: For each declared list: its key in run.json, the path in the facts, the word for one item, and the remedy.
LISTS = {
    SERVICES: ("services", "active", "service", "find out why it does not run (systemctl status NAME), then start it"),
    MOUNTS: ("mounts", "mounts", "mount", "mount it, then find out why boot did not (/etc/fstab, journalctl -b)"),
}
UNKNOWN = {
    SERVICES: "services unknown: systemd does not answer on the node, as in a pod",
    MOUNTS: "mounts unknown: the facts have none",
}


def names(variable: str, value: Any) -> list[str]:
    """The declared services or mounts as a list of names for run.json. Raises SettingError for a malformed value."""
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
        raise SettingError(f"{variable} is a list of names, such as [chronyd]")
    if len(value) > MAX_NAMES or any(len(one) > MAX_TEXT for one in value):
        raise SettingError(f"{variable} has at most {MAX_NAMES} names of {MAX_TEXT} characters")
    if variable == MOUNTS and not all(one.startswith("/") for one in value):
        raise SettingError(f"{variable}: a mount is an absolute path, such as /data")
    tidy = (one.strip().removesuffix(".service") if variable == SERVICES else one.rstrip("/") or "/" for one in value)
    return list(dict.fromkeys(tidy))


def temperature(value: Any) -> float | None:
    """The declared temperature limit in degrees Celsius, None without one. Raises SettingError."""
    if value in (None, "") or (value in (0, "0") and value is not False):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not 30 <= number <= 120:
        raise SettingError(f"{TEMPERATURE} is a number of degrees from 30 to 120, not {str(value)[:40]!r}")
    return number


def rack(value: Any) -> dict[str, Any]:
    """``gpuval_rack`` as run.json keeps it. Raises SettingError for a malformed value."""
    if not value:
        return {}
    if not isinstance(value, Mapping) or not value.keys() <= {*RACK_COUNTS, "partition"}:
        raise SettingError(f"{RACK} is a dictionary with trays, chassis and partition, such as {{trays: 9}}")
    counts = {key: value[key] for key in RACK_COUNTS if key in value}
    for key, count in counts.items():
        if type(count) is not int or not 1 <= count <= RACK_COUNTS[key]:
            raise SettingError(f"{RACK}: {key} is a whole number from 1 to {RACK_COUNTS[key]}, not {str(count)[:40]!r}")
    partition = "" if value.get("partition") is None else str(value["partition"])
    if partition and not PARTITION.fullmatch(partition):
        raise SettingError(f"{RACK}: partition is a name of letters, digits, '.', '_' and '-', not {partition[:40]!r}")
    return {**counts, **({"partition": partition} if partition else {})}


def of_host(hostvars: Mapping[str, Any]) -> dict[str, Any]:
    """The declarations in a host's variables as run.json keeps them, without empty ones. Raises SettingError."""
    names_declared = {key: names(variable, hostvars.get(variable)) for variable, (key, *_) in LISTS.items()}
    further = {"gpu_temperature_max_celsius": temperature(hostvars.get(TEMPERATURE)), "rack": rack(hostvars.get(RACK))}
    return {key: value for key, value in {**names_declared, **further}.items() if value}


def list_check(variable: str, declared: Sequence[str], facts: Record | None) -> Entry:
    """The check that the facts list all services or mounts that the inventory declares in ``variable``."""
    key, list_key, noun, remedy = LISTS[variable]
    entry = functools.partial(
        own_entry, f"{key}_declared", FACTS, "equal", expected=some_of(declared), remedy=remedy,
        source=f"{variable} of the inventory",
    )  # fmt: skip
    if facts is None:
        return entry("missing", "no facts say what the node has")
    services = facts["environment"].get("services")
    services = services if isinstance(services, dict) else {}
    reported = services.get(list_key)
    if not isinstance(reported, list):
        return entry("missing", UNKNOWN[variable])
    absent = [name for name in declared if name not in reported]
    waiting = services.get("automounts")
    if absent and key == "mounts" and isinstance(waiting, list) and set(absent) <= set(waiting):
        return entry("missing", f"automounts that were not read yet: {some_of(absent)}; read them, then validate again")
    if absent and key == "mounts" and environment.texts(facts["environment"], "os.container"):
        return entry("missing", f"the facts are those of a container, which has not mounted: {some_of(absent)}")
    if absent:
        return entry("fail", f"{noun} not there: {some_of(absent)}", value=some_of(absent))
    return entry("pass", f"{len(declared)} {noun}{'s' if len(declared) > 1 else ''} there")


def parse_versions(value: Any) -> dict[str, list[str]]:
    """``gpuval_versions`` as run.json keeps it: for each kind the list of allowed versions. Raises SettingError."""
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise SettingError("gpuval_versions is a dictionary, such as {driver: 580.159.04}")
    versions = {}
    for key, entry in value.items():
        if key not in VERSIONS:
            near = meant(key, VERSIONS)
            raise SettingError(f"gpuval_versions has the key {key!r}{near}; known are {', '.join(VERSIONS)}")
        entries = entry if isinstance(entry, list) else [entry]
        if any(isinstance(text, float) for text in entries):
            text = "is a number to YAML (580.10 would be 580.1): write it in quotes"
            raise SettingError(f"gpuval_versions: {key} {text}")
        is_text = isinstance(entry, (list, str, int)) and not isinstance(entry, bool)
        texts = [" ".join(str(text).split()) for text in entries if is_text]
        if not texts or not all(texts):
            raise SettingError(f"gpuval_versions: {key} names no version")
        versions[str(key)] = texts
    return versions


def version_checks(kind: str, texts: Sequence[str], facts: Record | None) -> list[Entry]:
    """The checks of a declared version; each part with another version has its own entry."""
    row, expected = VERSIONS[kind], " or ".join(texts)
    what = row["what"]
    entry = functools.partial(
        own_entry, f"versions_{kind}", FACTS, "equal", remedy=row["remedy"], metric=row["metric"], expected=expected,
        source=f"gpuval_versions of the inventory: {kind}",
    )  # fmt: skip
    if facts is None:
        return [entry("missing", "no facts say what the node has")]
    pairs = environment.members(facts["environment"], PATHS[kind])
    if not pairs:
        return [entry("missing", f"the facts do not tell the version of {what}")]
    entries = []
    for member, text in pairs:
        if any(pattern_of(pattern).fullmatch(text) for pattern in texts):
            continue
        part = environment.part_of(member)
        entries.append(entry("fail", f"{what} is {text}, not {expected}", part=part, value=text))
        if part == "node":  # items of a list without indexes share one entry
            break
    gpus = len(environment.members(facts["environment"], "gpus[].index"))
    if PATHS[kind].startswith("gpus[]") and len(pairs) < gpus:
        entries.append(entry("missing", f"{gpus - len(pairs)} of {gpus} GPUs do not tell {what}"))
    return entries or [entry("pass", f"{what} is {', '.join(sorted({text for _, text in pairs}))}")]


ACTIVE = "ACTIVE"
MOST_BITS = 1e14
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?(\S+)")


def parse_nics(count: Any, rate: Any) -> dict[str, Any]:
    """``gpuval_nic_count`` and ``gpuval_nic_rate`` as run.json keeps them; empty where none are declared."""
    if count in (None, ""):
        if rate:
            raise SettingError("gpuval_nic_rate needs gpuval_nic_count: how many ports have that rate")
        return {}
    if isinstance(count, bool) or not str(count).strip().isdecimal():
        raise SettingError(f"gpuval_nic_count {count!r} is not a whole number")
    return {"count": int(count), **({"rate_bits_per_second": port_rate(rate)} if rate else {})}


def port_rate(text: Any) -> float:
    """The rate of a port in bits/s. Raises SettingError."""
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


def nic_checks(ordered: Mapping[str, Any], facts: Record | None) -> list[Entry]:
    """The check that enough RDMA ports have a link at the ordered rate. ``ordered``: the result of `parse_nics`."""
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
    ports = _ports(facts["environment"])
    slow = {name: f"{speed / 1e9:g} Gb/s" for name, (_, speed) in ports.items() if rate and speed < rate}
    lacks = {**slow, **{name: state for name, (state, _) in ports.items() if state != ACTIVE}}
    bad = [f"{name} ({lacks[name]})" for name in ports if name in lacks]
    good = len(ports) - len(bad)
    reason = f"{good} RDMA ports have a link{at}" + (f", not {some_of(bad, 8)}" if bad else "")
    return [entry("pass" if good >= count else "fail", f"{reason}; {count} were ordered", value=good)]


def _ports(facts: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """State and bits/s of each RDMA port by its name, from facts, which are not trusted."""
    states: dict[str, tuple[str, float]] = {}
    for nic in (nic for nic in environment.objects(facts, "nics[]") if nic.get("kind") == "rdma"):
        for port in environment.objects(nic, "ports[]"):
            speed = port.get("rate_bits_per_second")
            bits = min(max(speed, 0), MOST_BITS) if isinstance(speed, (int, float)) else 0
            states[f"{nic.get('name')}:{port.get('port')}"[:64]] = str(port.get("state"))[:32], bits
    return states


def checks_of(expected: Mapping[str, Any], facts: Record | None) -> list[Entry]:
    """All checks of a node's facts against what its part of run.json (``expected``) declares."""
    declared = expected.get("declared", {})
    return [
        *nic_checks(expected.get("nics", {}), facts),
        *(
            entry
            for kind, texts in expected.get("versions", {}).items()
            for entry in version_checks(kind, texts, facts)
        ),
        *(list_check(name, declared[key], facts) for name, (key, *_) in LISTS.items() if declared.get(key)),
    ]


def order_checks(subject: Subject, has_facts: bool, models: Sequence[str]) -> list[Entry]:
    """The checks that the node is the SKU that was ordered. ``models``: model names of the GPUs from the facts."""
    if subject.sku == sku_catalogue.CPU or (has_facts and subject.accelerator not in GPU_VENDORS):
        return []  # the check of the accelerator reports this
    ordered = sku_catalogue.named(subject.sku)
    models_text = ", ".join(sorted(set(models))[:8])
    entry = functools.partial(
        own_entry, "sku", FACTS, "identity", value=models_text or None, expected=f"sku {subject.sku}",
        source="gpuval_sku of the inventory, and the models that the facts report",
    )  # fmt: skip
    if not models:
        remedy = "let the facts stage run and succeed; check the GPUs with the vendor's tool"
        return [entry("missing", "no facts report the models of the GPUs", remedy)]
    listed = sku_catalogue.by_name(subject.catalogue_sku)
    several = listed is None and len({sku.name if sku else None for sku in map(sku_catalogue.of_model, models)}) > 1
    # the site's name of a mixed machine, or a model outside the catalogue, may contain the name of a SKU
    is_named = several or {model.casefold() for model in models} == {subject.sku.casefold()}
    expected = ordered or (None if is_named else sku_catalogue.hinted(subject.sku))
    if expected is not None and listed is not expected:
        remedy = "compare the machine with the order: it is the wrong machine, or gpuval_sku is wrong"
        return [entry("fail", f"{expected.title} was ordered, the facts report {models_text}", remedy)]
    if listed is None:
        why = "several models" if several else "not in the catalogue"
        reason = f"{why}: {models_text}; only the general criteria apply"
        if several and subject.sku in (sku_catalogue.AUTO, *GPU_VENDORS):
            mixed = "if a mixed machine was ordered, give it a name of its own in gpuval_sku"
            return [entry("fail", reason, f"find the GPU that was not ordered; {mixed}")]
        remedy = "compare with the order; set gpuval_sku, and add a SKU with floors of your own (docs/criteria.md)"
        if subject.sku in (sku_catalogue.AUTO, *GPU_VENDORS) and DEPTHS.index(subject.depth) >= DEPTHS.index(
            "standard"
        ):
            return [entry("missing", f"{reason}, and gpuval_sku does not say what the node is", remedy)]
        return [entry("warn", reason, remedy, severity="advisory")]
    if listed.vendor != subject.accelerator:
        remedy = "run the facts again, and compare with lspci: which checks apply depends on the vendor"
        return [entry("fail", f"the facts report {models_text}, and accelerators of {subject.accelerator}", remedy)]
    size = _node_size_check(subject, listed, ordered=ordered is not None)
    return [entry("pass", f"{models_text}: {listed.title}"), *size]


def _node_size_check(subject: Subject, sku: sku_catalogue.Sku, *, ordered: bool) -> list[Entry]:
    """The check that the node has all GPUs of its SKU, if their number is not declared. An ordered SKU means a whole
    node; a detected one may be a virtual machine with part of a node, but not with seven of eight GPUs."""
    if subject.declared_gpus is not None or sku.node_gpus is None:
        return []
    count = subject.detected_gpus
    entry = functools.partial(
        own_entry, "sku_gpu_count", FACTS, "identity", value=count, unit="count", metric="gpu_count",
        expected=units.number_text(sku.node_gpus), source=f"SKU catalogue: {sku.title}",
        remedy="look for the missing GPU on the PCI bus and in the kernel log (XID 79); if fewer were ordered, "
        "declare gpuval_gpu_count",
    )  # fmt: skip
    if count is None:
        return [entry("missing", "the facts have no gpu_count")]
    reason = f"{units.number_text(count)} GPUs; a node of {sku.title} has {sku.node_gpus}"
    if count != sku.node_gpus and not ordered and count in sku.part_gpus:
        return [entry("warn", reason, severity="advisory")]
    return [entry("pass" if count == sku.node_gpus else "fail", reason)]
