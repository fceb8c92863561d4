"""Why a node or a stage failed, as one word with a remedy: the classes of ``failures/*.yml``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..core import yaml_file
from ..core.paths import COLLECTION

AGAIN = "then validate again with --limit {node}"


@dataclass(frozen=True)
class FailureClass:
    """`steps` say what to do about it; `pattern` finds it in a message (None: known by its name alone)."""

    name: str
    steps: str
    pattern: re.Pattern[str] | None = None
    before_login: bool = False

    @property
    def remedy(self) -> str:
        return f"{self.steps}, {AGAIN}"


def read(placement: str) -> dict[str, tuple[FailureClass, ...]]:
    """The classes of a file by group, in its order."""
    document = yaml_file.shipped(COLLECTION / f"failures/{placement}.yml", "failures")
    return {
        group: tuple(
            FailureClass(one["name"], one["steps"], _pattern(one.get("patterns", ())), one.get("before_login", False))
            for one in classes
        )
        for group, classes in document["groups"].items()
    }


def _pattern(patterns: Iterable[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(patterns), re.IGNORECASE | re.DOTALL) if patterns else None


def find(text: str, among: Iterable[FailureClass]) -> FailureClass | None:
    """The first class whose pattern is in the text; None where none is."""
    return next((known for known in among if known.pattern is not None and known.pattern.search(text)), None)
