"""Facts on IMEX, the service that shares GPU memory between the trays of an NVLink domain. Its daemon runs on the host
(`nvidia-imex`) or in a pod of a ComputeDomain; without a domain it is idle or absent, which is no fault."""

from __future__ import annotations

import re
from typing import Any, Optional

from .tools import Run
from .tree import Tree

SERVICE, CONFIGURATION = "nvidia-imex", "etc/nvidia-imex/nodes_config.cfg"
MAX_NODES = 1024
READY = "READY"
#: A node in the output of `nvidia-imex-ctl`: `Node #0   * 10.0.0.1 *   - READY  - Version: 570.172.08`. Stars mark the
#: node that was asked; old releases print no version.
_NODE = re.compile(
    r"Node #(\d{1,4})\s+[-*]\s+(\S{1,64})\s+[-*]\s+(?:-\s+)?([A-Z_]{1,40})(?:\s+-\s+Version: (\S{1,32}))?"
)
_DOMAIN = re.compile(r"Domain State: ([A-Z_]{1,40})")


def facts(tree: Tree, run: Run, services_facts: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of IMEX: `service` (active, failed, inactive; None without systemd), `configured` (nodes in
    its file), `domain` (its state), `nodes` (address, state, version) and `problem`, why domain and nodes are not
    known. `services_facts`: the names of systemd's services by state."""
    configured = [line.split("#")[0].strip() for line in (tree.read(CONFIGURATION) or "").splitlines()]
    answer = run("nvidia-imex-ctl", "-N")
    nodes, domain = parse(answer.stdout) if answer.ok else ([], None)
    return {
        "service": _service_state(services_facts),
        "configured": [line for line in configured if line][:MAX_NODES],
        "domain": domain,
        "nodes": nodes,
        "problem": None if answer.missing or nodes else answer.complaint if not answer.ok else "it lists no node",
    }


def parse(text: str) -> tuple[list[dict[str, Any]], Optional[str]]:
    """Return the nodes that ``nvidia-imex-ctl -N`` prints, and their domain's state; None if it prints no state."""
    nodes = [
        {"node": int(number), "address": address, "state": state, "version": version}
        for number, address, state, version in (node.groups() for node in _NODE.finditer(text))
    ]
    domain = _DOMAIN.search(text)
    return nodes[:MAX_NODES], domain[1] if domain else None


def not_ready_count(facts_of_imex: dict[str, Any]) -> Optional[int]:
    """Return how many nodes of the IMEX domain are not READY; None if no domain is configured."""
    nodes = facts_of_imex["nodes"]
    return sum(node["state"] != READY for node in nodes) if nodes else None


def _service_state(services: dict[str, Any]) -> Optional[str]:
    if services["active"] is None:
        return None
    return next((state for state in ("active", "failed") if SERVICE in services[state]), "inactive")
