"""Build an image, or copy it from its registry, and save it as an archive that both engines load."""

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
    #: Whether a build is needed.
    needed: bool
    #: The engine that was used, and the ids that it gives the image and its base; empty where it does not have them.
    engine: str
    image_id: str
    base_id: str
    #: Digest of the base in its registry; empty where it is not from one.
    base_digest: str
    archive: SavedArchive
    #: Packages in the image that was saved, a line each.
    listing: str
    #: Digest by which the registry has the image.
    pushed: str
    build_duration_seconds: float


def build_image(module: Any, **options: Any) -> BuildAnswer:
    """Build or copy unless the engine has it. Options as `build`; without a `context` it only says what is needed."""
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
    """Build, copy, save or push an image. `digest` identifies this build and is kept as a label, `built_base` is the
    base's id in the store's archive, `base_digest` the required one of a base from a registry; empty accepts any.
    `arguments` stay in the history of the build stage, so they hold no secrets. `timeout_seconds` is of each pull,
    build and save. Raises BuildError."""
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
        result.update(changed=True, pushed=builder.push(reference))
    return result


def _base(here):
    return {"base_id": here.id, "base_digest": here.digest} if here else {"base_id": "", "base_digest": ""}


def save(builder, reference, path, seconds):
    """Save the image and say what is in the archive."""
    try:
        sha256, count = image_archive.save(builder.engine.save_argv(reference), path, seconds)
        image = image_archive.image_of(path, reference)
    except image_archive.ArchiveError:
        Path(path).unlink(missing_ok=True)
        raise
    Path(path).chmod(0o644)
    return {"sha256": sha256, "bytes": count, "id": image["id"], "architecture": image["architecture"]}
