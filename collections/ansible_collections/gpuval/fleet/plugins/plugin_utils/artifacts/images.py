"""Container images of a fleet: what `gpuval_images` declares by name, their build order, and their entries in a node's
plan. The catalogue (gpuval.images/1) remembers by reference what was made."""

import functools
import graphlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ...module_utils.hardware.pci import GPU_VENDORS
from ...module_utils.store import MAX_SIGNED_SECONDS, Store, StoreError
from ..core import files, schemas, yaml_file
from ..core.paths import COLLECTION
from ..core.text import meant

SCHEMA = "gpuval.images/1"
PREFIX, CATALOGUE = "images/", "images.json"
PUBLISHED = COLLECTION / "images/published.yml"
LOCK_SECONDS = 60.0
VENDORS = (*GPU_VENDORS, "cpu")
KEYS = {"reference", "build", "copy", "archive", "id", "folder", "base", "vendor", "arguments"}

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_ID = re.compile(r"sha256:[0-9a-f]{64}")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?")
_MOST_CHARACTERS = 512


@functools.cache
def read_published(path: Path = PUBLISHED) -> dict[str, Any]:
    """Return gpuval.published/1: the images that this release of the collection published; empty in a checkout."""
    return yaml_file.shipped(path, "published")


def published_images(vendor: str) -> dict[str, dict[str, str]]:
    """Return the entries of `gpuval_images` with published images for a GPU vendor; empty if none were published."""
    return {name: {"reference": reference} for name, reference in read_published()["vendors"].get(vendor, {}).items()}


class ImagesError(StoreError):
    """The declaration of images is invalid; the message says what to change."""


@dataclass(frozen=True)
class ImageSource:
    """An entry of `gpuval_images`. `way`, how nodes get it: `build` of `docker/<folder>` or an absolute folder, `copy`
    from a registry through the store, `archive`: a tar on the controller, `registry`: each node pulls it."""

    name: str
    reference: str
    way: str
    folder: str = ""
    base: str = ""
    vendor: str = ""
    archive: str = ""
    id: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


def parse(images: Mapping[str, Any]) -> list[ImageSource]:
    """Parse the entries of `gpuval_images`. Raises ``ImagesError`` for an invalid entry."""
    return [_source(str(name), value) for name, value in (images or {}).items()]


def _source(name: str, value: Any) -> ImageSource:
    def check(right: object, key: str, problem: str) -> None:
        if not right:
            raise ImagesError(f"gpuval_images.{name}{key}: {problem}")

    check(_NAME.fullmatch(name), "", "a name is made of small letters, digits, - and _, and starts with a letter")
    check(isinstance(value, Mapping), "", f"is {value!r}, but must describe the image: {{reference: ...}}")
    unknown = sorted(set(value) - KEYS)
    near = meant(unknown[0], KEYS) if unknown else ""
    check(not unknown, "", f"unknown keys {', '.join(unknown)}{near}; known are {', '.join(sorted(KEYS))}")
    reference = str(value.get("reference") or "")
    is_image = _REFERENCE.fullmatch(reference) and len(reference) <= _MOST_CHARACTERS
    example = "registry.example/name:tag, or name@sha256:..."
    check(is_image, ".reference", f"{reference!r} is no image reference, such as {example}")
    sources = [
        source
        for source in ("build", "copy", "archive")
        if value.get(source) and str(value[source]).lower() not in ("false", "no", "0")
    ]
    check(len(sources) < 2, "", f"{' and '.join(sources)} exclude each other")
    source = sources[0] if sources else "registry"
    is_known = source != "build" or "@" not in reference
    check(is_known, ".reference", "the digest of an image that is built is not known before: name a tag")
    identity, vendor, arguments = value.get("id"), str(value.get("vendor") or ""), value.get("arguments") or {}
    is_id = not identity or _ID.fullmatch(str(identity))
    check(is_id, ".id", f"{identity!r} is no image id, which is sha256: and 64 hexadecimal digits")
    check(vendor in ("", *VENDORS), ".vendor", f"{vendor!r} must be one of {', '.join(VENDORS)}")
    check(isinstance(arguments, Mapping), ".arguments", f"is {arguments!r}, but gives build arguments by name")
    return ImageSource(
        name,
        reference,
        source,
        vendor=vendor,
        base=str(value.get("base") or ""),
        folder=str(value.get("folder") or name) if source == "build" else "",
        archive=str(value["archive"]) if source == "archive" else "",
        id=str(identity) if identity else None,
        arguments={str(key): str(value) for key, value in arguments.items()},
    )


def merge(maps: Iterable[Mapping[str, Any]]) -> list[ImageSource]:
    """Return the images of all nodes, each reference once. Raises ``ImagesError`` if one has two declarations."""
    by_reference: dict[str, ImageSource] = {}
    for images in maps:
        for image in parse(images):
            first = by_reference.setdefault(image.reference, image)
            if first != replace(image, name=first.name):
                both = f"gpuval_images.{first.name} and gpuval_images.{image.name}"
                remedy = "declare the same for all nodes, or use different references"
                raise ImagesError(f"the image {image.reference} has two declarations ({both}): {remedy}")
    return list(by_reference.values())


def to_make(maps: Iterable[Mapping[str, Any]], folder: Path, vendor: str) -> list[ImageSource]:
    """Return the images of all nodes that the controller builds, copies or reads from archives, each after its base.
    `folder`: has the Dockerfiles and `bases.yml`. Raises ``ImagesError``."""
    images = merge(maps)
    builds = any(item.way == "build" and not Path(item.folder).is_absolute() for item in images)
    return with_bases(images, read_bases(folder / "bases.yml") if builds else {"vendors": {}}, vendor)


def read_bases(path: Path) -> dict[str, Any]:
    """Return the base images by vendor and folder (gpuval.bases/1) in a YAML file. Raises ``ImagesError``."""
    try:
        document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        remedy = "set container_image_folder to the folder docker/ of a checkout of gpuval"
        raise ImagesError(f"{path} cannot be read ({error}): {remedy}") from error
    schemas.validate("bases", document, what=str(path))
    return document


def with_bases(images: Sequence[ImageSource], bases: Mapping[str, Any], vendor: str) -> list[ImageSource]:
    """Return the images to build or copy, with base and arguments, in build order. A base may be the name of another
    image; `bases` (gpuval.bases/1) has the default."""
    complete = {item.reference: _with_base(item, images, bases, vendor) for item in images if item.way != "registry"}
    graph = {reference: {item.base} & complete.keys() for reference, item in complete.items()}
    try:
        return [complete[reference] for reference in graphlib.TopologicalSorter(graph).static_order()]
    except graphlib.CycleError as error:
        circle = ", ".join(reversed(error.args[1]))
        raise ImagesError(f"these images are built on each other: {circle}") from error


def _with_base(item: ImageSource, images: Sequence[ImageSource], bases: Mapping[str, Any], vendor: str) -> ImageSource:
    if item.way != "build":
        return item
    vendor = item.vendor or vendor
    if not vendor and not item.base:
        remedy = f"set container_image_vendor, or vendor of the image, to one of {', '.join(VENDORS)}; or its base"
        raise ImagesError(f"gpuval_images.{item.name}: the vendor of the accelerators is missing: {remedy}")
    vendor_bases = bases["vendors"].get(vendor, {})
    default = vendor_bases.get(item.folder, {"base": "", "arguments": {}})
    base, arguments = item.base or default["base"], default.get("arguments", {})
    if not base:
        problem = f"no base is known for {item.folder} on {vendor}; give gpuval_images.{item.name}.base"
        raise ImagesError(f"gpuval_images.{item.name}: {problem}")
    for _ in range(len(vendor_bases) + 1):
        if ours := [other.reference for other in images if other.name == base and (other.vendor or vendor) == vendor]:
            base = ours[0]
            break
        if base not in vendor_bases:
            break
        base = vendor_bases[base]["base"]
    return replace(item, base=base, vendor=vendor, arguments={**arguments, **item.arguments})


def by_digest(reference: str, digest: str) -> str:
    """Return an image reference with `digest` in place of its tag; unchanged if `digest` is empty."""
    folder, slash, name = reference.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{name.partition(':')[0]}@{digest}" if digest else reference


def image_plan(
    images: Mapping[str, Any],
    runtime: str,
    catalogue: Mapping[str, Mapping[str, Any]],
    references: Iterable[str | None] = (),
) -> dict[str, Any]:
    """Return `images` of a plan: by reference, the image's id and archive. `references`: images of the plan's stages;
    without any, all declared images. Raises ``ImagesError`` for an image that the store should have but lacks."""
    declared = {source.reference: source for source in parse(images)}
    if runtime == "host":
        return {}
    used = dict.fromkeys(reference for reference in references if reference)
    return {reference: _planned(reference, declared, catalogue) for reference in (used or declared)}


def _planned(
    reference: str, declared: Mapping[str, ImageSource], catalogue: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    source = declared.get(reference)
    if source is None or source.way == "registry":
        return {"id": source.id if source else None, "archive": None}
    if (built := catalogue.get(reference)) is None:
        image = f"{reference} (gpuval_images.{source.name})"
        raise ImagesError(f"the image {image} is not in the store: run `make build` first")
    if built.get("sha256") is None:  # built on the nodes themselves
        return {"id": None, "archive": None, "pull": False}
    if source.id and source.id != built["id"]:
        ids = f"{built['id'][:19]}, but gpuval_images.{source.name}.id is {source.id[:19]}"
        remedy = "build or take in the right one, or correct the id"
        raise ImagesError(f"the image {reference} in the store is {ids}: {remedy}")
    return {"id": built["id"], "archive": {"key": built["key"], "sha256": built["sha256"], "bytes": built["bytes"]}}


def archives(plan_images: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    unique = {image["archive"]["sha256"]: image["archive"] for image in plan_images.values() if image.get("archive")}
    return list(unique.values())


def signed_downloads(store: Store, plan_images: Mapping[str, Mapping[str, Any]], seconds: float) -> dict[str, str]:
    """Return a URL for each archive of a plan's images by its key, valid for `seconds`. The URLs are secrets."""
    valid = min(int(seconds), MAX_SIGNED_SECONDS)
    return {archive["key"]: store.sign_get(archive["key"], valid) for archive in archives(plan_images)}


def object_keys(name: str, identity: str) -> tuple[str, str, str]:
    """Return the keys of an image's archive, its description and its bill of materials in the store."""
    stem = f"{PREFIX}{name}-{identity.removeprefix('sha256:')[:12]}"
    return f"{stem}.tar", f"{stem}.json", f"{stem}.cdx.json"


def archive_file(state_dir: Path, sha256: str) -> Path:
    return state_dir / "images" / f"{sha256}.tar"


def sbom_file(state_dir: Path, sha256: str) -> Path:
    """Return where the controller keeps the bill of materials of the image in an archive."""
    return archive_file(state_dir, sha256).with_suffix(".cdx.json")


def read_catalogue(state_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the images that were built or copied, by reference; empty without a catalogue. Raises ``ImagesError``."""
    path = state_dir / CATALOGUE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schemas.validate("images", document, what=str(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        remedy = "Remove it and run the playbook gpuval.fleet.build"
        raise ImagesError(f"{path} cannot be used: {error}. {remedy}") from error
    return dict(document["images"])


def remember(state_dir: Path, entry: Mapping[str, Any]) -> bool:
    """Add an image that was built or copied to the catalogue, under a lock. Returns whether the catalogue changed."""
    path = state_dir / CATALOGUE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    late = ImagesError(f"another process holds {path.name}.lock beside {path}: end it, and run again")
    with files.locked(path.with_suffix(".json.lock"), LOCK_SECONDS, late):
        catalogue = read_catalogue(state_dir)
        if catalogue.get(entry["reference"]) == entry:
            return False
        document = {"schema": SCHEMA, "images": {**catalogue, entry["reference"]: dict(entry)}}
        schemas.validate("images", document, what="the catalogue of images")
        files.replace(path, f"{json.dumps(document, indent=1)}\n".encode())
        return True
