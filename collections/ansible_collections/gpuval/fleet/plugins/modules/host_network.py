#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_network
short_description: Configure a node's network as declared, or restore it
version_added: 1.0.0
description:
  - Compares interfaces, addresses, routes, kernel parameters, names and limits with what was declared, and changes the
    difference.
  - Nothing is changed unless it is declared. Without any setting it only reports the current state.
  - All changes are verified. When one fails, all of them are rolled back.
  - The controller confirms the changes over a new connection. The node rolls them back 60 s after they were made unless
    that has happened, even if the controller or the connection is lost.
  - Each value is kept on the node before it changes. O(state=restored) puts it back, and so does
    M(gpuval.fleet.clean_node).
  - Changes last until the next boot; the operating system's own configuration is not touched.
  - What carries the connection to the controller is never touched; a task that would do so fails before anything is
    changed.
extends_documentation_fragment: [gpuval.fleet.common, gpuval.fleet.node_directory]
attributes:
  diff_mode:
    support: full
    description: Shows each change with what was there before.
options:
  state:
    description: V(applied) configures the network as declared, V(restored) reverts it to what was first found.
      V(confirmed) keeps the changes of O(attempt); the action plugin does that by itself.
    type: str
    choices: [applied, confirmed, restored]
    default: applied
  attempt:
    description: With O(state=confirmed), the attempt whose changes are kept.
    type: str
    default: ''
  interfaces:
    description: Interfaces and what they are to be. An entry means all interfaces that its O(interfaces[].name),
      O(interfaces[].pattern) and O(interfaces[].driver) fit.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of one interface.
        type: str
      pattern:
        description: Shell pattern of names, C(ens*).
        type: str
      driver:
        description: Shell pattern of the kernel driver; V(habanalabs*) means the ports of Gaudi accelerators.
        type: str
      exclude:
        description: Shell patterns of names to leave out.
        type: list
        elements: str
        default: []
      count:
        description: Min number of interfaces; without it, one.
        type: int
      state:
        description: V(up) asks for a carrier too.
        type: str
        choices: [up, down]
        default: up
      mtu:
        description: Max packet size in bytes.
        type: int
      addresses:
        description:
          - Addresses with prefix length that the interface must have, beside its existing ones, such as V(10.0.0.5/24).
        type: list
        elements: str
        default: []
      routes:
        description: Routes through the interface.
        type: list
        elements: dict
        default: []
        suboptions:
          to:
            description: Network, or V(default).
            type: str
            required: true
          via:
            description: Gateway.
            type: str
          metric:
            description: Metric; routes of one network with different metrics stand side by side.
            type: int
      flap:
        description:
          - Take all interfaces of the entry down and up again, once after each boot, and whenever one of them is not
            up.
          - This is how the ports of Gaudi accelerators are brought up.
        type: bool
        default: false
  hosts:
    description: Addresses by name, for a marked block in C(/etc/hosts).
    type: dict
    default: {}
  sysctls:
    description: Kernel parameters by name.
    type: dict
    default: {}
  limits:
    description: Limits of login sessions, for a file in C(/etc/security/limits.d). Sessions that are open keep theirs.
    type: list
    elements: dict
    default: []
    suboptions:
      domain:
        description: User, C(@group), or V(*) for all but root.
        type: str
        default: '*'
      type:
        description: V(-) is both soft and hard.
        type: str
        choices: ['-', soft, hard]
        default: '-'
      item:
        description: Limit, such as C(memlock).
        type: str
        required: true
      value:
        description: Value of the limit.
        type: str
        required: true
  management_address:
    description: Address at which the controller reaches the node. Its interface is not touched.
    type: str
    default: ''
  deadline_seconds:
    description: Time limit; after it all changes are rolled back.
    type: float
    default: 90
  link_seconds:
    description: Time limit for an interface that was brought up to get a carrier.
    type: float
    default: 20
"""

EXAMPLES = r"""
- name: Bring up the fabric
  gpuval.fleet.host_network:
    interfaces:
      - pattern: ens1f*
        mtu: 9000
      - name: ib0
        addresses: [10.20.0.11/16]
        routes:
          - to: 10.30.0.0/16
            via: 10.20.0.1
    sysctls:
      net.ipv4.conf.all.arp_announce: 2

- name: Bring up the ports of eight Gaudi accelerators
  gpuval.fleet.host_network:
    interfaces:
      - driver: habanalabs*
        count: 24
        flap: true

- name: Put back what was found
  gpuval.fleet.host_network:
    state: restored
"""

RETURN = r"""
attempt:
  description: Name of the changes that are to be confirmed.
  returned: changed
  type: str
changes:
  description: What was changed, or would be in check mode.
  returned: always
  type: list
  elements: str
interfaces:
  description: Interfaces by name, with state, carrier, mtu, addresses and driver.
  returned: when O(state=applied)
  type: dict
management:
  description: Interfaces that carry the connection to the controller, its address, and how that is known.
  returned: when O(state=applied)
  type: dict
down:
  description: Interfaces that were declared to be up and stay down.
  returned: when O(state=applied)
  type: list
  elements: str
notes:
  description: What is worth knowing and no failure.
  returned: always
  type: list
  elements: str
rolled_back:
  description: Whether the changes were rolled back after a failure.
  returned: failure
  type: bool
left:
  description: What could not be put back.
  returned: always
  type: list
  elements: str
kept:
  description: What was changed by others meanwhile, and was left as it is.
  returned: when O(state=restored)
  type: list
  elements: str
"""

import os
import signal
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.network import ledger as ledgers
from ansible_collections.gpuval.fleet.plugins.module_utils.network.apply import apply_plan, wait_for_links, why_down
from ansible_collections.gpuval.fleet.plugins.module_utils.network.changes import HOSTS_FILE, plan_changes
from ansible_collections.gpuval.fleet.plugins.module_utils.network.declaration import parse_declaration
from ansible_collections.gpuval.fleet.plugins.module_utils.network.errors import HostNetworkError
from ansible_collections.gpuval.fleet.plugins.module_utils.network.host import Deadline, NetworkHost
from ansible_collections.gpuval.fleet.plugins.module_utils.network.hosts_file import other_addresses
from ansible_collections.gpuval.fleet.plugins.module_utils.network.management import (
    find_management,
    peer_of,
    ssh_connection,
)
from ansible_collections.gpuval.fleet.plugins.module_utils.network.state import shown
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import (
    NodeError,
    base_directory,
    one_at_once,
    one_launch_at_once,
    run_folders,
)

CONFIRM_SECONDS = 60
NEEDS_ROOT = (
    "needs root: {}. Set ansible_become: true in the inventory, for these nodes and for gpuval.fleet.clean alike."
)

ROUTE = {
    "to": {"type": "str", "required": True},
    "via": {"type": "str"},
    "metric": {"type": "int"},
}
INTERFACE = {
    "name": {"type": "str"},
    "pattern": {"type": "str"},
    "driver": {"type": "str"},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "count": {"type": "int"},
    "state": {"type": "str", "choices": ["up", "down"], "default": "up"},
    "mtu": {"type": "int"},
    "addresses": {"type": "list", "elements": "str", "default": []},
    "routes": {"type": "list", "elements": "dict", "default": [], "options": ROUTE},
    "flap": {"type": "bool", "default": False},
}
LIMIT = {
    "domain": {"type": "str", "default": "*"},
    "type": {"type": "str", "choices": ["-", "soft", "hard"], "default": "-"},
    "item": {"type": "str", "required": True},
    "value": {"type": "str", "required": True},
}


def restore(module, base):
    nothing = {"changes": [], "kept": [], "left": [], "notes": []}
    if not ledgers.is_touched(base):
        module.exit_json(changed=False, msg="nothing of this node's network is to be put back", **nothing)
    runs = sorted({folder.parent.name for folder in run_folders(base)})
    if runs:
        note = f"left as it is, since {', '.join(runs)} is still on this node: clean that run, which puts it back"
        module.exit_json(changed=False, msg=note, **{**nothing, "notes": [note]})
    if ledgers.is_changed(base) and os.geteuid() != 0:
        module.fail_json(msg=NEEDS_ROOT.format("put the network back"), **nothing)
    with one_at_once(base):
        result = ledgers.restore_network(base, module.params["deadline_seconds"], dry=module.check_mode)
    changes, left = result["restored"], result["left"]
    message = f"could not be put back: {'; '.join(left)}" if left else f"{len(changes)} change(s) put back"
    finish = module.fail_json if left else module.exit_json
    finish(msg=message, changed=bool(changes), changes=changes, kept=result["kept"], left=left, notes=[])


def confirm(module, base):
    attempt = module.params["attempt"]
    try:
        with one_at_once(base):
            ledger = ledgers.ChangeLedger(base)
            is_pending = ledger.attempt == attempt
            if is_pending and not module.check_mode:
                ledger.confirm()
    except FileNotFoundError:
        is_pending = False
    if not is_pending:
        module.fail_json(msg=f"the node has rolled the changes back: not confirmed within {CONFIRM_SECONDS} s")
    module.exit_json(changed=False, changes=[], notes=[], left=[])


def apply(module, base):
    declaration = parse_declaration(module.params)
    host = NetworkHost(Deadline(module.params["deadline_seconds"]))
    ledger, notes = ledgers.ChangeLedger(base), other_names(declaration.hosts)
    if ledger.pending and os.geteuid() == 0 and not module.check_mode:
        with one_at_once(base):
            ledger = ledgers.ChangeLedger(base)
            unconfirmed = ledger.roll_back(host, is_forced=False)
            notes += [f"earlier change that was not confirmed: {text}" for text in unconfirmed["restored"]]
    state = host.state(declaration.sysctls)
    connection = ssh_connection()
    hop = host.way_to(peer_of(connection)) if peer_of(connection) else None
    management = find_management(state, (hop or {}).get("dev"), connection, module.params["management_address"])
    plan = plan_changes(declaration, state, ledger.flapped(state.boot_id))
    plan.problems += management.refusals(plan.changes, state)
    changes = [str(change) for change in plan.changes]
    result = {
        "changes": changes,
        "notes": notes,
        "management": {
            "interfaces": list(management.carriers),
            "peer": management.peer,
            "reason": management.reason,
        },
        "left": [],
        "down": [],
        "interfaces": shown(state),
    }
    if module._diff and changes:
        before, after = (
            "".join(f"{change.subject}: {text_of(getattr(change, side))}\n" for change in plan.changes)
            for side in ("before", "after")
        )
        headers = {"before_header": "network, as it is", "after_header": "network, as declared"}
        result["diff"] = {"before": before, "after": after, **headers}
    if plan.problems:
        module.fail_json(msg="; ".join(plan.problems), changed=False, **{**result, "changes": []})
    if changes and os.geteuid() != 0:
        module.fail_json(msg=NEEDS_ROOT.format("; ".join(changes)), **{**result, "changes": []})
    summary = (
        f"{len(changes)} change(s) {'would be' if module.check_mode else 'were'} made" if changes else "as declared"
    )
    if declaration.is_empty:
        summary = "nothing is declared, so nothing is changed"
    if module.check_mode:
        module.exit_json(changed=bool(changes), msg=summary, **result)
    if not changes:
        state = wait_for_links(plan, host, declaration, module.params["link_seconds"])
        down = plan.links_down(state)
        result.update(down=down, interfaces=shown(state))
        if down:
            remedy = "Look at the cable, the transceiver, the switch's port and dmesg"
            module.fail_json(msg=f"{why_down(down, state)}, though declared up. {remedy}", **result)
        module.exit_json(changed=False, msg=summary, **result)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a connection that ends must not leave half of the changes
    with one_launch_at_once(base):
        if vars(ledgers.ChangeLedger(base)) != vars(ledger):  # writing this one would forget the other's first values
            raise HostNetworkError("another command changed the network of this node meanwhile: run this again")
        ledger.begin(CONFIRM_SECONDS)
        outcome = apply_plan(plan, declaration, management, host, ledger, module.params["link_seconds"])
    result.update(left=outcome.left, down=outcome.down, interfaces=shown(host.state()))
    if outcome.failures:
        back = "; the changes were rolled back" if outcome.rolled_back else ""
        if outcome.left:
            back = f"; could not be rolled back: {'; '.join(outcome.left)}: run gpuval.fleet.clean"
        message = "; ".join(outcome.failures) + back
        module.fail_json(msg=message, changed=bool(outcome.left), rolled_back=outcome.rolled_back, **result)
    module.exit_json(changed=True, msg=summary, attempt=ledger.attempt, **result)


def text_of(value):
    return "none" if value is None else str(value).rstrip("\n")


def other_names(hosts):
    """Notes on names of `hosts` to which another line of the hosts file gives another address."""
    try:
        text = Path(HOSTS_FILE).read_text(encoding="utf-8", errors="replace") if hosts else ""
    except OSError:
        return []
    others = other_addresses(text, hosts)
    return [f"{HOSTS_FILE} gives {name} the address {address} in a line of its own" for name, address in others.items()]


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["applied", "confirmed", "restored"], "default": "applied"},
            "attempt": {"type": "str", "default": ""},
            "interfaces": {"type": "list", "elements": "dict", "default": [], "options": INTERFACE},
            "hosts": {"type": "dict", "default": {}},
            "sysctls": {"type": "dict", "default": {}},
            "limits": {"type": "list", "elements": "dict", "default": [], "options": LIMIT},
            "directory": {"type": "str", "default": ""},
            "management_address": {"type": "str", "default": ""},
            "deadline_seconds": {"type": "float", "default": 90},
            "link_seconds": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    work = {"applied": apply, "confirmed": confirm, "restored": restore}[module.params["state"]]
    try:
        work(module, base_directory(module.params["directory"]))
    except (HostNetworkError, NodeError) as error:
        module.fail_json(msg=str(error), changed=False)


if __name__ == "__main__":
    main()
