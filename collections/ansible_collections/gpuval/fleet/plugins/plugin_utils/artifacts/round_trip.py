"""The model's round trip on the controller: serve and ask, upload, delete, load back, serve and ask again.

It proves before a run that what the store holds can be served, with the programs that the nodes run too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core import files
from ..store.access import CA_FILE, models_prefix
from ..store.backend import StoreBackend
from ..store.rclone import rclone_config
from . import payload
from .model_source import ModelError, ModelSource

STEP_SECONDS = 3600
REQUESTS = 4


class RoundTrip:
    """One model, in a scratch folder that is removed by close()."""

    def __init__(self, python: str, model: ModelSource, access: StoreBackend, say: Callable[[str], None]) -> None:
        self.python = python
        self.model = model
        self.access = access
        self.say = say
        self.scratch = Path(tempfile.mkdtemp(prefix="gpuval-round-trip-"))

    def before(self) -> None:
        """Serve the model as it came, and ask it."""
        target = self.scratch / "models" / self.model.folder
        for name, path in self.model.files.items():
            link = target / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        self._ask("as it came")
        shutil.rmtree(target)

    def after(self) -> None:
        """Load the model back from the store, verify it, serve it and ask again."""
        config = self.scratch / "rclone.conf"
        files.replace(config, rclone_config(self.access.reader()).encode(), files.PRIVATE)
        if self.access.ca():
            config.with_name(CA_FILE).write_text(self.access.ca(), encoding="utf-8")
        result = self._run("loading", ["--model-folder", self.model.folder])
        self.say(f"{self.model.folder}, loaded back: {result['message']}")
        self._ask("as the store has it")

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _ask(self, part: str) -> None:
        result = self._run("inference", ["--model-folder", self.model.folder, "--requests", str(REQUESTS)])
        self.say(f"{self.model.folder}, {part}: {result['message']}")

    def _run(self, workload: str, arguments: list[str]) -> dict[str, Any]:
        code = self.scratch / "workloads.zip"
        code.write_bytes(payload.workloads_zip())
        outcome = self.scratch / "result.json"
        outcome.unlink(missing_ok=True)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "RCLONE_"))},
            "PYTHONPATH": str(code),
            "GPUVAL_RESULT_FILE": str(outcome),
            "GPUVAL_MODELS_DIR": str(self.scratch / "models"),
            "GPUVAL_MODELS_PREFIX": models_prefix(self.access.connection().bucket),
            "GPUVAL_RCLONE_CONFIG": str(self.scratch / "rclone.conf"),
            "GPUVAL_WORK_DIR": str(self.scratch),
        }
        command = [self.python, "-m", f"gpuval_workloads.{workload}", *arguments]
        try:
            process = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=STEP_SECONDS, check=False
            )
        except FileNotFoundError as error:
            raise ModelError(f"{self.python} is not there: set gpuval_workload_python for the round trip") from error
        except subprocess.TimeoutExpired as error:
            raise ModelError(f"round trip: {workload} was not done after {STEP_SECONDS} s") from error
        result = json.loads(outcome.read_text()) if outcome.exists() else {}
        if result.get("state") != "success":
            reason = result.get("message") or (process.stderr or process.stdout).strip()[-600:]
            raise ModelError(f"round trip of {self.model.folder}: {workload} failed: {reason}")
        return result
