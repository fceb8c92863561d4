"""Reads files of a model repository. They are untrusted: limited in size, inside the repository, never executed."""

import ast
import json
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import files, schemas
from ..core.errors import GpuvalError
from ..core.escape import one_line

MAX_BYTES = 8 << 20
MAX_SHOWN = 80
#: Maximum number of problems reported for one document, and for the models that the user chose.
MAX_PROBLEMS = 20


class MadError(GpuvalError, ValueError):
    """A problem of a model repository or its settings: the message names file, model, field, and what to do."""


def within(path: str, subject: str, folder: str = "") -> str:
    """The normal form of a path relative to `folder` (with a final /), from the root of the repository. Raises MadError
    if it leaves the repository. `subject`: of messages."""
    normal = posixpath.normpath(folder + path)
    if path.startswith("/") or normal == ".." or normal.startswith("../"):
        raise MadError(f"{subject}: {shown(path)} is outside the repository: name a path below its root")
    return normal


def shown(text: object) -> str:
    """Text from a repository, quoted and shortened for a message."""
    return repr(one_line(str(text), MAX_SHOWN))


def located(root: Path, name: str) -> Path:
    """Path of a file or folder of the repository. Raises MadError if a link leads out of the repository."""
    path = root / name
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError) as error:  # links that lead in a circle
        raise MadError(f"{name}: the path cannot be resolved: remove links that lead to each other") from error
    if not resolved.is_relative_to(root.resolve()):
        raise MadError(f"{name}: a link leads out of the repository: replace it by what it names")
    return path


def read_bytes(root: Path, name: str, limit: int = MAX_BYTES) -> bytes:
    """A file's content. Raises MadError if it is missing, not regular, unreadable or longer than `limit` bytes."""
    path = located(root, name)
    if not path.is_file():
        raise MadError(f"{name}: {'not a regular file' if path.exists() else 'no such file'} in {root}")
    try:
        data = files.read(path, limit + 1)
    except OSError as error:
        raise MadError(f"{name}: {error.strerror}: make it readable") from error
    if len(data) > limit:
        raise MadError(f"{name}: longer than {limit} bytes: this is no file of a model repository")
    return data


def read_json(root: Path, name: str) -> Any:
    """The JSON document in a file of the repository. Raises MadError with the place of an error, but never with the
    file's content: the file may be credential.json."""
    return parse_json(read_bytes(root, name), subject=name)


def parse_json(data: bytes | str, *, subject: str) -> Any:
    """The JSON document in `data`. `subject`: the file's name in messages. Raises MadError like `read_json`."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise MadError(f"{subject}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise MadError(f"{subject}: {position}: malformed JSON: {error.msg}") from error
    except RecursionError as error:
        raise MadError(f"{subject}: nested too deeply") from error
    except MadError as error:
        raise MadError(f"{subject}: {error}") from error
    except ValueError as error:  # such as a number with thousands of digits
        raise MadError(f"{subject}: a number is too long") from error


def parse_literal(text: str, problem: str) -> Any:
    """The value of a Python literal, parsed without executing code. Raises MadError with the message `problem`."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise MadError(problem) from error


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise MadError(f"key {shown(key)} is given twice: remove one")
        fields[key] = value
    return fields


def _refuse_constant(word: str) -> float:
    raise MadError(f"{word} is no JSON number")


def check(schema: str, document: Any, *, subject: str) -> None:
    """Raise MadError unless the document follows the schema; the message names the field."""
    if problems := problems_of(schema, document, subject=subject):
        raise MadError("; ".join(problems))


def problems_of(schema: str, document: Any, *, subject: str) -> list[str]:
    """Messages about fields in which a document breaks the schema; empty if none."""
    return [one_line(str(problem), 600) for problem in schemas.problems(schema, document, what=subject)][:MAX_PROBLEMS]


def unknown_keys(schema: str, document: Mapping[str, Any]) -> list[str]:
    """Keys of a document that the schema does not declare, in the document's order."""
    declared = schemas.schema(schema)["properties"]
    return [key for key in document if key not in declared]
