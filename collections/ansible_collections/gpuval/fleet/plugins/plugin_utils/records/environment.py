"""Read values from a record's ``environment`` by path. A node wrote it, so nothing guarantees its form."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_VALUES = 256
MAX_TEXT = 400


def texts(environment: Any, path: str) -> list[str]:
    """The values at ``path`` of a record's environment, as text, in order. ``firmware.bios_version`` is a nested key,
    ``gpus[].driver_version`` the key of every list item, ``nics[].board_id+firmware_version`` several keys joined."""
    return [text for _, text in members(environment, path)]


def members(environment: Any, path: str) -> list[tuple[Mapping[str, Any], str]]:
    """(mapping, text) for each value at ``path`` of a record's environment: the text and the mapping that has it."""
    words_found: list[tuple[Mapping[str, Any], str]] = []
    *steps, last = path.split(".")
    for branch in _descend(environment, steps):
        words = [_text(branch.get(key)) for key in last.split("+")] if isinstance(branch, Mapping) else [None]
        if all(words) and len(words_found) < MAX_VALUES:
            words_found.append((branch, " ".join(word for word in words if word)))
    return words_found


def part_of(member: Mapping[str, Any]) -> str:
    """The part that a mapping is about: gpu:3 for a GPU with that index, node for anything else."""
    index = member.get("index")
    return f"gpu:{index}" if type(index) is int and 0 <= index < 10_000 else "node"


def objects(environment: Any, path: str) -> list[Mapping[str, Any]]:
    """The mappings at ``path`` of a record's environment, such as ``gpus[]``; values of other types are skipped."""
    return [found for found in _descend(environment, path.split(".")) if isinstance(found, Mapping)]


def values(environment: Any, path: str) -> list[Any] | None:
    """The values at ``path`` of a record's environment, as ``gpus[index=1].name``; None if the first key is missing."""
    key = path.partition(".")[0].partition("[")[0]
    return list(_descend(environment, path.split("."))) if key in environment else None


def accelerator_users(environment: Any) -> str:
    """The other processes on the accelerators at the end of a stage, as its runner saw them; empty for none."""
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
    """A value of the environment as text; empty for empty containers, None for null and booleans."""
    if isinstance(value, (dict, list)):
        value = json.dumps(value, sort_keys=True) if value else ""
    if value is None or isinstance(value, bool):
        return None
    text = " ".join(str(value).split())
    # A long text is replaced by its digest: cut off, different texts could look equal.
    return text if len(text) <= MAX_TEXT else hashlib.sha256(text.encode()).hexdigest()
