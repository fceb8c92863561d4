"""Where a model comes from, and how its files get into the store. A source is ``tiny`` (a Llama made on the spot), a
hub repository (``org/name`` or ``hf:org/name``, with ``@revision`` if wanted) or a local folder, which may be one of
the hub's own cache. In the store a model is a folder of plain files, named as the hub's cache names it."""

import os
import re
import tempfile
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuval.fleet.node.gpuval_workloads.loading import manifest

from ...module_utils.image_archive import sha256_of
from ...module_utils.store import Connection, StoreError
from ..store.access import models_prefix
from ..store.rclone import run_rclone
from . import hub
from .tiny_model import write_tiny_llama

TINY = "tiny"
TINY_FOLDER = "models--gpuval--tiny-llama"
#: Suffixes of weight files that hold only data, no code.
WEIGHTS = (".safetensors", ".gguf")

_HUB = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_CACHE_FOLDER = re.compile(r"models--[A-Za-z0-9][\w.-]*")
_NOT_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_SKIPPED_FOLDERS = {".cache", ".git", "__pycache__"}
_SKIPPED_SUFFIXES = (".lock", ".incomplete", ".partial")


class ModelError(StoreError):
    """A model cannot be fetched or copied; the message says what to do next."""


@dataclass(frozen=True)
class ModelSource:
    """A model on the controller. `folder`: name in the store; `root`: local folder; `files`: path of each file by its
    name below `root`, links not yet followed; `origin`: its source, with the revision if any."""

    folder: str
    root: Path
    files: Mapping[str, Path]
    origin: str


def folder_name(source: str) -> str:
    """Return a model's folder name in the store, without a download. Raises ``ModelError`` for an unknown source."""
    if source == TINY:
        return TINY_FOLDER
    if on_hub := _hub(source):
        return "models--" + on_hub["repository"].replace("/", "--")
    if source.startswith("hf:") or not source.strip():
        raise ModelError(f"{source!r} is not a model: use tiny, org/name[@revision], or the path of a folder")
    path = Path(source).expanduser().resolve()
    for folder in (path, *path.parents[:2]):
        if _CACHE_FOLDER.fullmatch(folder.name):
            return folder.name
    return f"models--local--{_NOT_SAFE.sub('-', path.name).strip('-.') or 'model'}"


def check(source: str) -> None:
    """Check the form of a model source, without the network. Raises ``ModelError``."""
    folder_name(source)
    if source != TINY and not _hub(source):
        _local_folder(source)


def resolve(
    source: str,
    scratch: Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    silence_seconds: float = hub.SILENCE_SECONDS,
    say: Callable[[str], object] = bool,
) -> ModelSource:
    """Bring the model to the controller, below `scratch`, unless it is a local folder already. `revision` overrides the
    revision in the source. Only hub sources use the network: `say` gets lines of progress, and a hub that sends nothing
    for `silence_seconds` is an error. Raises ``ModelError``."""
    folder = folder_name(source)
    if source == TINY:
        return _model(folder, write_tiny_llama(scratch / folder), "made on the spot, seed 0")
    if not (on_hub := _hub(source)):
        return _local(_local_folder(source), folder, revision)
    try:
        from huggingface_hub import constants  # noqa: PLC0415 - importing takes a second, seldom needed
    except ImportError as error:
        raise ModelError("huggingface_hub is not installed on the controller: `make setup` installs it") from error
    root, repository, version = scratch / folder, on_hub["repository"], revision or on_hub["revision"]
    answer = hub.fetch(
        repository, root, revision=version or None, token=token or None, silence_seconds=silence_seconds, say=say
    )
    if not answer.commit:
        address = constants.ENDPOINT.rpartition("@")[2].rpartition("//")[2]
        raise ModelError(_refusal(repository, version, token, address, answer))
    return _model(folder, root, f"hub {repository}, revision {answer.commit}")


def make_manifest(model: ModelSource) -> str:
    """Return the text of SHA256SUMS, sorted by name. Reads every byte, several files at a time."""
    names = sorted(model.files)
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        digests = pool.map(sha256_of, (model.files[name] for name in names))
        return "".join(f"{digest}  {name}\n" for name, digest in zip(names, digests))


def missing(
    expected: Mapping[str, object], listed: Mapping[str, int], sizes: Mapping[str, int] | None = None
) -> list[str]:
    """Return the names of `expected` files that are missing in `listed` (bytes by name), or differ from `sizes`."""
    sizes = sizes or {}
    return sorted(name for name in expected if name not in listed or listed[name] != sizes.get(name, listed[name]))


def upload(model: ModelSource, connection: Connection, *, transfers: int = 8) -> None:
    """Upload the model's files to its store folder, following links. The caller has to upload the manifest afterwards.
    Raises ``StoreError``."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="gpuval-upload-") as names:
        names.writelines(f"{name}\n" for name in sorted(model.files))
        names.flush()
        target = f"models:{models_prefix(connection.bucket)}/{model.folder}/"
        options = ["--copy-links", "--transfers", str(transfers), "--files-from-raw", names.name]
        run_rclone(connection, str(model.root), target, *options)


def _hub(source: str) -> re.Match | None:
    if source.startswith("hf:"):
        return _HUB.fullmatch(source[3:])
    return None if Path(source).expanduser().is_dir() else _HUB.fullmatch(source)


def _local_folder(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_dir():
        raise ModelError(f"the model folder {path} does not exist on the controller: give a folder, org/name, or tiny")
    return path


def _local(path: Path, folder: str, revision: str | None) -> ModelSource:
    """Return the model in a local folder or in a folder of the hub's cache. `folder`: the model's name in the store."""
    snapshots = path / "snapshots"
    if not snapshots.is_dir():
        return _model(folder, path, f"folder {path}")
    version = revision or "main"
    reference = path / "refs" / version
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else version
    present = sorted(entry.name for entry in snapshots.iterdir())
    if commit not in present and not revision and len(present) == 1:
        commit = present[0]
    if commit not in present:
        names = ", ".join(present) or "none"
        raise ModelError(f"{path} has no snapshot {version} (it has {names}): give one of these as the revision")
    return _model(folder, snapshots / commit, f"folder {path}, revision {commit}")


def _refusal(repository: str, revision: str | None, token: str | None, address: str, answer: hub.HubAnswer) -> str:
    """Return why the hub at `address` refused a repository, and what to do."""
    if answer.error == "GatedRepoError":
        remedy = "accept its licence on the hub and give a token of that account (gpuval_hf_token)"
        return f"{repository} is gated: {remedy}"
    if answer.error == "RevisionNotFoundError":
        return f"{repository} has no revision {revision!r}: give a branch, tag or commit of it (gpuval_model_revision)"
    if answer.error == "RepositoryNotFoundError":
        return f"{repository} is not on the hub, or is private: check the name, or give a token (gpuval_hf_token)"
    if answer.status in (401, 403):
        refused = "refuses the token" if token else "refuses access"
        return f"{address} {refused} (HTTP {answer.status}): give a token that may read {repository} (gpuval_hf_token)"
    if answer.status == 429:
        return f"{address} limits requests (HTTP 429): validate again later, or give a token (gpuval_hf_token)"
    why = f"HTTP {answer.status}" if answer.status else answer.error
    return (
        f"{repository} could not be downloaded from {address} ({why}): check the controller's way to the hub "
        "(HTTPS_PROXY, HF_ENDPOINT) and its free disk space, or download the model elsewhere and give the folder"
    )


def files_below(root: Path, is_wanted: Callable[[str], bool], skipped: Collection[str] = ()) -> dict[str, Path]:
    """Return the files that `is_wanted` accepts, by name below `root`; follows links, leaves out folders named in
    `skipped`. Raises ``ModelError`` for special files, and for names that a manifest cannot contain."""
    files: dict[str, Path] = {}
    for where, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in skipped)
        for path in (Path(where, name) for name in sorted(names)):
            relative = path.relative_to(root).as_posix()
            if not is_wanted(relative):
                continue
            if not path.is_file():
                raise ModelError(f"{path} is a link that leads nowhere, or no file: complete the folder")
            if not relative.isprintable() or "\\" in relative:
                raise ModelError(f"{relative!r}: the name of a file must be printable and have no backslash")
            files[relative] = path
    return files


def _model(folder: str, root: Path, origin: str) -> ModelSource:
    def is_wanted(name: str) -> bool:
        return Path(name).name != manifest.NAME and not name.endswith(_SKIPPED_SUFFIXES)

    files = files_below(root, is_wanted, _SKIPPED_FOLDERS)
    code = [name for name in files if name.lower().endswith(manifest.RUNS_CODE)]
    left_out = [files.pop(name).name for name in code]
    if "config.json" not in files:
        raise ModelError(f"{root} has no config.json: give the folder of a model in Hugging Face format")
    if left_out and not any(name.endswith(WEIGHTS) for name in files):
        problem = f"in files that can run code when they are read ({', '.join(left_out[:3])})"
        remedy = "convert them to safetensors, or take a revision that has them"
        raise ModelError(f"{root} has its weights only {problem}: {remedy}")
    remark = f"; {len(left_out)} files that can run code left out" if left_out else ""
    return ModelSource(folder, root, files, origin + remark)
