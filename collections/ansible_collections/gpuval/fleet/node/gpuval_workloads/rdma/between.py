"""Pairs of nodes, rail by rail, both directions at once: steps of the job rdma_pairs, on every member of its gang.

``measure`` runs ib_write_bw between neighbours in the order of the hostfile and writes what each rail made;
``judge``, when all nodes have measured, fails on a node that has a slow rail. Each node is so in two pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Union

from ..common.arguments import positive_float
from ..gang.host.sysfs import Sysfs
from . import node as nodes
from . import perftest, program, run
from .node import Node
from .perftest import Measurement

JOIN_SECONDS, POLL_SECONDS, MAX_LINE = 300.0, 0.2, 65536
FILE = "rdma_pairs.json"
#: By pair and rail the share of both directions' rate, or why there is none.
Shares = dict[str, Union[float, str]]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpuval_workloads.rdma.between")
    parser.add_argument("work", choices=["measure", "judge"])
    parser.add_argument("--seconds", type=positive_float, default=5.0, help="measuring time of each rail")
    parser.add_argument("--least", type=positive_float, default=0.8, help="minimum share of the bidirectional rate")
    parser.add_argument("--devices", nargs="+", default=["*"], metavar="NAME")
    parser.add_argument("--port", type=int, default=18600, help="TCP port on which neighbours connect")
    options = parser.parse_args(list(arguments))
    file = Path(os.environ["GPUVAL_JOB_DIR"], FILE)
    if options.work == "judge":
        return judge(json.loads(file.read_text(encoding="utf-8")), options.least)
    hosts = [line.split()[0] for line in Path(os.environ["GPUVAL_HOSTFILE"]).read_text(encoding="utf-8").splitlines()]
    found = measure(hosts, int(os.environ["NODE_RANK"]), options, Sysfs())
    file.write_text(json.dumps(found), encoding="utf-8")
    return 0 if found else 1


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Client and server of the pairs of each round: every node beside both neighbours of a ring, one at a time."""
    ring = [(index, index + 1) for index in range(count - 1)] + ([(count - 1, 0)] if count > 2 else [])
    last = [ring.pop()] if count > 2 and count % 2 else []
    return [each for each in (ring[0::2], ring[1::2], last) if each]


def measure(
    hosts: Sequence[str], rank: int, options: argparse.Namespace, sysfs: Sysfs, slack: float = run.SLACK_SECONDS
) -> Shares:
    """By pair and rail the share that it made, or why there is none; empty where this node cannot take part."""
    node, tool = nodes.look(sysfs, options.devices), shutil.which(perftest.WRITE)
    if not node.rails or not tool:
        print(f"{perftest.WRITE} not found: {program.INSTALL}" if node.rails else "no RDMA port has a link here")
        return {}
    found: Shares = {}
    for one, other in (pair for pairs in rounds(len(hosts)) for pair in pairs if rank in pair):
        name = f"{hosts[one]}>{hosts[other]}"
        try:
            with _meet(hosts[other], options.port, serves=rank == other, seconds=JOIN_SECONDS) as peer:
                peer.settimeout(2 * (options.seconds + slack))
                for rail, share in _rails(peer, node, Path(tool), int(options.seconds), rank == other, slack):
                    found[f"{name} {rail}"] = share
                    print(f"{name} {rail}: {share}", flush=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            found[name] = f"lost the connection to the other node: {error or type(error).__name__}"
            print(f"{name}: {found[name]}", flush=True)
    shares = [share for share in found.values() if isinstance(share, float)]
    print(f"slowest rail: {min(shares):.3f} ratio" if shares else "no rail was measured", flush=True)
    return found


def judge(found: Shares, least: float) -> int:
    bad = {name: one for name, one in found.items() if not isinstance(one, float) or one < least}
    for name, one in bad.items():
        print(
            f"{name}: {f'{one:.0%} of its rate, below the minimum of {least:.0%}' if isinstance(one, float) else one}"
        )
    return 1 if bad or not found else 0


def _meet(host: str, port: int, *, serves: bool, seconds: float) -> socket.socket:
    """The connection of a pair; the later node of both serves. Raises ``OSError`` after so long."""
    if serves:
        with socket.create_server((host, port)) as door:
            door.settimeout(seconds)
            return door.accept()[0]
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, port), timeout=seconds)
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS)


def _rails(
    peer: socket.socket, node: Node, tool: Path, seconds: int, serves: bool, slack: float
) -> Iterator[tuple[str, float | str]]:
    """The rails of both nodes by their order, one after another; both get what the client measured."""
    stream = peer.makefile("rw", encoding="utf-8")

    def send(message: Any) -> None:
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    def receive() -> Any:
        return json.loads(stream.readline(MAX_LINE))

    own = [rail.end for rail in node.rails]
    most = [rail.most_bytes_per_second for rail in node.rails]
    send({"rails": [end.name for end in own], "most": most})
    theirs = receive()
    host = peer.getpeername()[0]
    for index, (end, name) in enumerate(zip_longest(own, theirs["rails"])):
        if end is None or name is None:
            yield str(name or end.name)[:64], "the other node has fewer ports with a link"
            continue
        title = end.name if serves else str(name)[:64]
        test = Measurement(perftest.WRITE, end, end, seconds, both_ways=True)
        if serves:
            port = run.free_port()
            side = run.server(test, tool, node.cpus, port, run.limit(test, slack))
            try:
                send({"port": port if side.is_listening(port, slack) else None})
                answer = receive()
            finally:
                side.end()
            here = run.outcome(side.ended, None).problem
            yield (
                title,
                answer["share"] if isinstance(answer["share"], float) else f"{str(answer['share'])[:200]}; {here}",
            )
            continue
        port = receive()["port"]
        if not isinstance(port, int):
            share: float | str = "perftest on the other node does not listen"
        else:
            side = run.client(test, tool, node.cpus, port, run.limit(test, slack), host)
            side.thread.join()
            ended = run.outcome(None, side.ended)
            speed, limits = (
                perftest.bandwidth(ended.output),
                [each for each in (most[index], theirs["most"][index]) if each],
            )
            share = speed / (2 * min(limits)) if speed and limits else ended.problem or "printed no bandwidth"
        send({"share": share})
        yield title, share


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
