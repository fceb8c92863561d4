"""Documents held against the JSON Schemas of the collection."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import quick_schema
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError

try:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError, best_match
    from jsonschema.validators import extend
except ImportError as error:
    raise AnsibleError(
        "the Python that runs Ansible lacks the package jsonschema: run 'make setup', or install it beside ansible-core"
    ) from error

SCHEMA_DIRECTORY = Path(__file__).resolve().parents[3] / "schemas"


class Invalid(GpuvalError, ValueError):  # noqa: N818  (what the document is)
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
def quick(name: str) -> quick_schema.Test:
    """A test that says True of most documents that follow the schema, and of no others."""
    return quick_schema.compiled(validator(name).schema, _compiled)


@functools.cache
def validator(name: str) -> Any:
    """The compiled validator of ``schemas/<name>.schema.json``."""
    return _Validator(json.loads((SCHEMA_DIRECTORY / f"{name}.schema.json").read_text(encoding="utf-8")))


def validate(name: str, document: Any, *, what: str) -> None:
    """Raise Invalid, which says where and why, unless ``document`` follows the schema ``name``."""
    if quick(name)(document):
        return
    error = best_match(validator(name).iter_errors(document))
    if error is not None:
        raise Invalid(what, tuple(error.absolute_path), _shortened(error.message))


def _shortened(message: str, limit: int = 300) -> str:
    """The end of a jsonschema message says what is wrong; its start repeats the whole value."""
    return message if len(message) <= limit else f"{message[:60]} ... {message[-(limit - 65) :]}"
