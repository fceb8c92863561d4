"""The parts of runs, records and reports that the history keeps, as flat documents. Pure.

Records come from nodes: they are projected only after ``accept_record``, and free text is bounded here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from ..core.escape import one_line
from ..judge import retries, sku_catalogue
from ..judge.gpu_order import renumbered
from ..judge.identity import is_useless
from ..judge.subject import FACTS
from ..judge.versions import KINDS
from ..records import environment
from ..records.documents import Record

MAX_GPUS = 64
MAX_CHECKS = 64
MAX_WORD = 128
#: Software versions that a stage reports.
SOFTWARE = ("torch", "python", "cuda", "hip", "collective_library", "vllm", "transformers", "deepspeed")
#: Suffix of fingerprints that identify the setup, not the result.
SETUP = "_setup"


def of_run(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The expected nodes of a run (``gpuval.run/1``), with the stages of multi-node work."""
    return [
        {
            "node": name,
            "stages": [*expected["stages"], *expected.get("gang_stages", ())],
            "sku": one_line(expected["sku"], MAX_WORD),
            "labels": {name: one_line(text, MAX_WORD) for name, text in (expected.get("labels") or {}).items()},
        }
        for name, expected in run["nodes"].items()
    ]


def of_record(record: Record, stamp: str) -> dict[str, Any]:
    """One accepted record; ``stamp`` is that of its object."""
    line = {
        "node": record["node"],
        "stage": record["stage"],
        "stamp": stamp,
        "state": record["state"],
        "retried": record["state"] == "success" and retries.retried_for(record) == retries.FLAKY,
        "workload": record["workload"],
        "setup": setup_of(record),
        "versions": versions_of(record),
        "metrics": [metric for metric in record["metrics"] if metric["value"] is not None],
    }
    return {**line, **facts_of(record)} if record["stage"] == FACTS else line


def of_refusal(node: str, stage: str, stamp: str, reason: str) -> dict[str, Any]:
    """A refused record, kept so that it is not read again; its other columns are NULL."""
    return {"node": node, "stage": stage, "stamp": stamp, "refused": one_line(reason), "retried": False}


def of_judged(node: Mapping[str, Any]) -> dict[str, Any]:
    """One node of a report: its verdict, the required checks it did not pass, and stages with GPUs in another order."""
    against = [
        {key: one_line(str(check[key]), MAX_WORD) for key in ("name", "part", "verdict")}
        for check in node["checks"]
        if check["severity"] == "required" and check["verdict"] in ("fail", "missing")
    ]
    return {
        "node": node["name"],
        "verdict": node["verdict"],
        "class": one_line(node.get("class") or "", MAX_WORD) or None,
        "flaky": node["flaky"],
        "renumbered": sorted(renumbered(node["checks"])),
        "failed": sorted(against, key=lambda check: check["verdict"])[:MAX_CHECKS],
    }


def setup_of(record: Mapping[str, Any]) -> str:
    """Arguments and reported setups: only figures with the same ones are compared."""
    mine = {record["run_id"]: "{run_id}", record["node"]: "{node}"}
    words: list[str] = []
    for word in record["command"]:
        text = PurePosixPath(word).name if not words else word
        for own, name in mine.items():
            text = text.replace(own, name)
        words.append(text)
    setups = [one_line(text, 80) for name, text in sorted(record["fingerprints"].items()) if name.endswith(SETUP)]
    digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8]
    return " ".join([*setups[:8], digest])


def versions_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Software and firmware versions in a record: the node's in facts, the stage's in others."""
    found_versions = {}
    if record["stage"] == FACTS:
        paths = {kind: version.path for kind, version in KINDS.items()}
    else:
        paths = {name: name for name in SOFTWARE}
    for name, path in paths.items():
        found = sorted(set(environment.texts(record["environment"], path)))
        if found:
            found_versions[name] = one_line(", ".join(found), MAX_WORD)
    if record["image"]:
        found_versions["image"] = one_line(record["image"], MAX_WORD)
    return found_versions


def facts_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The machine and its GPUs, from facts of unverified form. ``kind`` is the SKU, or the models."""
    reported = record["environment"]
    identity = reported.get("identity") if isinstance(reported.get("identity"), dict) else {}
    accelerator = reported.get("accelerator") if isinstance(reported.get("accelerator"), dict) else {}
    listed = reported.get("gpus") if isinstance(reported.get("gpus"), list) else []
    gpus = [_gpu(position, gpu) for position, gpu in enumerate(listed[:MAX_GPUS]) if isinstance(gpu, dict)]
    models = [gpu["model"] for gpu in gpus if gpu["model"]]
    sku = sku_catalogue.of_models(models)
    kind = sku.name if sku else ", ".join(sorted(set(models)))[:MAX_WORD]
    if accelerator.get("vendor") == sku_catalogue.CPU and not models:
        kind = sku_catalogue.CPU
    return {
        "machine_id": _word(identity.get("machine_id")),
        "serial": _word(identity.get("serial")),
        "kind": kind or None,
        "gpu_count": _count(record),
        "gpus": gpus,
    }


def _count(record: Mapping[str, Any]) -> int | None:
    counts = {m["value"] for m in record["metrics"] if m["name"] == "gpu_count" and m["scope"] == "node"}
    value = counts.pop() if len(counts) == 1 else None
    return int(value) if value is not None and 0 <= value < 10_000 else None


def _gpu(position: int, gpu: Mapping[str, Any]) -> dict[str, Any]:
    index = gpu.get("index")
    return {
        "index": index if type(index) is int and 0 <= index < 10_000 else position,
        "model": _word(gpu.get("model") or gpu.get("name")),
        "serial": _word(gpu.get("serial")),
        "uuid": _word(gpu.get("uuid")),
    }


def _word(value: Any) -> str | None:
    """A comparable identity; None for the placeholders that some manufacturers leave."""
    if not isinstance(value, str):
        return None
    word = one_line(value, MAX_WORD)
    return word if word and not is_useless(word.lower()) else None
