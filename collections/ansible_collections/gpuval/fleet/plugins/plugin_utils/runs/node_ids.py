"""Reads ``gpuval_node_ids``, {worker: unique id}; a worker is a node's name in the inventory. It is a dictionary, or a
file: a table with columns between bars (``| id | worker | uniqueid |``), CSV with a header, YAML or JSON. One error
lists all mistakes."""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ..core import csv_text
from ..core.errors import SettingError
from ..core.node_ranges import names_of
from ..core.text import some_of

MAX_ID = 120
MAX_SHOWN = 20
#: Maximum length of an id, which becomes the name of files on any file system.
ID = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,{MAX_ID - 2}}}[A-Za-z0-9_-])?", re.ASCII)
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.ASCII | re.IGNORECASE)
_WORKER = frozenset({"worker", "workername", "node", "nodename", "host", "hostname"})
_UNIQUE = frozenset({"uniqueid"})
_BORDER = re.compile(r"[\s|+:=-]+")


class NodeIdReader:
    """Reads {worker: unique id} from values of ``gpuval_node_ids``: dictionaries, or names of files, each read once.
    ``path_of``: returns the path of the file that a value names."""

    def __init__(self, path_of: Callable[[str], Path]) -> None:
        self._path_of = path_of
        self._files: dict[str, dict[str, str]] = {}

    def __call__(self, value: Any) -> dict[str, str]:
        """{worker: unique id} in a value of the setting, or in the file that it names. Raises SettingError."""
        if value in (None, "", {}):
            return {}
        if isinstance(value, str):
            if value not in self._files:
                self._files[value] = read(self._path_of(str(value)))
            return self._files[value]
        if not isinstance(value, Mapping):
            raise SettingError("gpuval_node_ids is a mapping of worker to unique id, or the path of a file with one")
        return checked(_entries(value, "gpuval_node_ids"), "gpuval_node_ids")


def read(path: Path) -> dict[str, str]:
    """Read {worker: unique id} from a file. Raises SettingError."""
    return parse(csv_text.read(path, "mapping of node ids"), path.name)


def parse(text: str, name: str) -> dict[str, str]:
    """Parse {worker: unique id} from text: YAML or JSON by the file ``name``, else a table. Raises SettingError."""
    text = text.removeprefix("\ufeff")
    suffix = Path(name).suffix.lower()
    first = next((line for line in text.splitlines() if line.strip() and not csv_text.is_comment(line)), "")
    if suffix in (".yml", ".yaml", ".json") or first.lstrip().startswith(("{", "[", "---")):
        entries: Iterable[tuple[str, str]] = _document(text, name)
    elif suffix not in (".csv", ".tsv") and "|" in text:
        entries = _rows(_table(text), name)
    else:
        entries = _rows(csv_text.rows(text, name), name)
    return checked(entries, name)


def checked(entries: Iterable[tuple[str, str]], subject: str) -> dict[str, str]:
    """Check pairs (worker, unique id): each worker and id occurs once, ids are safe as file names. Returns {worker:
    id}. Raises SettingError that begins with ``subject`` and lists all mistakes."""
    problems: list[str] = []
    ids: dict[str, str] = {}
    owners: dict[str, str] = {}
    for worker, identity in _each(entries, subject):
        if not worker:
            problems.append(f"the id {identity!r} has no worker")
            continue
        if wrong := unsafe(identity):
            problems.append(f"the id {identity[:MAX_ID]!r} of {worker} {wrong}")
            continue
        if worker in ids:
            problems.append(f"the worker {worker} is there twice: {ids[worker]} and {identity}")
            continue
        ids[worker] = identity
        owner = owners.setdefault(identity.casefold(), worker)
        if owner != worker:
            likeness = "the same" if ids[owner] == identity else f"but for case the same as {ids[owner]}"
            problems.append(f"the id {identity} of {worker} is {likeness}, that of {owner}")
    if problems:
        raise SettingError(f"{subject}: {some_of(problems, MAX_SHOWN, '; ')}")
    return ids


def _each(entries: Iterable[tuple[str, str]], subject: str) -> Iterator[tuple[str, str]]:
    """Pairs (worker, unique id), with ranges of both expanded."""
    for worker, identity in entries:
        workers, ids = names_of(worker), names_of(identity)
        if len(workers) != len(ids):
            raise SettingError(
                f"{subject}: {len(workers)} worker(s) {worker}, {len(ids)} id(s) {identity}: ranges must agree"
            )
        yield from zip(workers, ids)


def unsafe(identity: str) -> str:
    """Why a node's unique id is no safe file name; empty if it is one."""
    if not identity:
        return "is empty"
    if len(identity) > MAX_ID:
        return f"is longer than {MAX_ID} characters"
    if not ID.fullmatch(identity):
        return "is not made of letters, digits, '.', '_' and '-', begun by a letter or digit and not ended by '.'"
    if ".." in identity:
        return "has '..' in it"
    return "is a name that some systems keep for devices" if _RESERVED.fullmatch(identity) else ""


def merged(mappings: Iterable[Mapping[str, str]], subject: str = "gpuval_node_ids") -> dict[str, str]:
    """Merge mappings {worker: unique id}. Raises SettingError if two have different ids for one worker."""
    return checked(dict.fromkeys(pair for mapping in mappings for pair in mapping.items()), subject)


def _table(text: str) -> list[tuple[int, list[str]]]:
    """(line number, cells) of each row of a table with bars, without borders, comments and lines without a bar."""
    rows = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if "|" in line and not _BORDER.fullmatch(line) and not csv_text.is_comment(line):
            cells = line.removeprefix("|").removesuffix("|").split("|")
            rows.append((number, [cell.strip().strip("`*").strip() for cell in cells]))
    return rows


def _rows(rows: list[tuple[int, list[str]]], name: str) -> Iterable[tuple[str, str]]:
    """(worker, unique id) of each row after the header, whose columns may have any order. ``rows``: (line number,
    cells); ``name``: of the file, for messages."""
    header = [re.sub(r"[^a-z]", "", cell.lower()) for cell in rows[0][1]] if rows else []
    workers = [index for index, cell in enumerate(header) if cell in _WORKER]
    unique = [index for index, cell in enumerate(header) if cell in _UNIQUE]
    if len(workers) != 1 or len(unique) != 1:
        raise SettingError(
            f"{name}: its first row must name the columns, one of them worker and one uniqueid, as in "
            "| id | worker | uniqueid | or worker,uniqueid. Lines of WORKER: ID are YAML: name the file .yml, or .json "
            "for JSON"
        )
    entries = []
    for number, cells in rows[1:]:
        if len(cells) != len(header):
            raise SettingError(f"{name} line {number} has {len(cells)} columns, and its header {len(header)}")
        entries.append((cells[workers[0]], cells[unique[0]]))
    return entries


def _entries(document: Any, name: str) -> list[tuple[str, str]]:
    if isinstance(document, Mapping):
        pairs = list(document.items())
    elif isinstance(document, list) and all(isinstance(entry, Mapping) for entry in document):
        keys = [{re.sub(r"[^a-z]", "", str(key).lower()): value for key, value in entry.items()} for entry in document]
        pairs = [
            (
                next((entry[key] for key in sorted(_WORKER) if key in entry), ""),
                next((entry[key] for key in sorted(_UNIQUE) if key in entry), ""),
            )
            for entry in keys
        ]
    else:
        raise SettingError(f"{name}: it is no mapping of worker to unique id, nor a list with worker and uniqueid")
    numbers = [str(part)[:MAX_ID] for pair in pairs for part in pair if not isinstance(part, str)]
    if numbers:  # YAML has changed them by now: 0123456 to 42798, 1_0 to 10
        raise SettingError(
            f"{name}: a worker and a unique id are text; write each in quotes, YAML took for none: "
            f"{some_of(numbers, MAX_SHOWN)}"
        )
    return [(worker.strip(), identity.strip()) for worker, identity in pairs]


def _document(text: str, name: str) -> list[tuple[str, str]]:
    try:
        if Path(name).suffix.lower() == ".json" or text.lstrip().startswith("{"):
            return _entries(json.loads(text, object_pairs_hook=_once, parse_int=str, parse_float=str), name)
        return _entries(yaml.load(text, Loader=_Loader), name)  # noqa: S506  (a BaseLoader makes text and nothing else)
    except SettingError as error:
        message = str(error)
        raise SettingError(message if message.startswith(name) else f"{name}: {message}") from None
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise SettingError(f"{name} cannot be read as YAML or JSON: {' '.join(str(error).split())[:200]}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise SettingError(f"the worker {key} is there twice: {fields[key]} and {value}")
        fields[key] = value
    return fields


class _Loader(yaml.BaseLoader):
    """Loads YAML with every scalar as text: 0123 stays 0123. A repeated key is an error, and so is an alias, which can
    make a small file very large."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise SettingError("a mapping of node ids must not have aliases (*name)")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        pairs = [(self.construct_object(key, True), self.construct_object(value, True)) for key, value in node.value]
        return _once(pairs)


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_mapping)
