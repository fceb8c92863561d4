"""Warn if the nodes cannot load their models and images from the store within the deadline."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils.store import StoreError
from ..artifacts import model_source
from ..core.step_options import StoreOptions
from ..runs.action import RunAction
from ..runs.datasets import parse as parse_datasets
from ..store import transfer_estimate
from ..store.access import open_store

MAX_IMAGE_DOCUMENT_BYTES = 65536


def estimate_transfer(
    action: RunAction,
    *,
    store: StoreOptions,
    nodes: int,
    deadline_seconds: float,
    model: str = "",
    datasets: Sequence[Mapping[str, Any]] = (),
    images: Sequence[str] = (),
    bits_per_second: float = 0.0,
) -> dict[str, Any]:
    access, bandwidth = open_store(store), None
    if action.check_mode and not access.running():
        return {"changed": False, "msg": "check mode: the embedded store does not run"}
    folders = [model_source.folder_name(model)] if model else []
    folders += [source.folder for source in parse_datasets(datasets)]
    try:
        objects = access.store()
        loaded = [(entry.key, entry.size) for folder in folders for entry in objects.list(f"models/{folder}/")]
        total = sum(size for _key, size in loaded) + _images(objects, images)
        if not transfer_estimate.is_trivial(nodes * total, deadline_seconds):
            measured = None if bits_per_second > 0 else transfer_estimate.measure(objects, loaded)
            bandwidth = transfer_estimate.choose(bits_per_second, measured, access.link_bits_per_second())
    except StoreError as error:  # an estimate; other tasks report what is wrong with the store
        return {"changed": False, "msg": f"not known, the store could not be read: {error}"}
    message, warning = transfer_estimate.describe(nodes, total, deadline_seconds, bandwidth)
    if warning:
        action.display.warning(warning)
    return {"changed": False, "msg": message}


def _images(store, references):
    """Total bytes of the archives in the store of the images with these references."""
    if not references:
        return 0
    entries = [entry for entry in store.list("images/") if entry.key.endswith(".json")]
    documents = []
    for entry in sorted(entries, key=lambda entry: entry.modified):
        try:
            document = json.loads(store.get(entry.key, max_bytes=MAX_IMAGE_DOCUMENT_BYTES))
        except ValueError:
            continue
        documents += [document] if isinstance(document, dict) else []
    return transfer_estimate.image_bytes(documents, references)
