"""Measures the network from a node to other nodes and services. A peer without an answer is a finding, no failure."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, TypedDict

from ..network import endpoints as services
from ..network import listener
from ..network.host import Deadline, NetworkHost
from ..network.parallel import in_parallel
from ..network.peers import PeerProbeOptions, ask, say_bye
from ..network.state import shown
from ..node_directory import NodeError, base_directory

MOST_PORTS = 64


class ProbeAnswer(TypedDict, total=False):
    #: Why ports have no listener, by port; `in_use`: a service of the node listens.
    not_listening: dict[str, Any]
    #: Measurements of `peers`, `endpoints` and `interfaces` by name; null is not measured.
    measured: dict[str, Any]


def peer_probe(module: Any, **arguments: Any) -> ProbeAnswer:
    """Listen for other nodes, or measure the path to them and to services. Check mode opens and tests no port."""
    options = PeerProbeOptions(**arguments)
    module.no_log_values |= {  # a URL may be signed, that of a proxy may hold a password
        endpoint[name] for endpoint in options.endpoints for name in ("url", "proxy") if endpoint.get(name)
    }
    wrong = [port for port in options.ports if not 0 < port < 65536]
    if wrong or len(options.ports) > MOST_PORTS:
        raise NodeError(f"ports: at most {MOST_PORTS}, from 1 to 65535; wrong: {wrong or len(options.ports)}")
    return (listen if options.phase == "listen" else measure)(options, module.check_mode)


def listen(options, check_mode):
    """Start listeners on the probe port and the declared ports; return why some ports have none."""
    ports = sorted({options.probe_port, *options.ports})
    if check_mode or not options.askers:
        return {"not_listening": {}}
    base = base_directory(options.directory)
    listener.stop(base)
    sockets, refused = listener.open_ports(ports)
    if options.probe_port in refused:
        for link in sockets.values():
            link.close()
        raise NodeError(
            f"port {options.probe_port} cannot be listened on ({refused[options.probe_port]}): set "
            "network_probe_port to a free one"
        )
    listener.start(base, options.node, sockets, options.listen_seconds, set(options.askers))
    return {"not_listening": {str(port): reason for port, reason in refused.items()}}


def measure(options, check_mode):
    """Measure the network path from this node to its peers and to services; return the measurements."""
    targets = [services.parse(endpoint) for endpoint in options.endpoints]
    deadline = Deadline(options.deadline_seconds)
    state = NetworkHost(deadline).state()
    questions = replace(options, ports=(), bulk_bytes=0) if check_mode else options
    answers = ask(questions, deadline, state)
    if questions.ports or questions.bulk_bytes:
        say_bye(questions, answers, deadline)
    calls = {
        target.name: functools.partial(services.probe, target, options.endpoint_bytes, options.endpoint_seconds)
        for target in targets
    }
    reached = in_parallel(calls, max(0.0, deadline.left()))
    late = {"state": "tcp", "message": f"not measured within {options.deadline_seconds:g} s"}
    facts = {
        "node": options.node,
        "peers": {name: vars(answer) for name, answer in answers.items()},
        "endpoints": {target.name: reached.get(target.name, late) for target in targets},
        "interfaces": shown(state),
    }
    return {"measured": facts}
