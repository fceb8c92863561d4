"""Host checks of one node of a gang: before the nodes join, when all have joined, and when the work is over."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gpuval_node.hardware.tree import Tree

from ...common.result import WorkloadResult
from ..members import Gang
from . import findings, local, mesh, rdma

LOOK_SECONDS, ASK_SECONDS, END_SECONDS = 3.0, 6.0, 2.0


class HostChecks:
    """The host checks of one member; call ``begin``, ``ask``, ``end``, ``add_to``. None raises or exceeds its deadline.
    ``over_ssh``: the leader must reach every member's SSH server; ``expects_rdma``: the ranks must use RDMA."""

    def __init__(self, gang: Gang, over_ssh: bool, expects_rdma: bool = False, tree: Tree | None = None) -> None:
        self._gang, self._over_ssh, self._tree = gang, over_ssh, tree or Tree()
        self._expects_rdma = expects_rdma
        self._local, self._mesh = local.Local(), mesh.Mesh(gang.name, gang.index, gang.own.address)
        self._answers: dict[int, mesh.PeerAnswer] = {}
        self._moved: dict[str, rdma.Moved] = {}
        self._fingerprints: list[Mapping[str, str]] = []
        self._failed: dict[str, str] = {}
        self._seconds = 0.0
        self._has_begun = False

    def begin(self, stack: ExitStack) -> dict[str, Any]:
        """Check this host, and listen for other members until ``stack`` is closed. Return the listener's ``port``, and
        fingerprints that should be the ``same`` on all hosts."""
        self._has_begun = True
        with self._part("begin"):
            self._local = local.look(self._gang, self._tree, LOOK_SECONDS)
        fingerprints: dict[str, str] = {}
        with self._part("listen"):
            fingerprints = self._local.fingerprints()
            stack.enter_context(self._mesh)
        return {"port": self._mesh.port, "same": fingerprints}

    def ask(self, brought: Sequence[Any]) -> None:
        """Measure the paths to the other members, and print problems; ``brought``: what ``begin`` returned on each."""
        with self._part("ask"):
            described = [report if isinstance(report, Mapping) else {} for report in brought]
            self._fingerprints = [_texts(report.get("same")) for report in described]
            peers = [self._peer(i, report.get("port")) for i, report in enumerate(described) if i != self._gang.index]
            self._answers = self._mesh.ask([peer for peer in peers if peer], ASK_SECONDS)
        print(f"host checks took {self._seconds:.1f} s", flush=True)
        with self._part("problems"):
            for problem in self.problems():
                print(f"host checks: {problem}", flush=True)

    def end(self) -> None:
        """Read the error counters again, after the work."""
        with self._part("end"):
            if self._local.counters:
                self._moved = local.counters_again(self._local, self._tree, END_SECONDS)

    def problems(self) -> list[str]:
        gang, node_evidence, answers = self._gang, self._local, self._answers
        listens = [self._mesh.problem] if self._mesh.problem else []
        return [
            *findings.of_peers(gang, answers),
            *listens,
            *findings.of_unknown(node_evidence),
            *findings.of_access(node_evidence, self._expects_rdma),
            *findings.of_ports(node_evidence),
            *findings.of_members(gang, self._fingerprints),
            *findings.of_paths(gang, node_evidence, answers),
            *findings.of_counters(self._moved),
            *findings.of_pcie(node_evidence),
            *findings.of_acs(node_evidence),
            *findings.of_clock(gang, answers),
            *findings.of_routes(gang, node_evidence),
        ]

    def explain(self, message: str) -> str:
        """Return a failure's message with the worst problems of the checks, if any."""
        with self._part("explain"):
            problems = findings.sentence(self.problems())
            return f"{message}; {problems}" if problems else message
        return message

    def add_to(self, result: WorkloadResult) -> None:
        """Add the checks' figures, fingerprints and problems to a result; a failure's message gets the worst ones."""
        if not self._has_begun:
            return
        with self._part("add"):
            findings.add_own(result, self._local, self._moved)
            if self._answers:
                findings.add_others(result, self._gang, self._local, self._answers)
            result.add_metric("gang_host_checks_seconds", self._seconds, "seconds")
            result.fingerprints.update(self._local.fingerprints())
            result.environment["host_checks"] = {
                "problems": self.problems()[:32],
                **findings.described(self._gang, self._local, self._answers),
                "counters": {
                    port: {name: count for name, count in change.counts.items() if count}
                    for port, change in self._moved.items()
                },
                "login": "by DeepSpeed's launcher, from the leader to each member" if self._over_ssh else "none",
                "failed": self._failed,
            }
        if result.state == "failure":
            result.message = self.explain(result.message)

    def _peer(self, index: int, port: Any) -> mesh.MeshPeer | None:
        if not isinstance(port, int) or not 0 < port < 65536:
            return None
        member = self._gang.members[index]
        route = self._local.ways.get(member.node)
        ssh_port = self._gang.ssh_port if self._over_ssh and self._gang.is_leader else None
        return mesh.MeshPeer(index, member.address, port, route.mtu_bytes if route else None, ssh_port)

    @contextmanager
    def _part(self, name: str):
        """Context for one host check: an error in it is noted for the result and ends nothing."""
        begun = time.monotonic()
        try:
            yield
        except Exception as error:  # an error of a check must not fail the stage
            self._failed[name] = f"{type(error).__name__}: {error}"[:256]
            print(f"host checks: {name} failed with {self._failed[name]}", flush=True)
        finally:
            self._seconds += time.monotonic() - begun


def _texts(value: Any) -> dict[str, str]:
    """Return the known fingerprints in another member's data, with bounded length."""
    texts = value if isinstance(value, Mapping) else {}
    return {
        name: t[: local.MOST_TEXT]
        for name in findings.ALIKE
        if isinstance(t := texts.get(name), str) and t.isprintable()
    }
