"""Reads archives of container images (docker save), and saves an archive and its hash."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
import threading
from pathlib import Path

from .engines import plain

BLOCK_BYTES = 4 << 20
MANIFEST_BYTES = 16 << 20
_SAVE_IT = "save it with docker save, or podman save --format docker-archive"


class ArchiveError(Exception):
    """An archive of container images cannot be made or used; the message says what to do."""


def extract(archive, folder):
    """Extract a tar archive that the controller wrote into a folder."""
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # older Pythons have no filter
    with tarfile.open(archive) as tar:
        tar.extractall(folder, **safely)  # noqa: S202 - the controller wrote the archive


def contents(path):
    """Return the images in an archive: dicts of id (digest of the configuration), architecture, os and references."""
    try:
        with tarfile.open(path) as tar:
            manifest = json.loads(_member(tar, "manifest.json"))
            return [_image(tar, entry) for entry in manifest]
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read ({error.strerror}): give an archive of images") from error
    except tarfile.TarError as error:
        raise ArchiveError(f"{path} is no archive of images, or a damaged one: {_SAVE_IT}") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ArchiveError(f"{path} has no manifest of images ({error}): {_SAVE_IT}") from error


def image_of(path, reference):
    """Return the image in an archive that has the reference, else the only image in it."""
    images = contents(path)
    for image in images:
        if plain(reference) in (plain(name) for name in image["references"]):
            return image
    if len(images) == 1:
        return images[0]
    names = ", ".join(name for image in images for name in image["references"]) or "none with a name"
    raise ArchiveError(f"{path} has no image {reference}; it has {names}")


def sha256_of(path):
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        for block in iter(lambda: stream.read(BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def save(command, path, seconds):
    """Write the output of a command to a file, within `seconds`. Returns the SHA-256 and the size in bytes."""
    digest, count = hashlib.sha256(), 0
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with tempfile.TemporaryFile() as errors:
        with Path(path).open("wb") as stream, subprocess.Popen(command, stderr=errors, **pipes) as process:
            timer = threading.Timer(seconds, process.kill)
            timer.start()
            try:
                for block in iter(lambda: process.stdout.read(BLOCK_BYTES), b""):
                    digest.update(block)
                    stream.write(block)
                    count += len(block)
                process.wait()
            finally:
                late = not timer.is_alive()
                timer.cancel()
                process.kill()
        if process.returncode != 0:
            errors.seek(0)
            reason = errors.read().decode("utf-8", "replace").strip()[-400:]
            if late:
                reason = f"not done after {seconds:.0f} s"
            raise ArchiveError(f"{' '.join(command[:2])} failed: {reason}")
    return digest.hexdigest(), count


def _member(tar, name):
    member = tar.getmember(name)
    if member.size > MANIFEST_BYTES:
        raise ValueError(f"{name} is too large")
    return tar.extractfile(member).read()


def _image(tar, entry):
    config = _member(tar, entry["Config"])
    document = json.loads(config)
    return {
        "id": "sha256:" + hashlib.sha256(config).hexdigest(),
        "architecture": document["architecture"],
        "os": document["os"],
        "references": list(entry.get("RepoTags") or []),
    }
