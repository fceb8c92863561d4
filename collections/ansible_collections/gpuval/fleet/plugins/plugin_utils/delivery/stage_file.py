"""The file of one stage on one node: a JSON header, the output of the vendor's tool, the log.

The header has the size of each part in bytes, so that no line of a log can pose as the start of another part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ...module_utils.engines import engine_types
from ..records.documents import Record
from ..records.properties import properties_of

SCHEMA = "gpuval.delivered_stage/1"
_RECORD = ("workload", "attempt", "state", "message", "started_at", "updated_at", "finished_at", "duration_seconds",
           "command", "image", "exit_code", "signal", "metrics", "fingerprints", "environment")  # fmt: skip
#: Fields of the header that gpuval writes; nodes have no influence on them.
OWN_FIELDS = ("schema", "stage", "verdict", "state")
#: Versions of the node and the properties of its facts that tell them (records/properties.py).
SOFTWARE = {
    "os": "os_name", "kernel": "kernel", **{name: name for name in engine_types()}, "driver": "driver",
    "runtime": "runtime", "firmware": "vbios",
}  # fmt: skip
_EARLIER = ("attempt", "state", "message", "started_at", "finished_at", "duration_seconds", "exit_code", "signal")
_CHECK = ("name", "metric", "severity", "verdict", "part", "value", "unit", "expected", "reason")
#: They name a machine within its own network and mean nothing to a customer.
INTERNAL = frozenset({"hostname", "machine_id", "boot_id"})


def header(
    run: Mapping[str, Any],
    node: Mapping[str, Any],
    stage: Mapping[str, Any],
    record: Mapping[str, Any] | None,
    facts: Record | None,
) -> dict[str, Any]:
    """The header, with names and addresses not converted yet."""
    fields_known = record or {}
    fields = {key: fields_known[key] if key in fields_known else stage.get(key) for key in _RECORD}
    return {
        "schema": SCHEMA,
        "run_id": run["run_id"],
        "profile": run["profile"],
        "node": node["name"],
        "stage": stage["name"],
        "verdict": node["verdict"],
        "class": node.get("class"),
        "sku": node.get("catalogue_sku") or node["sku"],
        "accelerator": node["accelerator"],
        "gpus": node["identity"].get("gpus", []),
        "software": _software(facts),
        **fields,
        "metrics": fields_known.get("metrics", []),
        "environment": without_internal(fields_known.get("environment") or {}),
        "earlier_attempts": [{key: one.get(key) for key in _EARLIER} for one in fields_known.get("attempts", [])],
        "checks": [
            {key: check[key] for key in _CHECK}
            for check in node["checks"]
            if check["stage"] == stage["name"] or not check["stage"]
        ],
    }


def without_internal(value: Any) -> Any:
    """Facts without the fields of INTERNAL."""
    if isinstance(value, Mapping):
        return {key: without_internal(item) for key, item in value.items() if key not in INTERNAL}
    if isinstance(value, list):
        return [without_internal(item) for item in value]
    return value


def _software(facts: Record | None) -> dict[str, str]:
    """Versions that the node runs, from its facts."""
    reported = properties_of(facts) if facts else {}
    return {name: reported[known] for name, known in SOFTWARE.items() if known in reported}


def pieces(head: Mapping[str, Any], parts: Iterable[tuple[str, str]]) -> list[bytes]:
    """The whole file; ``parts`` are the title and the text of what follows the header, each a section of its own."""
    texts = [(title, text if not text or text.endswith("\n") else f"{text}\n") for title, text in parts]
    encoded = [(title, text.encode("utf-8", "replace")) for title, text in texts]
    sections = [{"name": title, "bytes": len(data)} for title, data in encoded]
    out = [json.dumps({**head, "sections": sections}, indent=1, ensure_ascii=False).encode("utf-8", "replace"), b"\n"]
    for title, data in encoded:
        out += [f"\n===== {title} =====\n".encode(), data]
    return out
