"""Why a node or a stage failed, as one word with its subject, remedy and action: the classes of ``failures/*.yml``, and
of ``failures.yml`` in the folders of stages and schedulers."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import filter as filter_names
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..core import extensions, yaml_file
from ..core.errors import SettingError
from ..core.paths import COLLECTION

AGAIN = "then validate again with --limit {node}"
#: Subject of failure classes about the node: only these lead to FAIL, drain, taint, escalation and "flaky".
NODE = "node"
#: Subject: the way to the node, such as cables, switches, jump hosts.
NETWORK = "network"
#: The subjects whose faults are repaired on the machine, or on the way to it.
OF_MACHINE = frozenset({NODE, NETWORK})
#: Subject if evidence is missing and no failure class implicates the node.
GPUVAL = "gpuval"
#: Failure class of a second measurement of a node that did not start, so that the first one counts.
NOT_MEASURED_AGAIN = "not_measured_again"
#: Failure class and subject of a user's own program that failed.
OWN_PROGRAM, PROGRAM = "own_program", "program"
#: Files of failure classes in the folders of stages and of schedulers.
OF_STAGE, OF_SCHEDULER = "files/failures.yml", "failures.yml"
#: Files of failure classes that all stages and schedulers share. Their patterns are tried before a stage's own.
LAUNCH, STAGES = COMMON = tuple(COLLECTION / f"failures/{name}.yml" for name in ("launch", "stages"))


@dataclass(frozen=True)
class FailureClass:
    """A failure class. `name` may be a pattern with `*`; `subject`: what is at fault; `steps`: what to do; `ladder`:
    name of the steps in ``failures/ladders.yml``; `pattern`: matches a message (None: known by name only).
    `also_incomplete`: about the node also if evidence is missing. `retried`: such a launch is retried. `other_work`:
    other work occupies the node. `explains`: the ends of stages that it explains, by text (failed, missing, gang) or by
    record. `repeats`: after the steps the node is validated again."""

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


def files() -> tuple[Path, ...]:
    """All files of failure classes, in the order of look-up. Raises SettingError."""
    return (*COMMON, *extensions.files("stages", OF_STAGE), *extensions.files("schedulers", OF_SCHEDULER))


@functools.cache
def read(path: Path) -> dict[str, tuple[FailureClass, ...]]:
    """The failure classes of a file by group, in the file's order. Raises YamlError, schemas.Invalid, SettingError."""
    document = yaml_file.shipped(path, "failures")
    try:
        groups = {group: tuple(map(_class_of, rows)) for group, rows in document["groups"].items()}
    except re.error as error:
        raise SettingError(f"{path}: patterns: {error.pattern!r}: {error}: correct it") from error
    if not extensions.is_shipped(path):
        owner = path.parents[1 if path.match(OF_STAGE) else 0].name
        for row in (row for rows in groups.values() for row in rows):
            if not row.name.startswith(f"{owner}_"):
                raise SettingError(f"{path}: class '{row.name}': the name must begin with {owner}_: rename it")
    return groups


def _class_of(row: Mapping[str, Any]) -> FailureClass:
    declared = {field.name: row[field.name] for field in fields(FailureClass) if field.name in row}
    patterns = "|".join(row.get("patterns", ()))
    pattern = re.compile(patterns, re.IGNORECASE | re.DOTALL) if row.get("patterns") else None
    declared |= {"explains": tuple(row.get("explains", ())), "pattern": pattern}
    return FailureClass(**declared, ladder=row["action"])


def find(text: str, among: Iterable[FailureClass]) -> FailureClass | None:
    """The first failure class whose pattern matches the text; None if none does."""
    return next((known for known in among if known.pattern is not None and known.pattern.search(text)), None)


@extensions.cached
def all_classes() -> tuple[FailureClass, ...]:
    """All failure classes in the order of look-up. Raises SettingError."""
    return _classes_of(files())


def _classes_of(paths: Iterable[Path]) -> tuple[FailureClass, ...]:
    return tuple(row for path in paths for rows in read(path).values() for row in rows)


def check_names() -> None:
    """Raise SettingError if a failure class of an extension would apply to what gpuval ships."""
    shipped = _classes_of(filter(extensions.is_shipped, files()))
    for row in (row for row in all_classes() if row not in shipped):
        if shared := filter_names([shipped_row.name for shipped_row in shipped], row.name):
            reason = f"gpuval ships {shared[0]}: rename the stage or scheduler"
            raise SettingError(f"{extensions.SETTING}: class '{row.name}': {reason}")


@extensions.cached
def class_named(name: str) -> FailureClass | None:
    """The failure class of this name, else the first whose pattern matches it; None for a check of a user's own."""
    return _by_name().get(name) or next((row for row in all_classes() if fnmatchcase(name, row.name)), None)


def traits_of(name: str | None) -> FailureClass:
    """The failure class of this name. An unknown name, or None, gets the traits of a check of a user's own."""
    return class_named(name or "") or FailureClass(name or "")


def row_of(name: str) -> FailureClass:
    """The failure class of exactly this name, which code relies on. Raises KeyError."""
    return _by_name()[name]


def subject_of(name: str, *, failed: bool = True) -> str:
    """The subject of a failure class: node, store, network, site, program, scheduler or gpuval. ``failed``: false for
    missing evidence, which is about the node for few classes. A failed check of a user's own is about the node."""
    row = traits_of(name)
    return row.subject if failed or row.also_incomplete or row.subject != NODE else GPUVAL


def speaks_of_node(check: Mapping[str, Any]) -> bool:
    """Whether a failed check of a report is a fault of the node, rather than of the site or the store."""
    return subject_of(str(check.get("class") or check["name"])) == NODE


def named_cause(record: Mapping[str, Any]) -> str:
    """The failure class that the runner or program wrote into a record; empty for none, and for names that are unknown,
    since the node writes it."""
    cause = record["environment"].get("cause")
    words = (cause.get("class") if isinstance(cause, dict) else None, record["environment"].get("fault"))
    return next((word for word in words if isinstance(word, str) and word in _by_name()), "")


@extensions.cached
def _by_name() -> dict[str, FailureClass]:
    return {row.name: row for row in all_classes()}
