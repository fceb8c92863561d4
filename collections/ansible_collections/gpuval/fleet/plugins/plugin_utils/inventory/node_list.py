"""Lists of nodes as plain text or CSV. Pure: text in, nodes out; every complaint names its line."""

from __future__ import annotations

import csv
import io
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ansible.plugins.inventory import detect_range, expand_hostname_range

from ..core.errors import SettingError
from ..core.escape import NODE_NAME
from ..core.text import meant
from ..ssh.findings import check_declared
from ..ssh.known_hosts import HostKeyError

COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
#: Columns with a meaning of their own; any other is a host variable of that name.
COLUMNS = ("name", "address", "user", "port", "sku", "rack", "unique_id", "host_key", "gpu_count")
MAX_NODES = 100_000


@dataclass(frozen=True)
class ListedNode:
    name: str
    line: int
    variables: dict[str, Any] = field(default_factory=dict)
    groups: tuple[str, ...] = ()


def parse(text: str, source: str) -> list[ListedNode]:
    """Nodes of a list; `source` names the file in complaints, and a name that ends in .csv makes it CSV."""
    text = text.removeprefix("\ufeff")
    nodes = list(_csv(text, source) if source.lower().endswith(".csv") else _plain(text, source))
    if not nodes:
        raise SettingError(f"{source} lists no node")
    if len(nodes) > MAX_NODES:
        raise SettingError(f"{source} lists more than {MAX_NODES} nodes: is a range wrong?")
    _unique(nodes, source)
    return nodes


def _plain(text: str, source: str) -> Iterator[ListedNode]:
    """`address` or `name address` in a line."""
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) > 2:
            raise _error(source, number, f"{len(words)} words; write `address` or `name address`, or use a .csv file")
        yield from _row({"name": words[0], "address": words[-1]}, number, source)


def _csv(text: str, source: str) -> Iterator[ListedNode]:
    lines = text.splitlines()
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    reader = csv.reader(io.StringIO(text), delimiter=";" if first.count(";") > first.count(",") else ",", strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            values = [cell.strip() for cell in cells]
            if not any(values) or values[0].startswith("#"):
                continue
            if not header:
                header = _header(values, reader.line_num, source)
                continue
            if len(values) > len(header) and any(values[len(header) :]):
                raise _error(source, reader.line_num, f"{len(values)} cells, but the header has {len(header)} columns")
            yield from _row(dict(zip(header, values)), reader.line_num, source)
    except csv.Error as error:
        raise _error(source, reader.line_num, f"not CSV: {error}") from None


def _header(cells: list[str], line: int, source: str) -> list[str]:
    columns = [cell.lower() if cell.lower() in COLUMNS else cell for cell in cells]
    while columns and not columns[-1]:
        columns.pop()
    if not {"name", "address"} & set(columns):
        raise _error(
            source, line, f"the first line names the columns, {', '.join(COLUMNS)}; name or address must be there"
        )
    for column in columns:
        if not COLUMN.fullmatch(column):
            raise _error(source, line, f"the column {column!r} cannot be a variable: letters, digits and _ only")
        if columns.count(column) > 1:
            raise _error(source, line, f"the column {column} is there twice")
        near = meant(column, COLUMNS, 0.8) if column not in COLUMNS else ""
        if near:
            raise _error(source, line, f"unknown column {column}{near}")
    return columns


def _row(cells: dict[str, str], line: int, file: str) -> Iterator[ListedNode]:
    """The nodes of a line: one, or those of its ranges."""
    cells = {column: value for column, value in cells.items() if value}
    name = cells.get("name") or cells.get("address")
    if not name:
        raise _error(file, line, "neither name nor address")
    wide = {column: _expanded(value, line, file) for column, value in cells.items() if _is_range(value)}
    names = wide.get("name") or (wide.get("address") if "name" not in cells else None) or [name]
    for column, expanded in wide.items():
        if len(expanded) != len(names):
            raise _error(file, line, f"{column} has {len(expanded)} values for {len(names)} name(s): ranges must agree")
    for number, node_name in enumerate(names):
        values = {column: wide[column][number] if column in wide else value for column, value in cells.items()}
        for column in ("address", "unique_id", "host_key"):
            if len(names) > 1 and column in cells and column not in wide:
                raise _error(file, line, f"one {column} for {len(names)} nodes: give it a range too")
        yield _node(node_name, values, line, file)


def _is_range(value: str) -> bool:
    return (
        bool(re.search(r"\[[A-Za-z0-9]+:[A-Za-z0-9]+(:\d+)?\]", value))
        and detect_range(value)
        and not _is_address(value)
    )


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value.strip("[]"))
    except ValueError:
        return False
    return True


def _expanded(value: str, line: int, source: str) -> list[str]:
    try:
        expanded = expand_hostname_range(value)
    except Exception as error:  # Ansible raises several kinds
        raise _error(source, line, f"the range {value!r} is not one ([001:100]): {error}") from None
    if not expanded:
        raise _error(source, line, f"the range {value!r} is empty")
    return expanded


def _node(name: str, cells: dict[str, str], line: int, source: str) -> ListedNode:
    if ("[" in name) != ("]" in name):
        raise _error(source, line, f"{name!r}: a range has two brackets: write gpu[01-16]")
    if not NODE_NAME.fullmatch(name):
        why = "an IPv6 address cannot be a name" if _is_address(name) else "not a name"
        raise _error(
            source,
            line,
            f"{name!r}: {why}. Names are file names: letters, digits, '.', '_' and '-'; write `name address`",
        )
    variables: dict[str, Any] = {}
    address = cells.get("address", name)
    if not _is_address(address) and not HOST.fullmatch(address):
        raise _error(source, line, f"{address!r} is neither an address nor a host name (a port has its own column)")
    if address != name:
        variables["ansible_host"] = address.strip("[]")
    for column, value in cells.items():
        variables.update(_variable(column, value, name, line, source))
    groups = tuple(group_name(column, cells[column]) for column in ("sku", "rack") if column in cells)
    return ListedNode(name, line, variables, groups)


def _variable(column: str, value: str, name: str, line: int, source: str) -> dict[str, Any]:
    if column in ("name", "address"):
        return {}
    if column == "port":
        if not value.isdecimal() or not 0 < int(value) < 65536:
            raise _error(source, line, f"the port {value!r} is not a number from 1 to 65535")
        return {"ansible_port": int(value)}
    if column == "gpu_count":
        if not value.isdecimal():
            raise _error(source, line, f"gpu_count {value!r} is not a whole number")
        return {"gpuval_gpu_count": int(value)}
    if column == "host_key":
        try:
            return {"gpuval_host_keys": list(check_declared([value]))}
        except HostKeyError as error:
            raise _error(source, line, f"host_key: {error}, or a fingerprint (SHA256:...)") from None
    if column == "unique_id":
        return {"gpuval_node_ids": {name: value}}
    if column in COLUMNS:
        return {{"user": "ansible_user", "sku": "gpuval_sku"}.get(column, column): value}
    return {column: _typed(value)}


def _typed(value: str) -> Any:
    """Numbers and truth values of further columns; everything else, 007 among it, is text."""
    if re.fullmatch(r"-?(0|[1-9]\d{0,17})", value):
        return int(value)
    return {"true": True, "false": False}.get(value.lower(), value)


def group_name(column: str, value: str) -> str:
    """Group of a SKU or rack: sku_h200, rack_r12."""
    return f"{column}_{re.sub(r'[^A-Za-z0-9]+', '_', value).strip('_').lower() or 'none'}"


def _unique(nodes: list[ListedNode], source: str) -> None:
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


def _error(source: str, line: int, message: str) -> SettingError:
    return SettingError(f"{source} line {line}: {message}")
