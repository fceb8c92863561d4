"""Kind ``same``: what must be equal on all GPUs of a node, or on all nodes of a kind.

The value of more than half of those that reported is right. Where two differ, or no value has a majority, something
is wrong and the evidence does not tell what: all are named, and a required check is missing (the node INCOMPLETE)
instead of failed. So it is for a minority of two nodes or more, and more than a third, that agree on another value:
faults of single nodes do not agree. Removing one node's value never makes that node PASS: it is missing evidence.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.text import some_of
from ...records import environment
from ...records.documents import UNFINISHED, Record
from ..check import Check, Subject
from ..entries import Entry, entry_of, no_record, not_applicable
from ..peer_groups import GroupKey
from ..peer_statistics import majority
from .base import CheckKind, JudgeContext, Target

NOT_REPORTED = "not reported"


@dataclass(frozen=True)
class _Reported:
    """The value that one node reported now, and those of earlier attempts."""

    node: str
    value: str
    earlier: tuple[str, ...] = ()


class Same(CheckKind):
    name = "same"
    compares = True

    def problem(self, check: Check) -> str | None:
        if check.peers == "node" and (check.path is None or check.path.count("[]") != 1):
            return "the parts of a node need a path with one list: gpus[].firmware_version"
        return None

    def describe(self, check: Check, target: Target) -> str:
        return "the same on all GPUs of the node" if check.peers == "node" else "the same on all nodes of its kind"

    def metrics(self, check: Check) -> set[str]:
        return set()

    def needs_peers(self, check: Check) -> bool:
        return check.peers == "fleet"

    def judge(self, check: Check, subject: Subject, context: JudgeContext) -> list[Entry]:
        """The entries of one node, whose parts are compared with each other."""
        open_entries = not_applicable(check, subject) or no_record(check, subject)
        if open_entries:
            return open_entries
        pairs = environment.members(subject.records[check.stage]["environment"], check.path or "")
        values = [value for _, value in pairs]
        right = majority(values)
        if not values:
            return [entry_of(check, "missing", f"{check.stage} does not report {check.metric}")]
        if right is None:
            values_text = some_of(f"{environment.part_of(member)} {value}" for member, value in pairs)
            reason = f"{check.metric} differs and no value has a majority: {values_text}"
            return [entry_of(check, _undecided_verdict(check), reason)]
        if len(set(values)) == 1:
            return [entry_of(check, "pass", f"{check.metric} is {right} on all {len(values)}")]
        most = f"as on {values.count(right)} of {len(values)}"
        differing = [(environment.part_of(member), value) for member, value in pairs if value != right]
        fields = {"expected": f"{right}, {most}"}
        return [
            entry_of(check, "fail", f"{check.metric} is {value}, not {right} {most}", part=part, value=value, **fields)
            for part, value in differing
        ]

    def compare(self, check: Check, subjects: Sequence[Subject], context: JudgeContext) -> None:
        groups: dict[GroupKey, list[_Reported]] = defaultdict(list)
        for subject in subjects:
            answer = self._reported(check, subject)
            if isinstance(answer, dict):
                context.nodes[subject.name][check.name] = [answer]
            else:
                group, reported = answer
                groups[group].append(reported)
        for group in sorted(groups):
            group_sizes = [len(groups[other]) for other in groups if other != group and other[0] == group[0]]
            if check.required and group_sizes and len(groups[group]) == 1:
                # By its own report the node is alone in its group. Beside a majority that reports something else its
                # evidence is missing, unless its speeds are proven (node_checks.py).
                (node,) = groups[group]
                if check.group_by == ("fingerprint_group",):  # another driver is no fault; another fabric may be
                    context.alone[node.node].add(check.name)
                others, most = sum(group_sizes), max(group_sizes)
                cause = f"{' and '.join(check.group_by)} is {' '.join(group[1:])}"
                reason = f"no peers: {cause}, while {others} others of its kind report something else"
                verdict = "missing" if most > 1 and 2 * most > others + 1 else "warn"
                context.nodes[node.node][check.name] = [entry_of(check, verdict, reason, value=node.value)]
            else:
                self._compare(check, " ".join(group), groups[group], context)

    def _reported(self, check: Check, subject: Subject) -> Entry | tuple[GroupKey, _Reported]:
        """The group and value of the node, or the entry that explains why it has none."""
        for entry in not_applicable(check, subject) or no_record(check, subject):
            return entry
        record = subject.records[check.stage]
        value = _value(check, record)
        if value is None and check.required:
            return entry_of(check, "missing", f"{check.stage} reported no fingerprint {check.metric}")
        group = [subject.kind]
        for path in check.group_by:
            text = ", ".join(sorted(set(environment.texts(record["environment"], path))))
            if not text and check.path is None and check.required:
                return entry_of(check, "missing", f"{check.stage} does not report its {path}")
            group.append(text or NOT_REPORTED)
        attempts = (_value(check, one) for one in record["attempts"] if one["state"] not in UNFINISHED)
        earlier = tuple(one for one in attempts if one is not None) if check.required and not check.retry else ()
        return tuple(group), _Reported(subject.name, value or NOT_REPORTED, earlier)

    def _compare(self, check: Check, kind: str, reported: Sequence[_Reported], context: JudgeContext) -> None:
        nodes = context.nodes
        counts = Counter(node.value for node in reported)
        right = majority([node.value for node in reported])
        if len(reported) == 1 or set(counts) == {NOT_REPORTED}:
            alone = len(reported) == 1
            reason = "the only node of its kind: no peers" if alone else "no node of its kind reports it"
            for node in reported:
                value = node.value if alone else None
                nodes[node.node][check.name] = [entry_of(check, "skipped", reason, value=value)]
            return
        if right is None:
            verdict = _undecided_verdict(check)
            text = "; ".join(
                f"{value} on {some_of(node.node for node in reported if node.value == value)}"
                for value in sorted(counts)
            )
            reason = f"{check.metric} differs and no value has a majority of {len(reported)} nodes: {text}"
            for node in reported:
                nodes[node.node][check.name] = [entry_of(check, verdict, reason, value=node.value)]
            context.fleet.append(entry_of(check, verdict, f"{kind}: {reason}", part="fleet"))
            return
        wrong = []
        for node in reported:
            entry = _node_entry(check, node, right, f"{counts[right]} of {len(reported)} nodes of its kind")
            if node.value != right and counts[node.value] > 1 and 3 * counts[node.value] > len(reported):
                # too many nodes for single faults
                entry["verdict"] = _undecided_verdict(check)
                entry["reason"] += f", and on {counts[node.value]} of them as here: inconclusive which is right"
            nodes[node.node][check.name] = [entry]
            if entry["verdict"] != "pass":
                wrong.append(node.node)
        differing = f"{check.metric} of {some_of(wrong)} is not that of the others: {right}"
        reason = f"{kind}: {differing if wrong else f'the same on {len(reported)} nodes'}"
        verdict = "fail" if wrong else "pass"
        context.fleet.append(entry_of(check, verdict, reason, part="fleet", value=right))


def _undecided_verdict(check: Check) -> str:
    return "missing" if check.required else "fail"


def _value(check: Check, record: Record) -> str | None:
    """The fingerprint, or the value at the path; a missing value there (a device that is gone) counts as one."""
    if check.path is None:
        value: str | None = record["fingerprints"].get(check.metric)
        return value
    texts = Counter(environment.texts(record["environment"], check.path))
    counted = (f"{count} x {text}" if check.counted else text for text, count in sorted(texts.items()))
    return ", ".join(counted) or NOT_REPORTED


def _node_entry(check: Check, reported: _Reported, majority_value: str, majority_nodes: str) -> Entry:
    """A node's entry beside the value of most nodes. ``majority_nodes``: their number, as text."""
    earlier_value = next((value for value in reported.earlier if value != majority_value), None)
    verdict, value = "fail", reported.value
    if value != majority_value:
        reason = f"{check.metric} is {value}, not {majority_value} as on {majority_nodes}"
    elif earlier_value is not None:
        value = earlier_value
        reason = f"{check.metric} was {earlier_value} in an earlier attempt; such a result is never retried into PASS"
    else:
        verdict, reason = "pass", f"{check.metric} is that of {majority_nodes}"
    return entry_of(check, verdict, reason, expected=f"{majority_value}, as on {majority_nodes}", value=value)
