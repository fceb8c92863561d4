"""Make the JSON line that the history keeps of each node of a run, from run.json and report.json. Pure. Records reach a
report only after ``accept_record``; free text is bounded here."""

from collections.abc import Mapping
from typing import Any

from ..core.escape import one_line
from ..judge import sku_catalogue
from ..judge.check import FACTS
from ..judge.checks_without_criteria import renumbered
from ..judge.identity import is_useless
from ..judge.stage_end import REFUSED
from ..judge.subjects import count_of

MAX_GPUS = 64
MAX_CHECKS = 64
MAX_WORD = 128


def line_of(name: str, expected: Mapping[str, Any], judged: Mapping[str, Any] | None) -> dict[str, Any]:
    """The history's line for a node, from its part of run.json and its unpacked entry in the report (None: no
    report)."""
    line = {
        "node": name,
        "stages": [*expected["stages"], *expected.get("gang_stages", ())],
        "sku": one_line(expected["sku"], MAX_WORD),
        "labels": _shorten_texts(expected.get("labels") or {}),
        "gpus": [],
        "refused": [],
        "records": [],
    }
    return line if judged is None else {**line, **_of_report(judged)}


def _of_report(node: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a node's line that comes from its report: verdict, failed or missing required checks, stages that
    number GPUs otherwise, identity, refused and accepted records."""
    failed = [
        {key: one_line(str(check[key]), MAX_WORD) for key in ("name", "part", "verdict")}
        for check in node["checks"]
        if check["severity"] == "required" and check["verdict"] in ("fail", "missing")
    ]
    return {
        "verdict": node["verdict"], "class": one_line(node.get("class") or "", MAX_WORD) or None,
        "flaky": node["flaky"], "renumbered": sorted(renumbered(node["checks"])),
        "failed": sorted(failed, key=lambda check: check["verdict"])[:MAX_CHECKS],
        "versions": _shorten_texts(node.get("versions", {})),
        "refused": [
            {"stage": problem["stage"], "reason": problem["reason"].removeprefix(REFUSED)}
            for problem in node["problems"]
            if problem["stage"] and problem["reason"].startswith(REFUSED)
        ],
        "records": [_record_line(stage, node) for stage in node["stages"] if stage["state"] != "missing"],
        **_identity(node),
    }  # fmt: skip


def _record_line(stage: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "stage": stage["name"],
        "workload": stage.get("workload"),
        "state": stage["state"],
        "retried": stage["flaky"],
        "setup": " ".join(stage.get("setup", {}).values()),
        "versions": _shorten_texts(stage.get("versions", {})),
        "metrics": [metric for metric in node["metrics"].get(stage["name"], ()) if metric["value"] is not None],
    }


def _shorten_texts(texts: Mapping[str, Any]) -> dict[str, str]:
    return {name: one_line(text, MAX_WORD) for name, text in texts.items()}


def _identity(node: Mapping[str, Any]) -> dict[str, Any]:
    """Identity of the machine and its GPUs. ``kind``: the SKU of the catalogue, or the GPU models."""
    identity = node["identity"]
    gpus = [
        {"index": gpu["index"], **{key: _word(gpu.get(key)) for key in ("model", "serial", "uuid")}}
        for gpu in identity.get("gpus", ())[:MAX_GPUS]
    ]
    models = sorted({gpu["model"] for gpu in gpus if gpu["model"]})
    kind = node.get("catalogue_sku") or ", ".join(models)[:MAX_WORD]
    if node["accelerator"] == sku_catalogue.CPU and not models:
        kind = sku_catalogue.CPU
    count = count_of(node["metrics"].get(FACTS, ()), "gpu_count")
    return {
        **{key: _word(identity.get(key)) for key in ("machine_id", "serial")}, "kind": kind or None, "gpus": gpus,
        "gpu_count": int(count) if count is not None and 0 <= count < 10_000 else None,
    }  # fmt: skip


def _word(text: Any) -> str | None:
    """A serial, UUID or model as one short line; None for fillers that some manufacturers leave."""
    word = one_line(text, MAX_WORD) if isinstance(text, str) else ""
    return word if word and not is_useless(word.lower()) else None
