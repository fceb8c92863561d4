"""The cabling of the nodes against the declared plan. Pure.

A port fails if the switch port that it sees is not that of the plan. What cannot be compared is not tested, and leaves
its node INCOMPLETE: a port without a neighbour, with another node or several switches in sight, a switch that sends no
name, or names its ports otherwise than the plan does (``516`` beside ``xe-0/0/4``). Where the plan and most ports
disagree, or a switch may have another name, the plan is in doubt, and no node fails.
"""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.grouping import values_by_key
from ..core.text import some_of
from ..records import environment
from ..records.documents import Document, Record
from ..runs.cabling_plan import SETTING, PlannedCable, is_switch, port_name, switch_kind, switch_name
from .check import FACTS, Subject
from .entries import Entry, own_entry

NAME = "cabling"
#: If most ports of a switch differ from the plan, and at least so many were compared, the plan is in doubt for it.
MIN_PORTS = 4
#: From so many ports of a switch on that all are off by one number, they count as shifted. From so many ports of a node
#: on that all are cabled as planned for another node, the two nodes count as exchanged.
MIN_SHIFTED, MIN_EXCHANGED = 3, 2
MAX_SHOWN, MAX_TEXT = 4, 120
_NUMBER = re.compile(r"\d+")
_LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)
#: For each kind of a switch's name in the plan, what to write instead of it where the switch sends none.
_NAMES = {
    "name": "chassis id or GUID",
    "chassis id": "name or GUID",
    "GUID": "name or chassis id",
    "address": "name, chassis id or GUID",
}
_REMEDY = "move the cable to the port of the plan, or correct the plan"
_REMEDY_PLAN = f"compare some of these cables with the plan by eye, and correct {SETTING} where it is wrong"
_REMEDY_UNTESTED = (
    "run lldpd on the node and LLDP on the switch; for InfiniBand install infiniband-diags and let the runner read "
    f"/dev/infiniband/umad*; or remove the rows of ports that cannot be known from {SETTING}"
)


class SwitchPort(NamedTuple):
    """A switch port as a node sees it. ``switches``: name and id of the switch; ``ports``: id and description."""

    switches: tuple[str, ...]
    ports: tuple[str, ...]

    def is_on(self, switch: str) -> bool:
        return any(is_switch(switch, name) for name in self.switches)

    def is_of(self, cable: PlannedCable) -> bool:
        """Whether the cabling plan has the cable in this switch port."""
        return self.is_on(cable.switch) and self.is_named(cable.switch_port)

    def is_named(self, port: str) -> bool:
        return port_name(port) in map(port_name, self.ports)


@dataclass(frozen=True)
class ComparedCable:
    """A cable of the plan. ``found``: the wrong switch port that its node sees; ``untested``: why none is known."""

    cable: PlannedCable
    found: SwitchPort | None = None
    untested: str = ""

    @property
    def found_text(self) -> str:
        """The wrong switch port in the plan's form, if it has a name in that form."""
        if self.found is None:
            return ""
        alike = [port for port in self.found.ports if _form(port) == _form(self.cable.switch_port)]
        return " ".join([*self.found.switches[:1], *(alike or self.found.ports)[:1]])

    @property
    def shift(self) -> int:
        """By how much the last number of the port differs from the plan's; 0 if anything else differs."""
        planned = _LAST_NUMBER.fullmatch(port_name(self.cable.switch_port))
        for port in self.found.ports if self.found and self.found.is_on(self.cable.switch) else ():
            seen = _LAST_NUMBER.fullmatch(port_name(port))
            if planned and seen and planned.group(1, 3) == seen.group(1, 3):
                return int(seen[2]) - int(planned[2])
        return 0


def _form(port: str) -> str:
    return _NUMBER.sub("0", port_name(port))


def _host(name: str) -> str:
    """What names of one switch or node have in common, with and without domain."""
    return switch_name(name).partition(".")[0]


class CablingComparison:
    """The cabling plan of a run's nodes, compared with the switch ports that its judged nodes (``subjects``) report."""

    def __init__(self, run: Document, subjects: Mapping[str, Subject]) -> None:
        planned = {
            name: [PlannedCable(name, **row) for row in node["declared"]["cabling"]]
            for name, node in run["nodes"].items()
            if "cabling" in node.get("declared", {})
        }
        ends = [cable for cables in planned.values() for cable in cables]
        self._by_port = values_by_key(((_host(cable.switch), port_name(cable.switch_port)), cable) for cable in ends)
        self._switches = {_host(cable.switch) for cable in ends}
        hostnames = (environment.texts(subject.records[FACTS]["environment"], "os.hostname")
                     for subject in subjects.values() if planned and FACTS in subject.records)  # fmt: skip
        self._hosts = {_host(name) for name in (*run["nodes"], *(name for names in hostnames for name in names))}
        self.nodes = {
            name: [self._compare(cable, cables, subjects[name].records.get(FACTS)) for cable in cables]
            for name, cables in planned.items()
            if name in subjects
        }
        self._by_end = {result.cable.end: result for results in self.nodes.values() for result in results}
        self._doubts = self._doubts_by_end() if self._by_end else {}

    def _cable_at(self, seen: SwitchPort | None) -> PlannedCable | None:
        """The cable that the cabling plan has in a switch port; None if it has none there."""
        if seen is None:
            return None
        places = itertools.product(map(_host, seen.switches), map(port_name, seen.ports))
        candidates = (cable for place in places for cable in self._by_port.get(place, ()))
        return next(filter(seen.is_of, candidates), None)

    def _compare(self, cable: PlannedCable, cables: Sequence[PlannedCable], facts: Record | None) -> ComparedCable:
        """Compare one of a node's cables with what the node reports, which is not trusted."""
        reported = environment.objects(facts["environment"] if facts else {}, "cabling[]")
        ports = [port for port in reported if cable.end[1] in map(str.lower, _texts(port, "names"))]
        if not ports:
            lacking = "the node has no such port" if reported else "the facts do not say where the ports lead"
            return ComparedCable(cable, untested=lacking)
        names = {name.lower() for port in ports for name in _texts(port, "names")}
        if others := [other.port for other in cables if other != cable and other.end[1] in names]:
            return ComparedCable(cable, untested=f"{some_of(others)} is the same port: keep one row of it in the plan")
        neighbours = [neighbour for port in ports for neighbour in environment.objects(port, "neighbours[]")]
        results = [self._compare_neighbour(cable, neighbour) for neighbour in neighbours]
        if not results:
            return ComparedCable(cable, untested=next(iter(environment.texts(ports[0], "problem")), "no neighbour"))
        best = min(results, key=lambda result: (result.found is not None, result.untested != ""))
        if best.found and len({result.found.switches for result in results if result.found}) > 1:
            return ComparedCable(cable, untested="several switches in sight, as behind one that passes on LLDP")
        return best

    def _compare_neighbour(self, cable: PlannedCable, neighbour: Mapping[str, Any]) -> ComparedCable:
        names = environment.texts(neighbour, "name")
        switches = (*names, *environment.texts(neighbour, "id"))
        seen = SwitchPort(switches, tuple(_texts(neighbour, "ports")))
        if seen.is_of(cable):
            return ComparedCable(cable)
        is_on, kind = seen.is_on(cable.switch), switch_kind(cable.switch)
        if not is_on and kind not in map(switch_kind, switches):
            return ComparedCable(cable, untested=f"the switch sends no {kind}: write its {_NAMES[kind]} into the plan")
        if not is_on and not self._hosts.isdisjoint(map(_host, names)):
            return ComparedCable(cable, untested=f"its neighbour is the node {names[0]}, and no switch")
        has_form = _form(cable.switch_port) in map(_form, seen.ports)
        if is_on and not has_form and self._cable_at(seen) is None:
            ports = " or ".join(seen.ports) or "nothing"
            return ComparedCable(cable, untested=f"{switches[0]} calls the port {ports}: write names of this form")
        return ComparedCable(cable, found=seen)

    def _may_be_renamed(self, tested: Sequence[ComparedCable]) -> bool:
        """Whether all compared cables of a switch are in the planned ports, but of one switch that the plan lacks."""
        found = [result.found for result in tested if result.found and result.found.is_named(result.cable.switch_port)]
        switches = {seen.switches for seen in found}
        return len(found) == len(tested) and len(switches) == 1 and self._switches.isdisjoint(map(_host, *switches))

    def _doubts_by_end(self) -> dict[tuple[str, str], str]:
        """``{end of a wrong cable: why the plan is in doubt}``: most ports differ, or the switch has another name."""
        of_switches = values_by_key((switch_name(result.cable.switch), result) for result in self._by_end.values())
        groups = [("the fleet", 1, [*self._by_end.values()])]
        groups += [(f"switch {results[0].cable.switch}", MIN_PORTS, results) for results in of_switches.values()]
        doubts: dict[tuple[str, str], str] = {}
        for what, least, results in groups:
            tested = [result for result in results if not result.untested]
            wrong = [result for result in tested if result.found]
            if 2 * len(wrong) <= len(tested) or (len(tested) < least and not self._may_be_renamed(tested)):
                continue
            shifts = {result.shift for result in wrong} if len(wrong) >= MIN_SHIFTED else {0}
            shifted = "" if len(shifts) > 1 or 0 in shifts else f", all shifted by {shifts.pop():+d}"
            lines = some_of(map(self._line, wrong), MAX_SHOWN, "; ")
            text = f"the plan and {what} disagree for {len(wrong)} of {len(tested)} ports{shifted}: {lines}"
            doubts = {**{result.cable.end: text for result in wrong}, **doubts}
        return doubts

    def _line(self, result: ComparedCable) -> str:
        """A wrong cable as text: planned and found switch port, and the cable that the plan has in the found one."""
        cable, owner = result.cable, self._cable_at(result.found)
        text = f"{cable}: plan {cable.switch} {cable.switch_port}, found {result.found_text}"
        if owner is None:
            return text
        found_of_owner = self._by_end[owner.end].found if owner.end in self._by_end else None
        if found_of_owner and found_of_owner.is_of(cable):
            return f"{text}; the cables of {cable} and {owner} are swapped"
        return f"{text}, where the plan has {owner}"

    def _exchanged_with(self, results: Sequence[ComparedCable]) -> str:
        """The node in whose switch ports all compared ports of a node are, port for port; empty if none is."""
        owners = [self._cable_at(result.found) for result in results]
        names = {
            owner.node if owner and owner.end[1] == result.cable.end[1] else ""
            for owner, result in zip(owners, results)
        }
        return names.pop() if len(names) == 1 and len(results) >= MIN_EXCHANGED else ""

    def checks(self, node: str) -> list[Entry]:
        """The entries about the cabling of a node; empty if the plan lacks the node."""
        if node not in self.nodes:
            return []
        results = self.nodes[node]
        tested = [result for result in results if not result.untested]
        wrong = [result for result in tested if result.found]
        certain = [result for result in wrong if result.cable.end not in self._doubts]
        entry = functools.partial(
            own_entry, NAME, FACTS, "identity", source=f"{SETTING} of the inventory", expected="the ports of the plan"
        )
        doubts = dict.fromkeys(self._doubts[result.cable.end] for result in wrong if result not in certain)
        entries = [entry("missing", text, _REMEDY_PLAN) for text in doubts]
        other = self._exchanged_with(tested) if len(certain) == len(tested) else ""
        if other:
            text = f"all {len(tested)} compared ports of {node} lead where the plan has {other}"
            lines = some_of(map(self._line, certain), MAX_SHOWN, "; ")
            remedy = (
                f"find out whether the names or all cables of {node} and {other} are exchanged; or correct the plan"
            )
            entries.append(entry("fail", f"{text}: {lines}", remedy))
        else:
            entries += [
                entry("fail", self._line(result), _REMEDY, part=f"link:{result.cable.port}", value=result.found_text)
                for result in certain
            ]
        if tested and not wrong:
            entries.append(entry("pass", f"{len(tested)} of {len(results)} ports of the plan lead where it says"))
        reasons = values_by_key((result.untested, result.cable.port) for result in results if result.untested)
        untested = "; ".join(f"{some_of(ports)}: {reason}" for reason, ports in reasons.items())
        if not results:
            untested = "the plan has no cable of this node"
        if untested:
            severity = "required" if results else "advisory"
            entries.append(entry("missing", f"not tested: {untested}", _REMEDY_UNTESTED, severity=severity))
        return entries


def _texts(mapping: Mapping[str, Any], key: str) -> list[str]:
    """The texts in a list of a mapping, which a node may have filled with anything."""
    return [value[:MAX_TEXT] for value in environment.values(mapping, f"{key}[]") or () if isinstance(value, str)]
