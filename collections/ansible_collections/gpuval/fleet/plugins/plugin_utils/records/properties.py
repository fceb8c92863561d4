"""Hardware and software that records report of a node, as short texts for the report. Pure.

A new property needs a line of ``PROPERTIES``: the report has it by node or stage, the page shows it, and the history
names its changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ...module_utils.engines import engine_types
from ..core import units
from ..core.escape import one_line
from . import environment
from .documents import Record

FACTS = "facts"
ANY_STAGE = "*"
IMAGE = "image"
MAX_TEXT = 160
#: Suffix of fingerprints that identify the setup of a stage, not its result.
SETUP = "_setup"
MAX_SETUPS = 8
ARGUMENTS = "arguments"


class NodeProperty(NamedTuple):
    """A property: title for people, the stage that reports it, its path in the record's environment, its unit."""

    name: str
    title: str
    stage: str
    path: str
    unit: str = ""


PROPERTIES = (
    NodeProperty("gpu_model", "GPU model", FACTS, "gpus[].name"),
    NodeProperty("driver", "GPU driver", FACTS, "gpus[].driver_version"),
    NodeProperty("runtime", "GPU runtime", FACTS, "gpus[].runtime_version"),
    NodeProperty("vbios", "GPU firmware", FACTS, "gpus[].firmware_version"),
    NodeProperty("gpu_memory", "GPU memory", FACTS, "gpus[].memory_bytes", "bytes"),
    NodeProperty("gpu_power_limit", "GPU power limit", FACTS, "gpus[].power_limit_watts", "watts"),
    NodeProperty("ecc", "ECC", FACTS, "gpus[].ecc_mode"),
    NodeProperty("partitions", "Partitions", FACTS, "gpus[].partition_mode"),
    NodeProperty("machine_model", "Machine", FACTS, "firmware.product_name"),
    NodeProperty("bios", "BIOS", FACTS, "firmware.bios_version"),
    NodeProperty("bmc", "BMC", FACTS, "firmware.bmc_version"),
    NodeProperty("cpu", "CPU", FACTS, "cpu.model"),
    NodeProperty("cpu_sockets", "CPU sockets", FACTS, "cpu.socket_count"),
    NodeProperty("cpu_cores", "CPU cores", FACTS, "cpu.core_count"),
    NodeProperty("cpu_governor", "CPU governor", FACTS, "cpu.governor"),
    NodeProperty("clock_source", "Clock source", FACTS, "tuning.clock_source"),
    NodeProperty("huge_pages", "Transparent huge pages", FACTS, "tuning.transparent_huge_pages"),
    NodeProperty("memory_ecc", "ECC counters of main memory", FACTS, "memory.ecc_problem"),
    NodeProperty("os_name", "Operating system", FACTS, "os.name"),
    NodeProperty("os", "Release of the operating system", FACTS, "os.version"),
    NodeProperty("kernel", "Kernel", FACTS, "os.kernel"),
    NodeProperty("nics", "Network cards", FACTS, "nics[].driver"),
    NodeProperty("nic_firmware", "Firmware of RDMA devices", FACTS, "nics[].firmware_version"),
    *(NodeProperty(name, name.capitalize(), FACTS, f"engines.{name}") for name in engine_types()),
    NodeProperty("container_toolkit", "Container toolkit", FACTS, "engines.nvidia_container_toolkit"),
    NodeProperty("python", "Python", ANY_STAGE, "python"),
    NodeProperty("torch", "PyTorch", ANY_STAGE, "torch"),
    NodeProperty("cuda", "CUDA", ANY_STAGE, "cuda"),
    NodeProperty("rocm", "ROCm", ANY_STAGE, "rocm"),
    NodeProperty("hip", "HIP", ANY_STAGE, "hip"),
    NodeProperty("collective_library", "Collective library", ANY_STAGE, "collective_library"),
    NodeProperty("vllm", "vLLM", ANY_STAGE, "vllm"),
    NodeProperty("transformers", "Transformers", ANY_STAGE, "transformers"),
    NodeProperty("deepspeed", "DeepSpeed", ANY_STAGE, "deepspeed"),
    NodeProperty("server", "Inference server", "inference", "server"),
    NodeProperty("server_version", "Version of the server", "inference", "server_version"),
    NodeProperty("model_trained", "Model trained", "training", "model"),
    NodeProperty("model_loaded", "Model loaded", "loading", "model_folder"),
)
TITLES = {**{known.name: known.title for known in PROPERTIES}, IMAGE: "Image"}
PATHS = {known.name: known.path for known in PROPERTIES}


def properties_of(record: Record) -> dict[str, str]:
    """The properties that a record reports, by name; several values are sorted and joined."""
    reported: dict[str, str] = {}
    for prop in PROPERTIES:
        if prop.stage in (ANY_STAGE, record["stage"]):
            values = sorted({_human(text, prop.unit) for text in environment.texts(record["environment"], prop.path)})
            if values:
                reported[prop.name] = one_line(", ".join(values), MAX_TEXT)
    if record["image"]:
        reported[IMAGE] = one_line(record["image"], MAX_TEXT)
    return reported


def _human(text: str, unit: str) -> str:
    try:
        return units.human(float(text), unit) if unit else text
    except ValueError:
        return text


def setup_of(record: Record) -> dict[str, str]:
    """The settings that a record's figures depend on: setups that its stage reported, and a digest of its arguments."""
    placeholders = {record["run_id"]: "{run_id}", record["node"]: "{node}"}
    words: list[str] = []
    for word in record["command"]:
        text = word if words else PurePosixPath(word).name
        for name, placeholder in placeholders.items():
            text = text.replace(name, placeholder)
        words.append(text)
    setups = sorted(name for name in record["fingerprints"] if name.endswith(SETUP))
    return {
        **{one_line(name, 80): one_line(record["fingerprints"][name], 80) for name in setups[:MAX_SETUPS]},
        ARGUMENTS: hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8],
    }


def versions_of(node: Mapping[str, Any], stage: Mapping[str, Any]) -> Mapping[str, str]:
    """The properties of a stage in a report, by name; for the facts those of the node."""
    versions: Mapping[str, str] = (node if stage["name"] == FACTS else stage).get("versions", {})
    return versions
