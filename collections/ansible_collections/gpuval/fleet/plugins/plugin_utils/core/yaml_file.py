"""Reads YAML files of gpuval and of users: refuses duplicate keys, and finds the line of an entry for messages."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from . import schemas
from .errors import GpuvalError, reason_of

#: PyYAML's safe loader, if possible that of libyaml, which takes a tenth of the time.
SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Tags that YAML gives to plain words: booleans, numbers, dates.
ORDINARY = tuple(f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp"))


class YamlError(GpuvalError, ValueError):
    """A file cannot be read as YAML; the message names the file and the line."""


class StrictLoader(SafeLoader):
    """A safe YAML loader that also refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key_node in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key_node.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key_node.value}' stands twice", key_node.start_mark
                )
            keys.add(key_node.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class AnyTagLoader(StrictLoader):
    """A strict loader that accepts any tag, such as Ansible's !vault, and reads None as the value."""


AnyTagLoader.add_multi_constructor("", lambda _loader, _tag, _node: None)


class VerbatimLoader(StrictLoader):
    """A strict loader that keeps values below ``environment`` and ``run`` as written: YAML would read ``yes`` as true
    and ``010`` as 8."""

    KEYS = ("environment", "run")

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, value in node.value:
            if key.value in self.KEYS and isinstance(value, yaml.CollectionNode):
                pairs = isinstance(value, yaml.MappingNode)
                for scalar in [item[1] for item in value.value] if pairs else value.value:
                    if isinstance(scalar, yaml.ScalarNode) and scalar.tag in ORDINARY:
                        scalar.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def load(text: str) -> Any:
    """The content of a YAML text, in which keys may occur twice. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=SafeLoader)  # noqa: S506  (the safe loader, in C where there is one)


def shipped(path: Path, schema: str) -> dict[str, Any]:
    """The content of a YAML file, checked by a schema of the collection. Raises YamlError, or schemas.Invalid."""
    document: dict[str, Any] = parse(path, read(path))
    schemas.validate(schema, document, what=str(path))
    return document


def read(path: Path) -> str:
    """The text of a YAML file. Raises YamlError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise YamlError(f"{path}: cannot be read: {reason_of(error)}") from error


def parse(path: Path, text: str, loader: type[StrictLoader] = StrictLoader) -> Any:
    """The content of a file's YAML text, in which no key may occur twice. Raises YamlError."""
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506  (a safe loader that also refuses duplicate keys)
    except yaml.YAMLError as error:
        line = error.problem_mark.line + 1 if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark else 1
        raise YamlError(f"{path}:{line}: not YAML: {problem_of(error)}") from error


def problem_of(error: yaml.YAMLError) -> str:
    """The problem in a YAML error, with a remedy if YAML's message names no cause."""
    problem = str(getattr(error, "problem", error))
    if "cannot start any token" in problem:
        return f"{problem}: indent with spaces instead of tabs, and quote a value that begins with @, % or a backtick"
    if "unhashable" in problem:
        return f"{problem}: quote a value that begins with {{{{"
    return problem


def line_of(text: str, path: Iterable[str | int], key: str = "") -> int:
    """Number of the line (from 1) of the entry at ``path`` (keys and indices) in a YAML text, or of ``key`` in it; if
    absent, of the entry around it."""
    node: Any = yaml.compose(text, Loader=SafeLoader)
    line = node.start_mark.line if node else 0
    for step in [*path, *([key] if key else [])]:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line
            continue
        entries = node.value if isinstance(node, yaml.MappingNode) else []
        pair = next(((name, value) for name, value in entries if name.value == str(step)), None)
        if pair is None:
            break
        line, node = pair[0].start_mark.line, pair[1]
    return int(line) + 1
