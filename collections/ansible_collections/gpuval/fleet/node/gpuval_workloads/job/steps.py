"""What a job is, as the controller packed it, and the environment of its steps."""

from __future__ import annotations

import base64
import json
import sys
import time
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VARIABLE = "GPUVAL_JOB"
MAX_BYTES = 4 << 20
MASTER_PORT = "6002"


@dataclass(frozen=True)
class JobStep:
    name: str
    command: tuple[str, ...]
    timeout_seconds: float
    environment: Mapping[str, str]
    creates: str
    skip: bool
    force: bool
    once: bool = False
    launcher: str = "none"


@dataclass(frozen=True)
class JobSteps:
    """``figures``: whether its output must have some; ``csv``: the file that must; ``gang``: how several nodes run it
    together, empty for a job on each node by itself."""

    name: str
    files: Mapping[str, str]
    steps: tuple[JobStep, ...]
    figures: bool
    csv: str
    gang: Mapping[str, Any] = field(default_factory=dict)
    stay_alive_seconds: float = 0.0


def unpack(text: str) -> JobSteps:
    """Read a packed job. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for anything else."""
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(base64.b64decode(text), MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not reader.eof:
        raise ValueError("it is cut off, or larger than 4 MiB")
    document = json.loads(data)
    steps = tuple(JobStep(**{**step, "command": tuple(step["command"])}) for step in document.pop("steps"))
    return JobSteps(steps=steps, **document)


def environment(
    job: JobSteps, variables: Mapping[str, str], folder: str, together: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of all steps. Names that scripts for many nodes read mean this node alone, or the nodes that
    ``together`` describes."""
    gpus = variables.get("GPUVAL_GPU_COUNT", "")
    processes = gpus if gpus.isdigit() and int(gpus) > 0 else "1"
    node = variables.get("GPUVAL_NODE", "localhost")
    identifier = identifier_of(job, variables)
    alone = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": MASTER_PORT,
        "WORLD_SIZE": processes,
        "NNODES": "1",
        "NODE_RANK": "0",
        "GPUS_PER_NODE": processes,
        "JOB_COMPLETION_INDEX": "0",
        "JOB_IDENTIFIER": identifier,
        "JOB_UUID": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{identifier}/{node}")),
        "JOB_TIMESTAMP": str(int(time.time())),
        "HOSTNAME_PREFIX": node,
        "RANK_0_FQDN": "127.0.0.1",
    }
    stage_variables = {name: value for name, value in variables.items() if name != VARIABLE}
    placement_variables = {**alone, **(together or {})}
    return {
        **placement_variables,
        **stage_variables,
        "GPUVAL_PYTHON": sys.executable,
        "GPUVAL_JOB_NAME": job.name,
        "GPUVAL_JOB_DIR": folder,
    }


def identifier_of(job: JobSteps, variables: Mapping[str, str]) -> str:
    return f"{variables.get('GPUVAL_RUN_ID', 'run')}-{job.name}"
