"""One model of a repository: its fields with types and defaults."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .documents import MadError, problems_of, shown, unknown_keys, within

DEFAULT_TIMEOUT_SECONDS = 7200
#: Of `timeout` and `n_gpus`: not specified, and all.
UNSET, ALL_GPUS = -1, -1
DOCKER_FOLDER = "docker"
_URL = re.compile(r"(?:https|ssh)://[^\s'\"]+|[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+:[^\s'\"]+")
CREDENTIALS_IN_URL = re.compile(r"(?:https?|git)://[^/@]*@|ssh://[^/@:]*:[^/@]*@")


@dataclass(frozen=True)
class Model:
    """Paths are relative to the repository. `extra` are fields that gpuval does not know, as they are."""

    name: str
    file: str
    dockerfile: str
    scripts: str
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

    @property
    def scope(self) -> str:
        """The folder below scripts/ that declares it; empty for the root."""
        return self.name.rpartition("/")[0]

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.file}: model {self.name}"


@dataclass(frozen=True)
class MalformedModel:
    """An entry that is no model: its name and tags, as far as they can be read, and all that is wrong with it."""

    name: str
    scope: str
    tags: tuple[str, ...]
    problem: str


def from_entry(entry: Any, number: int, file: str, scope: str = "") -> Model | MalformedModel:
    """A model from the entry at `number`, counted from 1, of a models.json.

    With a `scope`, name and paths are those of scripts/SCOPE/models.json.
    """
    if not isinstance(entry, Mapping):
        return MalformedModel("", scope, (), "; ".join(problems_of("mad_model", entry, what=f"{file}: entry {number}")))
    entry = {key: value for key, value in entry.items() if value is not None}  # null is not specified
    given = entry["name"] if isinstance(entry.get("name"), str) else ""
    name = f"{scope}/{given}" if scope else given
    where = f"{file}: model {given[:200]}" if given else f"{file}: entry {number}"
    problems = problems_of("mad_model", entry, what=where)
    place = functools.partial(within, folder=f"scripts/{scope}/" if scope else "")
    checked = {}
    for key, default, check in (
        ("dockerfile", "", place),
        ("scripts", "", place),
        ("dockercontext", DOCKER_FOLDER, within),
        ("url", "", _address),
        ("args", "", checked_args),
    ):
        text = entry.get(key) or default
        try:
            checked[key] = check(text, f"{where}: {key}") if isinstance(text, str) else ""
        except MadError as error:
            problems.append(str(error))
    if problems:
        tags = entry.get("tags", ())
        readable = isinstance(tags, str) or (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags))
        return MalformedModel(name, scope, _words(tags) if readable else (), "; ".join(problems))
    return Model(
        name=name,
        file=file,
        **checked,
        cred=entry.get("cred", ""),
        owner=entry.get("owner", ""),
        data=_words(entry.get("data", "")),
        n_gpus=int(entry.get("n_gpus", ALL_GPUS)),
        timeout=entry.get("timeout", UNSET),
        training_precision=entry.get("training_precision", ""),
        tags=_words(entry.get("tags", ())),
        multiple_results=entry.get("multiple_results", ""),
        skip_gpu_arch=_words(entry.get("skip_gpu_arch", "")),
        distributed=entry.get("distributed"),
        env_vars=entry.get("env_vars", {}),
        extra={key: entry[key] for key in unknown_keys("mad_model", entry)},
    )


def checked_args(text: str, what: str) -> str:
    """Arguments of a script as shell text. Raises MadError where a shell would not find their end."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise MadError(f"{what}: {shown(text)}: {str(error).lower()}: quote it as for a shell") from error
    return text.strip()


def timeout_seconds(model: Model, asked: int = UNSET, multiplier: float = 1.0) -> float:
    """The time limit of a run: asked for, else the model's, else 7200 s; 0 is none, -1 not specified."""
    chosen = next((limit for limit in (asked, model.timeout) if limit != UNSET), DEFAULT_TIMEOUT_SECONDS)
    return chosen * multiplier


def _address(url: str, what: str) -> str:
    """The address, of which there may be none. Raises MadError."""
    try:
        known = not url or (_URL.fullmatch(url) and urlsplit(url).port != 0)
    except ValueError:
        known = False
    if not known:
        raise MadError(f"{what}: {shown(url)} is no address of a repository: use https://, ssh:// or git@HOST:PATH")
    if CREDENTIALS_IN_URL.match(url):
        raise MadError(f"{what}: credentials in an address end up in logs: move them to credential.json and set cred")
    return url


def _words(value: Any) -> tuple[str, ...]:
    """A list, or a text of words with commas between, without blanks and empty words."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(word for word in (part.strip() for part in parts) if word)
