"""What Slurm says of its nodes: descriptions, whether a job can be placed on one, hosts of an inventory. Pure."""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.escape import one_line
from ..inventory.node_list import InventoryFleet, ListedNode, choose, group_name, listed_variables, sku_name
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
#: Variables of every host of Slurm: Ansible itself runs nothing on these nodes.
PLACED = {"ansible_connection": "local", "gpuval_placement": "slurm", "gpuval_runtime": "host"}
#: The host variable that holds Slurm's description of the node.
VARIABLE = "slurm_node"


def from_text(text: str) -> list[dict[str, Any]]:
    """Descriptions of nodes from the output of `scontrol show node -o`, whose format, unlike JSON, never changed."""
    descriptions = []
    for line in text.splitlines():
        reason = _REASON.search(line)
        text_rest = line[: reason.start()] + line[reason.end() :] if reason else line
        values = fields(text_rest)
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
        description |= {
            "partitions": _words(values.get("Partitions")),
            "features": _words(values.get("ActiveFeatures")),
        }
        descriptions.append({**description, "state": list(dict.fromkeys(filter(None, [*words, *marks])))})
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
    """Type and number of a node's GPUs by its gres; of several types the most frequent, empty without GPUs."""
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
        return class_finding(
            name, "slurm_node_missing", f"{states_text}: Slurm runs no slurmd on it, and no job of this kind"
        )
    if not states or any(state in DOWN for state in states):
        return class_finding(name, "slurm_node_down", reason)
    if any(state in DRAINED for state in states):
        return class_finding(name, "slurm_drained", reason)
    if not reservation and any(state in ("MAINT", "MAINTENANCE", "RESERVED") for state in states):
        return class_finding(name, "slurm_reserved", f"{states_text}: it is in a reservation")
    return ProbeFinding(REACHABLE, "")


def fleet(
    descriptions: Iterable[Mapping[str, Any]],
    expected: Sequence[ListedNode] | None = None,
    *,
    selected: frozenset[str] | set[str] | None = None,
    skus: Mapping[str, Mapping[str, str]] | None = None,
) -> InventoryFleet:
    """The hosts of an inventory, in the order of the list `expected`, or by name without a list."""
    by_name = {str(description["name"]): description for description in descriptions}
    choice = choose(by_name, expected, selected)
    most: dict[str, int] = {}
    for name in choice.names:
        if name in by_name:  # compare with similar nodes, to notice a lost GPU
            model, count = gpus(by_name[name])
            most[model] = max(most.get(model, 0), count)
    hosts = []
    group_variables: dict[str, dict[str, Any]] = {}
    for name in choice.names:
        description, node = by_name.get(name), choice.listed.get(name)
        variables = listed_variables(node)
        groups = list(node.groups) if node else []
        if description is None:
            variables[VARIABLE] = {"exists": False, "reason": f"Slurm has no node {name}"}
        else:
            variables[VARIABLE] = {"exists": True, **description}
            groups += [group_name("partition", partition) for partition in description["partitions"]]
            groups += [group_name("feature", feature) for feature in description["features"]]
            model, count = gpus(description)
            sku = sku_of(description, skus or {})
            if sku != "auto" and "gpuval_sku" not in variables:
                groups.append(group_name("sku", sku))
                group_variables.setdefault(groups[-1], {})["gpuval_sku"] = sku
            if count:
                groups.append(group_name("gres", model or "gpu"))
                group_variables.setdefault(groups[-1], {})["gpuval_gpu_count"] = most[model]
        hosts.append(ListedNode(name, tuple(dict.fromkeys(groups)), {**variables, **PLACED}))
    return InventoryFleet(tuple(hosts), group_variables, choice.missing, choice.beyond)


def sku_of(description: Mapping[str, Any], rules: Mapping[str, Mapping[str, str]]) -> str:
    """The SKU of a node: the first of `rules` of which all patterns match, else made from the type of its gres."""
    model, count = gpus(description)
    values = {"gres": [description["gres"]], "type": [model] if count else []}
    values |= {"partition": description["partitions"], "feature": description["features"]}
    for sku, patterns in rules.items():
        lowered = {key: [value.lower() for value in values.get(key, [])] for key in patterns}
        if patterns and all(fnmatch.filter(lowered[key], pattern.lower()) for key, pattern in patterns.items()):
            return sku
    return sku_name(model)
