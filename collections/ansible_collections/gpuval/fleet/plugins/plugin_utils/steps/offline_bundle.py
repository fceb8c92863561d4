"""Make an offline bundle with tools/bundle.py, or upload the models and images of an unpacked bundle."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ansible_collections.gpuval.fleet.node.gpuval_workloads.loading import manifest

from ..artifacts import model_source
from ..core.paths import project_path
from ..core.step_options import StoreOptions
from ..runs import folder as run_folder
from ..runs.action import RunAction
from ..store import rclone
from ..store.access import open_store
from ..store.embedded import EmbeddedStore

CARRIED = ("models", "images")


def offline_bundle(
    action: RunAction,
    *,
    store: StoreOptions,
    state: Literal["present", "uploaded"] = "present",
    output: Path = Path("dist/gpuval-bundle.tar"),
    without: Sequence[Literal["source", "wheels", "models", "images"]] = (),
    model: str = "tiny",
) -> dict[str, Any]:
    access, state_dir = open_store(store), project_path(store["state_dir"])
    if state == "uploaded":
        return _upload(action, access, store)
    tool = project_path("tools/bundle.py")
    if not tool.is_file():
        raise run_folder.RunError(
            f"{tool} is missing: a bundle is made in a checkout of gpuval, beside its ansible.cfg"
        )
    if action.check_mode:
        return {"changed": True, "bundle": str(output), "msg": f"check mode: {output} would be made"}
    command = [sys.executable, str(tool), "create", "--output", str(output), "--state-dir", str(state_dir)]
    command += ["--bucket", store["bucket"], *(f"--without={part}" for part in without)]
    folder = model_source.folder_name(model)
    if "models" not in without:
        command.append(f"--model={folder}")
    scratch = None
    try:
        if access.objects is None:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            scratch = Path(tempfile.mkdtemp(prefix="bundle-store-", dir=state_dir))
            rclone.fetch(access.connection(), _wanted(access.store(), folder, without), scratch)
            command.append(f"--store={scratch}")
        last = ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            for line in process.stdout or ():  # shown as it comes: a large bundle takes a while
                last = line.strip() or last
                action.display.display(line.rstrip())
        if process.returncode != 0:
            raise run_folder.RunError(f"the bundle was not made: {last}")
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
    return {"changed": True, "bundle": str(output), "bytes": output.stat().st_size, "msg": f"{output} was made"}


def _wanted(store, folder, without):
    """Keys in the store to put into a bundle: the model in `folder` and all images, except kinds in `without`."""
    keys = []
    if "models" not in without:
        if not any(True for _entry in store.list(f"models/{folder}/{manifest.NAME}")):
            raise run_folder.RunError(f"the store has no models/{folder}: `make models` brings it there")
        keys += [f"models/{folder}/", f"models/{folder}.json"]
    if "images" not in without:
        keys += [entry.key for entry in store.list("images/")]
    return keys


def _upload(action, access, options):
    if access.objects is not None:
        return {"changed": False, "msg": "the embedded store has what the bundle brought"}
    data = EmbeddedStore.of(options).objects
    keys = {
        path.relative_to(data).as_posix() for kind in CARRIED for path in (data / kind).rglob("*") if path.is_file()
    }
    if action.check_mode:
        return {"changed": bool(keys), "objects": len(keys), "msg": f"check mode: {len(keys)} objects would be put"}
    store = access.store()
    created = store.ensure_bucket(create=access.creates_bucket)
    before = {entry.key for kind in CARRIED for entry in store.list(f"{kind}/")}
    for kind in CARRIED:
        if (data / kind).is_dir():
            rclone.put(access.connection(), data / kind, kind, last=manifest.NAME)
    message = f"{len(keys)} objects that the bundle brought are in {store.connection.endpoint}"
    return {"changed": created or bool(keys - before), "objects": len(keys), "msg": message}
