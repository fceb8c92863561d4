"""Selects the Dockerfiles of a model that fit a node: those whose line `# CONTEXT {...}` contradicts no fact of it."""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ..core.text import some_of
from .documents import MadError, located, parse_literal, read_bytes, shown
from .models import MadModel

HEADER_LINES = 5
MAX_CONTEXT = 1024
MAX_FILES = 200
MAX_BYTES = 1 << 20
_CONTEXT = re.compile(r"^# CONTEXT (.*)$")
_ARGUMENT = re.compile(r"ARG\s+(\w+)=[\"']?([^\s\"']+)", re.IGNORECASE)
_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_HEREDOC = re.compile(r"(?:^|\s)\d*<<-?[\"']?([A-Za-z_]\w*)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile of a model. `context`: the facts of nodes that it is made for; an empty one fits every node."""

    path: str
    text: str = field(repr=False)
    context: Mapping[str, Any] = field(default_factory=dict)

    def base(self, arguments: Mapping[str, str]) -> str:
        """The base image of the last build stage, with build ``arguments``. Raises MadError if they leave it open."""
        values: dict[str, str] = {}
        stages: dict[str, str] = {}
        base = ""

        def filled(text: str) -> str:
            texts = {**values, **arguments}
            return _VARIABLE.sub(lambda part: texts.get(part[1] or part[3]) or part[2] or "", text)

        for line in _instructions(self.text):
            if not base and (argument := _ARGUMENT.match(line)):
                values[argument[1]] = filled(argument[2])
            if match := _FROM.match(line):
                base = filled(match[1])
                base = stages.get(base.lower(), base)
                if match[2]:
                    stages[match[2].lower()] = base
        if not base or base == "scratch":
            raise MadError(
                f"{self.path}: no FROM with an image: give its build arguments a default, or docker_build_arg"
            )
        return base

    def contradictions(self, facts: Mapping[str, Any]) -> list[str]:
        """Differences of the Dockerfile's context from a node's `facts`, as text; keys of only one do not count."""
        return [
            f"{key} is {facts[key]}, not {value}"
            for key, value in self.context.items()
            if key in facts and facts[key] != value
        ]


def _instructions(text: str) -> Iterator[str]:
    """First lines of a Dockerfile's instructions. Further lines are left out: shell or Python may begin with `from`."""
    end: list[str] = []
    goes_on = False
    for line in map(str.strip, text.splitlines()):
        if end:
            end = end[1:] if line == end[0] else end
        elif line and not line.startswith("#"):
            if not goes_on:
                yield line
            goes_on = line.endswith("\\")
            end = _HEREDOC.findall(line)


def of_model(root: Path, model: MadModel) -> list[Dockerfile]:
    """All Dockerfiles whose paths begin with the model's `dockerfile`. Raises MadError for none or a malformed one."""
    prefix = PurePosixPath(model.dockerfile)
    folder = located(root, prefix.parent.as_posix())
    pattern = f"{prefix.name}.*"
    names = sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    matching = [name for name in names if name == prefix.name or fnmatch.fnmatchcase(name, pattern)]
    if not matching:
        near = some_of((name for name in names if name.startswith(prefix.name[:3])), 4)
        raise MadError(
            f"{model.where}: dockerfile: no file {prefix.parent / pattern}"
            + (f"; the folder has {near}" if near else "")
        )
    if len(matching) > MAX_FILES:
        raise MadError(f"{model.where}: dockerfile: more than {MAX_FILES} files begin with {prefix}: name one")
    return [parsed(root, (prefix.parent / name).as_posix()) for name in matching]


def parsed(root: Path, path: str) -> Dockerfile:
    """Read a Dockerfile and its context. Raises MadError if the context is no dict of plain values."""
    text = read_bytes(root, path, MAX_BYTES).decode("utf-8", "replace")
    header = next((match for line in text.splitlines()[:HEADER_LINES] if (match := _CONTEXT.match(line))), None)
    if header is None:
        return Dockerfile(path, text)
    if len(header[1]) > MAX_CONTEXT:
        raise MadError(f"{path}: # CONTEXT is longer than {MAX_CONTEXT} characters")
    about = f"{path}: # CONTEXT {shown(header[1])}"
    context = parse_literal(header[1], f"{about} is no Python literal: write {{'gpu_vendor': 'AMD'}}")
    pairs = context.items() if isinstance(context, dict) else [(None, None)]
    if not all(isinstance(key, str) and isinstance(value, str | int | float | bool | None) for key, value in pairs):
        raise MadError(f"{about} is no dict of names and plain values")
    return Dockerfile(path, text, context)


def fitting(root: Path, model: MadModel, facts: Mapping[str, Any]) -> list[Dockerfile]:
    """The model's Dockerfiles that fit `facts`; each makes a stage. If the GPU vendor is unknown, all must be for one.
    Raises MadError that names the Dockerfiles tried."""
    tried = of_model(root, model)
    chosen = [dockerfile for dockerfile in tried if not dockerfile.contradictions(facts)]
    if not chosen:
        contradicted = (f"{dockerfile.path} ({', '.join(dockerfile.contradictions(facts))})" for dockerfile in tried)
        reasons = some_of(contradicted, 6, "; ")
        raise MadError(f"{model.where}: no Dockerfile fits: add one, or set gpuval_mad_context; tried {reasons}")
    contexts = [dockerfile.context for dockerfile in chosen]
    vendors = sorted({str(context["gpu_vendor"]) for context in contexts if "gpu_vendor" in context})
    if len(vendors) > 1:
        raise MadError(
            f"{model.where}: Dockerfiles for {' and '.join(vendors)} fit: set gpu_vendor in gpuval_mad_context, or "
            "gpuval_sku to one of them"
        )
    return chosen
