"""The nodes of a multi-node stage (a gang), as the program on each of them reads them from a JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..common.result import WorkloadFailure

GANG_VARIABLE = "GPUVAL_GANG"
#: Environment variable with the path of the JSON file that describes the gang: a variable holds at most 128 KiB.
FILE_VARIABLE = "GPUVAL_GANG_FILE"
MAX_BYTES = 8 << 20


@dataclass(frozen=True)
class GangMember:
    """One node of a gang: its name in the inventory, its address for the others, its number of processes (``slots``).
    ``labels``: the node's labels, by which a job may order its nodes. ``clique``: ClusterUUID and CliqueId of its GPUs
    in an NVLink domain of several nodes; None without such a domain."""

    node: str
    address: str
    slots: int
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    clique: str | None = None


@dataclass(frozen=True)
class Gang:
    """The nodes of a multi-node stage in the order of their ranks: the first leads, ``index`` is this node's position.
    TCP ports: ``port`` for PyTorch's rendezvous, the next for the control channel, ``ssh_port`` for SSH servers."""

    name: str
    members: tuple[GangMember, ...]
    index: int
    port: int
    ssh_port: int

    @property
    def leader(self) -> GangMember:
        return self.members[0]

    @property
    def own(self) -> GangMember:
        return self.members[self.index]

    @property
    def is_leader(self) -> bool:
        return self.index == 0

    @property
    def world_size(self) -> int:
        return sum(member.slots for member in self.members)

    @property
    def control_port(self) -> int:
        return self.port + 1

    def within_clique(self) -> Gang:
        """Return the gang reduced to the members in the NVLink clique of this node's GPUs. Raises ``WorkloadFailure``
        if no other member is in it."""
        clique = self.own.clique
        members = tuple(member for member in self.members if clique and member.clique == clique)
        if len(members) < 2:
            raise WorkloadFailure(f"no other member of gang {self.name} is in the NVLink clique {clique or '(none)'}")
        return replace(self, name=f"{self.name}, clique {clique}", members=members, index=members.index(self.own))

    def first_rank(self, index: int) -> int:
        """Return the global rank of the first process on the member at ``index``."""
        return sum(member.slots for member in self.members[:index])

    def owner(self, rank: int) -> tuple[int, int]:
        """Return the index of the member on which a global rank runs, and its local rank. Raises ``IndexError``."""
        for index, member in enumerate(self.members):
            if rank < member.slots:
                return index, rank
            rank -= member.slots
        raise IndexError("the gang has no such rank")


def parse(text: str) -> Gang:
    """Return the gang that a JSON text describes. Raises ``WorkloadFailure`` that says what is wrong."""
    try:
        document = json.loads(text)
        members = tuple(
            GangMember(str(m["node"]), str(m["address"]), int(m["slots"]), dict(m.get("labels", {})), m.get("clique"))
            for m in document["members"]
        )
        numbers = (int(document[key]) for key in ("index", "port", "ssh_port"))
        gang = Gang(str(document["name"]), members, *numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise WorkloadFailure(f"{GANG_VARIABLE} does not describe a gang: {type(error).__name__}: {error}") from None
    if not 0 <= gang.index < len(members):
        raise WorkloadFailure(f"{GANG_VARIABLE}: there is no member {gang.index} among {len(members)}")
    if any(member.slots < 1 for member in members):
        raise WorkloadFailure(f"{GANG_VARIABLE}: a member has no processes")
    for attribute in ("node", "address"):
        if len({getattr(member, attribute) for member in members}) < len(members):
            raise WorkloadFailure(f"{GANG_VARIABLE}: two members have the same {attribute}")
    return gang


def from_environment(environ: Mapping[str, str]) -> Gang:
    """Return this node's gang, from ``GPUVAL_GANG`` or the file ``GPUVAL_GANG_FILE``. Raises ``WorkloadFailure``."""
    if environ.get(GANG_VARIABLE):
        return parse(environ[GANG_VARIABLE])
    if not environ.get(FILE_VARIABLE):
        raise WorkloadFailure(f"neither {FILE_VARIABLE} nor {GANG_VARIABLE} is set: this workload needs several nodes")
    path = Path(environ[FILE_VARIABLE])
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise WorkloadFailure(f"{FILE_VARIABLE} {path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise WorkloadFailure(f"{FILE_VARIABLE} {path} has more than {MAX_BYTES} bytes")
    return parse(data.decode("utf-8", "replace"))
