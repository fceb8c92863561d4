"""Reads a model repository (models, data sets) and selects models by tags, names, `all` or `scope/tag`, with arguments
after colons. Nothing in the repository is executed."""

import difflib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.grouping import values_by_key
from ..core.text import some_of
from .data import DATA_FILE, Dataset, datasets
from .documents import MAX_PROBLEMS, MadError, located, read_json, shown
from .models import MadModel, checked_args, from_entry

MODELS_FILE, PROGRAM, SCRIPTS = "models.json", "get_models_json.py", "scripts"
MAX_MODELS = 10_000
ALL = "all"
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Repository:
    """A model repository. `refused`: {folder below scripts/ ("" for the root): why its models are unknown}. `data`:
    {name: data set}, None without a data.json. `remarks`: hints for the user."""

    root: Path
    models: tuple[MadModel, ...]
    malformed: tuple[MadModel, ...] = ()
    data: Mapping[str, Dataset] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read(root: Path) -> Repository:
    """Read a repository. A malformed model, or list of models, does not affect the others. Raises MadError."""
    if not root.is_dir():
        raise MadError(f"{root}: no such folder: set gpuval_mad_repository to the root of a model repository")
    entries: list[MadModel] = []
    refused: dict[str, str] = {}
    declared = {"": [MODELS_FILE]} if (root / MODELS_FILE).exists() else {}
    scripts = located(root, SCRIPTS)
    for scope in sorted(path.name for path in scripts.iterdir() if path.is_dir()) if scripts.is_dir() else ():
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
    remarks = [f"left out: {model.problem}" for model in malformed[:MAX_PROBLEMS]] + _remarks(models, refused)
    return Repository(root, tuple(models), tuple(malformed), data, refused, tuple(remarks))


def _models(root: Path, scope: str, files: list[str], most: int) -> list[MadModel]:
    """The models that `files` of a folder declare, at most `most`. `scope`: folder below scripts/. Raises MadError."""
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


def _remarks(models: list[MadModel], refused: Mapping[str, str]) -> list[str]:
    """Hints for the user: folders whose models cannot be read, and unknown fields of models."""
    remarks = list(refused.values())
    by_field = values_by_key(((model.file, key), model.name) for model in models for key in model.extra)
    for (file, key), names in by_field.items():
        count = f" and {len(names) - 1} more" if len(names) > 1 else ""
        remarks.append(f"{file}: unknown field {shown(key)} of model {names[0]}{count} is kept and has no effect")
    return remarks


@dataclass(frozen=True)
class ModelTag:
    """A tag `scope/word:option=value:option`: `scope/word` selects models, options are appended to their arguments."""

    text: str
    scope: str
    word: str
    arguments: str

    @property
    def whole(self) -> str:
        """The tag without its options, written like the name of a model: `scope/word` or `word`."""
        return f"{self.scope}/{self.word}" if self.scope else self.word

    def selects(self, model: MadModel) -> bool:
        if self.scope and model.scope == self.scope:
            return self.word in (ALL, *model.tags) or model.name == self.whole
        return self.whole in (ALL, model.name, *model.tags)


def parse_tags(source: str | Iterable[str]) -> list[ModelTag]:
    """The tags in a list, or in a text with commas or blanks. Raises MadError for no tag or a malformed one."""
    lines = [source] if isinstance(source, str) else list(source)
    words = [word for line in lines for word in re.split(r"[,\s]+", str(line)) if word]
    if not words:
        raise MadError("gpuval_mad_tags is empty: name tags or models, or all")
    return [_tag(word) for word in words]


def _tag(text: str) -> ModelTag:
    head, *options = text.split(":")
    if not head:
        raise MadError(f"gpuval_mad_tags: {shown(text)} has no tag before the colon: write TAG:OPTION=VALUE")
    arguments = []
    for option in filter(None, options):
        name, equals, value = option.partition("=")
        if not _OPTION.fullmatch(name) or (equals and not value):
            raise MadError(f"gpuval_mad_tags: {shown(text)}: {shown(option)} is no option: write TAG:OPTION=VALUE")
        arguments.append(f"--{name} {value}" if equals else f"--{name}")
    scope, _, word = head.rpartition("/")
    if not word:
        raise MadError(f"gpuval_mad_tags: {shown(text)} has no tag after the slash: write {scope}/all")
    return ModelTag(text, scope, word, " ".join(arguments))


def select(repository: Repository, source: str | Iterable[str]) -> list[MadModel]:
    """The models that any tag selects, in the order of the tags, each once with the same arguments. Raises MadError
    that names each tag that selects nothing, with similar names, and the problems of malformed models that are chosen
    by name or by a tag that selects no other model."""
    chosen: dict[tuple[str, str, int], MadModel] = {}
    problems = []
    for tag in parse_tags(source):
        selected = [(index, model) for index, model in enumerate(repository.models) if tag.selects(model)]
        malformed = [model for model in repository.malformed if tag.selects(model)]
        problems += [model.problem for model in malformed if model.name == tag.whole or not selected]
        if tag.scope in repository.refused or not (selected or malformed):
            problems.append(_unknown(tag, repository))
        for index, model in selected:
            args = checked_args(f"{model.args} {tag.arguments}", f"{model.where}: args with {shown(tag.text)}")
            chosen.setdefault((model.name, args, index), replace(model, args=args))
    if problems:
        raise MadError(some_of(dict.fromkeys(problems), MAX_PROBLEMS, "; "))
    return list(chosen.values())


def _unknown(tag: ModelTag, repository: Repository) -> str:
    if tag.scope in repository.refused:
        return f"tag {shown(tag.text)}: {repository.refused[tag.scope]}"
    words = {ALL} | {word for model in repository.models for word in (model.name, *model.tags)}
    words |= {f"{model.scope}/{word}" for model in repository.models if model.scope for word in (ALL, *model.tags)}
    near = difflib.get_close_matches(tag.whole, sorted(words), n=3, cutoff=0.5)
    near += [name for name in sorted(words) if tag.word in name.split("/") and name not in near][: 3 - len(near)]
    remark = f"; nearest: {', '.join(near)}" if near else f"; the repository has {len(words)} names and tags"
    refused = ", ".join(f"scripts/{name}" for name in repository.refused)
    return f"tag {shown(tag.text)} selects no model{remark}" + (f"; not searched: {refused}" if refused else "")
