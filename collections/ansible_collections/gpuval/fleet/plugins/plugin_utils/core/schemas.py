"""Documents validated against the JSON Schemas of the collection."""

from __future__ import annotations

import functools
import itertools
import json
import math
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError

try:
    import jsonschema_rs
except ImportError as error:
    raise AnsibleError(
        "the Python that runs Ansible lacks the package jsonschema-rs: run 'make setup', or install it beside "
        "ansible-core"
    ) from error

SCHEMA_DIRECTORY = Path(__file__).resolve().parents[3] / "schemas"
#: These tell only that no alternative fits; an error of another keyword tells more.
_ALTERNATIVES = ("anyOf", "oneOf")
#: So many errors are compared to find the one that tells most: a document from outside may have a million.
MAX_ERRORS = 100


class Invalid(GpuvalError, ValueError):  # noqa: N818  (what the document is)
    """A document that breaks its schema; ``path`` holds the keys that lead to the place."""

    def __init__(self, what: str, path: tuple[str | int, ...], problem: str) -> None:
        self.path = path
        self.problem = problem
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
        super().__init__(f"{what}: {place}: {problem}" if place else f"{what}: {problem}")


def schema(name: str) -> dict[str, Any]:
    """The document ``schemas/<name>.schema.json``."""
    found: dict[str, Any] = json.loads((SCHEMA_DIRECTORY / f"{name}.schema.json").read_text(encoding="utf-8"))
    return found


@functools.cache
def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema(name))


def validate(name: str, document: Any, *, what: str) -> None:
    """Raise Invalid, with the place and the reason, unless ``document`` follows the schema ``name``."""
    known = validator(name)
    try:
        if known.is_valid(document):
            return
        errors = list(itertools.islice(known.iter_errors(document), MAX_ERRORS))
    except ValueError as error:  # what JSON does not have: a key that is no text, a date of YAML
        raise Invalid(what, (), str(error)) from error
    best = min(errors, key=lambda one: (len(one.instance_path), one.schema_path[-1] in _ALTERNATIVES))
    path = tuple(best.instance_path)
    value = functools.reduce(lambda inner, key: inner[key], path, document)
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such number
        raise Invalid(what, path, "a number must be finite")
    raise Invalid(what, path, _shortened(best.message))


def _shortened(message: str, limit: int = 300) -> str:
    """The end of a message tells what is wrong; its start repeats the whole value."""
    return message if len(message) <= limit else f"{message[:60]} ... {message[-(limit - 65) :]}"
