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
  - What was there before is kept on the node before each change. O(state=restored) puts it back, and so does
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
    type: str
    choices: [applied, restored]
    default: applied
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
from ansible_collections.gpuval.fleet.plugins.module_utils.network.apply import (
    apply_plan,
    links_down,
    wait_for_links,
    why_down,
)
from ansible_collections.gpuval.fleet.plugins.module_utils.network.errors import NetworkError
from ansible_collections.gpuval.fleet.plugins.module_utils.network.host import (
    Deadline,
    Host,
    management_of,
    ssh_connection,
)
from ansible_collections.gpuval.fleet.plugins.module_utils.network.hosts_file import other_addresses
from ansible_collections.gpuval.fleet.plugins.module_utils.network.journal import Journal
from ansible_collections.gpuval.fleet.plugins.module_utils.network.plan import HOSTS_FILE, Management, build, protected
from ansible_collections.gpuval.fleet.plugins.module_utils.network.settings import parse
from ansible_collections.gpuval.fleet.plugins.module_utils.network.state import shown
from ansible_collections.gpuval.fleet.plugins.module_utils.network.undo import is_changed, is_touched, put_back
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError, base_directory, run_folders

NEEDS_ROOT = (
    "needs root: {what}. Set ansible_become: true in the inventory, for these nodes and for gpuval.fleet.clean alike."
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


def restore(module):
    base = base_directory(module.params["directory"])
    nothing = {"changes": [], "kept": [], "left": [], "notes": []}
    if not is_touched(base):
        module.exit_json(changed=False, msg="nothing of this node's network is to be put back", **nothing)
    runs = sorted({folder.parent.name for folder in run_folders(base)})
    if runs:
        note = f"left as it is, since {', '.join(runs)} is still on this node: clean that run, which puts it back"
        module.exit_json(changed=False, msg=note, **{**nothing, "notes": [note]})
    if is_changed(base) and os.geteuid() != 0:
        module.fail_json(msg=NEEDS_ROOT.format(what="put the network back"), **nothing)
    done = put_back(base, module.params["deadline_seconds"], dry=module.check_mode)
    result = {"changes": done["restored"], "kept": done["kept"], "left": done["left"], "notes": []}
    if done["left"]:
        module.fail_json(
            msg=f"could not be put back: {'; '.join(done['left'])}", changed=bool(done["restored"]), **result
        )
    module.exit_json(changed=bool(done["restored"]), msg=f"{len(done['restored'])} change(s) put back", **result)


def apply(module):
    settings = parse(module.params)
    host = Host(Deadline(module.params["deadline_seconds"]))
    state = host.state(settings.sysctls)
    carriers, peer, reason = management_of(state, host, ssh_connection(), module.params["management_address"])
    management = Management(protected(state, carriers), peer, reason)
    journal = Journal(base_directory(module.params["directory"]))
    plan = build(settings, state, management, journal.flapped(state.boot_id))
    changes = [str(change) for change in plan.changes]
    result = {
        "changes": changes,
        "notes": _other_names(settings),
        "management": {"interfaces": carriers, "peer": peer, "reason": reason},
        "left": [],
        "down": [],
        "interfaces": shown(state),
    }
    if module._diff and changes:
        before, after = (
            "".join(f"{change.subject}: {_text(getattr(change, side))}\n" for change in plan.changes)
            for side in ("before", "after")
        )
        headers = {"before_header": "network, as it is", "after_header": "network, as declared"}
        result["diff"] = {"before": before, "after": after, **headers}
    if plan.problems:
        module.fail_json(msg="; ".join(plan.problems), changed=False, **{**result, "changes": []})
    if changes and os.geteuid() != 0:
        module.fail_json(msg=NEEDS_ROOT.format(what="; ".join(changes)), **{**result, "changes": []})
    if module.check_mode:
        module.exit_json(changed=bool(changes), msg=_summary(settings, changes, "would be"), **result)
    if not changes:
        state = wait_for_links(plan, host, list(settings.sysctls), module.params["link_seconds"])
        result.update(down=links_down(plan, state), interfaces=shown(state))
        if result["down"]:
            reasons = ", ".join(why_down(name, state) for name in result["down"])
            module.fail_json(
                msg=f"{reasons}, though declared up. Look at the cable, the transceiver, the switch's port and dmesg",
                **result,
            )
        module.exit_json(changed=False, msg=_summary(settings, changes, "were"), **result)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a connection that ends must not leave half of the changes
    outcome = apply_plan(plan, settings, management, host, journal, module.params["link_seconds"])
    state = host.state() if outcome.failures else outcome.state
    result.update(left=outcome.left, down=outcome.down, interfaces=shown(state))
    if outcome.failures:
        back = "; the changes were rolled back" if outcome.rolled_back and not outcome.left else ""
        if outcome.left:
            back = f"; could not be rolled back: {'; '.join(outcome.left)}: run gpuval.fleet.clean"
        message = "; ".join(outcome.failures) + back
        module.fail_json(msg=message, changed=bool(outcome.left), rolled_back=outcome.rolled_back, **result)
    module.exit_json(changed=True, msg=_summary(settings, changes, "were"), **result)


def _text(value):
    return "none" if value is None else str(value).rstrip("\n")


def _summary(settings, changes, verb):
    if settings.empty:
        return "nothing is declared, so nothing is changed"
    return f"{len(changes)} change(s) {verb} made" if changes else "as declared"


def _other_names(settings):
    try:
        text = Path(HOSTS_FILE).read_text(encoding="utf-8", errors="replace") if settings.hosts else ""
    except OSError:
        return []
    found = other_addresses(text, settings.hosts)
    return [f"{HOSTS_FILE} gives {name} the address {address} in a line of its own" for name, address in found.items()]


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["applied", "restored"], "default": "applied"},
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
    try:
        (restore if module.params["state"] == "restored" else apply)(module)
    except (NetworkError, NodeError) as error:
        module.fail_json(msg=str(error), changed=False)


if __name__ == "__main__":
    main()
