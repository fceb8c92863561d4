"""report.json as a file with a line for each node: written and read line by line, since a thousand nodes of eight GPUs
fill more than 200 MB, and must not be copied in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

NODES = '"nodes": ['
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_Hook = Callable[[dict[str, Any]], dict[str, Any]]


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report as JSON in pieces: each node on a line of its own, so that the file is good to grep."""
    yield "{\n"
    for key, value in report.items():
        if key not in ("nodes", "fleet"):
            yield f"{_dump(key)}: {_dump(value)},\n"
    if report["nodes"]:
        yield f"{NODES}\n"
        for number, node in enumerate(report["nodes"]):
            yield f",\n{_dump(node)}" if number else _dump(node)
        yield "\n],\n"
    else:
        yield '"nodes": [],\n'
    yield f'"fleet": {_dump(report["fleet"])}\n}}\n'


def read(path: Path) -> Any:
    """What ``lines`` wrote, or any JSON. Raises OSError, and ValueError where it is none."""
    hook = _sharing()
    head: list[str] = []
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            if line.rstrip("\n") == NODES:
                break
            head.append(line)
        else:
            return json.loads("".join(head), object_hook=hook)
        nodes: list[Any] = []
        for line in stream:
            text = line.strip()
            if not text.startswith("{"):
                rest = [line, *stream]
                break
            nodes.append(json.loads(text.removesuffix(","), object_hook=hook))
        else:
            raise ValueError("it ends within its nodes")
    report = json.loads("".join([*head, NODES, *rest]), object_hook=hook)
    if report["nodes"]:
        raise ValueError("its nodes are not laid out as they were written")
    # as they stand in the file, so that it is written again as it was
    return {key: nodes if key == "nodes" else value for key, value in report.items()}


def walk(path: Path, *, max_bytes: int = 64 << 20) -> Iterator[dict[str, Any]]:
    """What stands before the nodes, with none of them, and then the nodes: one is in memory at a time.

    Raises OSError, and ValueError where it is no report; one that is laid out otherwise is read whole, up to
    ``max_bytes``.
    """
    head: list[str] = []
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            if line.rstrip("\n") == NODES:
                break
            head.append(line)
        else:
            if path.stat().st_size > max_bytes:
                raise ValueError("its nodes do not stand on a line each")
            report = json.loads("".join(head))
            if not isinstance(report, dict) or not isinstance(report.get("nodes"), list):
                raise ValueError("it has no nodes")  # noqa: TRY004 - of a file, not of an argument
            yield {**report, "nodes": []}
            yield from report["nodes"]
            return
        yield json.loads("".join([*head, '"nodes": []}']))
        for line in stream:
            text = line.strip()
            if not text.startswith("{"):
                return
            yield json.loads(text.removesuffix(","))
        raise ValueError("it ends within its nodes")


def _sharing() -> _Hook:
    """An object hook that keeps each text once: names, units and remedies stand in a report by the ten thousand."""
    known: dict[str, str] = {}

    def share(item: dict[str, Any]) -> dict[str, Any]:
        for key, value in item.items():
            if type(value) is str:
                item[key] = known.setdefault(value, value)
        return item

    return share
