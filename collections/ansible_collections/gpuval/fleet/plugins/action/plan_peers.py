# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Choose the peers that each node probes, and their addresses; no node is contacted."""

from __future__ import annotations

import concurrent.futures
import ipaddress
import socket

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.text import some_of
from ..plugin_utils.network import sampling

RESOLVE_SECONDS = 10
#: What an inventory declares a network by.
DECLARING = (
    "network_interfaces",
    "network_hosts_entries",
    "network_sysctls",
    "network_limits",
    "network_ports",
    "network_endpoints",
)


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        hostvars = task_vars["hostvars"]
        nodes = list(task_vars["ansible_play_hosts_all"])
        zones, where, declared = {}, {}, False
        for name in nodes:
            known = hostvars[name]
            declared = declared or any(known.get(variable) for variable in DECLARING)
            zones[name] = str(known.get("network_zone") or "")
            address = str(known.get("network_address") or known.get("ansible_host") or name)
            where[name] = {"name": name, "address": address, "port": int(known.get("ansible_port") or 22)}
        peers = sampling.plan(nodes, zones, options["mesh"], options["degree"])
        hosts = _addresses({name: entry["address"] for name, entry in where.items()}) if options["resolve"] else {}
        unknown = sorted(set(nodes) - set(hosts)) if options["resolve"] else []
        if unknown:
            self._display.warning(
                f"no address is known for {some_of(unknown)}: set network_address, else they are left out of /etc/hosts"
            )
        return {
            "changed": False,
            "peers": {name: [where[other] for other in others] for name, others in peers.items()},
            "askers": _askers(peers),
            "zones": zones,
            "hosts": hosts,
            "declared": declared,
            "uncovered": [list(pair) for pair in sampling.uncovered(peers, zones)],
            "msg": f"{len(nodes)} node(s), {sum(map(len, peers.values()))} question(s)",
        }


def _askers(peers):
    found = {name: [] for name in peers}
    for name, others in peers.items():
        for other in others:
            found[other].append(name)
    return found


def _addresses(names):
    """IP address by node, where there is one; names are asked for at one time, with a deadline."""
    found, todo = {}, {}
    for node, name in names.items():
        try:
            found[node] = str(ipaddress.ip_address(name))
        except ValueError:
            todo[node] = name
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=32)
    try:
        waiting = {pool.submit(socket.getaddrinfo, name, None): node for node, name in todo.items()}
        done, _late = concurrent.futures.wait(waiting, timeout=RESOLVE_SECONDS)
        for future in done:
            if future.exception() is None:
                found[waiting[future]] = future.result()[0][4][0]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return {node: found[node] for node in names if node in found}
