"""The files of models in build contexts and in plans: copied within limits and without secrets, or packed as text."""

from __future__ import annotations

import base64
import gzip
import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from .checkout import CREDENTIALS_FILE
from .documents import MadError, located

#: In the build context, and in the image: by stage the folders `model` and `repository`.
FILES = "gpuval_mad"
INSIDE = f"/opt/{FILES}"
#: Never in an image.
SECRET_FILES = (CREDENTIALS_FILE, ".git")
MAX_FILES, MAX_BYTES = 50_000, 4 << 30
#: Beside the job of a model whose image is given: its files, packed. They travel in the plan.
PACKED = "gpuval_mad"
MAX_PACKED = 80 << 10


def packed(folder: Path, where: str) -> str:
    """The files of a model as text. Raises MadError where they are too large for a plan."""
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        tar.add(folder, ".", filter=_anonymous)
    if stream.tell() > MAX_PACKED:
        raise MadError(
            f"{where}: its files are {stream.tell() >> 10} KiB when packed, and at most {MAX_PACKED >> 10} KiB travel "
            "to an image that is given: leave it out of gpuval_mad_images, and have the image built"
        )
    return base64.encodebytes(stream.getvalue()).decode("ascii")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


class Copy:
    """Copies folders of a repository: links as what they name, no secrets, within limits.

    In a `foreign` repository, which the user cannot correct, a link that leads out is left out.
    """

    def __init__(self, root: Path, where: str, secrets_file: Path | None = None, *, foreign: bool = False) -> None:
        self._root, self._where, self._foreign = root, where, foreign
        self._secrets_file = secrets_file and secrets_file.resolve()
        self._files = self._bytes = 0

    def tree(self, folder: str, target: Path) -> None:
        """All files are counted before the first is copied. Raises MadError for a link out of the repository, or for
        too much."""
        source = located(self._root, folder)
        for path, copied in [*self._listed(source, source.resolve(), target, ())]:
            if path.is_dir():
                copied.mkdir(parents=True, exist_ok=True)
            else:
                shutil.copy(path, copied)

    def _listed(
        self, source: Path, resolved: Path, target: Path, above: tuple[Path, ...]
    ) -> Iterator[tuple[Path, Path]]:
        """Each folder and file with its copy. `above` are the folders that this one is in."""
        yield source, target
        for path in sorted(source.iterdir()):
            real, parts = resolved / path.name, {path.name}
            if path.is_symlink():
                try:
                    real = located(self._root, path.relative_to(self._root).as_posix()).resolve()
                except MadError:
                    if self._foreign:
                        continue
                    raise
                parts.update(real.relative_to(self._root.resolve()).parts)
            if parts & set(SECRET_FILES) or real == self._secrets_file:
                continue
            self._files += 1
            self._bytes += path.stat().st_size if path.is_file() else 0
            if self._files > MAX_FILES or self._bytes > MAX_BYTES:
                raise MadError(
                    f"{self._where}: more than {MAX_FILES} files or {MAX_BYTES >> 30} GiB: move data sets out of the "
                    "repository, or name a smaller dockercontext"
                )
            if path.is_file():
                yield path, target / path.name
            elif path.is_dir() and real not in (*above, resolved):
                yield from self._listed(path, real, target / path.name, (*above, resolved))
