"""Texts that travel with the programs, in the folder ``templates``, also where those are packed into one file."""

from __future__ import annotations

from importlib.resources import files
from string import Template


def template(name: str) -> Template:
    return Template((files(__package__) / "templates" / name).read_text(encoding="utf-8"))
