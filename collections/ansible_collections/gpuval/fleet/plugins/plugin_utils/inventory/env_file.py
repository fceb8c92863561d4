"""Settings in a `.env` file beside the inventory: the syntax of python-dotenv, in which `$` stands for itself."""

import codecs
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..artifacts.model_source import folder_name
from ..core.errors import SettingError, reason_of
from ..core.text import nearest_spelling

#: Keys of one credential: all from the environment, or all from the file.
CREDENTIAL = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
#: Keys that are read from `.env`. Defaults of the roles use them as `gpuval_env.KEY`.
KEYS = {*CREDENTIAL, "AWS_ENDPOINT_URL", "AWS_REGION", "BUCKET", "DO_TOKEN", "FOLDER", "HF_TOKEN", "MODEL"}
KEYS |= {"MODEL_FOLDER", "NODE_NAME", "GPUVAL_S3_READ_ACCESS_KEY", "GPUVAL_S3_READ_SECRET_KEY"}
_STATEMENT = re.compile(
    r"""\#[^\r\n]*
    | (?:export[^\S\r\n]+)? (?: '(?P<quoted_key>[^']+)' | (?P<key>(?!')[^=\#\s]+) ) [^\S\r\n]*
      (?: =[^\S\r\n]* (?: '(?P<single>(?:\\.|[^'\\])*)' | "(?P<double>(?:\\.|[^"\\])*)"
                         | (?P<plain>(?![\s'"]|(?<!=)\#)[^\r\n]*)? ) )?
      [^\S\r\n]* (?:\#[^\r\n]*)? (?=[\r\n]|\Z)
    | (?P<wrong>\S[^\r\n]*)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPES = {"single": re.compile(r"\\[\\']"), "double": re.compile(r"\\[\\'\"abfnrtv]")}


@dataclass
class EnvSettings:
    """Settings of `.env` files and environment: by key, values and places (file and line, or environment). Problems and
    remarks are messages, which never contain a value."""

    values: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def places_of(self, defaults: Mapping[str, Any]) -> dict[str, str]:
        """For each setting whose default reads a key of `.env`: file and line that set this key. `defaults`: of roles,
        {setting: template}."""
        matches = {name: re.search(r"gpuval_env\.(\w+)", str(default)) for name, default in defaults.items()}
        return {name: self.places[match[1]] for name, match in matches.items() if match and match[1] in self.values}


def read(sources: Iterable[str]) -> EnvSettings:
    """The settings in `.env` in or beside each source of an inventory, or in the file that GPUVAL_ENV_FILE names. The
    environment wins over a file, and a later file over an earlier one. Raises GpuvalError."""
    paths = [Path(source) for source in sources if "," not in source]  # with a comma, a source is a list of hosts
    files = dict.fromkeys((path if path.is_dir() else path.parent) / ".env" for path in paths)
    chosen = os.environ.get("GPUVAL_ENV_FILE")
    env = EnvSettings()
    for path in [Path(chosen)] if chosen else filter(Path.is_file, files):
        try:
            text, mode = path.read_bytes().decode("utf-8-sig"), path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{path} cannot be read: {reason_of(error)}") from None
        if mode & 0o077:
            env.remarks.append(f"{path}: its mode {mode & 0o777:04o} lets other users in: chmod 600 {path}")
        _parse(text, os.path.relpath(path) if Path.cwd() in path.parents else str(path), env)
    exported = env.values.keys() & os.environ.keys()
    for key in {*exported, *(CREDENTIAL if CREDENTIAL[0] in exported else ())}:
        env.values[key], env.places[key] = os.environ.get(key, ""), "the environment"
    env.values = {key: value for key, value in env.values.items() if value}
    if "://" not in env.values.get("AWS_ENDPOINT_URL", "://"):
        env.values["AWS_ENDPOINT_URL"] = f"https://{env.values['AWS_ENDPOINT_URL']}"
    if folder := env.values.get("MODEL_FOLDER"):
        right = folder_name(env.values.setdefault("MODEL", folder.removeprefix("models--").replace("--", "/", 1)))
        if right != folder:
            env.problems.append(f"{env.places['MODEL_FOLDER']}: MODEL_FOLDER is not that of MODEL, {right}")
    return env


def _parse(text: str, path: str, env: EnvSettings) -> None:
    for match in _STATEMENT.finditer(text):
        place, key = f"{path}:{text.count(chr(10), 0, match.start()) + 1}", match["quoted_key"] or match["key"] or ""
        value = re.sub(r"\s+#.*", "", match["plain"] or "").rstrip()
        for quotes, escapes in _ESCAPES.items():
            value = escapes.sub(lambda escape: codecs.decode(escape[0], "unicode-escape"), match[quotes] or "") or value
        if match["wrong"]:
            env.problems.append(f"{place}: not KEY=VALUE, or a quote is not closed: correct the line")
        elif key in KEYS:
            if key in env.values:
                env.remarks.append(f"{place}: {key} stands in {env.places[key]}, too: the value in {place} counts")
            if value and not value.strip("*"):
                env.remarks.append(f"{place}: {key} is the placeholder of an example: set it, or remove the line")
            env.values[key], env.places[key] = value if value.strip("*") else "", place
        elif near := nearest_spelling(key.upper(), KEYS, 2 if len(key) > 12 else 1):
            env.remarks.append(f"{place}: {key} is not read; is it {near}?")
