"""Where a dataset comes from: a folder or an archive on the controller, or a folder of the bucket. In the store it is a
folder of plain files with ``SHA256SUMS``, as a model is. An archive is untrusted: only plain files with names below its
root are unpacked, within bounds."""

import bz2
import gzip
import hashlib
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, cast

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes
from ansible_collections.gpuval.fleet.node.gpuval_workloads.loading import manifest

from ...module_utils.image_archive import sha256_of
from ...module_utils.store import Connection, StoreError
from ..runs import datasets
from ..runs.datasets import DatasetError, DatasetSource
from ..store import rclone
from .model_source import ModelSource, files_below, make_manifest

#: Maximum number of files: with more, SHA256SUMS exceeds what nodes read.
MAX_FILES = 100_000
MAX_UNPACKED_BYTES = 8 << 40
#: Fraction of the free disk space that an unpacked archive may fill.
DISK_SHARE = 0.9
#: Maximum bytes of a header in an archive: larger headers are no file names.
MAX_HEADER_BYTES = 1 << 20
BLOCK_BYTES = 4 << 20

_MAGIC = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)


def check(declared: Any) -> None:
    """Check `gpuval_datasets`, and that sources on the controller exist. Raises ``DatasetError``."""
    for dataset in datasets.parse(declared):
        if not dataset.source.startswith(datasets.BUCKET):
            _path(dataset)


def resolve(source: DatasetSource, scratch: Path, connection: Connection) -> ModelSource:
    """Bring a dataset to the controller, below `scratch`, unless it is a local folder already. Raises ``DatasetError``,
    and ``StoreError`` for a bucket that cannot be read."""
    if source.source.startswith(datasets.BUCKET):
        key = source.source.removeprefix(datasets.BUCKET).strip("/")
        rclone.fetch(connection, [f"{key}/"], scratch)
        root, origin = scratch / key, f"folder {key} of the bucket"
    else:
        root = path = _path(source)
        origin = f"folder {path}"
        if path.is_file():
            root, origin = scratch / source.folder, f"archive {path}"
            _check_digest(source, sha256_of(path), str(path))
            unpack(source.name, path, root, int(shutil.disk_usage(scratch).free * DISK_SHARE))
    try:
        files = files_below(root, lambda name: name != manifest.NAME)
    except StoreError as error:
        raise DatasetError(f"dataset {source.name}: {error}") from error
    if not files or len(files) > MAX_FILES:
        remedy = f"give one with 1 to {MAX_FILES} files; pack more of them into shards"
        raise DatasetError(f"dataset {source.name}: {source.source} has {len(files)} files: {remedy}")
    dataset = ModelSource(source.folder, root, files, origin)
    if source.sha256 and not origin.startswith("archive "):
        _check_digest(source, hashlib.sha256(make_manifest(dataset).encode()).hexdigest(), f"SHA256SUMS of {origin}")
    return dataset


def unpack(name: str, archive: Path, root: Path, most_bytes: int) -> None:
    """Unpack the plain files of a tar (also gzip, bzip2, xz) or zip archive into a new folder, at most `most_bytes`.
    Raises ``DatasetError`` for a broken archive, and for one with links, devices, names outside its root, too many
    files or too many bytes."""
    most_bytes = min(most_bytes, MAX_UNPACKED_BYTES)
    problem = f"dataset {name}: {archive}"
    root.mkdir(parents=True)
    count, total = 0, 0
    try:
        with closing(_members(archive)) as members:
            for member, kind, size, stream in members:
                count, total = count + 1, total + size
                parts, shown = member.rstrip("/").removeprefix("./").split("/"), f"{problem}: {member[:200]!r}"
                if kind:
                    raise DatasetError(f"{shown} is {kind}: pack plain files and folders alone (tar --dereference)")
                if (parts != ["."] and set(parts) & {"", ".", ".."}) or "\\" in member or not member.isprintable():
                    raise DatasetError(f"{shown} is no valid path below the archive's root: pack it anew")
                if count > MAX_FILES or size < 0 or total > most_bytes:
                    limit = f"{MAX_FILES} files or {human_bytes(most_bytes)}"
                    remedy = "free space at gpuval_state_dir, or pack fewer files"
                    raise DatasetError(f"{problem}: it unpacks to more than {limit}: {remedy}")
                target = root.joinpath(*parts)
                if stream is None:
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:  # refuse an archive with the same name twice
                    shutil.copyfileobj(stream, file, BLOCK_BYTES)
                if target.stat().st_size != size:
                    raise DatasetError(f"{shown} ends early: pack or copy the archive again")
    except _BROKEN as error:
        remedy = "give a tar (also gzip, bzip2 or xz) or zip that is complete and has no password, or a folder"
        reason = str(error)[:200] or type(error).__name__
        raise DatasetError(f"{problem} cannot be unpacked ({reason}): {remedy}") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise DatasetError(f"{problem}: the name {Path(error.filename).name!r} stands twice: pack it anew") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise DatasetError(f"{problem} cannot be unpacked: {error}") from error


#: Member of an archive: name, what is wrong with its kind (empty: nothing), bytes, content (None for a folder).
_Member = tuple[str, str, int, "IO[bytes] | None"]


def _members(archive: Path) -> Generator[_Member, None, None]:
    with archive.open("rb") as start:
        first = start.read(8)
    if first.startswith(b"PK"):
        return _of_zip(archive)
    return _of_tar(archive, next((opened for magic, opened in _MAGIC if first.startswith(magic)), open))


def _of_zip(archive: Path) -> Generator[_Member, None, None]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            wrong = "" if plain else "a link" if kind == stat.S_IFLNK else "a device or a pipe"
            if wrong or info.is_dir():
                yield info.filename, wrong, 0, None
                continue
            with packed.open(info) as stream:
                yield info.filename, "", info.file_size, stream


def _of_tar(archive: Path, opened: Callable[..., Any]) -> Generator[_Member, None, None]:
    with opened(archive, "rb") as raw, tarfile.open(fileobj=cast("IO[bytes]", _SmallReads(raw)), mode="r:") as packed:
        for info in packed:
            plain = (info.isreg() and not info.issparse()) or info.isdir()
            wrong = "" if plain else "a link" if info.issym() or info.islnk() else "a device, a pipe or sparse"
            yield info.name, wrong, info.size if info.isreg() else 0, packed.extractfile(info) if info.isreg() else None
            packed.members.clear()  # type: ignore[attr-defined]  # otherwise tarfile keeps all members in memory


class _SmallReads:
    """A file whose reads are bounded: otherwise a header that claims gigabytes would be read into memory."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.seek, self.tell = raw.seek, raw.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES + BLOCK_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._raw.read(size)


def _path(dataset: DatasetSource) -> Path:
    path = Path(dataset.source).expanduser()
    if not path.is_dir() and not path.is_file():
        remedy = f"give a folder, a tar or zip archive, or {datasets.BUCKET}FOLDER of the bucket"
        raise DatasetError(f"gpuval_datasets: {dataset.name}: {path} does not exist on the controller: {remedy}")
    return path


def _check_digest(dataset: DatasetSource, actual: str, copy: str) -> None:
    if dataset.sha256 and actual != dataset.sha256:
        problem = f"wrong digest: {copy} has sha256 {actual}, gpuval_datasets says {dataset.sha256}"
        raise DatasetError(f"dataset {dataset.name}: {problem}: get the right copy, or correct the sha256")
