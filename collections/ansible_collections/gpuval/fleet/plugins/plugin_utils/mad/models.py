"""Reads one model of a repository: its fields with types and defaults."""

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .documents import MadError, problems_of, shown, unknown_keys, within

DEFAULT_TIMEOUT_SECONDS = 7200
#: Special values: `timeout` not specified, and `n_gpus` meaning all.
UNSET, ALL_GPUS = -1, -1
DOCKER_FOLDER = "docker"
#: Fields of an entry that become fields of MadModel unchanged.
AS_THEY_ARE = ("cred", "owner", "timeout", "training_precision", "multiple_results", "distributed", "env_vars")
_URL = re.compile(r"(?:https|ssh)://[^\s'\"]+|[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+:[^\s'\"]+")
CREDENTIALS_IN_URL = re.compile(r"(?:https?|git)://[^/@]*@|ssh://[^/@:]*:[^/@]*@")


@dataclass(frozen=True)
class MadModel:
    """A model of a repository. Paths are relative to the repository. `extra`: unknown fields, unchanged. `problem`:
    what is wrong with a malformed entry, of which only name and tags are read."""

    name: str
    file: str
    dockerfile: str = ""
    scripts: str = ""
    dockercontext: str = DOCKER_FOLDER
    url: str = ""
    cred: str = ""
    owner: str = ""
    data: tuple[str, ...] = ()
    n_gpus: int = ALL_GPUS
    timeout: int = UNSET
    training_precision: str = ""
    tags: tuple[str, ...] = ()
    args: str = ""
    multiple_results: str = ""
    skip_gpu_arch: tuple[str, ...] = ()
    distributed: Mapping[str, Any] | None = None
    env_vars: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def scope(self) -> str:
        """The folder below scripts/ that declares the model; empty for the root of the repository."""
        return self.name.rpartition("/")[0]

    @property
    def where(self) -> str:
        """File and name of the model, as the subject of messages."""
        return f"{self.file}: model {self.name}"


def from_entry(entry: Any, number: int, file: str, scope: str = "") -> MadModel:
    """The model in one entry of the models.json `file`. `number`: position of the entry, from 1. With a `scope` the
    file is scripts/SCOPE/models.json, and name and paths of the model are relative to that folder."""
    # null means that a field is not specified
    entries: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
    fields: dict[str, Any] = {key: value for key, value in entries.items() if value is not None}
    name_text = fields["name"] if isinstance(fields.get("name"), str) else ""
    name = f"{scope}/{name_text}" if scope else name_text
    where = f"{file}: model {name_text[:200]}" if name_text else f"{file}: entry {number}"
    problems = problems_of("mad_model", fields if isinstance(entry, Mapping) else entry, subject=where)
    path_of = functools.partial(within, folder=f"scripts/{scope}/" if scope else "")
    checks: Any = {
        "dockerfile": path_of,
        "scripts": path_of,
        "dockercontext": within,
        "url": _address,
        "args": checked_args,
    }
    checked: dict[str, Any] = {}
    for key, check in checks.items():
        text = fields.get(key) or (DOCKER_FOLDER if key == "dockercontext" else "")
        try:
            checked[key] = check(text, f"{where}: {key}") if isinstance(text, str) else ""
        except MadError as error:
            problems.append(str(error))
    tags = _words(fields.get("tags", ()))
    if problems:
        return MadModel(name, file, tags=tags, problem="; ".join(problems))
    return MadModel(
        name=name,
        file=file,
        **checked,
        **{key: fields[key] for key in AS_THEY_ARE if key in fields},
        data=_words(fields.get("data", "")),
        n_gpus=int(fields.get("n_gpus", ALL_GPUS)),
        tags=tags,
        skip_gpu_arch=_words(fields.get("skip_gpu_arch", "")),
        extra={key: fields[key] for key in unknown_keys("mad_model", fields)},
    )


def checked_args(text: str, subject: str) -> str:
    """Return a script's arguments, which are shell text. Raises MadError for an unclosed quote."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise MadError(f"{subject}: {shown(text)}: {str(error).lower()}: quote it as for a shell") from error
    return text.strip()


def timeout_seconds(model: MadModel, limit_set: int = UNSET, multiplier: float = 1.0) -> float:
    """A model's time limit in seconds, 0 for none: `limit_set` by the user (-1: not set), else its own, else 7200."""
    chosen = next((limit for limit in (limit_set, model.timeout) if limit != UNSET), DEFAULT_TIMEOUT_SECONDS)
    return chosen * multiplier


def _address(url: str, term: str) -> str:
    """Return an address of code if it is valid or empty. `term`: subject of messages. Raises MadError."""
    try:
        is_valid = not url or (_URL.fullmatch(url) and urlsplit(url).port != 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise MadError(f"{term}: {shown(url)} is no address of a repository: use https://, ssh:// or git@HOST:PATH")
    if CREDENTIALS_IN_URL.match(url):
        raise MadError(f"{term}: credentials in an address end up in logs: move them to credential.json and set cred")
    return url


def _words(value: Any) -> tuple[str, ...]:
    """The words of a list, or of a text with commas, without blanks and empty words."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
    return tuple(word for word in (part.strip() for part in parts if isinstance(part, str)) if word)
