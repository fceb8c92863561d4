"""A model repository in a folder: its models and data sets. Nothing of it is executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .data import DATA_FILE, Dataset, datasets
from .documents import MadError, located, read_json, shown
from .models import Model, from_entry

MODELS_FILE, PROGRAM, SCRIPTS = "models.json", "get_models_json.py", "scripts"
MAX_MODELS = 10_000


@dataclass(frozen=True)
class Repository:
    """`refused` has, by folder below scripts/, why its models are not known. `remarks` are for the user."""

    root: Path
    models: tuple[Model, ...]
    data: Mapping[str, Dataset] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read(root: Path) -> Repository:
    """The repository. Raises MadError with file, model and field for the first thing that is malformed."""
    if not root.is_dir():
        raise MadError(f"{root}: no such folder: set gpuval_mad_repository to the root of a model repository")
    models: list[Model] = []
    refused: dict[str, str] = {}
    sources = 0
    if (root / MODELS_FILE).exists():
        models += _models(root, MODELS_FILE)
        sources += 1
    for scope in _folders(root):
        folder = f"{SCRIPTS}/{scope}"
        declared, programmed = ((root / folder / name).exists() for name in (MODELS_FILE, PROGRAM))
        if declared and programmed:
            raise MadError(f"{folder}: has both {MODELS_FILE} and {PROGRAM}: remove one")
        if declared:
            models += _models(root, f"{folder}/{MODELS_FILE}", scope)
        if programmed:
            refused[scope] = (
                f"{folder}/{PROGRAM} is a program, and repositories are not executed on the controller: "
                f"declare its models in {folder}/{MODELS_FILE}"
            )
        sources += declared or programmed
    if not sources:
        raise MadError(f"{root}: no {MODELS_FILE}, and none in {SCRIPTS}/*: this is no model repository")
    if len(models) > MAX_MODELS:
        raise MadError(f"{root}: more than {MAX_MODELS} models")
    data = datasets(read_json(root, DATA_FILE)) if (root / DATA_FILE).exists() else {}
    return Repository(root, tuple(models), data, refused, tuple(_remarks(models, refused)))


def _models(root: Path, file: str, scope: str = "") -> list[Model]:
    entries = read_json(root, file)
    if not isinstance(entries, list):
        raise MadError(f"{file}: holds no list of models: enclose the models in [ ]")
    return [from_entry(entry, number, file, scope) for number, entry in enumerate(entries, 1)]


def _folders(root: Path) -> list[str]:
    scripts = located(root, SCRIPTS)
    return sorted(path.name for path in scripts.iterdir() if path.is_dir()) if scripts.is_dir() else []


def _remarks(models: list[Model], refused: Mapping[str, str]) -> list[str]:
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
