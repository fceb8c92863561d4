"""Validates documents by the JSON Schemas of the collection."""

import functools
import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from .commands import pasteable
from .errors import GpuvalError
from .paths import COLLECTION
from .text import meant

#: Libraries that every command needs: {name to install: name to import}. Others are checked where they are used.
LIBRARIES = {"boto3": "boto3", "cryptography": "cryptography", "jsonschema-rs": "jsonschema_rs", "orjson": "orjson"}
if lacking := [library for library, module in LIBRARIES.items() if find_spec(module) is None]:
    from ansible.errors import AnsibleError

    from . import ansible_internal  # noqa: F401  (reports too old an ansible-core first)

    raise AnsibleError(
        f"{sys.executable}, which runs Ansible, lacks {', '.join(lacking)}: {pasteable('run `make setup`')}"
    )

import jsonschema_rs  # noqa: E402  (after the check that it is installed)

#: Keywords whose errors only say that no alternative fits; errors of other keywords are more precise.
_ALTERNATIVES = ("anyOf", "oneOf")
#: Maximum number of errors to choose the most precise one from: an untrusted document may have a million.
MAX_ERRORS = 100
#: Maximum characters of a malformed text that a message repeats.
MAX_SHOWN = 80


class Invalid(GpuvalError, ValueError):  # noqa: N818  (what the document is)
    """A document breaks its schema. ``path``: keys and indices that lead to the error; ``key``: an unknown key."""

    def __init__(self, what: str, path: tuple[str | int, ...], problem: str, key: str = "") -> None:
        self.path = path
        self.key = key
        self.problem = problem
        key_path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
        super().__init__(f"{what}: {key_path}: {problem}" if key_path else f"{what}: {problem}")


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema in ``schemas/<name>.schema.json`` of the collection."""
    document: dict[str, Any] = json.loads((COLLECTION / f"schemas/{name}.schema.json").read_text(encoding="utf-8"))
    return document


@functools.cache
def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema(name))


def validate(name: str, document: Any, *, what: str) -> None:
    """Raise Invalid unless ``document`` follows the schema ``name``. ``what``: its name in messages."""
    errors = _found(name, document, what)
    if errors:
        raise _invalid(name, document, what, min(errors, key=_rank))[0]


def problems(name: str, document: Any, *, what: str) -> list[Invalid]:
    """All errors of a document by the schema ``name``: one for each path, and one for each unknown key."""
    try:
        errors = _found(name, document, what)
    except Invalid as error:
        return [error]
    kinds = jsonschema_rs.ValidationErrorKind
    best: dict[tuple[Any, ...], Any] = {}
    for failure in sorted(errors, key=_rank):
        several = isinstance(failure.kind, kinds.AdditionalProperties | kinds.Required)
        best.setdefault((*failure.instance_path, failure.message if several else ""), failure)
    return [problem for one in best.values() for problem in _invalid(name, document, what, one)]


def _found(name: str, document: Any, what: str) -> list[jsonschema_rs.ValidationError]:
    try:
        return _errors(name, document)
    except ValueError:  # Ansible's own types, or values that JSON lacks: a number as key, a date of YAML
        try:
            return _errors(name, plain(document))
        except ValueError as error:
            raise Invalid(what, (), str(error)) from error


def _rank(error: jsonschema_rs.ValidationError) -> tuple[int, bool]:
    return len(error.instance_path), error.schema_path[-1] in _ALTERNATIVES


def _invalid(name: str, document: Any, what: str, best: jsonschema_rs.ValidationError) -> list[Invalid]:
    """One validation error as a list of one `Invalid`; for unknown keys one for each key."""
    path, value = tuple(best.instance_path), document
    for key in path:  # jsonschema_rs gives a key of digits as a number
        value = value[str(key)] if isinstance(value, Mapping) else value[key]
    if isinstance(value, float) and not math.isfinite(value):  # JSON has neither infinity nor NaN
        return [Invalid(what, path, "a number must be finite")]
    if isinstance(best.kind, jsonschema_rs.ValidationErrorKind.Pattern):  # its message repeats the whole value
        return [Invalid(what, path, f"{value[:MAX_SHOWN]!r} does not have the form {best.kind.pattern}")]
    kinds: Any = jsonschema_rs.ValidationErrorKind
    declared: Any = schema(name)
    for key in best.schema_path[:-1]:  # this path has the schema's references resolved
        declared = declared[key]
    if isinstance(best.kind, kinds.AdditionalProperties) and declared.get("properties"):
        properties = declared["properties"]
        return [
            Invalid(what, path, f"unknown key {unexpected[:MAX_SHOWN]!r}{meant(unexpected, properties)}", unexpected)
            for unexpected in best.kind.unexpected
        ]
    if isinstance(best.kind, kinds.Enum):
        words = [str(one) for one in declared["enum"]]
        return [Invalid(what, path, f"{str(value)[:MAX_SHOWN]!r} is none of {', '.join(words)}{meant(value, words)}")]
    # The end of a message tells what is wrong; its start repeats the whole value.
    message = best.message
    return [Invalid(what, path, message if len(message) <= 300 else f"{message[:60]} ... {message[-235:]}")]


def _errors(name: str, document: Any) -> list[jsonschema_rs.ValidationError]:
    """The first errors of a document. Raises ValueError for a value that has no JSON type, or a subclass of one."""
    checker = validator(name)
    return [] if checker.is_valid(document) else list(itertools.islice(checker.iter_errors(document), MAX_ERRORS))


def plain(value: Any) -> Any:
    """A document with built-in types in place of subclasses such as Ansible's tagged strings and compact metrics."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if isinstance(value, int) else float(value)
    return value
