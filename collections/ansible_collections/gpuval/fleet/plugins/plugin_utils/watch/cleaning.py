"""Summarizes `make clean` from each node's answer: lines for the console, and which nodes are not clean. No I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..core.escape import one_line
from ..core.text import natural_order, some_of, with_remedy
from ..records import launch_errors

#: States of a node after a clean.
CLEAN = "clean"
LEFT = "left"  # the node answered, but something could not be removed
NOT_REACHED = "not reached"
NOT_IN_INVENTORY = "not in the inventory"
LEFT_OUT = "left out by --limit"
NOTHING = "not reached, and nothing is there"
#: States that the operator must act on. A node left out by --limit is named, but is no fault.
OPEN = (LEFT, NOT_REACHED, NOT_IN_INVENTORY)

#: {list in a node's answer to a clean: (word for one entry, for several)}
COUNTED = {
    "removed": ("path", "paths"),
    "killed": ("process or container", "processes and containers"),
    "images": ("image", "images"),
    "restored": ("network change reverted", "network changes reverted"),
}
KEPT = "kept"
MAX_LINES, MAX_NAMED = 40, 3
_AGAIN = "then clean again with --limit {node}"


@dataclass(frozen=True)
class CleanSummary:
    """The result of a clean. `lines` for the console, `counts` of nodes by state, `open`: nodes that are not clean."""

    lines: list[str]
    counts: dict[str, int]
    open: list[str]


def answered(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a clean reached on a node (state, message, remedy, what was removed), from the answer of step clean_node."""
    lists = {name: list(answer[name]) for name in (*COUNTED, KEPT) if isinstance(answer.get(name), list)}
    if not answer.get("failed"):
        return {"state": CLEAN, "message": "", **lists}
    detail = f"{answer.get('msg', 'the clean failed')} {answer.get('module_stderr') or ''}".strip()
    failure = launch_errors.classify("", detail)
    message = launch_errors.plain(detail)
    if failure.name == "not_started":  # the failure has no class, only a message
        return {"state": LEFT, "message": message, **lists}
    state = NOT_REACHED if failure.name in launch_errors.BEFORE_LOGIN else LEFT
    return {"state": state, "class": failure.name, "message": message, "remedy": f"{failure.steps}, {_AGAIN}", **lists}


def unreached(message: str, name: str = "", remedy: str = "") -> dict[str, Any]:
    """The outcome of a clean for an unreachable node. `name`: failure class that a probe found, if any; `remedy`: the
    probe's own, in place of that of the class."""
    contact = launch_errors.contact(message)
    failure = launch_errors.NAMED.get(name or contact["class"])
    steps = remedy or (failure.steps if failure else "")
    fix = f"{steps}, {_AGAIN}" if steps else _AGAIN
    return {"state": NOT_REACHED, "class": name or contact["class"], "message": contact["message"], "remedy": fix}


def may_hold(launch: Mapping[str, Any], cleaned_at: str | None) -> bool:
    """Whether a run may have left files or processes on a node. `launch`: the run's last launch there; `cleaned_at`:
    time of the last clean (RFC 3339)."""
    if not launch or (cleaned_at is not None and str(launch.get("at", "")) <= cleaned_at):
        return False
    if launch.get("directory") or launch.get("attempt", 1) > 1:
        return True
    if launch.get("state") == "refused":  # the node refused before the launch wrote anything
        return False
    return launch_errors.described(launch)["class"] not in launch_errors.NOTHING_WRITTEN


def spare(outcomes: Mapping[str, dict[str, Any]], holders: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The outcomes of a clean by node. A node that was not reached, or cannot run the clean, is only a fault if a run
    may have left something there (`holders`)."""
    holding = set(holders)
    return {
        name: {"state": NOTHING, "message": "no run has left anything on it"}
        if name not in holding
        and (outcome["state"] == NOT_REACHED or outcome.get("class") in launch_errors.NOTHING_WRITTEN)
        else outcome
        for name, outcome in outcomes.items()
    }


def absent(expected: Iterable[str], played: Iterable[str], inventory: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Outcomes for the run's nodes that are not in this play: excluded by --limit, or removed from the inventory."""
    hosts = set(inventory)
    outcomes = {}
    for name in set(expected) - set(played):
        if name in hosts:
            outcomes[name] = {"state": LEFT_OUT, "message": "what the run left on the node stays"}
        else:
            outcomes[name] = {
                "state": NOT_IN_INVENTORY,
                "message": "the node is not in the inventory any more, so what the run left on it stays",
                "remedy": f"add the node to the inventory again, {_AGAIN}",
            }
    return outcomes


def summarize(
    run_ids: Sequence[str],
    outcomes: Mapping[str, Mapping[str, Any]],
    *,
    trial: bool = False,
    goes_on: Mapping[str, tuple[Sequence[str], str]] = MappingProxyType({}),
) -> CleanSummary:
    """Summarize a clean of these runs, or of all runs on the nodes if none is named. `outcomes`: by node; `trial`:
    check mode, nothing was removed; `goes_on`: {other run at work there: (its nodes, command that ends it)}."""
    names = sorted(outcomes, key=natural_order)
    counts = Counter(outcomes[name]["state"] for name in names)
    still = [name for name in names if outcomes[name]["state"] in OPEN]
    tried = [name for name in names if outcomes[name]["state"] not in (LEFT_OUT, NOTHING)]
    subject = f"run{'s' * (len(run_ids) > 1)} {some_of(run_ids, MAX_NAMED)}" if run_ids else "all runs"
    if trial:
        head = f"CLEAN (check mode, nothing was removed): {subject}"
    elif still:
        head = f"CLEAN: {subject}: {len(tried) - len(still)} of {len(tried)} nodes are clean, {len(still)} are not"
    elif goes_on:
        head = f"CLEAN: {subject}: removed from all of {len(tried)} nodes"
    else:
        head = f"CLEAN: {subject}: all of {len(tried)} nodes are clean"
    removed = [
        f"{count} {words[count > 1]}"
        for name, words in COUNTED.items()
        if (count := sum(len(outcome.get(name, ())) for outcome in outcomes.values()))
    ]
    lines = [head, f"- {'To be removed' if trial else 'Removed'}: {', '.join(removed) or 'nothing was there'}"]
    exempt = [f"{name}: {entry}" for name in names for entry in outcomes[name].get(KEPT, ())]
    if exempt:
        lines.append(f"- Left alone on purpose: {some_of(exempt, MAX_NAMED, '; ')}")
    for run_id, (nodes, command) in goes_on.items():
        lines.append(f"- Run {run_id} goes on, on {some_of(nodes, MAX_NAMED)}: to end it, {command}")
    listed = [*still, *(name for name in names if outcomes[name]["state"] in (LEFT_OUT, NOTHING))]
    lines += [_outcome_line(name, outcomes[name]) for name in listed[:MAX_LINES]]
    if len(listed) > MAX_LINES:
        lines.append(f"- and {len(listed) - MAX_LINES} more: {', '.join(listed[MAX_LINES:])}")
    return CleanSummary([one_line(line, 2000) for line in lines], dict(counts), still)


def _outcome_line(name: str, outcome: Mapping[str, Any]) -> str:
    word = f" ({outcome['class']})" if outcome.get("class") else ""
    line = f"- {name} {outcome['state']}{word}: {one_line(outcome['message'], 400)}"
    line = with_remedy(line, one_line(outcome.get("remedy") or "", 600))
    return line.replace("{node}", name)
