"""Parses `gpuval_datasets`, and names each dataset's folder and the stage that loads it. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.loading import manifest

from ..core.errors import GpuvalError
from ..core.text import meant

#: Folder of datasets among the models, since the nodes' key can read only ``models/``. Node caches use the same name.
FOLDER = manifest.DATASET_FOLDER
#: Prefix of the name of the stage that loads a dataset.
STAGE = "dataset_"
#: Prefix of a source that is a folder of the bucket.
BUCKET = "store:"
KEYS = {"name", "source", "sha256"}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,22}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class DatasetError(GpuvalError):
    """A dataset cannot be declared, fetched or unpacked; the message names it and its remedy."""


@dataclass(frozen=True)
class DatasetSource:
    """One entry of `gpuval_datasets`. `sha256`: of the archive, or of the folder's SHA256SUMS; empty: not checked."""

    name: str
    source: str
    sha256: str = ""

    @property
    def folder(self) -> str:
        """The dataset's folder, relative to ``models/`` in the bucket and to a node's model cache."""
        return FOLDER + self.name

    @property
    def stage(self) -> str:
        return STAGE + self.name


def parse(declared: Iterable[Any]) -> list[DatasetSource]:
    """Parse the entries of `gpuval_datasets`. Raises ``DatasetError``."""
    sources = [_parse(f"gpuval_datasets[{number}]", entry) for number, entry in enumerate(declared or ())]
    names = [source.name for source in sources]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DatasetError(f"gpuval_datasets: two datasets have the name {twice[0]}: rename one")
    return sources


def _parse(setting: str, entry: Any) -> DatasetSource:
    if not isinstance(entry, Mapping):
        raise DatasetError(f"{setting}: {entry!r} is no dataset: write {{name: ..., source: ...}}")
    if unknown := sorted(map(str, set(entry) - KEYS)):
        near = meant(unknown[0], KEYS)
        raise DatasetError(f"{setting}: unknown keys {', '.join(unknown)}{near}; known are {', '.join(sorted(KEYS))}")
    name, source = str(entry.get("name") or ""), str(entry.get("source") or "")
    sha256 = str(entry.get("sha256") or "").lower()
    if not _NAME.fullmatch(name):
        raise DatasetError(f"{setting}.name: {name!r} must be 1 to 23 small letters, digits and _, a letter first")
    if not source or "\0" in source:
        raise DatasetError(f"{setting} ({name}): no source: give a folder, an archive, or {BUCKET}FOLDER of the bucket")
    parts = source.removeprefix(BUCKET).strip("/").split("/")
    if source.startswith(BUCKET) and (set(parts) & {"", ".", ".."} or parts == ["models", FOLDER + name]):
        raise DatasetError(f"{setting} ({name}): {source!r} is no source: write {BUCKET} and a folder of the bucket")
    if sha256 and not _SHA256.fullmatch(sha256):
        raise DatasetError(f"{setting} ({name}): sha256 {sha256[:80]!r} must be 64 hexadecimal digits")
    return DatasetSource(name, source, sha256)


def workloads(declared: Iterable[Any], loading: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{stage: declaration} of the stages that load the datasets of gpuval_datasets; `loading`: their common keys."""
    return {
        one.stage: {**loading, "command": [*loading["command"], "--dataset", one.name], "tags": ["datasets"]}
        for one in parse(declared)
    }
