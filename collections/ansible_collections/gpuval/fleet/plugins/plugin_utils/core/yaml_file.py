"""YAML files: those that ship, and those that people write: no key twice, and the line of each part for messages."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from . import schemas
from .errors import GpuvalError, reason_of

#: libyaml's takes a tenth of the time.
SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


#: Tags that YAML gives to plain words: booleans, numbers, dates.
ORDINARY = tuple(f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp"))


class YamlError(GpuvalError, ValueError):
    """A file that cannot be read as YAML; the message names the file and the line."""


class StrictLoader(SafeLoader):
    """A safe loader that also refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key_node.value}' stands twice", key_node.start_mark
                )
            if isinstance(key_node, yaml.ScalarNode):
                keys.add(key_node.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class AnyTagLoader(StrictLoader):
    """Also reads the tags of Ansible, such as !vault, without their values."""


AnyTagLoader.add_multi_constructor("", lambda _loader, _tag, _node: None)


class VerbatimLoader(StrictLoader):
    """Also keeps the values of these keys as they are written: of ``yes`` and ``010`` YAML makes true and 8."""

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
    """The content of a YAML text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=SafeLoader)  # noqa: S506  (the safe loader, in C where there is one)


def shipped(path: Path, schema: str) -> dict[str, Any]:
    """The content of a YAML file of the collection or an extension. Raises YamlError, or schemas.Invalid."""
    document: dict[str, Any] = parse(path, read(path))
    schemas.validate(schema, document, what=str(path))
    return document


def read(path: Path) -> str:
    """The text of a file. Raises YamlError."""
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
    """The line of the YAML node at ``path`` (keys and indices), or of ``key`` in it; if absent, of the node around
    it."""
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
