"""Configures a node's network as declared, or restores it.

All changes are verified; when one fails, all are rolled back. The controller confirms the changes over a new
connection; without that, the node rolls them back after 60 s, even if the controller or the connection is lost. The
changes last until the next boot. The operating system's configuration and the interfaces that carry the connection to
the controller are not touched.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from ..network import ledger as ledgers
from ..network.apply import apply_plan, wait_for_links, why_down
from ..network.changes import HOSTS_FILE, plan_changes
from ..network.declaration import DeclaredInterfaces, parse_declaration
from ..network.host import Deadline, NetworkHost
from ..network.hosts_file import other_addresses
from ..network.management import find_management, peer_of, ssh_connection
from ..network.routes import next_hop
from ..network.state import shown
from ..node_directory import NodeError, base_directory, one_at_once, one_launch_at_once, run_folders

CONFIRM_SECONDS = 60
NEEDS_ROOT = (
    "needs root: {}. Set ansible_become: true in the inventory, for these nodes and for gpuval.fleet.clean alike."
)


@dataclass(frozen=True)
class LimitOptions:
    item: str
    value: str
    domain: str = "*"
    type: Literal["-", "soft", "hard"] = "-"


@dataclass(frozen=True)
class HostNetworkOptions:
    """The declared network; the role network documents interfaces, hosts, sysctls and limits."""

    #: `restored` restores the network as first found, `confirmed` keeps the changes of `attempt`.
    state: Literal["applied", "confirmed", "restored"] = "applied"
    attempt: str = ""
    interfaces: Sequence[Annotated[dict[str, Any], DeclaredInterfaces]] = ()
    hosts: Mapping[str, Any] = field(default_factory=dict)
    sysctls: Mapping[str, Any] = field(default_factory=dict)
    limits: Sequence[Annotated[dict[str, Any], LimitOptions]] = ()
    directory: str = ""
    #: Address at which the controller reaches the node. Its interface is not touched.
    management_address: str = ""
    #: Seconds after which all changes are rolled back, and within which an interface set up must have a carrier.
    deadline_seconds: float = 90.0
    link_seconds: float = 20.0


class NetworkAnswer(TypedDict, total=False):
    #: Id of the network changes that the controller has to confirm.
    attempt: str
    #: Changes of the network that were made, or would be made in check mode.
    changes: list[str]
    #: Interfaces by name, with state, carrier, mtu, addresses and driver.
    interfaces: dict[str, Any]
    #: Interfaces that carry the connection to the controller, the controller's address, and how it was found.
    management: dict[str, Any]
    #: Interfaces that stay down although declared up.
    down: list[str]
    #: Remarks on the network that are no failures.
    notes: list[str]
    rolled_back: bool
    #: Changes that could not be restored, and settings that others changed since, which were left alone.
    left: list[str]
    kept: list[str]
    diff: dict[str, Any]


def host_network(module: Any, **arguments: Any) -> NetworkAnswer:
    """Change the settings in which the network differs from the declaration; or confirm or restore the network."""
    options = HostNetworkOptions(**arguments)
    work = {"applied": apply, "confirmed": confirm, "restored": restore}[options.state]
    return work(module, options, base_directory(options.directory))


def restore(module, options, base):
    """Restore the network's first values once no run is left in gpuval's folder `base`; return the step's answer."""
    nothing = {"changes": [], "kept": [], "left": [], "notes": []}
    if not ledgers.is_touched(base):
        return {"msg": "gpuval changed nothing in this node's network: nothing to restore", **nothing}
    runs = sorted({folder.parent.name for folder in run_folders(base)})
    if runs:
        note = f"network changes stay, since {', '.join(runs)} is still on this node: clean that run to restore them"
        return {"msg": note, **nothing, "notes": [note]}
    if ledgers.is_changed(base) and os.geteuid() != 0:
        return {"failed": True, "msg": NEEDS_ROOT.format("put the network back"), **nothing}
    with one_at_once(base):
        result = ledgers.restore_network(base, options.deadline_seconds, dry=module.check_mode)
    changes, left = result["restored"], result["left"]
    message = f"could not be put back: {'; '.join(left)}" if left else f"{len(changes)} change(s) put back"
    answer = {"msg": message, "changed": bool(changes), "changes": changes, "kept": result["kept"], "left": left}
    return {**answer, "failed": bool(left), "notes": []}


def confirm(module, options, base):
    """Make the pending network changes of `options.attempt` final. Raises NodeError if they were rolled back."""
    try:
        with one_at_once(base):
            ledger = ledgers.ChangeLedger(base)
            is_pending = ledger.attempt == options.attempt
            if is_pending and not module.check_mode:
                ledger.confirm()
    except FileNotFoundError:
        is_pending = False
    if not is_pending:
        raise NodeError(f"the node has rolled the changes back: not confirmed within {CONFIRM_SECONDS} s")
    return {"changes": [], "notes": [], "left": []}


def apply(module, options, base):
    """Change the network as `options` declare; return the step's answer. `base`: gpuval's folder on the node."""
    declaration = parse_declaration(vars(options))
    host = NetworkHost(Deadline(options.deadline_seconds))
    ledger, notes = ledgers.ChangeLedger(base), other_names(declaration.hosts)
    if ledger.pending and os.geteuid() == 0 and not module.check_mode:
        with one_at_once(base):
            ledger = ledgers.ChangeLedger(base)
            unconfirmed = ledger.roll_back(host, is_forced=False)
            notes += [f"earlier change that was not confirmed: {text}" for text in unconfirmed["restored"]]
    state = host.state(declaration.sysctls)
    connection = ssh_connection()
    management = find_management(state, next_hop(peer_of(connection) or "")[0], connection, options.management_address)
    plan = plan_changes(declaration, state, ledger.flapped(state.boot_id))
    plan.problems += management.refusals(plan.changes, state)
    changes = [str(change) for change in plan.changes]
    result = {
        "changes": changes,
        "notes": notes,
        "management": {"interfaces": list(management.carriers), "peer": management.peer, "reason": management.reason},
        "left": [],
        "down": [],
        "interfaces": shown(state),
    }
    if module._diff and changes:
        result["diff"] = {"before_header": "network, as it is", "after_header": "network, as declared"}
        for side in ("before", "after"):
            lines = (f"{change.subject}: {text_of(getattr(change, side))}\n" for change in plan.changes)
            result["diff"][side] = "".join(lines)
    if plan.problems:
        return {**result, "failed": True, "msg": "; ".join(plan.problems), "changes": []}
    if changes and os.geteuid() != 0:
        return {**result, "failed": True, "msg": NEEDS_ROOT.format("; ".join(changes)), "changes": []}
    verb = "would be" if module.check_mode else "were"
    summary = f"{len(changes)} change(s) {verb} made" if changes else "as declared"
    summary = "nothing is declared, so nothing is changed" if declaration.is_empty else summary
    if module.check_mode:
        return {**result, "changed": bool(changes), "msg": summary}
    if not changes:
        state = wait_for_links(plan, host, declaration, options.link_seconds)
        down = plan.links_down(state)
        result.update(down=down, interfaces=shown(state))
        if down:
            remedy = "Look at the cable, the transceiver, the switch's port and dmesg"
            return {**result, "failed": True, "msg": f"{why_down(down, state)}, though declared up. {remedy}"}
        return {**result, "msg": summary}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a lost connection must not leave half of the changes
    with one_launch_at_once(base):
        if vars(ledgers.ChangeLedger(base)) != vars(ledger):  # to write `ledger` would lose the other's first values
            raise NodeError("another command changed the network of this node meanwhile: run this again")
        ledger.begin(CONFIRM_SECONDS)
        outcome = apply_plan(plan, declaration, management, host, ledger, options.link_seconds)
    result.update(left=outcome.left, down=outcome.down, interfaces=shown(host.state()))
    if outcome.failures:
        back = ["the changes were rolled back"] if outcome.rolled_back else []
        if outcome.left:
            back = [f"could not be rolled back: {'; '.join(outcome.left)}: run gpuval.fleet.clean"]
        result.update(msg="; ".join([*outcome.failures, *back]), changed=bool(outcome.left))
        return {**result, "rolled_back": outcome.rolled_back, "failed": True}
    return {**result, "changed": True, "msg": summary, "attempt": ledger.attempt}


def text_of(value):
    return "none" if value is None else str(value).rstrip("\n")


def other_names(hosts):
    """Return notes on names in `hosts` (address by name) to which the hosts file itself gives another address."""
    try:
        text = Path(HOSTS_FILE).read_text(encoding="utf-8", errors="replace") if hosts else ""
    except OSError:
        return []
    others = other_addresses(text, hosts)
    return [f"{HOSTS_FILE} gives {name} the address {address} in a line of its own" for name, address in others.items()]
