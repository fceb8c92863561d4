"""A model repository in a folder: its models and data sets. Nothing of it is executed."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .data import DATA_FILE, Dataset, datasets
from .documents import MAX_PROBLEMS, MadError, located, read_json, shown
from .models import MadModel, from_entry

MODELS_FILE, PROGRAM, SCRIPTS = "models.json", "get_models_json.py", "scripts"
MAX_MODELS = 10_000


@dataclass(frozen=True)
class Repository:
    """`refused` has, by folder below scripts/ (empty for the root), why its models are not known. `data` is None
    without a data.json. `remarks` are for the user."""

    root: Path
    models: tuple[MadModel, ...]
    malformed: tuple[MadModel, ...] = ()
    data: Mapping[str, Dataset] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read(root: Path) -> Repository:
    """The repository. A malformed model or list of models refuses only itself. Raises MadError."""
    if not root.is_dir():
        raise MadError(f"{root}: no such folder: set gpuval_mad_repository to the root of a model repository")
    entries: list[MadModel] = []
    refused: dict[str, str] = {}
    declared = {"": [MODELS_FILE]} if (root / MODELS_FILE).exists() else {}
    for scope in _folders(root):
        declared[scope] = [name for name in (MODELS_FILE, PROGRAM) if (root / SCRIPTS / scope / name).exists()]
    if not any(declared.values()):
        raise MadError(f"{root}: no {MODELS_FILE}, and none in {SCRIPTS}/*: this is no model repository")
    for scope, files in declared.items():
        try:
            entries += _models(root, scope, files, MAX_MODELS - len(entries))
        except MadError as error:
            refused[scope] = str(error)
    data = datasets(read_json(root, DATA_FILE)) if (root / DATA_FILE).exists() else None
    models = [model for model in entries if not model.problem]
    malformed = [model for model in entries if model.problem]
    remarks = [f"left out: {one.problem}" for one in malformed[:MAX_PROBLEMS]] + _remarks(models, refused)
    return Repository(root, tuple(models), tuple(malformed), data, refused, tuple(remarks))


def _models(root: Path, scope: str, files: list[str], most: int) -> list[MadModel]:
    """The models that the folder's `files` declare. Raises MadError, for more than `most` before the first is read."""
    folder = f"{SCRIPTS}/{scope}" if scope else "."
    file = posixpath.normpath(f"{folder}/{MODELS_FILE}")
    if files == [PROGRAM]:
        raise MadError(
            f"{folder}/{PROGRAM} is a program, and repositories are not executed on the controller: "
            f"declare its models in {file}"
        )
    if len(files) > 1:
        raise MadError(f"{folder}: has both {MODELS_FILE} and {PROGRAM}: remove one")
    entries = read_json(root, file) if files else []
    if not isinstance(entries, list):
        raise MadError(f"{file}: holds no list of models: enclose the models in [ ]")
    if len(entries) > most:
        raise MadError(f"{file}: more than {MAX_MODELS} models in the repository: remove some")
    return [from_entry(entry, number, file, scope) for number, entry in enumerate(entries, 1)]


def _folders(root: Path) -> list[str]:
    scripts = located(root, SCRIPTS)
    return sorted(path.name for path in scripts.iterdir() if path.is_dir()) if scripts.is_dir() else []


def _remarks(models: list[MadModel], refused: Mapping[str, str]) -> list[str]:
    """Models that a program would declare, and fields that are not known, by field."""
    remarks = list(refused.values())
    by_field: dict[tuple[str, str], list[str]] = {}
    for model in models:
        for key in model.extra:
            by_field.setdefault((model.file, key), []).append(model.name)
    for (file, key), names in by_field.items():
        count = f" and {len(names) - 1} more" if len(names) > 1 else ""
        remarks.append(f"{file}: unknown field {shown(key)} of model {names[0]}{count} is kept and has no effect")
    return remarks
