"""Objects of a cluster as one YAML file of many documents, for people and for whatever applies files. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

#: Texts that no reader of YAML takes for anything else; versions of YAML differ about 1e3, 0o7, and 12:30.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):
    """Writes texts in quotes, unless they are plain words."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True  # who reads manifests wants to see each whole


def _text(dumper: Any, text: str) -> Any:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def to_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return the objects as documents, each after a line of three hyphens."""
    plain = (json.loads(json.dumps(item)) for item in objects)  # Ansible's own texts know where they came from
    return yaml.dump_all(plain, Dumper=_Dumper, explicit_start=True, sort_keys=False, width=1 << 30)


def summary(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return one line for each object, without what it holds."""
    return "".join(f"{item['kind']} {item['metadata']['name']}\n" for item in objects)
