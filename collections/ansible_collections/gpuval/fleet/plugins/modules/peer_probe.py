#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: peer_probe
short_description: Measure how a node reaches other nodes and named services
version_added: 1.0.0
description:
  - Asks each peer by TCP and C(ping) whether it is there, how long that takes, and how large a packet gets through
    whole.
  - Tries declared ports of the peers, on which they listen for that with O(phase=listen), and can receive some bytes
    from them.
  - Measures the way to named services.
  - Listeners end when all peers that were to ask are done, at the latest after O(listen_seconds).
    M(gpuval.fleet.clean_node) ends them too.
  - A peer that does not answer is a finding, not a failure of the task.
extends_documentation_fragment: [gpuval.fleet.common, gpuval.fleet.node_directory]
attributes:
  check_mode:
    support: partial
    description: Measures latency and services.
    details: Starts no listener, and so tries no ports.
options:
  phase:
    description: V(listen) starts listeners and returns; V(ask) measures.
    type: str
    choices: [listen, ask]
    default: ask
  node:
    description: Name of this node, as the others know it.
    type: str
    required: true
  peers:
    description: The nodes to probe.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the peer.
        type: str
        required: true
      address:
        description: Where to reach it.
        type: str
        required: true
      port:
        description: TCP port that latency is measured with; refused is as good as accepted.
        type: int
        default: 22
  askers:
    description: Names of the nodes that probe this one.
    type: list
    elements: str
    default: []
  ports:
    description: Ports that must be open between nodes.
    type: list
    elements: int
    default: []
  probe_port:
    description: Port of the listeners.
    type: int
    default: 47600
  bulk_bytes:
    description: Bytes to receive from each peer; V(0) is none.
    type: int
    default: 0
  check_size:
    description: Also send packets of the interface's MTU.
    type: bool
    default: true
  tries:
    description: TCP connections to each peer.
    type: int
    default: 5
  timeout_seconds:
    description: Time limit of one answer.
    type: float
    default: 2
  deadline_seconds:
    description: Time limit of all measurements.
    type: float
    default: 60
  listen_seconds:
    description: Max lifetime of the listeners.
    type: float
    default: 120
  endpoints:
    description: Services to which the path is measured.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What to call it.
        type: str
        required: true
      url:
        description: A URL; what it answers is read up to O(endpoint_bytes). Any status counts as there.
        type: str
      address:
        description: Host and port, C(registry.example.com:5000); only TCP is measured.
        type: str
      proxy:
        description: URL of an HTTP proxy to go through; without it the way is direct.
        type: str
      ca_file:
        description: Certificate authority on the node; without it the system's own.
        type: str
  endpoint_bytes:
    description: Max bytes to read of an answer.
    type: int
    default: 16777216
  endpoint_seconds:
    description: Time limit per service.
    type: float
    default: 5
"""

EXAMPLES = r"""
- name: Measure the way to another node and to a registry
  gpuval.fleet.peer_probe:
    node: node-001
    peers:
      - name: node-002
        address: 10.20.0.12
    endpoints:
      - name: registry
        url: https://registry.example.com/v2/
"""

RETURN = r"""
not_listening:
  description: Why there is no listener on some ports; V(in_use) by a service of the node.
  returned: when O(phase=listen)
  type: dict
measured:
  description: What was measured, C(peers), C(endpoints) and C(interfaces) by name. Null is what was not measured.
  returned: when O(phase=ask)
  type: dict
"""

import functools

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.network import endpoints as services
from ansible_collections.gpuval.fleet.plugins.module_utils.network import listener
from ansible_collections.gpuval.fleet.plugins.module_utils.network.asking import Peer, Questions, ask, say_bye
from ansible_collections.gpuval.fleet.plugins.module_utils.network.errors import HostNetworkError
from ansible_collections.gpuval.fleet.plugins.module_utils.network.host import Deadline, NetworkHost
from ansible_collections.gpuval.fleet.plugins.module_utils.network.parallel import in_parallel
from ansible_collections.gpuval.fleet.plugins.module_utils.network.state import shown
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError, base_directory

MOST_PORTS = 64

PEER = {
    "name": {"type": "str", "required": True},
    "address": {"type": "str", "required": True},
    "port": {"type": "int", "default": 22},
}
ENDPOINT = {
    "name": {"type": "str", "required": True},
    "url": {"type": "str", "no_log": True},  # it may be a signed one
    "address": {"type": "str"},
    "proxy": {"type": "str", "no_log": True},  # it may hold a password
    "ca_file": {"type": "str"},
}


def listen(module):
    parameters = module.params
    wanted = sorted({parameters["probe_port"], *parameters["ports"]})
    if module.check_mode or not parameters["askers"]:
        module.exit_json(changed=False, not_listening={})
    base = base_directory(parameters["directory"])
    listener.stop(base)
    found, others = listener.open_ports(wanted)
    if parameters["probe_port"] in others:
        for link in found.values():
            link.close()
        module.fail_json(
            msg=f"port {parameters['probe_port']} cannot be listened on ({others[parameters['probe_port']]}): set "
            "network_probe_port to a free one"
        )
    listener.start(base, parameters["node"], found, parameters["listen_seconds"], set(parameters["askers"]))
    module.exit_json(changed=False, not_listening={str(port): reason for port, reason in others.items()})


def measure(module):
    parameters = module.params
    targets = [services.parse(entry) for entry in parameters["endpoints"]]
    deadline = Deadline(parameters["deadline_seconds"])
    host = NetworkHost(deadline)
    state = host.state()
    peers = [Peer(**entry) for entry in parameters["peers"]]
    listened = not module.check_mode
    questions = Questions(
        ports=tuple(parameters["ports"]) if listened else (),
        probe_port=parameters["probe_port"],
        bulk_bytes=parameters["bulk_bytes"] if listened else 0,
        tries=parameters["tries"],
        timeout_seconds=parameters["timeout_seconds"],
        check_size=parameters["check_size"],
    )
    answers = ask(peers, questions, deadline, state, host)
    if questions.ports or questions.bulk_bytes:
        say_bye(parameters["node"], peers, answers, questions, deadline)
    calls = {
        target.name: functools.partial(
            services.probe, target, parameters["endpoint_bytes"], parameters["endpoint_seconds"]
        )
        for target in targets
    }
    reached = in_parallel(calls, max(0.0, deadline.left()))
    late = {"state": "tcp", "message": f"not measured within {parameters['deadline_seconds']:g} s"}
    facts = {
        "node": parameters["node"],
        "peers": answers,
        "endpoints": {target.name: reached.get(target.name, late) for target in targets},
        "interfaces": shown(state),
    }
    module.exit_json(changed=False, measured=facts)


def main():
    module = AnsibleModule(
        argument_spec={
            "phase": {"type": "str", "choices": ["listen", "ask"], "default": "ask"},
            "node": {"type": "str", "required": True},
            "peers": {"type": "list", "elements": "dict", "default": [], "options": PEER},
            "askers": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "probe_port": {"type": "int", "default": 47600},
            "bulk_bytes": {"type": "int", "default": 0},
            "check_size": {"type": "bool", "default": True},
            "tries": {"type": "int", "default": 5},
            "timeout_seconds": {"type": "float", "default": 2},
            "deadline_seconds": {"type": "float", "default": 60},
            "listen_seconds": {"type": "float", "default": 120},
            "endpoints": {"type": "list", "elements": "dict", "default": [], "options": ENDPOINT},
            "endpoint_bytes": {"type": "int", "default": 16777216},
            "endpoint_seconds": {"type": "float", "default": 5},
            "directory": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    wrong = [port for port in module.params["ports"] if not 0 < port < 65536]
    if wrong or len(module.params["ports"]) > MOST_PORTS:
        module.fail_json(
            msg=f"ports: at most {MOST_PORTS}, from 1 to 65535; wrong: {wrong or len(module.params['ports'])}"
        )
    try:
        (listen if module.params["phase"] == "listen" else measure)(module)
    except (HostNetworkError, NodeError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
