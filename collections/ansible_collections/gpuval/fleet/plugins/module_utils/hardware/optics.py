"""Facts on optics and cables of fast network ports, by `ethtool` and NVIDIA's `mlxlink`, with options that only read.

The module's own thresholds decide (SFF-8472, SFF-8636, CMIS); copper has none. The text of `ethtool -m` is read, since
its JSON (6.14) gives a value and its thresholds the same name. Alarm flags do not count: a module keeps them until they
are read, even from a time without a link, and `ethtool` up to 6.15 reads wrong bits for CMIS lanes.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Optional

from ..network.parallel import in_parallel
from . import values
from .link_counters import NetworkPort, network_ports
from .source import metric
from .tools import Run
from .tree import Tree

#: Seconds to read the optics of all ports, and for one call of a tool, three of which may hang for each port.
SECONDS, CALL_SECONDS = 32.0, 8.0
#: Pause before the second reading, which must confirm an alarm of the first.
AGAIN_SECONDS = 1.0
#: Maximum watts or amperes of a lane that is off: no receiver can use -30 dBm.
DARK = 1e-6
#: Minimum bits to judge an error ratio of 1e-15, at which three of them are wrong (2 h at 400 Gb/s).
ENOUGH_BITS = 3e15
#: Minimum ports with the same driver to compare how often each of them lost its link.
MIN_ALIKE = 3
MAX_LANES, MAX_READING, MAX_DBM, MAX_TEXT, MAX_FINDINGS = 32, 1e5, 100, 80, 8
MAX_MINUTES, MAX_COUNT = 1e8, 2**64
MLX5 = "mlx5_core"
#: Drivers of ports between GPUs that are no RDMA devices: Gaudi.
GPU_PORT_DRIVERS = ("habanalabs", "hbl")
COPPER, NO_LINK = "no readings with valid thresholds, as with passive copper", "the port has no link"
NO_INTERFACE = "the port has no network interface, and mlxlink shows no module"
LATE = f"its tools did not answer within {SECONDS:g} s"


class Quantity(NamedTuple):
    """A quantity that an optical module measures. Its thresholds in `ethtool -m` have the first name in `ethtool`."""

    words: str
    #: Two factors to the base unit: from the unit that `ethtool` prints, and from that of `mlxlink`; None for dBm of
    #: `mlxlink`, which is no multiple of watts.
    factor: float
    mlxlink_factor: Optional[float]
    mlxlink: str
    ethtool: tuple[str, ...]


QUANTITIES = {
    "temperature_celsius": Quantity("temperature", 1, 1, "Temperature [C]", ("Module temperature",)),
    "voltage_volts": Quantity("voltage", 1, 1e-3, "Voltage [mV]", ("Module voltage",)),
    "tx_bias_amperes": Quantity(
        "laser bias", 1e-3, 1e-3, "Bias Current [mA]", ("Laser bias current", "Laser tx bias current")
    ),
    "tx_power_watts": Quantity(
        "TX power",
        1e-3,
        None,
        "Tx Power Current [dBm]",
        ("Laser output power", "Laser tx power", "Transmit avg optical power"),
    ),
    "rx_power_watts": Quantity(
        "RX power",
        1e-3,
        None,
        "Rx Power Current [dBm]",
        (
            "Laser rx power",
            "Receiver signal average optical power",
            "Receiver signal OMA",
            "Rcvr signal avg optical power",
        ),
    ),
}
#: Quantities that an optical module has as a whole, not for each lane.
MODULE_WIDE = ("temperature_celsius", "voltage_volts")
#: Readings that are good in any optical module: thresholds that exclude them are noise.
USUAL = {"temperature_celsius": (25.0, 45.0), "voltage_volts": (3.3,)}
LIMITS = ("low alarm", "low warning", "high warning", "high alarm")
#: Facts on an optical module, and their names in `ethtool` and in `mlxlink`.
TEXTS = {
    "type": ("Identifier", "Identifier"),
    "vendor": ("Vendor name", "Vendor Name"),
    "part_number": ("Vendor PN", "Vendor Part Number"),
    "serial": ("Vendor SN", "Vendor Serial Number"),
}
#: Bit error ratios in `mlxlink -c`: after error correction, after retransmission as well, and before both.
RATIOS = {
    "effective_error_ratio": "Effective Physical BER",
    "symbol_error_ratio": "Symbol BER",
    "raw_error_ratio": "Raw Physical BER",
}
_FIELDS = {name: key for key, quantity in QUANTITIES.items() for name in quantity.ethtool}
_LINE = re.compile(r"\s*([^:]{1,60}?)\s*(?:\(Chan(?:nel)? ?(\d{1,2})\)\s*)?:\s?(.{0,120})")
_LIMIT = re.compile(r"(.+) ((?:low|high) (?:alarm|warning)) threshold")
_RANGE = re.compile(r"([^\[]{1,400})\[(.{1,40}?)\.\.(.{1,40}?)\]")
_FEC = re.compile(r"^\s*(Active FEC encoding|corrected_blocks|uncorrectable_blocks)s?: *(.{1,80}?)\s*$", re.MULTILINE)


@dataclass
class OpticalModule:
    """An optical module's texts, readings and thresholds, in base units. Lanes count from 1, 0 is the whole module."""

    texts: dict[str, Optional[str]] = field(default_factory=dict)
    lanes: dict[str, dict[int, float]] = field(default_factory=dict)
    limits: dict[str, dict[str, float]] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        readings = {key: [value for _lane, value in sorted(lanes.items())] for key, lanes in self.lanes.items()}
        return {**self.texts, **{k: v[0] if k in MODULE_WIDE else v for k, v in readings.items() if v}}

    def valid_limits(self) -> dict[str, list[float]]:
        """Return the ascending thresholds by quantity that has readings; some modules hold noise in their place."""
        limits = {key: [self.limits.get(key, {}).get(name, math.nan) for name in LIMITS] for key in self.lanes}
        ascending = {key: row for key, row in limits.items() if self.lanes[key] and row[0] <= row[1] < row[2] <= row[3]}
        return {
            key: row for key, row in ascending.items() if all(row[1] <= usual <= row[2] for usual in USUAL.get(key, ()))
        }

    def beyond(self) -> Iterator[tuple[str, str]]:
        """Yield `alarm` or `warning`, and a message, for each reading of a lane in use that is beyond a threshold."""
        lit = [lanes for lanes in self.lanes.values() if max(lanes.values(), default=0) > DARK]
        off = {lane for lanes in lit for lane, value in lanes.items() if value <= DARK} - {0}
        for key, limits in self.valid_limits().items():
            for lane, value in sorted(self.lanes[key].items()):
                if limits[1] <= value <= limits[2] or lane in off or (lane and value <= DARK):
                    continue
                kind = "warning" if limits[0] <= value <= limits[3] else "alarm"
                side = "low" if value < limits[1] else "high"
                threshold = _shown(key, limits[LIMITS.index(f"{side} {kind}")])
                place = f" of lane {lane}" if lane else ""
                yield kind, f"{QUANTITIES[key].words}{place} {_shown(key, value)}, {side} {kind} threshold {threshold}"


def parse_ethtool(text: str) -> OpticalModule:
    """Return the optical module in the output of `ethtool -m`."""
    module, texts = OpticalModule(), dict[str, str]()
    for name, lane, value in (line.groups() for line in map(_LINE.fullmatch, text.splitlines()) if line):
        texts.setdefault(name, value)
        limit, number = _LIMIT.fullmatch(name), values.number(value)
        key = _FIELDS.get(limit[1] if limit else name)
        if key is None or number is None or abs(number) > MAX_READING or int(lane or 0) > MAX_LANES:
            continue
        if limit:
            module.limits.setdefault(key, {})[limit[2]] = number * QUANTITIES[key].factor
        else:
            module.lanes.setdefault(key, {})[int(lane or key not in MODULE_WIDE)] = number * QUANTITIES[key].factor
    module.texts = {key: _text(texts.get(name)) for key, (name, _mlxlink) in TEXTS.items()}
    return module


def mlxlink_fields(text: str) -> dict[str, str]:
    """Return the fields of all sections of `mlxlink --json`; empty for an error or anything else."""
    try:
        document = json.loads(text)
        sections = document["result"]["output"].values() if not document["status"]["code"] else ()
        return {name: value for section in sections for name, value in section.items() if isinstance(value, str)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def parse_mlxlink(fields: dict[str, str]) -> OpticalModule:
    """Return the optical module in the fields of `mlxlink -m`. A reading outside of its only range is a warning."""
    module = OpticalModule({key: _text(fields.get(name)) for key, (_ethtool, name) in TEXTS.items()})
    for key, quantity in QUANTITIES.items():
        if parts := _RANGE.match(fields.get(quantity.mlxlink, "")):
            texts = (*parts[1].split(",")[:MAX_LANES], parts[2], parts[3])
            *readings, low, high = (_of_mlxlink(quantity, text) for text in texts)
            numbered = enumerate(readings, int(key not in MODULE_WIDE))
            module.lanes[key] = {lane: reading for lane, reading in numbered if reading is not None}
            if low is not None and high is not None:
                module.limits[key] = dict(zip(LIMITS, (-math.inf, low, high, math.inf)))
    return module


def facts(tree: Tree, run: Run) -> list[dict[str, Any]]:
    """Return each fast port with its optical module, readings and link errors. ``problem``: why that is unknown."""
    ports = network_ports(tree)
    answers = in_parallel({port.name: partial(_port_facts, port, run) for port in ports}, SECONDS)
    return [
        {**port._asdict(), "downs_count": port.downs_count, **answers.get(port.name, {"problem": LATE})}
        for port in ports
    ]


def _port_facts(port: NetworkPort, run: Run) -> dict[str, Any]:
    module, problem = _by_ethtool(port.interface, run) if port.interface else (OpticalModule(), NO_INTERFACE)
    fields, ratio_problem = _by_mlxlink(port, run)
    by_mlxlink = parse_mlxlink(fields)
    if problem and by_mlxlink.valid_limits():
        module, problem = by_mlxlink, ""
    beyond = list(module.beyond()) if port.has_link else []
    return {
        **module.facts(),
        "problem": problem or (None if port.has_link else NO_LINK),
        "alarms": [text for kind, text in beyond if kind == "alarm"][:MAX_FINDINGS],
        "warnings": [text for kind, text in beyond if kind == "warning"][:MAX_FINDINGS],
        **_fec(port, fields, run),
        **{key: _bounded(fields.get(name), 1) for key, name in RATIOS.items()},
        "counted_seconds": 60 * (_bounded(fields.get("Time Since Last Clear [Min]"), MAX_MINUTES) or 0),
        "recommendation": _text(fields.get("Recommendation")),
        "ratio_problem": ratio_problem,
    }


def _by_ethtool(interface: str, run: Run) -> tuple[OpticalModule, str]:
    """Return an interface's optical module, and why it is unknown (empty if known). An alarm must show twice."""
    module = OpticalModule()
    for pause in (0.0, AGAIN_SECONDS):
        time.sleep(pause)
        answer = run("ethtool", "-m", interface, timeout=CALL_SECONDS)
        if not answer.ok:
            return module, answer.complaint
        module = parse_ethtool(answer.stdout)
        if all(kind != "alarm" for kind, _text_of_it in module.beyond()):
            break
    return module, "" if module.valid_limits() else COPPER


def _by_mlxlink(port: NetworkPort, run: Run) -> tuple[dict[str, str], Optional[str]]:
    """Return what `mlxlink`, or `mstlink` of mstflint, prints of an NVIDIA port; and why it prints nothing."""
    if port.driver != MLX5 or not port.pci_address:
        return {}, None
    arguments = ("-d", port.pci_address, "-m", "-c", "--json")
    answer = run("mlxlink", *arguments, timeout=CALL_SECONDS)
    if answer.missing:
        answer = run("mstlink", *arguments, timeout=CALL_SECONDS)
    fields = mlxlink_fields(answer.stdout)
    if fields or answer.missing:
        return fields, None if fields else "neither mlxlink nor mstlink is installed"
    return {}, f"{answer.tool} printed nothing that can be read" if answer.ok else answer.complaint


def _fec(port: NetworkPort, fields: dict[str, str], run: Run) -> dict[str, Any]:
    """Return the error correction of a port's link, and how many blocks it corrected and could not correct."""
    is_ethernet = port.interface == port.name
    answer = run("ethtool", "-I", "--show-fec", port.name, timeout=CALL_SECONDS).stdout if is_ethernet else ""
    found = dict(_FEC.findall(answer))
    return {
        "fec": _text(found.get("Active FEC encoding") or fields.get("FEC")),
        "fec_corrected_count": _bounded(found.get("corrected_blocks"), MAX_COUNT),
        "fec_uncorrectable_count": _bounded(found.get("uncorrectable_blocks"), MAX_COUNT),
    }


def metrics(ports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return metrics of network ports with a link: readings beyond thresholds, bit error ratio, losses of the link."""
    figures: list[dict[str, Any]] = []
    linked = [port for port in ports if port["has_link"]]
    for port in linked:
        is_fabric = port["rdma_device"] or (port["driver"] or "").startswith(GPU_PORT_DRIVERS)
        alarms, warnings = len(port.get("alarms", ())), len(port.get("warnings", ()))
        ratios = [port.get(name) for name in ("symbol_error_ratio", "effective_error_ratio")]
        ratio = next((ratio for ratio in ratios if ratio is not None), None)
        bits = port.get("counted_seconds", 0) * (port["rate_bits_per_second"] or 0)
        alike = [p["downs_count"] for p in linked if p["driver"] == port["driver"] and p["downs_count"] is not None]
        is_comparable = port["downs_count"] is not None and len(alike) >= MIN_ALIKE
        found = {
            "optics_alarm_count": None if port["problem"] else alarms if is_fabric else 0,
            "optics_warning_count": None if port["problem"] else warnings if is_fabric else warnings + alarms,
            "link_bit_error_ratio": ratio if bits >= ENOUGH_BITS else None,
            "link_excess_downs_count": port["downs_count"] - statistics.median_low(alike) if is_comparable else None,
        }
        scope = "link:" + re.sub(r"[^A-Za-z0-9._:>-]", "_", port["name"])[:64]
        figures += [metric(name, max(0, value), scope) for name, value in found.items() if value is not None]
    return [metric("network_ports_count", len(linked)), *figures] if linked else []


def in_words(ports: Sequence[dict[str, Any]]) -> list[str]:
    """Return messages on readings of optical modules that are beyond a threshold, alarms first."""
    return [
        f"{port['name']}: {text}" for kind in ("alarms", "warnings") for port in ports for text in port.get(kind, ())
    ][:MAX_FINDINGS]


def untested(ports: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return why optics or bit errors of ports are unknown: `{"optics of eth0, eth1": reason}`."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for port in ports:
        for what, why in (("optics", port["problem"]), ("bit errors", port.get("ratio_problem"))):
            if why:
                names[what, why].append(port["name"])
    return {f"{what} of {', '.join(of_ports)}": why for (what, why), of_ports in names.items()}


def _text(value: Optional[str]) -> Optional[str]:
    return (values.text(value) or "")[:MAX_TEXT] or None


def _bounded(value: Optional[str], most: float) -> Optional[float]:
    number = values.number(value)
    return number if number is not None and 0 <= number <= most else None


def _of_mlxlink(quantity: Quantity, text: str) -> Optional[float]:
    number = values.number(text)
    if number is None or abs(number) > (MAX_READING if quantity.mlxlink_factor else MAX_DBM):
        return None
    return 10 ** (number / 10) / 1000 if quantity.mlxlink_factor is None else number * quantity.mlxlink_factor


def _shown(key: str, value: float) -> str:
    """Return a reading in base units as text in the usual unit: dBm, C, V or mA. `key`: a name in QUANTITIES."""
    if key.endswith("_watts"):
        return f"{10 * math.log10(max(value, 1e-12) * 1000):.2f} dBm"
    unit = {"temperature_celsius": "C", "voltage_volts": "V"}.get(key, "mA")
    return f"{value / QUANTITIES[key].factor:.2f} {unit}"
