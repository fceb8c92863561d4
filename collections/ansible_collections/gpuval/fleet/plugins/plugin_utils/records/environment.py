"""Values in a record's environment by path. The environment comes from a node: nothing guarantees its form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_VALUES = 256
MAX_TEXT = 400


def texts(environment: Any, path: str) -> list[str]:
    """The values at ``path`` as text, in their order. ``firmware.bios_version`` is a key in a key,
    ``gpus[].driver_version`` that of every member of a list, and ``nics[].board_id+firmware_version`` several of a
    member side by side. What is not there gives nothing."""
    return [text for _, text in members(environment, path)]


def members(environment: Any, path: str) -> list[tuple[Mapping[str, Any], str]]:
    """As ``texts``, each with the mapping that it stands in."""
    words_found: list[tuple[Mapping[str, Any], str]] = []
    *steps, last = path.split(".")
    for branch in _descend(environment, steps):
        words = [_text(branch.get(key)) for key in last.split("+")] if isinstance(branch, Mapping) else [None]
        if all(words) and len(words_found) < MAX_VALUES:
            words_found.append((branch, " ".join(word for word in words if word)))
    return words_found


def part_of(member: Mapping[str, Any]) -> str:
    """gpu:3 for the GPU with that index; the node for anything else."""
    index = member.get("index")
    return f"gpu:{index}" if type(index) is int and 0 <= index < 10_000 else "node"


def objects(environment: Any, path: str) -> list[Mapping[str, Any]]:
    """The mappings at ``path``, such as ``gpus[]``; a node may have put anything there."""
    return [found for found in _descend(environment, path.split(".")) if isinstance(found, Mapping)]


def values(environment: Any, path: str) -> list[Any] | None:
    """What stands at ``path``, where ``gpus[index=1]`` are members of a list; None if its first key is not there."""
    key = path.partition(".")[0].partition("[")[0]
    return list(_descend(environment, path.split("."))) if key in environment else None


def accelerator_users(environment: Any) -> str:
    """Who else used the accelerators at the end of a stage, as its runner saw; empty for none."""
    return ", ".join(texts(environment, "accelerator_users[].process"))


def _descend(branch: Any, steps: list[str]) -> Iterator[Any]:
    if not steps:
        yield branch
        return
    key, deeper = steps[0], steps[1:]
    if not isinstance(branch, Mapping):
        return
    name, is_list, condition = key.partition("[")
    inner, (field, _, text) = branch.get(name), condition[:-1].partition("=")
    if not is_list:
        yield from _descend(inner, deeper)
        return
    members = list(inner.values()) if isinstance(inner, Mapping) else inner if isinstance(inner, list) else []
    for member in members[:MAX_VALUES]:
        if not field or (isinstance(member, Mapping) and _text(member.get(field)) == text):
            yield from _descend(member, deeper)


def _text(value: Any) -> str | None:
    if isinstance(value, (dict, list)):
        value = json.dumps(value, sort_keys=True) if value else ""
    if value is None or isinstance(value, bool):
        return None
    text = " ".join(str(value).split())
    # Long texts that differ in the middle must not look alike when they are shortened for the report.
    return text if len(text) <= MAX_TEXT else hashlib.sha256(text.encode()).hexdigest()
