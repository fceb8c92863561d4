"""A model's round trip on the controller: serve and query, upload, delete, load back, serve and query again. It proves
before a run that what the store holds can be served, with the programs that the nodes run too."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..core import files
from ..store.access import CA_FILE, models_prefix
from ..store.backend import StoreBackend
from ..store.rclone import rclone_config
from . import payload
from .model_source import ModelError, ModelSource

STEP_SECONDS = 3600
REQUESTS = 4


@contextmanager
def round_trip(python: str, model: ModelSource, access: StoreBackend, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the model and send requests; within the context, the caller uploads it. Afterwards load the model from the
    store, verify it, serve it and send requests again."""
    with tempfile.TemporaryDirectory(prefix="gpuval-round-trip-", ignore_cleanup_errors=True) as place:
        run, requests = partial(_run, python, model, access, Path(place)), ("--requests", str(REQUESTS))
        target = Path(place) / "models" / model.folder
        for name, path in model.files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).symlink_to(path.resolve())
        say(f"{model.folder}, as it came: {run('inference', *requests)}")
        shutil.rmtree(target)
        yield
        config = Path(place) / "rclone.conf"
        files.replace(config, rclone_config(access.reader()).encode(), files.PRIVATE)
        if access.ca():
            config.with_name(CA_FILE).write_text(access.ca(), encoding="utf-8")
        say(f"{model.folder}, loaded back: {run('loading')}")
        say(f"{model.folder}, as the store has it: {run('inference', *requests)}")


def _run(python: str, model: ModelSource, access: StoreBackend, scratch: Path, workload: str, *arguments: str) -> str:
    code, outcome = scratch / "workloads.zip", scratch / "result.json"
    code.write_bytes(payload.workloads_zip())
    outcome.unlink(missing_ok=True)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "RCLONE_"))},
        "PYTHONPATH": str(code),
        "GPUVAL_RESULT_FILE": str(outcome),
        "GPUVAL_WORK_DIR": str(scratch),
        "GPUVAL_MODELS_DIR": str(scratch / "models"),
        "GPUVAL_RCLONE_CONFIG": str(scratch / "rclone.conf"),
        "GPUVAL_MODELS_PREFIX": models_prefix(access.connection().bucket),
    }
    command = [python, "-m", f"gpuval_workloads.{workload}", "--model-folder", model.folder, *arguments]
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=STEP_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise ModelError(f"{python} is not there: set gpuval_workload_python for the round trip") from error
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"round trip: {workload} was not done after {STEP_SECONDS} s") from error
    result = json.loads(outcome.read_text()) if outcome.exists() else {}
    if result.get("state") != "success":
        reason = result.get("message") or (process.stderr or process.stdout).strip()[-600:]
        raise ModelError(f"round trip of {model.folder}: {workload} failed: {reason}")
    return str(result["message"])
