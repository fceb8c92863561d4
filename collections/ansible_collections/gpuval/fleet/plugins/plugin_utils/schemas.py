"""Documents held against the JSON Schemas of the collection."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

try:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError, best_match
    from jsonschema.validators import extend
except ImportError as error:
    raise AnsibleError(
        "the Python that runs Ansible lacks the package jsonschema: run 'make setup', or install it beside ansible-core"
    ) from error

SCHEMA_DIRECTORY = Path(__file__).resolve().parents[2] / "schemas"


class Invalid(ValueError):  # noqa: N818  (what the document is)
    """A document that breaks its schema; ``path`` holds the keys that lead to the place."""

    def __init__(self, what: str, path: tuple[str | int, ...], problem: str) -> None:
        self.path = path
        self.problem = problem
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
        super().__init__(f"{what}: {place}: {problem}" if place else f"{what}: {problem}")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """JSON Schema patterns are ECMA 262: digits are ASCII and ``$`` is the very end, not before a line feed."""
    if pattern.endswith("$") and not pattern.endswith(r"\$"):
        pattern = pattern[:-1] + r"\Z"
    return re.compile(pattern, re.ASCII)


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _compiled(pattern).search(instance):
        yield ValidationError(f"{instance[:80]!r} does not have the form {pattern}")


_Validator = extend(Draft202012Validator, {"pattern": _pattern})


@functools.cache
def validator(name: str) -> Any:
    """The compiled validator of ``schemas/<name>.schema.json``."""
    schema = json.loads((SCHEMA_DIRECTORY / f"{name}.schema.json").read_text(encoding="utf-8"))
    _Validator.check_schema(schema)
    return _Validator(schema)


def validate(name: str, document: Any, *, what: str) -> None:
    """Raise Invalid, which says where and why, unless ``document`` follows the schema ``name``."""
    error = best_match(validator(name).iter_errors(_slimmed(document) if name == "report" else document))
    if error is not None:
        raise Invalid(what, tuple(error.absolute_path), _shortened(error.message))


def _slimmed(report: Any) -> Any:
    """The report without lists of checks and stages that a direct test has seen to be right: they are most of it, and a
    thousand nodes would keep the validator busy for half a minute."""
    try:
        return {**report, "nodes": [_slimmed_node(node) for node in report["nodes"]]}
    except (TypeError, KeyError):
        return report


def _slimmed_node(node: Any) -> Any:
    lists = {name: node[name] for name in ("checks", "stages")}
    return {**node, **{name: [] for name, items in lists.items() if all(map(plain("report", name[:-1]), items))}}


@functools.cache
def plain(name: str, definition: str) -> Callable[[Any], bool]:
    """A direct test for objects of a definition whose properties are scalars; False only says: ask the validator."""
    schema = json.loads((SCHEMA_DIRECTORY / f"{name}.schema.json").read_text(encoding="utf-8"))["$defs"][definition]
    required, closed = set(schema["required"]), schema["additionalProperties"] is False
    allowed = {key: _allowed(of) for key, of in schema["properties"].items()}

    def is_plain(item: Any) -> bool:
        if type(item) is not dict or not closed or not required <= item.keys() <= allowed.keys():
            return False
        for key, value in item.items():
            if value is None or type(value) in (bool, int, float):
                if type(value) not in allowed[key]:
                    return False
            elif type(value) is not str or (str not in allowed[key] and value not in allowed[key]):
                return False
        return True

    return is_plain


_TYPES = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),)}


def _allowed(schema: dict[str, Any]) -> frozenset[Any]:
    """Python's types that a property may have, or the texts that it may be; nothing where more is asked of it."""
    if schema.keys() - {"description", "type", "enum"}:
        return frozenset()
    if "enum" in schema:
        return frozenset(value for value in schema["enum"] if type(value) is str)
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return frozenset(kind for name in types for kind in _TYPES.get(name, ()))


def _shortened(message: str, limit: int = 300) -> str:
    """The end of a jsonschema message says what is wrong; its start repeats the whole value."""
    return message if len(message) <= limit else f"{message[:60]} ... {message[-(limit - 65) :]}"
