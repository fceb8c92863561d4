"""Slurm's nodes: their descriptions, whether a job can be placed on them, inventory hosts made of them. Pure."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from ..core.escape import one_line
from ..inventory.node_list import ClusterHosts, group_name, sku_by_rules
from ..ssh.findings import REACHABLE, ProbeFinding, class_finding

_KEY = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z/:_]*)=")
#: The node's Reason, the last field; in brackets the user who set it and the time, if Slurm knows them.
_REASON = re.compile(r"\sReason=(?:(.*?)\s\[([^@\[\]]*)@(\d[^\[\]]*)\]|(.*))")
#: Characters that scontrol appends to a node's state, and their meaning.
_MARKS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "%": "POWERING_DOWN", "$": "MAINTENANCE"}
#: GPUs in a gres, with optional type and count; a type may begin with digits or be a number: 1g.10gb, 4090.
_GRES = re.compile(r"(?:^|,)gpu(?::([^:(,]+))?:(\d{1,6})(?=[(,]|$)")
_MESSAGE_CHARACTERS = 300
_TEXTS = {"name": "NodeName", "address": "NodeAddr", "gres": "Gres", "version": "Version"}
#: States in which slurmd does not work, and flags of a node that gets no job.
DOWN = ("DOWN", "NOT_RESPONDING", "FAIL", "FAILING", "FUTURE", "UNKNOWN", "ERROR", "INVALID_REG")
DRAINED = ("DRAIN", "DRAINED", "DRAINING")


def from_text(text: str) -> list[dict[str, Any]]:
    """Descriptions of nodes from the output of `scontrol show node -o`, whose format, unlike JSON, never changed."""
    descriptions = []
    for line in text.splitlines():
        reason = _REASON.search(line)
        values = fields(line[: reason.start()] + line[reason.end() :] if reason else line)
        if not values.get("NodeName"):
            continue
        words = [re.sub(r"[^A-Z_]", "", word.upper()) for word in re.split(r"[+\s]", values.get("State", ""))]
        marks = [flag for mark, flag in _MARKS.items() if mark in values.get("State", "")]
        texts = {key: values.get(name) for key, name in _TEXTS.items()}
        texts |= dict.fromkeys(("reason", "reason_by", "reason_at"))
        if reason:
            texts |= {"reason": reason[1] or reason[4], "reason_by": reason[2], "reason_at": reason[3]}
        description: dict[str, Any] = {
            key: one_line("" if text in (None, "(null)", "N/A") else text, _MESSAGE_CHARACTERS)
            for key, text in texts.items()
        }
        lists = {"partitions": _words(values.get("Partitions")), "features": _words(values.get("ActiveFeatures"))}
        lists["state"] = list(dict.fromkeys(filter(None, [*words, *marks])))
        descriptions.append({**description, **lists})
    return descriptions


def fields(line: str) -> dict[str, str]:
    """`Key=Value` pairs of a line. Values may contain blanks; of a repeated key the first counts, since comments at the
    end of the line are free text."""
    keys = list(_KEY.finditer(line))
    ends = [key.start() for key in keys[1:]] + [len(line)]
    return {key[1]: line[key.end() : end].strip() for key, end in reversed([*zip(keys, ends)])}


def _words(value: str | None) -> list[str]:
    return [word.strip() for word in (value or "").split(",") if word.strip() and word.strip() != "(null)"]


def gpus(description: Mapping[str, Any]) -> tuple[str, int]:
    """Type and number of a node's GPUs by its gres; of several types the most frequent; ("", 0) without GPUs."""
    counts: dict[str, int] = {}
    for match in _GRES.finditer(description["gres"]):
        counts[match[1] or ""] = counts.get(match[1] or "", 0) + int(match[2])
    return max(counts.items(), key=lambda item: item[1], default=("", 0))


def finding(name: str, description: Mapping[str, Any] | None, *, reservation: str = "") -> ProbeFinding:
    """Whether a job can be placed on the node: `reachable`, or the failure class with Slurm's reason."""
    if description is None:
        return class_finding(name, "slurm_node_missing", f"Slurm has no node {name}")
    states = description["state"]
    states_text = "+".join(states) or "UNKNOWN"
    by, at = description["reason_by"], description["reason_at"]
    author = "".join(filter(None, [f" by {by}" if by else "", f" since {at}" if at else ""]))
    reason = f"{states_text}{author}: {description['reason'] or 'Slurm gives no reason'}"
    if "EXTERNAL" in states:
        text = f"{states_text}: Slurm runs no slurmd on it, and no job of this kind"
        return class_finding(name, "slurm_node_missing", text)
    if not states or any(state in DOWN for state in states):
        return class_finding(name, "slurm_node_down", reason)
    if any(state in DRAINED for state in states):
        return class_finding(name, "slurm_drained", reason)
    if not reservation and any(state in ("MAINT", "MAINTENANCE", "RESERVED") for state in states):
        return class_finding(name, "slurm_reserved", f"{states_text}: it is in a reservation")
    return ProbeFinding(REACHABLE, "")


class SlurmHosts(ClusterHosts):
    """How Slurm's nodes become inventory hosts. SKU rules have the keys `gres`, `type` (of GPUs), `partition` and
    `feature`."""

    TITLE = "Slurm"
    VARIABLE = "slurm_node"
    #: Ansible itself runs nothing on these nodes.
    PLACED: ClassVar = {"ansible_connection": "local", "gpuval_placement": "slurm", "gpuval_runtime": "host"}

    def sku_of(self, description: Mapping[str, Any]) -> str:
        model, count = gpus(description)
        values = {"gres": [description["gres"]], "type": [model] if count else []}
        values |= {"partition": description["partitions"], "feature": description["features"]}
        return sku_by_rules(self.rules, values, model)

    def groups_of(self, description: Mapping[str, Any]) -> list[str]:
        return [group_name(key, value) for key in ("partition", "feature") for value in description[f"{key}s"]]

    def kinds_of(
        self, described: Mapping[str, Mapping[str, Any]], _skus: Mapping[str, str]
    ) -> dict[str, tuple[str, int]]:
        counted = {name: gpus(description) for name, description in described.items()}
        return {name: (group_name("gres", model or "gpu"), count) for name, (model, count) in counted.items() if count}
