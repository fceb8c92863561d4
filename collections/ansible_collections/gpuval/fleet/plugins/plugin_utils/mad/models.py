"""One model of a repository: its fields with types and defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .documents import MadError, check, shown, unknown_keys, within

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


def from_entry(entry: Any, number: int, file: str, scope: str = "") -> Model:
    """A model from the entry at `number`, counted from 1, of a models.json. Raises MadError with file, model and field.

    With a `scope`, name and paths are those of scripts/SCOPE/models.json.
    """
    named = isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and entry["name"]
    where = f"{file}: model {entry['name'][:200]}" if named else f"{file}: entry {number}"
    if isinstance(entry, Mapping):
        entry = {key: value for key, value in entry.items() if value is not None}  # null is not specified
    check("mad_model", entry, what=where)
    folder = f"scripts/{scope}/" if scope else ""
    dockerfile, scripts = (
        within(folder + _relative(entry[key], f"{where}: {key}"), what=f"{where}: {key}")
        for key in ("dockerfile", "scripts")
    )
    url = entry.get("url", "")
    if url and not _is_address(url):
        raise MadError(
            f"{where}: url: {shown(url)} is no address of a repository: use https://, ssh:// or git@HOST:PATH"
        )
    if CREDENTIALS_IN_URL.match(url):
        raise MadError(
            f"{where}: url: credentials in an address end up in logs: move them to credential.json and set cred"
        )
    return Model(
        name=f"{scope}/{entry['name']}" if scope else entry["name"],
        file=file,
        dockerfile=dockerfile,
        scripts=scripts,
        dockercontext=within(entry.get("dockercontext") or DOCKER_FOLDER, what=f"{where}: dockercontext"),
        url=url,
        cred=entry.get("cred", ""),
        owner=entry.get("owner", ""),
        data=_words(entry.get("data", "")),
        n_gpus=int(entry.get("n_gpus", ALL_GPUS)),
        timeout=entry.get("timeout", UNSET),
        training_precision=entry.get("training_precision", ""),
        tags=_words(entry.get("tags", ())),
        args=checked_args(entry.get("args", ""), f"{where}: args"),
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


def _is_address(url: str) -> bool:
    try:
        return bool(_URL.fullmatch(url)) and urlsplit(url).port != 0
    except ValueError:
        return False


def _relative(path: str, what: str) -> str:
    if path.startswith("/"):
        raise MadError(f"{what}: {shown(path)} is outside the repository: name a path below its root")
    return path


def _words(value: Any) -> tuple[str, ...]:
    """A list, or a text of words with commas between, without blanks and empty words."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(word for word in (part.strip() for part in parts) if word)
