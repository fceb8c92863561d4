"""Choose the peers that each node probes, and their addresses; no node is contacted."""

import functools
import ipaddress
from collections.abc import Mapping
from typing import Any

from ...module_utils.network import tcp
from ...module_utils.network.parallel import in_parallel
from ..core.text import some_of
from ..network import sampling
from ..runs.action import RunAction

RESOLVE_SECONDS = 10
#: Variables that declare a network.
DECLARING = (
    "network_interfaces",
    "network_hosts_entries",
    "network_sysctls",
    "network_limits",
    "network_ports",
    "network_endpoints",
)


def plan_peers(action: RunAction, mesh: int = 32, degree: int = 8, resolve: bool = False) -> dict[str, Any]:
    """Choose each node's peers: all others among up to `mesh` nodes, else `degree` others, which also probe it."""
    variables = {name: action.task_vars["hostvars"][name] for name in action.task_vars["ansible_play_hosts_all"]}
    zones = {name: str(known.get("network_zone") or "") for name, known in variables.items()}
    addresses = {
        name: str(known.get("network_address") or known.get("ansible_host") or name)
        for name, known in variables.items()
    }
    ports = {name: int(known.get("ansible_port") or 22) for name, known in variables.items()}
    peers = sampling.plan(list(variables), zones, mesh, degree)
    hosts = _resolve(addresses) if resolve else {}
    unknown = sorted(set(variables) - set(hosts)) if resolve else []
    if unknown:
        action.display.warning(
            f"no address is known for {some_of(unknown)}: set network_address, else they are left out of /etc/hosts"
        )
    return {
        "changed": False,
        "peers": {
            name: [{"name": other, "address": addresses[other], "port": ports[other]} for other in others]
            for name, others in peers.items()
        },
        "askers": peers,  # peers probe each other
        "zones": zones,
        "hosts": hosts,
        "declared": any(known.get(variable) for known in variables.values() for variable in DECLARING),
        "uncovered": [list(pair) for pair in sampling.uncovered(peers, zones)],
        "msg": f"{len(variables)} node(s), {sum(map(len, peers.values()))} question(s)",
    }


def _resolve(addresses: Mapping[str, str]) -> dict[str, str]:
    """{node: IP address}, of addresses or names that resolve within RESOLVE_SECONDS, in parallel."""
    numeric, tasks = {}, {}
    for node, address in addresses.items():
        try:
            numeric[node] = str(ipaddress.ip_address(address))
        except ValueError:
            tasks[node] = functools.partial(tcp.resolve, address)
    numeric |= {node: address for node, (address, _seconds) in in_parallel(tasks, RESOLVE_SECONDS).items() if address}
    return {node: numeric[node] for node in addresses if node in numeric}
