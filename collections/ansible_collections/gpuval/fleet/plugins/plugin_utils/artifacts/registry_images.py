"""Images of docker/ in a registry: their references, and their digests in the inventory's files of variables. Pure."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..core import yaml_file
from ..core.paths import version
from .images import ImagesError

VARIABLE = "gpuval_images"
PREFIX = "gpuval-"
_REGISTRY = re.compile(r"[a-z0-9][a-z0-9.-]*(:\d{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


def check_registry(registry: str) -> str:
    """Return a registry (HOST/PATH) without a slash at its end. Raises ImagesError for any other form."""
    plain = registry.rstrip("/")
    if not _REGISTRY.fullmatch(plain):
        raise ImagesError(
            f"REGISTRY (container_image_registry) {registry!r} is none: write HOST/PATH or HOST:PORT/PATH"
        )
    return plain


def sources(registry: str, vendor: str, names: Mapping[str, Any] | set[str]) -> dict[str, dict[str, Any]]:
    """Return entries of gpuval_images that build the folders `names` of docker/ for a vendor's accelerators."""
    tag = f"{version()}-{vendor}"
    return {
        name: {"reference": f"{registry}/{PREFIX}{name}:{tag}", "build": True, "vendor": vendor}
        for name in sorted(names)
    }


def is_of_site(name: str, entry: Any) -> bool:
    """Whether an entry of gpuval_images names the site's own image rather than one that `make build` pushed. Raises
    ImagesError for an entry that is to be built or copied."""
    entry = entry if isinstance(entry, Mapping) else {}
    if made := [way for way in ("build", "copy", "archive") if entry.get(way)]:
        raise ImagesError(
            f"{VARIABLE}.{name} has {made[0]}, and gpuval chooses the images in a registry: remove the entry, or build "
            "without REGISTRY. Dockerfiles and bases of a site: container_image_folder"
        )
    image = str(entry.get("reference") or "").rpartition("/")[2]
    return bool(image) and not re.match(rf"{PREFIX}{re.escape(name)}(@|:|$)", image)


def with_references(path: Path, text: str, references: Mapping[str, str]) -> str:
    """Return the text of a file of variables with `references` (by image name) set in `gpuval_images`, and otherwise
    unchanged. Raises ImagesError."""
    entries = {name: f'{{reference: "{reference}"}}' for name, reference in references.items()}
    try:
        changed = _changed(text, entries, references)
        loaded = yaml_file.parse(path, changed, yaml_file.AnyTagLoader)[VARIABLE]
        is_right = all(loaded[name]["reference"] == reference for name, reference in references.items())
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        is_right = False
    if not is_right:
        shown = ", ".join(f"{name}: {entry}" for name, entry in entries.items())
        raise ImagesError(f"{path} is no mapping that can be changed: write into it {VARIABLE}: {{{shown}}}")
    return changed


def _changed(text: str, entries: Mapping[str, str], references: Mapping[str, str]) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    value = next((node for key, node in pairs if key.value == VARIABLE), None)
    if value is None:
        block = "".join(f"  {name}: {entry}\n" for name, entry in entries.items())
        return f"{text.rstrip()}\n{VARIABLE}:\n{block}".lstrip()
    if not value.value:
        block = "".join(f"\n  {name}: {entry}" for name, entry in entries.items())
        return text[: value.start_mark.index] + block + text[value.end_mark.index :]
    edits = []
    present = {key.value: node for key, node in value.value}
    for name in entries.keys() & present.keys():
        node = next(scalar for key, scalar in present[name].value if key.value == "reference")
        edits.append((node.start_mark.index, node.end_mark.index, f'"{references[name]}"'))
    new = [f"{name}: {entry}" for name, entry in entries.items() if name not in present]
    if new and value.flow_style:
        start = value.start_mark.index + 1
        edits.append((start, start, "".join(f"{entry}, " for entry in new)))
    elif new:
        indent = " " * value.value[0][0].start_mark.column
        end = text.find("\n", _end(value))
        end = len(text) if end < 0 else end
        edits.append((end, end, "".join(f"\n{indent}{entry}" for entry in new)))
    for start, end, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def _end(node: yaml.Node) -> int:
    """Return the position at which the last leaf of a YAML node ends; a block ends after comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)
