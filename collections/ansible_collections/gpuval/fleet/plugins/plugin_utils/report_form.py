"""Whether a report follows its schema, also when it holds half a million checks.

Checks are most of a report: plain ones are seen by a direct test that takes its words from the schema, and only the
others by the schema's own validator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils import schemas

_CHECK = schemas.validator("report").schema["$defs"]["check"]
_KEYS = frozenset(_CHECK["required"])
_WORDS = {name: frozenset(rule["enum"]) for name, rule in _CHECK["properties"].items() if "enum" in rule}
_TEXTS = tuple(name for name, rule in _CHECK["properties"].items() if rule.get("type") == "string")


def validate(report: Any, *, what: str) -> None:
    """Raises schemas.Invalid."""
    schemas.validate("report", _without_plain_checks(report), what=what)


def _without_plain_checks(report: Any) -> Any:
    nodes = report.get("nodes") if isinstance(report, Mapping) else None
    if not isinstance(nodes, list):
        return report
    return {**report, "nodes": [_lighter(node) for node in nodes]}


def _lighter(node: Any) -> Any:
    checks = node.get("checks") if isinstance(node, Mapping) else None
    if isinstance(checks, list) and all(map(is_plain, checks)):
        return {**node, "checks": []}
    return node


def is_plain(check: Any) -> bool:
    """Whether a check follows the schema; False only sends it to the schema's own validator."""
    if type(check) is not dict or check.keys() != _KEYS:
        return False
    if any(type(check[name]) is not str for name in _TEXTS):
        return False
    if any(type(check[name]) is not str or check[name] not in words for name, words in _WORDS.items()):
        return False
    value, metric = check["value"], check["metric"]
    plain = value is None or type(value) in (str, int) or (type(value) is float and math.isfinite(value))
    return plain and (metric is None or type(metric) is str)
