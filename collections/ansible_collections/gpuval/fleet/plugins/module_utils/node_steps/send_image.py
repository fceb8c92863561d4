"""Receives an image archive from the controller over the management connection; resumes interrupted transfers."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, TypedDict

from ..engines import of_runtime
from ..image_archive import sha256_of
from ..node_directory import NodeError, base_directory, make_private

ANSWER_SECONDS = 30
#: Bytes that stay free beside the archive and the loaded image.
LEAST_FREE_BYTES = 256 << 20


class ImageAnswer(TypedDict, total=False):
    #: `loaded` when the engine has the image, `whole` when the node has the complete archive, else `missing`.
    state: str
    #: File to which the controller sends the archive, and the bytes of it that are there.
    part: str
    have: int


def send_image(
    module: Any, directory: str, sha256: str, size_bytes: int, image_id: str = "", runtime: str = "auto"
) -> ImageAnswer:
    """Report how much of an image archive is in `directory` on the node; move it into place once complete and verified.
    If an engine of `runtime` has the image `image_id`, no archive is needed. `module`: the Ansible module."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise NodeError("sha256 is no SHA-256 in hexadecimal")
    if module.check_mode:
        return {"changed": True, "state": "missing", "part": "", "have": 0}
    try:
        return look(directory, sha256, size_bytes, image_id, runtime)
    except OSError as error:
        raise NodeError(f"{error.filename}: {error.strerror}") from error


def look(directory, sha256, size, image_id, runtime="auto"):
    """Return the node's answer on an image archive of `size` bytes. A complete part file becomes the archive; a wrong
    one is removed."""
    folder = base_directory(directory) / "images"
    make_private(folder.parent)
    make_private(folder)
    path, part = folder / f"{sha256}.tar", folder / f"{sha256}.tar.part"
    answer = {"changed": False, "part": str(part)}
    if image_id and loaded(image_id, runtime):
        part.unlink(missing_ok=True)
        return {**answer, "state": "loaded", "have": 0}
    if path.is_file() and path.stat().st_size == size and sha256_of(path) == sha256:
        part.unlink(missing_ok=True)
        return {**answer, "state": "whole", "have": size}
    have = part.stat().st_size if part.is_file() else 0
    if have == size and sha256_of(part) == sha256:
        part.chmod(0o600)
        part.replace(path)
        return {**answer, "changed": True, "state": "whole", "have": size}
    if have >= size:
        part.unlink(missing_ok=True)
        have = 0
    free = shutil.disk_usage(folder).free
    if free < size - have + LEAST_FREE_BYTES:
        raise NodeError(
            f"{folder} has {free / 1e9:.1f} GB free, and {(size - have) / 1e9:.1f} GB of an image are to come: "
            "make room, or set gpuval_node_dir to a larger disk"
        )
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    return {**answer, "state": "missing", "have": have}


def loaded(image_id, runtime="auto"):
    """Whether the container engine that the runner will use has the image with this id."""
    for engine in of_runtime(runtime):
        shown = engine.run(engine.command, "image", "inspect", "--format", "{{.Id}}", image_id, timeout=ANSWER_SECONDS)
        if shown.returncode is not None:
            digest = shown.stdout.strip().removeprefix("sha256:")
            return shown.ok and bool(digest) and image_id.endswith(digest)
    return False
