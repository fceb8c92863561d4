"""Make the changes of a plan, in order, with a deadline; see that they hold; else take all back."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Optional

from ..node_directory import NodeError
from .errors import NetworkError
from .host import Deadline, Host
from .journal import Journal
from .plan import Change, Management, Plan, build, current, same
from .settings import Settings
from .state import State

POLL_SECONDS = 0.1
#: What comes before the interfaces that went down are brought up again.
EARLY = ("flap", "mtu")
ROLL_BACK_SECONDS = 30


@dataclass
class Outcome:
    made: list[Change] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    down: list[str] = field(default_factory=list)  # interfaces that stay down
    rolled_back: bool = False
    left: list[str] = field(default_factory=list)  # changes that could not be undone
    state: Optional[State] = None


def apply_plan(
    plan: Plan, settings: Settings, management: Management, host: Host, journal: Journal, link_seconds: float
) -> Outcome:
    """Bring the node to what was declared. On any failure it is put back to how it was found."""
    outcome = Outcome()
    known = list(journal.changes)
    way = host.way_to(management.peer) if management.peer else None
    try:
        early = [change for change in plan.changes if change.kind in EARLY or change.after == "down"]
        for change in early:
            _make(change, outcome, host, journal)
        # all are down and have their MTU, which some drivers take only then
        _bring_up([change for change in early if change.kind == "flap"], host, journal)
        for change in plan.changes:
            if change not in early:
                _make(change, outcome, host, journal)
        outcome.state = wait_for_links(plan, host, list(settings.sysctls), link_seconds)
        outcome.failures = _verify(plan, settings, management, outcome, journal)
        if management.peer and host.way_to(management.peer) != way:
            outcome.failures.append(f"the way to the controller ({management.peer}) is another one now")
    except (NetworkError, NodeError, OSError) as error:
        outcome.failures.append(str(error))
    if outcome.failures and outcome.made:
        roll_back(outcome, known, host, journal)
    journal.tidy()
    return outcome


def roll_back(outcome: Outcome, known: list[Change], host: Host, journal: Journal) -> None:
    """Undo what was made, last first, with time of its own: the deadline may be why."""
    host.deadline = Deadline(ROLL_BACK_SECONDS)
    for change in reversed(outcome.made):
        try:
            now = current(change, host.state([change.subject] if change.kind == "sysctl" else []))
            if change.kind == "flap":
                host.bring_back(change.interface, change.before)
                journal.boots.pop(change.interface, None)
            elif not same(change, now, change.before):
                host.make(change.inverse())
            journal.take_back(change, known)
        except (NetworkError, NodeError, OSError) as error:
            outcome.left.append(f"{change}: {error}")
    outcome.rolled_back = True


def links_down(plan: Plan, state: State) -> list[str]:
    """Interfaces that should have a link and do not."""
    return [
        name
        for name in dict.fromkeys(plan.links)
        if not (name in state.interfaces and state.interfaces[name].up and state.interfaces[name].carrier)
    ]


def wait_for_links(plan: Plan, host: Host, sysctls: list[str], seconds: float) -> State:
    """The state once every link is up and every address has been tried for duplicates, or when the time is over."""
    end = time.monotonic() + min(seconds, max(0.0, host.deadline.left()))
    while True:
        state = host.state(sysctls)
        pending = any(state.interfaces[name].pending for name in plan.links if name in state.interfaces)
        if not (links_down(plan, state) or pending) or time.monotonic() >= end:
            return state
        time.sleep(POLL_SECONDS)


def why_down(name: str, state: State) -> str:
    if name not in state.interfaces:
        return f"{name} is gone"
    interface = state.interfaces[name]
    return f"{name} has no carrier" if interface.up else f"{name} stays down"


def _make(change: Change, outcome: Outcome, host: Host, journal: Journal) -> None:
    journal.note(change)
    outcome.made.append(change)
    host.make(change)


def _bring_up(flaps: list[Change], host: Host, journal: Journal) -> None:
    for change in flaps:
        host.bring_back(change.interface, {})
    boot_id = host.boot_id()
    for change in flaps:
        host.bring_back(change.interface, change.before)
        journal.boots[change.interface] = boot_id


def _verify(plan: Plan, settings: Settings, management: Management, outcome: Outcome, journal: Journal) -> list[str]:
    state = outcome.state
    outcome.down = links_down(plan, state)
    failures = []
    if outcome.down:
        reasons = ", ".join(why_down(name, state) for name in outcome.down)
        failures.append(
            f"{len(outcome.down)} of {len(set(plan.links))} interface(s) did not come up: {reasons}. "
            "Look at the cable, the transceiver, the switch's port and dmesg"
        )
    for name in plan.links:
        duplicate = state.interfaces[name].duplicate if name in state.interfaces else ()
        failures += [f"{name}: another machine has the address {address}" for address in sorted(duplicate)]
    if not failures:
        again = build(settings, state, management, journal.flapped(state.boot_id))
        failures += [f"did not hold: {change}" for change in again.changes]
        failures += again.problems
    return failures
