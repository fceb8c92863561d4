"""Groups nodes that are not accepted by reason and remedy, so that each is shown once. Pure functions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.escape import one_line
from ..core.text import some_of, with_remedy
from ..judge.actions import ACTIONS
from ..judge.entries import headline
from ..judge.identity import gpu_of

#: Maximum characters of a remedy: a command in it must not be cut.
MAX_REMEDY = 1200
MAX_NAMES = 8
_NODE = "{node}"


@dataclass
class SharedProblem:
    """Nodes with the same verdict for the same reason. In their texts ``{node}`` stands for the name."""

    verdict: str
    where: str
    reason: str
    part: str
    remedy: str
    nodes: list[str] = field(default_factory=list)

    def named(self, text: str, run_id: str) -> str:
        """A text of the problem with node names in place of ``{node}``. For several nodes ``--limit`` names them all,
        or the file that lists them."""
        if len(self.nodes) == 1:
            return text.replace(_NODE, self.nodes[0])
        few = len(self.nodes) <= MAX_NAMES
        limit = ",".join(self.nodes) if few else f"@{folder_of(run_id)}/failed_nodes.txt"
        return text.replace(f"--limit {_NODE}", f"--limit {limit}").replace(_NODE, "NODE")


def folder_of(run_id: str) -> str:
    """A placeholder for the path of a run's results folder, for texts made without it; `final_block` replaces it."""
    return f"results/INVENTORY/{run_id}"


def problems(nodes: Iterable[Mapping[str, Any]]) -> list[SharedProblem]:
    by_text: dict[tuple[str, ...], SharedProblem] = {}
    for node in nodes:
        name, texts = node["name"], ("", "no required check was passed", "", "")
        if check := headline(node):
            where, part = check["stage"] or check["name"], part_of(node, check)
            texts = (where, without(name, check["reason"]), part, without(name, check["remedy"]))
        by_text.setdefault((node["verdict"], *texts), SharedProblem(node["verdict"], *texts)).nodes.append(name)
    return list(by_text.values())


def lines(listed: Sequence[SharedProblem], run_id: str) -> list[str]:
    """A line for each problem: ``node-042 FAIL training: <what> (gpu:3, serial ..., 0000:9d:00.0): <remedy>``."""
    remedies: dict[str, str] = {}
    texts = []
    for problem in listed:
        where, part = f" {problem.where}" if problem.where else "", f" ({problem.part})" if problem.part else ""
        reason = one_line(problem.named(problem.reason, run_id), 320)
        remedy = one_line(problem.named(problem.remedy, run_id), MAX_REMEDY)
        if problem.remedy and (first := remedies.setdefault(problem.remedy, problem.nodes[0])) != problem.nodes[0]:
            remedy = f"remedy as for {first}"
        line = f"{some_of(problem.nodes, MAX_NAMES)} {problem.verdict}{where}: {reason}{part}"
        texts.append(with_remedy(line, remedy))
    return texts


def action_text(node: Mapping[str, Any]) -> str:
    """What to do with a node, as text: the action, its parts with serial and slot, and the reason. Empty for PASS."""
    if not (action := node.get("action")):
        return ""
    parts = "; ".join(part_text(node, part) for part in action["parts"])
    again = f", also found in {some_of(action['earlier_runs'], 2)}" if action["earlier_runs"] else ""
    return f"{action['name']}{f' {parts}' if parts else ''} ({action['class']}{again})"


def actions_line(nodes: Iterable[Mapping[str, Any]]) -> str:
    """All actions: ``Actions: replace_gpu node-042 (gpu:3, serial ..., 0000:9d:00.0); retest node-007``, or empty."""
    named: dict[str, list[str]] = {}
    for node in nodes:
        if node.get("action"):
            parts = "; ".join(part_text(node, part) for part in node["action"]["parts"])
            named.setdefault(node["action"]["name"], []).append(f"{node['name']} ({parts})" if parts else node["name"])
    graver = sorted(named, key=ACTIONS.index, reverse=True)
    return f"Actions: {'; '.join(f'{name} {some_of(named[name], MAX_NAMES)}' for name in graver)}" if graver else ""


def without(name: str, text: str) -> str:
    """The text with ``{node}`` in place of the node ``name``."""
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", _NODE, text) if name in text else text


def part_of(node: Mapping[str, Any], check: Mapping[str, Any]) -> str:
    """The part of a node that a check is about, as text; empty for the whole node. If the check names another part as
    its cause: that part, and where the fault shows."""
    cause = check.get("cause")
    part = part_text(node, check["part"])
    return "; ".join(filter(None, [part_text(node, cause), f"seen in {part}" if part else ""])) if cause else part


def part_text(node: Mapping[str, Any], part: str) -> str:
    """A part of a node, such as ``gpu:3``, with serial, PCI address and slot as text; empty for the whole node."""
    gpu = gpu_of(node["identity"], part)
    serial, slot = (f"{key} {gpu[key]}" if key in gpu else "" for key in ("serial", "slot"))
    return "" if part == "node" else ", ".join(filter(None, (part, serial, gpu.get("pci"), slot)))
