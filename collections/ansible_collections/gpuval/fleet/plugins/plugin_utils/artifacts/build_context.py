"""The build context of an image, as one reproducible archive."""

import hashlib
import json
import os
import tarfile
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from ...module_utils.image_archive import sha256_of
from .images import ImagesError

#: Requirements files of other images that an image needs too, by the image's folder.
SHARED = {
    "inference": ("training/torch.txt",),
    "validate": (
        *("training/torch.txt", "training/requirements.txt"),
        *("loading/requirements.txt", "inference/transformers.txt"),
    ),
}
#: Value of `folder` for a build context that is a user's whole folder, not one of docker/.
WHOLE = "."
_LEFT_OUT = {"README.md", ".gitignore", ".dockerignore", "__pycache__"}


@dataclass(frozen=True)
class BuildContext:
    """The files for building one image, by name in the context; `local/` is for the build stage, not for the image."""

    folder: str
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def dockerfile(self) -> str:
        return f"{self.folder}/Dockerfile"

    def digest(self, base: str, arguments: Mapping[str, str]) -> str:
        """Return the SHA-256 over all inputs of an image: files, build arguments, and the name of the base image."""
        total = hashlib.sha256()
        total.update(json.dumps([self.folder, base, sorted(arguments.items())]).encode())
        for name, path in sorted(self.files.items()):
            total.update(f"\n{name} {sha256_of(path)}".encode())
            total.update(b" x" if self._is_program(path) else b"")
        return total.hexdigest()

    def write(self, target: Path) -> None:
        """Write the build context as a tar without this machine's owners, times and umask, so that caches hit."""
        with tarfile.open(target, "w") as tar:
            tar.addfile(tarfile.TarInfo("local/.keep"))  # some builders do not copy an empty folder
            for name, path in sorted(self.files.items()):
                info = tarfile.TarInfo(name)
                info.mode = 0o755 if self._is_program(path) else 0o644
                with path.open("rb") as stream:
                    info.size = os.fstat(stream.fileno()).st_size
                    tar.addfile(info, stream)

    def _is_program(self, path: Path) -> bool:
        """Whether a file of the context is executable; files of docker/ never are."""
        return self.folder == WHOLE and bool(path.stat().st_mode & 0o100)


def gather(
    docker: Path, folder: str, wheels: Path | None, certificate: Path | None, pip_conf: Path | None
) -> BuildContext:
    """Return the build context of `docker/<folder>` with wheels (a folder), CA certificate and pip.conf, or that of an
    absolute folder unchanged. Raises ``ImagesError``."""
    root = docker / folder  # `folder` alone if it is absolute
    if not (root / "Dockerfile").is_file():
        remedy = "set container_image_folder to the folder docker/ of a checkout, or name one of its folders in"
        raise ImagesError(f"{root} has no Dockerfile: {remedy} gpuval_images.<name>.folder")
    if Path(folder).is_absolute():
        return BuildContext(WHOLE, _below(root, root, frozenset()))
    files = {name: docker / name for name in SHARED.get(folder, ())}
    for part in ("common", folder, "local"):
        files |= _below(docker, docker / part, _LEFT_OUT)
    if wheels:
        wheel_files = sorted([*wheels.glob("*.whl"), *wheels.glob("*.tar.gz")]) if wheels.is_dir() else []
        if not wheel_files:
            raise ImagesError(f"{wheels} (container_image_wheels) has no wheels")
        files.update({f"local/wheels/{path.name}": path for path in wheel_files})
    for name, path in (("local/ca.pem", certificate), ("local/pip.conf", pip_conf)):
        if path:
            if not path.is_file():
                raise ImagesError(f"{path} is no file: correct container_image_ca_file or container_image_pip_conf")
            files[name] = path
    return BuildContext(folder, files)


def _below(root: Path, folder: Path, left_out: Set[str]) -> dict[str, Path]:
    names = {path.relative_to(root): path for path in folder.rglob("*") if path.is_file()}
    return {name.as_posix(): path for name, path in names.items() if not left_out & set(name.parts)}
