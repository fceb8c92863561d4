"""Which models run: tags of models, names, `all`, `scope/tag`, and arguments behind colons."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..core.text import some_of
from .documents import MAX_PROBLEMS, MadError, shown
from .models import MadModel, checked_args
from .repository import Repository

ALL = "all"
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Tag:
    """`scope/word:option=value:option`: what selects, and what is appended to the arguments."""

    text: str
    scope: str
    word: str
    arguments: str

    @property
    def whole(self) -> str:
        """Without the arguments, as a model's name is written."""
        return f"{self.scope}/{self.word}" if self.scope else self.word

    def selects(self, model: MadModel) -> bool:
        if self.scope and model.scope == self.scope:
            return self.word in (ALL, *model.tags) or model.name == self.whole
        return self.whole in (ALL, model.name, *model.tags)


def parse(source: str | Iterable[str]) -> list[Tag]:
    """Tags as a list, or as text with commas or blanks between. Raises MadError for none, or a malformed one."""
    lines = [source] if isinstance(source, str) else list(source)
    words = [word for line in lines for word in re.split(r"[,\s]+", str(line)) if word]
    if not words:
        raise MadError("gpuval_mad_tags is empty: name tags or models, or all")
    return [_tag(word) for word in words]


def _tag(text: str) -> Tag:
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
    return Tag(text, scope, word, " ".join(arguments))


def select(repository: Repository, source: str | Iterable[str]) -> list[MadModel]:
    """The models that any tag selects, in the order of the tags, each once with the same arguments.

    Raises MadError that names every tag that selects nothing, with the nearest names, and all that is wrong with models
    that are malformed where they are named, or a tag selects no other.
    """
    chosen: dict[tuple[str, str, int], MadModel] = {}
    problems = []
    for tag in parse(source):
        selected = [(index, model) for index, model in enumerate(repository.models) if tag.selects(model)]
        malformed = [model for model in repository.malformed if tag.selects(model)]
        problems += [model.problem for model in malformed if model.name == tag.whole or not selected]
        if tag.scope in repository.refused or not (selected or malformed):
            problems.append(_unknown(tag, repository))
        for index, model in selected:
            args = checked_args(f"{model.args} {tag.arguments}", f"{model.where}: args with {shown(tag.text)}")
            chosen.setdefault((model.name, args, index), dataclasses.replace(model, args=args))
    if problems:
        raise MadError(some_of(dict.fromkeys(problems), MAX_PROBLEMS, "; "))
    return list(chosen.values())


def _unknown(tag: Tag, repository: Repository) -> str:
    if tag.scope in repository.refused:
        return f"tag {shown(tag.text)}: {repository.refused[tag.scope]}"
    words = {ALL} | {word for model in repository.models for word in (model.name, *model.tags)}
    words |= {f"{model.scope}/{word}" for model in repository.models if model.scope for word in (ALL, *model.tags)}
    near = difflib.get_close_matches(tag.whole, sorted(words), n=3, cutoff=0.5)
    near += [name for name in sorted(words) if tag.word in name.split("/") and name not in near][: 3 - len(near)]
    remark = f"; nearest: {', '.join(near)}" if near else f"; the repository has {len(words)} names and tags"
    refused = (
        f"; not searched: {', '.join(f'scripts/{name}' for name in repository.refused)}" if repository.refused else ""
    )
    return f"tag {shown(tag.text)} selects no model{remark}{refused}"
