"""Checks of kind ``same``: what must be equal on all GPUs of a node, or on all nodes of a kind. Pure.

The majority is right: more than half of those that reported. Where two differ, or no value has a majority, something
is wrong and nobody can say what: all are named, and a required check is then missing (the node INCOMPLETE) instead of
failed. Taking away one node's value never makes that node PASS, since a value that is missing is missing evidence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import some_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.checks import (
    UNFINISHED,
    Entry,
    Subject,
    entry_of,
    not_applicable,
    not_ended,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Check
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.versions import part_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import environment

NOT_REPORTED = "not reported"

#: What nodes must share to be compared: their SKU, then the values of the check's group_by.
Group = tuple[str, ...]


@dataclass
class Agreement:
    """The entries of all fleet checks: those of the fleet, and by node and check those that count for a node."""

    fleet: list[Entry] = field(default_factory=list)
    nodes: dict[str, dict[str, list[Entry]]] = field(default_factory=lambda: defaultdict(dict))

    def of(self, node: str, check: Check) -> list[Entry]:
        return self.nodes.get(node, {}).get(check.name, [])


@dataclass(frozen=True)
class _Said:
    """What one node said: now, and in attempts before."""

    node: str
    value: str
    earlier: tuple[str, ...] = ()


def between_nodes(
    subjects: Mapping[str, Subject], stages: Mapping[str, Sequence[str]], checks: Iterable[Check]
) -> Agreement:
    """The Agreement of the nodes; ``stages`` are those that each was asked to run. The order of nodes is irrelevant."""
    agreement = Agreement()
    for check in checks:
        if check.kind == "same" and check.peers == "fleet":
            asked = [subjects[name] for name in sorted(subjects) if check.stage in stages[name]]
            _hold(check, asked, agreement)
    return agreement


def _hold(check: Check, subjects: Iterable[Subject], agreement: Agreement) -> None:
    groups: dict[Group, list[_Said]] = defaultdict(list)
    for subject in subjects:
        found = _said(check, subject)
        if isinstance(found, dict):
            agreement.nodes[subject.name][check.name] = [found]
        else:
            group, said = found
            groups[group].append(said)
    for group in sorted(groups):
        _compare(check, group, groups[group], agreement)


def _said(check: Check, subject: Subject) -> Entry | tuple[Group, _Said]:
    """The node's value and group, or the entry that says why it has none."""
    outside = not_applicable(check, subject)
    if outside is not None:
        verdict, reason = outside
        return entry_of(check, verdict, "node", reason=reason)
    record = subject.records.get(check.stage)
    reason = not_ended(check.stage, record)
    if record is None or reason:
        return entry_of(check, "missing", "node", reason=reason)
    value = _value(check, record)
    if value is None:
        return entry_of(check, "missing", "node", reason=f"{check.stage} reported no fingerprint {check.metric}")
    group = [subject.kind]
    for path in check.group_by:
        found = ", ".join(sorted(set(environment.texts(record["environment"], path))))
        if not found and check.path is None:
            return entry_of(check, "missing", "node", reason=f"{check.stage} does not say its {path}")
        group.append(found or NOT_REPORTED)
    attempts = (_value(check, one) for one in record["attempts"] if one["state"] not in UNFINISHED)
    earlier = tuple(one for one in attempts if one is not None) if check.required and not check.retry else ()
    return tuple(group), _Said(subject.name, value, earlier)


def _value(check: Check, record: Mapping[str, Any]) -> str | None:
    """A fingerprint; or what stands at the path, where nothing is a value of its own (a device that is gone)."""
    if check.path is None:
        return record["fingerprints"].get(check.metric)
    return ", ".join(sorted(set(environment.texts(record["environment"], check.path)))) or NOT_REPORTED


def _compare(check: Check, group: Group, said: Sequence[_Said], agreement: Agreement) -> None:
    right = majority([one.value for one in said])
    nodes = agreement.nodes
    if len(said) == 1:
        reason = "the only node of its kind: nothing to compare with"
        nodes[said[0].node][check.name] = [entry_of(check, "skipped", "node", reason=reason, value=said[0].value)]
        return
    kind = " ".join(group)
    if right is None:
        values = Counter(one.value for one in said)
        verdict = "missing" if check.required else "fail"
        told = "; ".join(
            f"{value} on {some_of(one.node for one in said if one.value == value)}" for value in sorted(values)
        )
        reason = f"{check.metric} differs and no value has a majority of {len(said)} nodes: {told}"
        for one in said:
            nodes[one.node][check.name] = [entry_of(check, verdict, "node", reason=reason, value=one.value)]
        agreement.fleet.append(entry_of(check, verdict, "fleet", reason=f"{kind}: {reason}"))
        return
    if right == NOT_REPORTED and all(one.value == right for one in said):
        for one in said:
            nodes[one.node][check.name] = [entry_of(check, "skipped", "node", reason="no node of its kind reports it")]
        return
    wrong = []
    for one in said:
        entries = list(_of_node(check, one, right, sum(other.value == right for other in said), len(said)))
        nodes[one.node][check.name] = entries
        if entries[0]["verdict"] != "pass":
            wrong.append(one)
    if wrong:
        reason = f"{kind}: {check.metric} of {some_of(one.node for one in wrong)} is not that of the others: {right}"
    else:
        reason = f"{kind}: the same on {len(said)} nodes"
    agreement.fleet.append(entry_of(check, "fail" if wrong else "pass", "fleet", reason=reason, value=right))


def _of_node(check: Check, said: _Said, right: str, count: int, of: int) -> Iterable[Entry]:
    expected = f"{right}, as on {count} of {of} nodes of its kind"
    if said.value != right:
        reason = f"{check.metric} is {said.value}, not {right} as on {count} of {of} nodes of its kind"
        yield entry_of(check, "fail", "node", reason=reason, expected=expected, value=said.value)
        return
    other = next((value for value in said.earlier if value != right), None)
    if other is not None:
        reason = f"{check.metric} was {other} in an earlier attempt; such a result is never retried into PASS"
        yield entry_of(check, "fail", "node", reason=reason, expected=expected, value=other)
        return
    reason = f"{check.metric} is that of {count} of {of} nodes of its kind"
    yield entry_of(check, "pass", "node", reason=reason, expected=expected, value=said.value)


def within_node(check: Check, subject: Subject) -> list[Entry]:
    """The entries of a check that holds the parts of one node against each other."""
    outside = not_applicable(check, subject)
    if outside is not None:
        verdict, reason = outside
        return [entry_of(check, verdict, "node", reason=reason)]
    record = subject.records.get(check.stage)
    reason = not_ended(check.stage, record)
    if record is None or reason:
        return [entry_of(check, "missing", "node", reason=reason)]
    pairs = environment.members(record["environment"], check.path or "")
    if not pairs:
        return [entry_of(check, "missing", "node", reason=f"{check.stage} does not tell {check.metric}")]
    values = [value for _, value in pairs]
    if len(set(values)) == 1:
        return [entry_of(check, "pass", "node", reason=f"{check.metric} is {values[0]} on all {len(values)}")]
    right = majority(values)
    if right is None:
        told = some_of(f"{part_of(member)} {value}" for member, value in pairs)
        verdict = "missing" if check.required else "fail"
        reason = f"{check.metric} differs and no value has a majority: {told}"
        return [entry_of(check, verdict, "node", reason=reason)]
    expected = f"{right}, as on {values.count(right)} of {len(values)}"
    return [
        entry_of(
            check, "fail", part_of(member), expected=expected, value=value,
            reason=f"{check.metric} is {value}, not {right} as on {values.count(right)} of {len(values)}",
        )
        for member, value in pairs
        if value != right
    ]  # fmt: skip


def majority(values: Sequence[str]) -> str | None:
    """The value of more than half."""
    if not values:
        return None
    value, count = Counter(values).most_common(1)[0]
    return value if 2 * count > len(values) else None
