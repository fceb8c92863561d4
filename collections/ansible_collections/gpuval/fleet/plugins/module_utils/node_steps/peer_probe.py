"""Measure how a node reaches other nodes and named services. A peer that does not answer is a finding, no failure."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict

from ..network import endpoints as services
from ..network import listener
from ..network.host import Deadline, NetworkHost
from ..network.parallel import in_parallel
from ..network.peers import Peer, Questions, ask, say_bye
from ..network.state import shown
from ..node_directory import NodeError, base_directory

MOST_PORTS = 64


@dataclass(frozen=True)
class EndpointOptions:
    """A service to which the path is measured; without a URL only TCP is."""

    name: str
    #: What it answers is read up to a limit. Any status counts as there.
    url: Optional[str] = None
    #: Host and port, as registry.example.com:5000.
    address: Optional[str] = None
    #: URL of an HTTP proxy to go through; without it the way is direct.
    proxy: Optional[str] = None
    #: Certificate authority on the node; without it the system's own.
    ca_file: Optional[str] = None


@dataclass(frozen=True)
class PeerProbeOptions:
    #: Name of this node, as the others know it.
    node: str
    #: `listen` starts listeners and returns; `ask` measures.
    phase: Literal["listen", "ask"] = "ask"
    peers: Sequence[Annotated[dict[str, Any], Peer]] = ()
    #: Names of the nodes that probe this one. Its listeners end when all of them are done, or after `listen_seconds`.
    askers: Sequence[str] = ()
    #: Ports that must be open between nodes.
    ports: Sequence[int] = ()
    #: Of the listeners.
    probe_port: int = 47600
    #: To receive from each peer; 0 is none.
    bulk_bytes: int = 0
    #: Also send packets of the interface's MTU.
    check_size: bool = True
    #: TCP connections to each peer.
    tries: int = 5
    #: Of one answer, of all measurements, and of the listeners.
    timeout_seconds: float = 2.0
    deadline_seconds: float = 60.0
    listen_seconds: float = 120.0
    endpoints: Sequence[Annotated[dict[str, Any], EndpointOptions]] = ()
    #: Of an answer, and of each service.
    endpoint_bytes: int = 16777216
    endpoint_seconds: float = 5.0
    directory: str = ""


class ProbeAnswer(TypedDict, total=False):
    #: Why there is no listener on some ports; `in_use` by a service of the node.
    not_listening: dict[str, Any]
    #: `peers`, `endpoints` and `interfaces` by name; null is what was not measured.
    measured: dict[str, Any]


def peer_probe(module: Any, **arguments: Any) -> ProbeAnswer:
    """Listen for other nodes, or ask them and services. Check mode starts no listener, and so tries no ports."""
    options = PeerProbeOptions(**arguments)
    module.no_log_values |= {  # a URL may be signed, that of a proxy may hold a password
        endpoint[name] for endpoint in options.endpoints for name in ("url", "proxy") if endpoint.get(name)
    }
    wrong = [port for port in options.ports if not 0 < port < 65536]
    if wrong or len(options.ports) > MOST_PORTS:
        raise NodeError(f"ports: at most {MOST_PORTS}, from 1 to 65535; wrong: {wrong or len(options.ports)}")
    return (listen if options.phase == "listen" else measure)(options, module.check_mode)


def listen(options, check_mode):
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
    targets = [services.parse(endpoint) for endpoint in options.endpoints]
    deadline = Deadline(options.deadline_seconds)
    host = NetworkHost(deadline)
    state = host.state()
    peers = [Peer(**peer) for peer in options.peers]
    questions = Questions(
        ports=() if check_mode else tuple(options.ports),
        probe_port=options.probe_port,
        bulk_bytes=0 if check_mode else options.bulk_bytes,
        tries=options.tries,
        timeout_seconds=options.timeout_seconds,
        check_size=options.check_size,
    )
    answers = ask(peers, questions, deadline, state, host)
    if questions.ports or questions.bulk_bytes:
        say_bye(options.node, answers, questions, deadline)
    calls = {
        target.name: functools.partial(services.probe, target, options.endpoint_bytes, options.endpoint_seconds)
        for target in targets
    }
    reached = in_parallel(calls, max(0.0, deadline.left()))
    late = {"state": "tcp", "message": f"not measured within {options.deadline_seconds:g} s"}
    facts = {
        "node": options.node,
        "peers": answers,
        "endpoints": {target.name: reached.get(target.name, late) for target in targets},
        "interfaces": shown(state),
    }
    return {"measured": facts}
