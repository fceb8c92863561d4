"""Images that a run brought to its node, remembered so that clean can take them away again."""

from __future__ import annotations

import contextlib
from typing import Any, Optional

from gpuval_runner.engine import Engine, EngineError, EngineMissingError
from gpuval_runner.files import read_json, to_json, write_atomically
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import Image
from gpuval_runner.text import one_line

FILE = "images.json"
REMOVE_SECONDS = 120.0


def note(directory: NodeDirectory, command: str, image: Image, before: Optional[str]) -> None:
    """Remember, before it is brought, that the run brings an image; `before` is what its reference stood for."""
    entries = [entry for entry in _entries(directory) if entry["reference"] != image.reference]
    earlier = [entry for entry in _entries(directory) if entry["reference"] == image.reference]
    entry = {"engine": command, "reference": image.reference, "id": image.id, "before": before}
    directory.undo.mkdir(mode=0o700, exist_ok=True)
    document = {"images": [*entries, *(earlier or [entry])]}
    write_atomically(directory.undo / FILE, to_json(document))


def remove_images(directory: NodeDirectory) -> tuple[list[str], list[str]]:
    """Remove the images that the run brought, unless another run of this node means them too.

    Returns what was removed and what stayed, with the reason.
    """
    removed: list[str] = []
    left: list[str] = []
    wanted = references_of_others(directory)
    for entry in _entries(directory):
        engine, reference = Engine(entry["engine"]), entry["reference"]
        if reference in wanted:
            continue
        try:
            here = engine.image(reference)
            if here is None or here.id == entry["before"]:
                continue
            done = engine.call([engine.command, "rmi", reference], REMOVE_SECONDS)
            if done.returncode != 0:
                left.append(f"image {reference}: {one_line(done.stderr, 200)}")
                continue
            if entry["before"] and engine.image(entry["before"]):  # the name goes back to whose it was
                engine.call([engine.command, "tag", entry["before"], reference], REMOVE_SECONDS)
            removed.append(f"image {reference}")
        except EngineMissingError:
            continue
        except EngineError as error:
            left.append(f"image {reference}: {error}")
    return removed, left


def remove_archives(directory: NodeDirectory, names: set[str]) -> list[str]:
    """Remove the archives of a run's images, and what is around them once no other run is there; returns what went."""
    removed = []
    folder = directory.images
    if folder.is_symlink() or not folder.is_dir():
        return []
    others = other_plans(directory)
    kept = {
        archive["sha256"]
        for plan in others
        for image in (plan.get("images") or {}).values()
        if isinstance(archive := image.get("archive"), dict) and "sha256" in archive
    }
    for entry in sorted(folder.iterdir()):
        digest = entry.name.partition(".")[0]
        ours = entry.name.endswith((".tar", ".tar.part")) and (digest in names or not others) and digest not in kept
        if ours and entry.is_file():
            entry.unlink()
            removed.append(str(entry))
    if not others:
        for name in ("known.json", "lock"):
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
    return removed


def references_of_others(directory: NodeDirectory) -> set[str]:
    """Return the references that other runs of this node mean."""
    found: set[str] = set()
    for plan in other_plans(directory):
        found |= set(plan.get("images") or {})
        found |= {
            stage["image"] for stage in plan.get("stages") or [] if isinstance(stage, dict) and stage.get("image")
        }
    return found


def other_plans(directory: NodeDirectory) -> list[dict[str, Any]]:
    """Return the plans of all other runs that have a folder here."""
    plans = []
    for path in directory.base.glob("*/*/plan.json"):
        if path.parent == directory.root:
            continue
        with contextlib.suppress(OSError, ValueError):
            plan = read_json(path, 4 << 20)
            if isinstance(plan, dict):
                plans.append(plan)
    return plans


def _entries(directory: NodeDirectory) -> list[dict[str, Any]]:
    try:
        found = read_json(directory.undo / FILE, 1 << 20)["images"]
        return [
            {"engine": str(e["engine"]), "reference": str(e["reference"]), "id": e["id"], "before": e["before"]}
            for e in found
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
