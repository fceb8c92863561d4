"""Builds an image, or copies it from its registry, and saves it as an archive that all engines can load."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypedDict

from .. import image_archive
from ..image_builder import Builder, BuildError
from ..node_directory import NodeError


class SavedArchive(TypedDict, total=False):
    sha256: str
    bytes: int
    #: Digest of the image's configuration.
    id: str
    architecture: str


class BuildAnswer(TypedDict, total=False):
    #: Whether the image must be built or copied.
    needed: bool
    #: The container engine that was used, and its ids of image and base; empty if the engine does not have them.
    engine: str
    image_id: str
    base_id: str
    #: Digest of the base in its registry; empty for a base without a registry.
    base_digest: str
    archive: SavedArchive
    #: Packages in the saved image, one a line.
    listing: str
    #: Digest of the pushed image in its registry.
    pushed: str
    build_duration_seconds: float


def build_image(module: Any, **options: Any) -> BuildAnswer:
    """Build or copy an image unless the engine has it. Options are those of `build`; without `context` it only reports
    whether a build is needed."""
    try:
        return build(module.check_mode, **options)
    except (BuildError, image_archive.ArchiveError) as error:
        raise NodeError(str(error)) from error
    except OSError as error:
        raise NodeError(f"{error.filename}: {error.strerror}: make room, or correct the path") from error


def build(
    check_mode: bool,
    *,
    reference: str,
    way: str,
    engine: str,
    timeout_seconds: float,
    base: str = "",
    arguments: dict[str, str],
    digest: str = "",
    built_base: str = "",
    base_digest: str = "",
    context: str = "",
    dockerfile: str = "Dockerfile",
    archive: str = "",
    no_cache: bool = False,
    push: bool = False,
    log: str = "",
) -> BuildAnswer:
    """Build or `copy` an image (`way`), save or push it. `digest` identifies this build and becomes a label;
    `built_base` is the id of the base of the archive in the store; `base_digest` is the required digest of a base from
    a registry, empty accepts any. `arguments` stay in the image's history and must hold no secrets. `timeout_seconds`
    limits each pull, build and save. Raises BuildError."""
    builder = Builder(engine, timeout_seconds)
    present = builder.image(reference)
    result = {"changed": False, "engine": builder.command, "image_id": present.id if present else "", **_base(None)}
    if way == "copy":
        result["needed"] = present is None
        if present is None and not check_mode:
            builder.pull(reference)
            result.update(changed=True, image_id=builder.image(reference).id)
    else:
        present_base = builder.image(base)
        result.update(_base(present_base))
        result["needed"] = no_cache or builder.outdated(present, present_base, digest, built_base)
        if result["needed"] and context and not check_mode:
            began = time.monotonic()
            image, present_base = builder.build(
                context, dockerfile, reference, base, arguments, digest, log, base_digest, no_cache
            )
            result.update(changed=True, image_id=image.id, **_base(present_base))
            result["build_duration_seconds"] = round(time.monotonic() - began, 1)
    if check_mode:
        result["changed"] = result["needed"]
    elif archive:
        result["archive"] = save(builder, reference, archive, timeout_seconds)
        result["listing"] = builder.listing(reference)
    elif push:
        result["pushed"] = builder.push(reference)
    return result


def _base(image):
    return {"base_id": image.id, "base_digest": image.digest} if image else {"base_id": "", "base_digest": ""}


def save(builder, reference, path, seconds):
    """Save an image as an archive at `path`; return the archive's hash, size and image."""
    try:
        sha256, count = image_archive.save(builder.engine.save_argv(reference), path, seconds)
        image = image_archive.image_of(path, reference)
    except image_archive.ArchiveError:
        Path(path).unlink(missing_ok=True)
        raise
    Path(path).chmod(0o644)
    return {"sha256": sha256, "bytes": count, "id": image["id"], "architecture": image["architecture"]}
