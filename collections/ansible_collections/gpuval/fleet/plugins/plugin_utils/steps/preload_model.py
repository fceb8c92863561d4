"""Ensure that model and datasets are complete in the store before nodes load them."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes
from ansible_collections.gpuval.fleet.node.gpuval_workloads.loading import manifest

from ...module_utils.node_directory import base_directory, workload_python
from ...module_utils.store import StoreError
from ..artifacts import dataset_source, model_source
from ..artifacts.round_trip import round_trip
from ..core.paths import project_path
from ..core.step_options import StepOptions, StoreOptions
from ..core.text import some_of
from ..runs import datasets, plans
from ..runs.action import RunAction
from ..store.access import open_store


class PreloadModelOptions(StepOptions):
    model: str = "tiny"
    datasets: Sequence[Mapping[str, Any]] = ()
    stages: Sequence[str] = ()
    revision: str = ""
    token: str = ""
    silence_seconds: float = 120.0
    transfers: int = 8
    force: bool = False
    round_trip: bool = False
    list: bool = False
    python: str = "python3"
    store: StoreOptions


def preload_model(action: RunAction, options: PreloadModelOptions) -> dict[str, Any]:
    model, sets = options.model, datasets.parse(options.datasets)
    if options.stages:
        model = model if plans.LOADING in options.stages else ""
        sets = [row for row in sets if row.stage in options.stages]
    folders = [*([model_source.folder_name(model)] if model else []), *(row.folder for row in sets)]
    access = open_store(options.store)
    if action.check_mode and not access.running():
        first = {"folder": folders[0]} if folders else {}
        return {"changed": True, **first, "msg": "check mode: the embedded store does not run"}
    store = access.store()
    if options.list:
        return _list(action, store)
    try:
        access.reader()
    except StoreError as error:
        action.display.warning(str(error))
    ready = []
    if model:
        named = {"source": model, "revision": options.revision}
        limits = {"silence_seconds": options.silence_seconds, "say": action.display.display}
        resolve = partial(model_source.resolve, model, revision=options.revision, token=options.token, **limits)
        ready.append(_ensure(action, access, f"model {folders[0]}", folders[0], named, resolve, options))
    for row in sets:
        named = {"source": row.source, "revision": row.sha256}
        resolve = partial(dataset_source.resolve, row, connection=access.connection())
        once = replace(options, round_trip=False)
        ready.append(_ensure(action, access, f"dataset {row.name}", row.folder, named, resolve, once))
    changed = any(row["changed"] for row in ready)
    return {**(ready[0] if ready else {}), "changed": changed, "msg": "; ".join(row["msg"] for row in ready)}


def _ensure(action, access, label, folder, source, resolve, options):
    """Upload a model or dataset unless its store folder is complete. `source`: its source and revision; `resolve`
    brings it to the controller, into the scratch folder passed to it if needed."""
    store, prefix = access.store(), f"models/{folder}/"
    listed = _listed(store, prefix)
    again = options.round_trip or options.force
    is_known = manifest.NAME in listed and _recorded(store, prefix) == source
    if is_known and not again and not _held_against_manifest(store, prefix, listed)[0]:
        return _ready(action, label, folder, listed, changed=False)
    if action.check_mode:
        return {"changed": True, "folder": folder, "msg": f"check mode: {folder} would be uploaded"}
    # each command downloads into a folder of its own, which it removes at the end
    root = project_path(options.store["state_dir"]) / "store"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = Path(tempfile.mkdtemp(prefix="download-", dir=root))
    try:
        try:
            model = resolve(scratch)
        except model_source.ModelError as error:
            raise model_source.ModelError(f"gpuval_model: {error}") from error
        action.display.display(f"{label}: uploading to the store from {source['source']}")
        if options.force or _recorded(store, prefix) != source:
            store.delete_prefix(prefix)  # nothing of another revision, and nothing damaged, stays behind
        python = workload_python(options.python, base_directory(""))
        trip = round_trip(python, model, access, action.display.display) if options.round_trip else nullcontext()
        with access.naming_full_disk(sum(path.stat().st_size for path in model.files.values())), trip:
            sums = model_source.make_manifest(model)
            # without its manifest the model counts as incomplete until the end
            store.delete_prefix(f"{prefix}{manifest.NAME}")
            model_source.upload(model, access.connection(), transfers=options.transfers)
            listed = _listed(store, prefix)
            sizes = {name: path.stat().st_size for name, path in model.files.items()}
            if lost := model_source.missing(sizes, listed, sizes):
                raise model_source.ModelError(f"the upload is incomplete: {some_of(lost)}; run again")
            record = json.dumps({**source, "origin": model.origin})
            store.put(_record_key(prefix), record.encode(), "application/json")
            store.put(f"{prefix}{manifest.NAME}", sums.encode(), "text/plain; charset=utf-8")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return _ready(action, label, folder, _listed(store, prefix), changed=True, origin=model.origin)


def _list(action, store):
    models = {}
    for prefix in store.level("models/")[0]:
        listed, recorded = _listed(store, prefix), _recorded(store, prefix) or {}
        missing, sha256 = _held_against_manifest(store, prefix, listed)
        model = {**_size(listed), "missing": missing, "source": recorded.get("source", ""), "sha256": sha256}
        models[prefix.removeprefix("models/").rstrip("/")] = model
    for folder, model in models.items():
        state = f"lacks {some_of(model['missing'])}" if model["missing"] else f"sha256 {model['sha256']}"
        source = f", from {model['source']}" if model["source"] else ""
        name = f"dataset {folder.removeprefix(datasets.FOLDER)}" if folder.startswith(datasets.FOLDER) else folder
        action.display.display(f"{name}: {model['files']} files, {human_bytes(model['bytes'])}, {state}{source}")
    sets = sum(folder.startswith(datasets.FOLDER) for folder in models)
    also = f" and {sets} dataset(s)" if sets else ""
    message = f"{len(models) - sets} model(s){also} in bucket {store.connection.bucket}"
    action.display.display(message)
    return {"changed": False, "models": models, "msg": message}


def _ready(action, label, folder, listed, **result):
    size = _size(listed)
    message = f"{label}: in the store, {size['files']} files, {human_bytes(size['bytes'])}"
    action.display.display(message)
    return {"folder": folder, **size, **result, "msg": message}


def _held_against_manifest(store, prefix, listed):
    """(files that a model in the store lacks, SHA-256 of its manifest). ``listed``: {file: bytes} in the store."""
    raw = store.get_if_there(f"{prefix}{manifest.NAME}", max_bytes=manifest.MAX_BYTES) or b""
    missing = [manifest.NAME]
    with suppress(manifest.ModelManifestError, UnicodeDecodeError):
        missing = model_source.missing(manifest.parse(raw.decode()), listed) if raw else missing
    return missing, hashlib.sha256(raw).hexdigest() if raw else ""


def _record_key(prefix):
    """Key of the record of a model's source, beside the model's store folder, so that nodes do not load it."""
    return f"{prefix.rstrip('/')}.json"


def _recorded(store, prefix):
    """Recorded source and revision of the model in a store folder; None if unknown."""
    try:
        record = json.loads(store.get_if_there(_record_key(prefix), max_bytes=65536) or b"")
        return {"source": record["source"], "revision": record["revision"]}
    except (ValueError, KeyError, TypeError):
        return None


def _listed(store, prefix):
    """{path below `prefix`: size in bytes}, of the objects in the store."""
    return {entry.key[len(prefix) :]: entry.size for entry in store.list(prefix)}


def _size(listed):
    files = {name: size for name, size in listed.items() if name != manifest.NAME}
    return {"files": len(files), "bytes": sum(files.values())}
