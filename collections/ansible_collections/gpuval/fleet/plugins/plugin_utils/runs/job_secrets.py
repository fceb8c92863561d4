"""Reads the secrets of jobs, {environment variable: value}, from settings, a file or the controller's environment."""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ..core.paths import project_path
from .plans import PlanError

#: Minimum and maximum length of a secret: shorter ones occur in any text, an environment cannot hold longer ones.
SHORTEST, LONGEST_BYTES = 4, 32 << 10
MAX_FILE_BYTES = 1 << 20
#: Suffix of variables whose values are shown, and may be shorter.
USERNAME = "_USERNAME"


class SecretError(PlanError):
    """A secret has no usable value. No message contains a value."""


def values(names: Iterable[str], store: Mapping[str, Any]) -> dict[str, str]:
    """The secrets of these variables, from the sources in the `store` option. Raises SecretError on all problems."""
    names = list(names)
    if not names:
        return {}
    path = store.get("secrets_file")
    given_here = {**(flat(read(project_path(path))) if path else {}), **_texts(store.get("secrets") or {})}
    secrets = {name: given_here.get(name) or os.environ.get(name, "") for name in names}
    if problems := [text for name, value in secrets.items() if (text := problem(name, value))]:
        raise SecretError("; ".join(problems))
    return secrets


def hidden(store: Mapping[str, Any]) -> set[str]:
    """Values that no log may show, of jobs and of the `store` option. An unreadable file of secrets adds none."""
    texts, path = _texts(store.get("secrets") or {}), store.get("secrets_file")
    with suppress(SecretError):  # nodes redact their values themselves, and a launch reports an unreadable file
        texts |= flat(read(project_path(path))) if path else {}
    keys = {str(store[name]) for name in ("secret_key", "session_token", "read_secret_key") if store.get(name)}
    return keys | {value for name, value in texts.items() if not name.endswith(USERNAME)}


def problem(name: str, value: str) -> str:
    """Why a secret's value cannot be used; empty if it can."""
    if not value:
        return (
            f"secret {name} has no value: set it in gpuval_secrets, gpuval_secrets_file or the controller's environment"
        )
    if len(value.strip()) < SHORTEST and not name.endswith(USERNAME):
        return f"secret {name} has fewer than {SHORTEST} characters and could not be hidden in logs: use a longer one"
    if "\0" in value or len(value.encode("utf-8", "surrogatepass")) > LONGEST_BYTES:
        return f"secret {name} has a NUL or more than {LONGEST_BYTES} bytes, which no variable holds: use a file"
    return ""


def read(path: Path) -> dict[str, Any]:
    """Read a file of secrets, JSON or YAML. Raises SecretError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SecretError(f"{path}: more than {MAX_FILE_BYTES} bytes: this is no file of secrets")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SecretError(f"{path}: cannot be read: {reason}") from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        try:
            document = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):  # messages of YAML errors quote the file
            document = None
    if not isinstance(document, dict):
        raise SecretError(f"{path}: holds no object of names and values in JSON or YAML: write NAME: VALUE")
    return document


def flat(document: Mapping[str, Any]) -> dict[str, str]:
    """{environment variable: secret} of a file of secrets. KEY in an object NAME becomes the variable NAME_KEY."""
    texts = _texts(document)
    for name, inner in document.items():
        if isinstance(inner, Mapping):
            texts |= {f"{name}_{key.upper()}": value for key, value in _texts(inner).items()}
    return texts


def _texts(document: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in document.items() if isinstance(value, (str, int, float))}
