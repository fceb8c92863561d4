"""Applies the changes of a network plan in order, with a deadline; verifies them; rolls all back on any failure."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ..node_directory import NodeError
from .changes import NetworkChange, NetworkPlan, plan_changes
from .declaration import NetworkDeclaration
from .host import Deadline, NetworkHost
from .ledger import ROLL_BACK_SECONDS, ChangeLedger
from .management import ManagementConnection
from .routes import next_hop
from .state import NetworkState

POLL_SECONDS = 0.1


@dataclass
class ApplyOutcome:
    failures: list[str] = field(default_factory=list)
    down: list[str] = field(default_factory=list)  # interfaces that stay down
    rolled_back: bool = False
    left: list[str] = field(default_factory=list)  # changes that could not be rolled back


def apply_plan(
    plan: NetworkPlan,
    declaration: NetworkDeclaration,
    management: ManagementConnection,
    host: NetworkHost,
    ledger: ChangeLedger,
    link_seconds: float,
) -> ApplyOutcome:
    """Change the node's network as declared; the changes stay pending in the ledger. A failure rolls all of them back.
    `link_seconds`: time for links to come up."""
    outcome = ApplyOutcome()
    hop = next_hop(management.peer) if management.peer else None
    try:
        # set all interfaces down and their MTU before the first comes up: some drivers accept an MTU only while down
        early = [change for change in plan.changes if change.is_down or change.kind == "mtu"]
        _make(early, host, ledger)
        flaps = [change for change in early if change.kind == "flap"]
        for change in flaps:
            host.bring_up(change.interface, {})
        for change in flaps:
            host.bring_up(change.interface, change.before)
        _make([change for change in plan.changes if change not in early], host, ledger)
        state = wait_for_links(plan, host, declaration, link_seconds)
        _verify(plan, declaration, state, ledger, outcome)
        if management.peer and next_hop(management.peer) != hop:
            outcome.failures.append(f"the route to the controller ({management.peer}) has changed")
    except (NodeError, OSError) as error:
        outcome.failures.append(str(error))
    if outcome.failures:
        host.deadline = Deadline(ROLL_BACK_SECONDS)  # the first deadline may have been the failure
        outcome.rolled_back = bool(ledger.pending)
        outcome.left = ledger.roll_back(host)["left"]
    return outcome


def wait_for_links(
    plan: NetworkPlan, host: NetworkHost, declaration: NetworkDeclaration, seconds: float
) -> NetworkState:
    """Return the network's state once all links are up and no address awaits its duplicate test, or after `seconds`."""
    end = time.monotonic() + min(seconds, max(0.0, host.deadline.left()))
    while True:
        state = host.state(declaration.sysctls)
        is_pending = any(state.interfaces[name].pending for name in plan.links if name in state.interfaces)
        if not (plan.links_down(state) or is_pending) or time.monotonic() >= end:
            return state
        time.sleep(POLL_SECONDS)


def why_down(names: list[str], state: NetworkState) -> str:
    reasons = {None: "is gone", True: "has no carrier", False: "stays down"}
    present = {name: interface.up for name, interface in state.interfaces.items()}
    return ", ".join(f"{name} {reasons[present.get(name)]}" for name in names)


def _make(changes: list[NetworkChange], host: NetworkHost, ledger: ChangeLedger) -> None:
    for change in changes:
        ledger.note(change)
        host.make(change)


def _verify(
    plan: NetworkPlan,
    declaration: NetworkDeclaration,
    state: NetworkState,
    ledger: ChangeLedger,
    outcome: ApplyOutcome,
) -> None:
    """Add to `outcome` what is not as declared in the network's `state` after the changes."""
    outcome.down = plan.links_down(state)
    if outcome.down:
        outcome.failures.append(
            f"{len(outcome.down)} of {len(set(plan.links))} interface(s) did not come up: "
            f"{why_down(outcome.down, state)}. Look at the cable, the transceiver, the switch's port and dmesg"
        )
    for name in plan.links:
        duplicate = state.interfaces[name].duplicate if name in state.interfaces else ()
        outcome.failures += [f"{name}: another machine has the address {address}" for address in sorted(duplicate)]
    if not outcome.failures:
        again = plan_changes(declaration, state, ledger.flapped(state.boot_id))
        outcome.failures += [f"did not hold: {change}" for change in again.changes]
        outcome.failures += again.problems
