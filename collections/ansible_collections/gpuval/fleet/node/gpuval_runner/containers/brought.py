"""Container images on a node: the ids that its engine gives them, and which a run brought, for clean to remove."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from gpuval_node.engines import engine_of
from gpuval_node.engines._engine import ContainerEngine, EngineError, EngineMissingError, LocalImage

from gpuval_runner.files import read_object, to_json, write_atomically
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import Image
from gpuval_runner.text import one_line

FILE = "images.json"
#: Fields that each image has in the file, beside `named`: earlier versions did not write that field.
FIELDS = ("engine", "reference", "id", "before")
REMOVE_SECONDS = 120.0


def is_image(image: Optional[LocalImage], planned: str, directory: NodeDirectory) -> bool:
    """Whether an image is the planned one: has the id `planned`, or the id that the engine gave the planned image."""
    return image is not None and image.id in (planned, engine_id(planned, directory))


def engine_id(planned: str, directory: NodeDirectory) -> str:
    """Return the id by which this node's engine knows the image with the planned id: engines may assign their own."""
    return known_ids(directory).get(planned, planned)


def find_image(
    engine: ContainerEngine, reference: str, planned: str, directory: NodeDirectory
) -> tuple[Optional[LocalImage], Optional[LocalImage]]:
    """Return the image with the id `planned` (empty: any id), and the image that has the reference; None for a missing
    one. Raises ``EngineError``."""
    tagged = engine.image(reference)
    if not planned or is_image(tagged, planned, directory):
        return tagged, tagged
    return engine.image(engine_id(planned, directory)), tagged


def known_ids(directory: NodeDirectory) -> Mapping[str, str]:
    """Return the ids that this node's engine gave to loaded images, by planned id."""
    return {k: v for k, v in read_object(directory.known_images, 1 << 20).items() if isinstance(v, str)}


def note(directory: NodeDirectory, command: str, image: Image, before: Optional[str], *, named: bool = False) -> None:
    """Record, beforehand, that the run puts an image on the node with the engine whose program is `command`. `before`:
    id of the image that the reference points to now, None for none. `named`: the image is on the node already and only
    gets the reference as a tag."""
    entries = _entries(directory)
    if image.reference not in entries:
        entry = {"engine": command, "reference": image.reference, "id": image.id, "before": before, "named": named}
        _write(directory, {**entries, image.reference: entry})


def note_id(directory: NodeDirectory, reference: str, identity: str) -> None:
    """Record the id that the engine gave to an image that the run brought."""
    entries = _entries(directory)
    if reference in entries:
        entries[reference]["id"] = identity
        _write(directory, entries)


def remove_images(directory: NodeDirectory) -> tuple[list[str], list[str]]:
    """Remove the images that the run brought. An image that another run of this node uses is left to that run. Returns
    two lists of texts: what was removed, and what stayed, with the reason."""
    removed: list[str] = []
    complaints: list[str] = []
    directories = _others_by_reference(directory)
    for reference, entry in _entries(directory).items():
        engine = engine_of(entry["engine"])
        if reference in directories:
            _hand_over(entry, directories[reference])
            continue
        try:
            present = engine.image(reference)
            if present is None or present.id == entry["before"]:
                continue
            if entry["id"] and not is_image(present, entry["id"], directory):
                continue  # another image has the reference now, and stays
            if entry["named"]:
                engine.ask("tag", entry["before"], reference, limit=REMOVE_SECONDS)
                continue
            removal = engine.ask("rmi", reference, limit=REMOVE_SECONDS)
            if removal.returncode != 0:
                complaints.append(f"image {reference}: {one_line(removal.stderr, 200)}")
                continue
            if entry["before"] and engine.image(entry["before"]):  # the reference goes back to the earlier image
                engine.ask("tag", entry["before"], reference, limit=REMOVE_SECONDS)
            removed.append(f"image {reference}")
        except EngineMissingError:
            continue
        except EngineError as error:
            complaints.append(f"image {reference}: {error}")
    return removed, complaints


def remove_archives(directory: NodeDirectory, digests: set[str]) -> list[str]:
    """Remove the image archives with these SHA-256, unless another run on the node needs them; without another run, all
    archives and their folder. Returns the removed paths."""
    removed = []
    folder = directory.images
    if folder.is_symlink() or not folder.is_dir():
        return []
    other_plans = [plan for _, plan in _other_plans(directory)]
    other_images = [image for plan in other_plans for image in (plan.get("images") or {}).values()]
    kept_digests = {(image.get("archive") or {}).get("sha256") for image in other_images}
    for entry in sorted(folder.iterdir()):
        digest = entry.name.partition(".")[0]
        is_ours = digest not in kept_digests and (digest in digests or not other_plans)
        if is_ours and entry.name.endswith((".tar", ".tar.part")) and entry.is_file():
            entry.unlink()
            removed.append(str(entry))
    if not other_plans:
        for name in ("known.json", "lock"):
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
    return removed


def _others_by_reference(directory: NodeDirectory) -> dict[str, NodeDirectory]:
    """Return the references of images that other runs on this node use, each with the directory of such a run."""
    directories: dict[str, NodeDirectory] = {}
    for path, plan in _other_plans(directory):
        stages = [stage for stage in plan.get("stages") or [] if isinstance(stage, dict)]
        for reference in [*(plan.get("images") or {}), *(stage.get("image") for stage in stages)]:
            if reference:
                directories.setdefault(reference, NodeDirectory(path.parent))
    return directories


def _hand_over(entry: dict[str, Any], new_directory: NodeDirectory) -> None:
    """Move the entry of an image to another run's list: that run's clean then removes the image."""
    entries = _entries(new_directory)
    brought_there = entries.setdefault(entry["reference"], entry)
    if brought_there is not entry and brought_there["before"] == entry["id"]:  # both runs brought one
        brought_there["before"] = entry["before"]
    _write(new_directory, entries)


def _other_plans(directory: NodeDirectory) -> list[tuple[Path, dict[str, Any]]]:
    """Return file and content of the plans of all other runs on this node."""
    plans = []
    for path in sorted(directory.base.glob("*/*/plan.json")):
        if path.parent != directory.root and (plan := read_object(path, 4 << 20)):
            plans.append((path, plan))
    return plans


def _write(directory: NodeDirectory, entries: dict[str, dict[str, Any]]) -> None:
    directory.undo.mkdir(mode=0o700, exist_ok=True)
    write_atomically(directory.undo / FILE, to_json({"images": list(entries.values())}))


def _entries(directory: NodeDirectory) -> dict[str, dict[str, Any]]:
    """Return the entries of the images that a run brought, by reference."""
    try:
        documents = read_object(directory.undo / FILE, 1 << 20)["images"]
        entries = [{"named": False, **{name: entry[name] for name in FIELDS}, **entry} for entry in documents]
        return {entry["reference"]: entry for entry in entries}
    except (KeyError, TypeError):
        return {}
