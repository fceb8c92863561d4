"""Parses lists of nodes, plain text or CSV, and makes inventory hosts of listed nodes and a cluster's nodes. Pure."""

import fnmatch
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from ..core import csv_text
from ..core.errors import SettingError
from ..core.escape import NODE_NAME
from ..core.node_ranges import is_range, names_of
from ..core.text import meant, natural_order
from ..ssh.findings import check_declared
from ..ssh.known_hosts import HostKeyError, is_address

COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
#: Columns with a special meaning; every other column is a host variable of that name.
COLUMNS = ("name", "address", "user", "port", "sku", "rack", "unique_id", "host_key", "gpu_count")
MAX_NODES = 100_000


@dataclass(frozen=True)
class ListedNode:
    """A node of a node list, or, with `line` 0, a node that only the cluster has."""

    name: str
    groups: tuple[str, ...] = ()
    variables: dict[str, Any] = field(default_factory=dict)
    line: int = 0


def parse(text: str, source: str) -> list[ListedNode]:
    """The nodes of a list. `source`: file name for messages; if it ends in .csv, the text is CSV."""
    text = text.removeprefix("\ufeff")
    is_csv = source.lower().endswith(".csv")
    header: list[str] = []
    nodes: list[ListedNode] = []
    for line, words in csv_text.rows(text, source) if is_csv else _plain_lines(text):
        try:
            if is_csv and not header:
                header = _header(words)
                continue
            nodes += _nodes(_cells(words, header), line)
        except SettingError as error:
            raise SettingError(f"{source} line {line}: {error}") from None
    if not nodes:
        raise SettingError(f"{source} lists no node")
    if len(nodes) > MAX_NODES:
        raise SettingError(f"{source} lists more than {MAX_NODES} nodes: is a range wrong?")
    _check_unique(nodes, source)
    return nodes


def _plain_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    lines = (raw.partition("#")[0].replace(",", " ").split() for raw in text.splitlines())
    return ((number, words) for number, words in enumerate(lines, 1) if words)


def _cells(words: list[str], header: list[str]) -> dict[str, str]:
    """A line's values by column; without a header the words are `address` or `name address`."""
    if not header and len(words) > 2:
        raise SettingError(f"{len(words)} words; write `address` or `name address`, or use a .csv file")
    if header and any(words[len(header) :]):
        raise SettingError(f"{len(words)} cells, but the header has {len(header)} columns")
    cells = dict(zip(header, words)) if header else {"name": words[0], "address": words[-1]}
    return {column: value for column, value in cells.items() if value}


def _header(cells: list[str]) -> list[str]:
    columns = [cell.lower() if cell.lower() in COLUMNS else cell for cell in cells]
    while columns and not columns[-1]:
        columns.pop()
    if not {"name", "address"} & set(columns):
        raise SettingError(f"the first line names the columns, {', '.join(COLUMNS)}; name or address must be there")
    for column in columns:
        if not COLUMN.fullmatch(column):
            raise SettingError(f"the column {column!r} cannot be a variable: letters, digits and _ only")
        if columns.count(column) > 1:
            raise SettingError(f"the column {column} is there twice")
        near = meant(column, COLUMNS, 0.8) if column not in COLUMNS else ""
        if near:
            raise SettingError(f"unknown column {column}{near}")
    return columns


def _nodes(cells: dict[str, str], line: int) -> Iterator[ListedNode]:
    """The nodes of a line of a node list: one, or several if the line has ranges. `cells`: {column: text}."""
    name = cells.get("name") or cells.get("address")
    if not name:
        raise SettingError("neither name nor address")
    columns = cells if is_range(name) else ("name", "address", "unique_id")  # in other columns brackets are text
    wide = {column: names_of(value) for column, value in cells.items() if column in columns and is_range(value)}
    names = wide.get("name") or (wide.get("address") if "name" not in cells else None) or [name]
    for column, expanded in wide.items():
        if len(expanded) != len(names):
            raise SettingError(f"{column} has {len(expanded)} values for {len(names)} name(s): ranges must agree")
    for column in ("address", "unique_id", "host_key"):
        if len(names) > 1 and column in cells and column not in wide:
            raise SettingError(f"one {column} for {len(names)} nodes: give it a range too")
    for number, node_name in enumerate(names):
        values = {column: wide[column][number] if column in wide else value for column, value in cells.items()}
        yield _node(node_name, values, line)


def _node(name: str, cells: dict[str, str], line: int) -> ListedNode:
    if ("[" in name) != ("]" in name):
        raise SettingError(f"{name!r}: a range has two brackets: write gpu[01-16]")
    if not NODE_NAME.fullmatch(name):
        why = "an IPv6 address cannot be a name" if is_address(name.strip("[]")) else "not a name"
        raise SettingError(
            f"{name!r}: {why}. Names are file names: letters, digits, '.', '_' and '-'; write `name address`"
        )
    address = cells.get("address", name)
    if not is_address(address.strip("[]")) and not HOST.fullmatch(address):
        raise SettingError(f"{address!r} is neither an address nor a host name (a port has its own column)")
    variables: dict[str, Any] = {} if address == name else {"ansible_host": address.strip("[]")}
    for column, value in cells.items():
        variables.update(_variable(column, value, name))
    groups = tuple(group_name(column, cells[column]) for column in ("sku", "rack") if column in cells)
    return ListedNode(name, groups, variables, line)


def _variable(column: str, value: str, node_name: str) -> dict[str, Any]:
    if column in ("name", "address"):
        return {}
    if column == "port":
        if not value.isdecimal() or not 0 < int(value) < 65536:
            raise SettingError(f"the port {value!r} is not a number from 1 to 65535")
        return {"ansible_port": int(value)}
    if column == "gpu_count":
        if not value.isdecimal():
            raise SettingError(f"gpu_count {value!r} is not a whole number")
        return {"gpuval_gpu_count": int(value)}
    if column == "host_key":
        try:
            return {"gpuval_host_keys": list(check_declared([value]))}
        except HostKeyError as error:
            raise SettingError(f"host_key: {error}, or a fingerprint (SHA256:...)") from None
    if column == "unique_id":
        return {"gpuval_node_ids": {node_name: value}}
    if column in COLUMNS:
        return {{"user": "ansible_user", "sku": "gpuval_sku"}.get(column, column): value}
    return {column: _typed(value)}


def _typed(value: str) -> Any:
    """The value of a host variable: a number or boolean if it looks like one, else text, such as 007."""
    if re.fullmatch(r"-?(0|[1-9]\d{0,17})", value):
        return int(value)
    return {"true": True, "false": False}.get(value.lower(), value)


def group_name(column: str, value: str) -> str:
    """Name of the inventory group for a column's value, such as sku_h200 or rack_r12."""
    return f"{column}_{re.sub(r'[^A-Za-z0-9]+', '_', value).strip('_').lower() or 'none'}"


def _check_unique(nodes: list[ListedNode], source: str) -> None:
    firsts: dict[tuple[str, Any], ListedNode] = {}
    for node in nodes:
        host = str(node.variables.get("ansible_host", node.name)).lower()
        port = node.variables.get("ansible_port", 22)
        identity = node.variables.get("gpuval_node_ids", {}).get(node.name)
        marks = [("name", node.name), ("address", (host, port)), *([("unique_id", identity)] if identity else [])]
        for kind, mark in marks:
            first = firsts.setdefault((kind, mark), node)
            if first is node:
                continue
            text = {"address": f"{host}" if port == 22 else f"{host} port {port}"}.get(kind, mark)
            problem = (
                f"{first.name} and {node.name}: one machine is listed once" if first.name != node.name else "remove one"
            )
            raise SettingError(
                f"{source}: lines {first.line} and {node.line} have the same {kind} {text} ({problem})"
                if first.line != node.line
                else f"{source} line {node.line}: the same {kind} {text} twice ({problem})"
            )


@dataclass(frozen=True)
class InventoryFleet:
    """The hosts of an inventory. `group_variables`: by group; every `group_vars` file overrides them. `missing`: listed
    nodes that the cluster lacks."""

    hosts: tuple[ListedNode, ...]
    group_variables: dict[str, dict[str, Any]]
    missing: tuple[str, ...] = ()
    #: Nodes that the cluster has, but that are not expected and so are no hosts.
    beyond: tuple[str, ...] = ()


def listed_variables(node: ListedNode | None) -> dict[str, Any]:
    """The variables that the list sets for a node, except those for SSH connections."""
    variables = node.variables if node else {}
    return {key: value for key, value in variables.items() if not key.startswith("ansible_")}


def sku_by_rules(rules: Mapping[str, Mapping[str, str]], values: Mapping[str, Iterable[str]], model: str) -> str:
    """The SKU of a node: the first of `rules` of which all patterns match, else made from its GPU `model`. A rule maps
    keys of `values` to shell patterns, of which one value has to match (case does not count)."""
    for sku, patterns in rules.items():
        lowered = {key: [value.lower() for value in values.get(key, ())] for key in patterns}
        if patterns and all(fnmatch.filter(lowered[key], str(pattern).lower()) for key, pattern in patterns.items()):
            return sku
    return sku_name(model)


def sku_name(model: str) -> str:
    """The SKU for a GPU model named in a label or gres: `h100-80gb-hbm3` for `nvidia_h100_80gb_hbm3`."""
    name = re.sub(r"-(?:SHARED|MIG-.*)$", "", model.replace("_", "-"), flags=re.IGNORECASE).lower()
    for prefix in ("nvidia-", "amd-instinct-", "amd-"):
        name = name.removeprefix(prefix)
    return name or "auto"


class ClusterHosts(ABC):
    """How the nodes of a cluster become inventory hosts. `rules`: the SKU rules of the inventory (see
    `sku_by_rules`)."""

    #: Name of the cluster in messages; host variable with a node's description; variables of all hosts.
    TITLE: ClassVar[str]
    VARIABLE: ClassVar[str]
    PLACED: ClassVar[Mapping[str, str]]

    def __init__(self, rules: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> None:
        self.rules = rules

    @abstractmethod
    def sku_of(self, description: Mapping[str, Any]) -> str:
        """The SKU of a node, `auto` if unknown."""

    @abstractmethod
    def groups_of(self, description: Mapping[str, Any]) -> list[str]:
        """The groups of a node, beside those of its SKU and its kind."""

    @abstractmethod
    def kinds_of(
        self, described: Mapping[str, Mapping[str, Any]], skus: Mapping[str, str]
    ) -> Mapping[str, tuple[str, int]]:
        """For each node with GPUs the group of similar nodes, and the number of its GPUs."""

    def variables_of(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Variables of a host that the cluster has."""
        return {self.VARIABLE: {"exists": True, **description}}

    def fleet(
        self,
        descriptions: Iterable[Mapping[str, Any]],
        expected: Sequence[ListedNode] | None = None,
        selected: Collection[str] = (),
    ) -> InventoryFleet:
        """The hosts of an inventory: the listed nodes `expected` in their order, found in the cluster or not, and of
        the others those in `selected`; without a list all nodes, by name."""
        by_name = {str(description["name"]): description for description in descriptions}
        listed = {node.name: node for node in expected or ()}
        unlisted = [name for name in sorted(by_name, key=natural_order) if name not in listed]
        joining = [name for name in unlisted if expected is None or name in selected]
        variables_of = {name: listed_variables(listed.get(name)) for name in (*listed, *joining)}
        described = {name: by_name[name] for name in variables_of if name in by_name}
        skus = {
            name: str(variables_of[name].get("gpuval_sku") or self.sku_of(description))
            for name, description in described.items()
        }
        kinds, most = self.kinds_of(described, skus), dict[str, int]()
        for group, number in kinds.values():  # a node that lost a GPU reports seven, similar ones show eight
            most[group] = max(most.get(group, 0), number)
        hosts = []
        group_variables: dict[str, dict[str, Any]] = {}
        for name, of_list in variables_of.items():
            groups = list(listed[name].groups) if name in listed else []
            variables = {self.VARIABLE: {"exists": False, "reason": f"{self.TITLE} has no node {name}"}}
            if description := described.get(name):
                if skus[name] != "auto" and "gpuval_sku" not in of_list:
                    groups.append(group_name("sku", skus[name]))
                    group_variables.setdefault(groups[-1], {})["gpuval_sku"] = skus[name]
                groups += self.groups_of(description)
                kind, _number = kinds.get(name, ("", 0))
                if most.get(kind):
                    groups.append(kind)
                    group_variables.setdefault(kind, {})["gpuval_gpu_count"] = most[kind]
                variables = self.variables_of(description)
            hosts.append(ListedNode(name, tuple(dict.fromkeys(groups)), {**of_list, **variables, **self.PLACED}))
        missing = tuple(name for name in listed if name not in by_name)
        beyond = tuple(name for name in unlisted if name not in joining)
        return InventoryFleet(tuple(hosts), group_variables, missing, beyond)
