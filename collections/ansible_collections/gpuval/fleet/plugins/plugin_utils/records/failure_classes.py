"""Why a node or a stage failed, as one word with its subject, remedy and action: the classes of ``failures/*.yml``."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..core import extensions, yaml_file
from ..core.errors import SettingError
from ..core.paths import COLLECTION

AGAIN = "then validate again with --limit {node}"
#: The subject of a class that decides FAIL, drains, taints, escalates and makes a node flaky; no other subject does.
NODE = "node"
#: Ways to the node: cables, switches, jump hosts.
NETWORK = "network"
#: The subjects whose faults are repaired on the machine, or on the way to it.
OF_MACHINE = frozenset({NODE, NETWORK})
#: The subject where evidence is missing, and no class says that the node is at fault.
GPUVAL = "gpuval"
#: The class of a second measurement that did not begin: the first stands.
NOT_MEASURED_AGAIN = "not_measured_again"
#: The class, and the subject, of work of the user's own that failed.
OWN_PROGRAM, PROGRAM = "own_program", "program"
#: The files of the table, in the order in which a name is looked up.
FILES = ("launch", "kubernetes", "slurm", "stages")
#: The classes of a stage of an extension, in its folder.
OF_STAGE = "files/failures.yml"


@dataclass(frozen=True)
class FailureClass:
    """`name` may be a pattern with `*`; `subject` is what the class speaks of; `steps` say what to do about it;
    `ladder` names the steps of ``actions/rules.yml``; `pattern` matches a message (None: known by its name alone).
    `also_incomplete`: it speaks of the node where evidence is missing, too. `retried`: a launch that failed so is tried
    again. `other_work`: other work has the node, or took it. `explains`: the ends of stages that it explains, by text
    (failed, missing, gang) or by record. `repeats`: the node is validated again after the steps."""

    name: str
    steps: str = ""
    subject: str = NODE
    ladder: str = ""
    pattern: re.Pattern[str] | None = None
    before_login: bool = False
    also_incomplete: bool = False
    retried: bool = True
    other_work: bool = False
    explains: tuple[str, ...] = ()
    repeats: bool = True

    @property
    def remedy(self) -> str:
        return f"{self.steps}, {AGAIN}" if self.repeats else self.steps


@functools.cache
def read(placement: str) -> dict[str, tuple[FailureClass, ...]]:
    """The classes of a file by group, in its order."""
    return _groups(COLLECTION / f"failures/{placement}.yml")


def _groups(path: Path) -> dict[str, tuple[FailureClass, ...]]:
    document = yaml_file.shipped(path, "failures")
    return {group: tuple(map(_class_of, rows)) for group, rows in document["groups"].items()}


def _class_of(row: Mapping[str, Any]) -> FailureClass:
    declared = {field.name: row[field.name] for field in fields(FailureClass) if field.name in row}
    patterns = "|".join(row.get("patterns", ()))
    pattern = re.compile(patterns, re.IGNORECASE | re.DOTALL) if row.get("patterns") else None
    declared |= {"explains": tuple(row.get("explains", ())), "pattern": pattern}
    return FailureClass(**declared, ladder=row["action"])


def find(text: str, among: Iterable[FailureClass]) -> FailureClass | None:
    """The first class whose pattern is in the text; None where none is."""
    return next((known for known in among if known.pattern is not None and known.pattern.search(text)), None)


def all_classes() -> tuple[FailureClass, ...]:
    """The whole table, in its order, behind the classes of extensions' stages."""
    return _all_classes(extensions.stage_files(OF_STAGE))


@functools.cache
def _all_classes(of_stages: tuple[Path, ...]) -> tuple[FailureClass, ...]:
    own = tuple(row for path in of_stages for row in _of_stage(path))
    return own + tuple(row for file in FILES for rows in read(file).values() for row in rows)


def _of_stage(path: Path) -> list[FailureClass]:
    """The classes of one stage of an extension. Raises SettingError for those of others."""
    stage = path.parents[1].name
    try:
        rows = [row for rows in _groups(path).values() for row in rows]
    except re.error as error:
        raise SettingError(f"{path}: patterns: {error.pattern!r}: {error}: correct it") from error
    for row in rows:
        if not row.name.startswith(f"{stage}_"):
            raise SettingError(f"{path}: class '{row.name}': the name must begin with {stage}_: rename it")
    return rows


def class_named(name: str) -> FailureClass | None:
    """The row of a class: that of the very name, else the first whose pattern fits; None for a check of a user's."""
    return _class_named(name, extensions.stage_files(OF_STAGE))


@functools.lru_cache(maxsize=4096)
def _class_named(name: str, of_stages: tuple[Path, ...]) -> FailureClass | None:
    classes = _all_classes(of_stages)
    return _by_name(of_stages).get(name) or next((row for row in classes if fnmatchcase(name, row.name)), None)


def row_of(name: str) -> FailureClass:
    """The row of that very name, which code relies on. Raises KeyError."""
    return _by_name(extensions.stage_files(OF_STAGE))[name]


def subject_of(name: str, *, failed: bool = True) -> str:
    """What a class speaks of: node, store, network, site, program, scheduler or gpuval. ``failed``: false where
    evidence is missing, which speaks of the node for few classes. A required check of a user's own that failed speaks
    of the node."""
    row = class_named(name)
    subject = row.subject if row else NODE
    proven = failed or (row is not None and row.also_incomplete)
    return subject if proven or subject != NODE else GPUVAL


def speaks_of_node(check: Mapping[str, Any]) -> bool:
    """Whether a check of a report that failed is a fault of the node, rather than of the site or the store."""
    return subject_of(str(check.get("class") or check["name"])) == NODE


def named_cause(record: Mapping[str, Any]) -> str:
    """The class of what made the stage of a record fail, as its runner or its program names it; empty for none. The
    node writes it: a class that the table does not have is none."""
    cause = record["environment"].get("cause")
    words = (cause.get("class") if isinstance(cause, dict) else None, record["environment"].get("fault"))
    known = _by_name(extensions.stage_files(OF_STAGE))
    return next((word for word in words if isinstance(word, str) and word in known), "")


@functools.cache
def _by_name(of_stages: tuple[Path, ...]) -> dict[str, FailureClass]:
    return {row.name: row for row in _all_classes(of_stages)}
