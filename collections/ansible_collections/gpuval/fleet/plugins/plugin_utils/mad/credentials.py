"""credential.json: what a model with `cred` gets of it, in its container and for the clone of its code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..runs import job_secrets
from .checkout import Login
from .documents import MadError, shown
from .models import MadModel

FILE = "credential.json"
#: Variables of the controller that all models get.
FOR_ALL = "MAD_SECRETS"


def for_all(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that all models get."""
    return tuple(sorted({name for name in names if name.startswith(FOR_ALL)}))


def for_model(model: MadModel, document: Mapping[str, Any]) -> dict[str, str]:
    """The model's credentials by variable, NAME_KEY. Raises MadError where one is missing, or cannot be used."""
    if not model.cred:
        return {}
    entry = document.get(model.cred)
    values = job_secrets.flat({model.cred: entry}) if isinstance(entry, Mapping) else {}
    if not values:
        ask = f", or ask {model.owner}" if model.owner else ""
        raise MadError(
            f"{model.where}: cred: {FILE} (or gpuval_secrets_file) has no {shown(model.cred)}: add it with its "
            f"username and password{ask}"
        )
    problems = [text for name, value in values.items() if (text := job_secrets.problem(name, value))]
    if problems:
        raise MadError(f"{model.where}: cred: {'; '.join(problems)}")
    return values


def login(model: MadModel, document: Mapping[str, Any]) -> Login | None:
    """How the model's code is cloned; None for public code."""
    texts = for_model(model, document)
    keys = ("USERNAME", "PASSWORD", "SSH_KEY_FILE")
    return Login(*(texts.get(f"{model.cred}_{key}", "") for key in keys)) if texts else None
