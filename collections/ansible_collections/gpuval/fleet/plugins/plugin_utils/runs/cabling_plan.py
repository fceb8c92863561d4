"""The declared cabling of nodes (``gpuval_cabling_plan``): a CSV file with a row for each cable, and how names of
switches and ports are compared."""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...module_utils.hardware.values import pci_address
from ..core import csv_text
from ..core.errors import SettingError
from ..core.text import meant

SETTING = "gpuval_cabling_plan"
COLUMNS = ("node", "port", "switch", "switch_port")
MAX_TEXT = 120
_HEX = re.compile(r"(?:0x)?([0-9a-f]{12}|[0-9a-f]{16})")
#: {kind of a switch's name: pattern}, also for names in a bundle with replaced names. Others are plain names.
_KINDS = {
    "chassis id": re.compile(r"(?:[0-9a-f]{2}:){5}|mac-"),
    "GUID": re.compile("0x"),
    "address": re.compile(r"(?:\d{1,3}\.){3}\d{1,3}$|address-"),
}
#: Names of Ethernet ports that mean the same: Ethernet1/5, Eth1/5, Et1/5, 1/5.
_ETHERNET = re.compile(r"(?:ethernet|eth|et)(?=\d)")


class PlannedCable(NamedTuple):
    """A row of the cabling plan: a node's port and the switch port to connect it to, spelled as in the file."""

    node: str
    port: str
    switch: str
    switch_port: str

    def __str__(self) -> str:
        return f"{self.node} {self.port}"

    @property
    def end(self) -> tuple[str, str]:
        """The cable's end at the node, for comparisons."""
        return self.node, port_of_node(self.port)


def port_of_node(name: str) -> str:
    """The name of a node's port for comparisons; PCI addresses with their domain, RDMA ports as ``mlx5_0:1``."""
    return pci_address(name) or name.lower().replace("/", ":")


def switch_name(name: str) -> str:
    """A switch's name for comparisons: lower case; however they are written, the MAC address of a chassis with colons,
    and a GUID as ``0x`` and 16 digits."""
    match = _HEX.fullmatch(re.sub(r"[:.-]", "", name.lower()))
    if not match:
        return name.lower()
    digits = match[1]
    return f"0x{digits}" if len(digits) == 16 else ":".join(digits[index : index + 2] for index in range(0, 12, 2))


def switch_kind(name: str) -> str:
    """What a switch's name is: chassis id, GUID, address or name. Names of different kinds cannot be compared."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.match(switch_name(name))), "name")


def is_switch(planned: str, reported: str) -> bool:
    """Whether two names mean one switch. One of them may lack the DNS domain."""
    first, second = switch_name(planned), switch_name(reported)
    return first == second or (("." in first) != ("." in second) and first.split(".")[0] == second.split(".")[0])


def port_name(name: str) -> str:
    """The name of a switch's port for comparisons: lower case without spaces, and without a leading ``Ethernet``."""
    return _ETHERNET.sub("", re.sub(r"\s", "", name.lower()))


def of_host(
    name: str, hostvars: Mapping[str, Any], read_plan: Callable[[str], Mapping[str, list[PlannedCable]]]
) -> dict[str, Any]:
    """A host's `cabling` field in run.json, empty without a plan. ``read_plan``: reads a file into {host: cables}."""
    path = hostvars.get(SETTING)
    return {"cabling": [dict(zip(COLUMNS[1:], cable[1:])) for cable in read_plan(path).get(name, ())]} if path else {}


def read(path: Path, nodes: Collection[str]) -> dict[str, list[PlannedCable]]:
    """Read a cabling plan into {node: cables}. ``nodes``: names that the inventory has. Raises SettingError."""
    return parse(csv_text.read(path, "cabling plan"), path.name, nodes)


def parse(text: str, name: str, nodes: Collection[str]) -> dict[str, list[PlannedCable]]:
    """Parse the CSV text of a cabling plan into {node: cables}. ``name``: of the file, for messages; ``nodes``: names
    that the inventory has. Raises SettingError for the first mistake."""
    rows = csv_text.rows(text, name)
    line, titles = rows[0] if rows else (1, [])
    header = [re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_") for title in titles]
    if wrong := next((column for column in COLUMNS if header.count(column) != 1), None):
        problem = "there twice" if wrong in header else f"missing{meant(wrong, titles)}"
        form = f"write {','.join(COLUMNS)}, with commas (or semicolons or tabs) between the cells"
        raise SettingError(f"{name} line {line}: in the header the column {wrong} is {problem}: {form}")
    cables: dict[str, list[PlannedCable]] = {}
    line_of: dict[tuple[str, ...], int] = {}
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            remedy = "write one cell for each column" if cells[-1] else "remove the comma at its end"
            raise SettingError(f"{name} line {line}: {len(cells)} cells, and the header has {len(header)}: {remedy}")
        cable = PlannedCable(*(cells[header.index(column)] for column in COLUMNS))
        if problem := _problem(cable, nodes, line_of):
            raise SettingError(f"{name} line {line}: {problem}")
        line_of |= {cable.end: line, (switch_name(cable.switch), "", port_name(cable.switch_port)): line}
        cables.setdefault(cable.node, []).append(cable)
    if not cables:
        raise SettingError(f"{name} has no row below its header: write a row for each cable, or unset {SETTING}")
    return cables


def _problem(cable: PlannedCable, nodes: Collection[str], line_of: dict[tuple[str, ...], int]) -> str:
    """Message on a mistake in a row, or empty. ``line_of``: {end of a cable in an earlier row: line number}."""
    for column, cell in zip(COLUMNS, cable):
        if not cell or len(cell) > MAX_TEXT:
            return f"{column} is {'too long' if cell else 'empty'}: write its name, or remove the row"
    if cable.node not in nodes:
        known = meant(cable.node, nodes) or ": write names as the inventory has them"
        return f"the inventory has no node {cable.node}{known}"
    if line := line_of.get(cable.end):
        return f"{cable} is in line {line}, too: keep one of the rows"
    if line := line_of.get((switch_name(cable.switch), "", port_name(cable.switch_port))):
        return f"{cable.switch} {cable.switch_port} has a cable in line {line}, too: correct one of the rows"
    return ""
