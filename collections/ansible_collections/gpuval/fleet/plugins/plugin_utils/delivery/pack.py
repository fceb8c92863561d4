"""Manifest, checksums and reproducible archive of a delivery's folder."""

import gzip
import json
import shutil
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...module_utils.image_archive import sha256_of
from ..core import schemas

MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
SUFFIXES = {"folder": "", "tar.gz": ".tar.gz", "zip": ".zip"}
PIECE_BYTES = 1 << 20
_EARLIEST = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class File:
    """A file of a delivery: path within the delivery, size in bytes, SHA-256."""

    path: str
    bytes: int
    sha256: str


def file_of(folder: Path, path: str) -> File:
    return File(path, (folder / path).stat().st_size, sha256_of(folder / path))


def files_of(folder: Path) -> list[File]:
    """All files below a folder, hidden ones too, sorted by path."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [file_of(folder, path) for path in paths]


def seal(folder: Path, summary: Mapping[str, Any]) -> list[File]:
    """Write manifest.json (``summary`` and the files) and SHA256SUMS, which covers the manifest too. Returns all files
    with these two last: sent in this order, the delivery is complete when the last file has arrived."""
    files = files_of(folder)
    manifest = {**summary, "files": [vars(file) for file in files]}
    schemas.validate("delivery", manifest, what=MANIFEST)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    files.append(file_of(folder, MANIFEST))
    (folder / SUMS).write_text(sums(files), encoding="utf-8")
    return [*files, file_of(folder, SUMS)]


def sums(files: Iterable[File]) -> str:
    """The text of SHA256SUMS: checksums of files in the format of `sha256sum -c`."""
    return "".join(f"{file.sha256}  {file.path}\n" for file in files)


def same(folder: Path, files: Iterable[File]) -> bool:
    return folder.is_dir() and not folder.is_symlink() and files_of(folder) == sorted(files, key=lambda file: file.path)


def archive(folder: Path, files: Iterable[File], target: Path, top: str, form: str) -> None:
    """Pack files of ``folder`` as tar.gz or zip (``form``), below the folder ``top``: same files, same bytes."""
    if form == "zip":
        _zip(folder, files, target, top)
        return
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as out,
    ):
        for file in files:
            entry = tarfile.TarInfo(f"{top}/{file.path}")
            entry.size, entry.mode = file.bytes, 0o644  # times, owners and groups stay zero
            with (folder / file.path).open("rb") as stream:
                out.addfile(entry, stream)


def _zip(folder: Path, files: Iterable[File], target: Path, top: str) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as out:
        for file in files:
            entry = zipfile.ZipInfo(f"{top}/{file.path}", _EARLIEST)
            entry.compress_type, entry.external_attr, entry.create_system = zipfile.ZIP_DEFLATED, 0o644 << 16, 3
            entry.file_size = file.bytes  # lets zipfile use the format for large files where needed
            with (folder / file.path).open("rb") as stream, out.open(entry, "w") as packed:
                shutil.copyfileobj(stream, packed, PIECE_BYTES)
