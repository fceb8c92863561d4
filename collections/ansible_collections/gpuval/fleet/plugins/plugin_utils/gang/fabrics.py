"""NVLink domains of several nodes (GB200, GB300, VR200 NVL72): which nodes share a clique, and what runs over NVLink
within it, beside stages over the network with NCCL's MNNVL off."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.grouping import values_by_key
from ..records import environment
from ..records.documents import Record
from ..records.properties import NVLINK_STAGES

#: Name of the property that holds a node's NVLink clique.
CLIQUE = "nvlink_clique"
NO_PEER = "no other node of its gang is in its NVLink clique: choose two trays of a rack or more"
_UUID = re.compile("(?=.*[1-9a-f])[0-9a-f-]{36}")


def clique_of(facts: Record | None) -> str:
    """``ClusterUUID.CliqueId`` of all GPUs of a node; empty if its GPUs have none, or several."""
    gpus = environment.objects(facts["environment"], "gpus[]") if facts else []
    known = {(str(gpu.get("fabric_cluster_uuid")), str(gpu.get("fabric_clique"))) for gpu in gpus}
    uuid, number = known.pop() if len(known) == 1 else ("", "")
    return f"{uuid}.{number}" if _UUID.fullmatch(uuid) and re.fullmatch("[1-9][0-9]{0,9}", number) else ""


def cliques(gangs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Mapping[str, Any]]]:
    """``{name: members}`` for each clique with two or more members of a gang, which a search over NVLink compares."""
    named: dict[str, list[Mapping[str, Any]]] = {}
    for gang, members in gangs.items():
        by_clique = values_by_key((member["clique"], member) for member in members if member.get("clique"))
        groups = (group for group in by_clique.values() if len(group) > 1)
        named |= {f"{gang}.nvlink{number}": group for number, group in enumerate(groups, 1)}
    return named


def gang_of(name: str) -> str:
    """The name of the gang in the name of a clique (``GANG.nvlink1``); the name of a gang stays as it is."""
    return name.partition(".")[0]


def stages_in(members: Sequence[Mapping[str, Any]], stages: Sequence[str]) -> dict[str, list[str]]:
    """``{node: stages}`` that each member of a gang runs: over NVLink only if another member is in its clique."""
    paired = {member["node"] for group in cliques({"": members}).values() for member in group}
    return {
        member["node"]: [stage for stage in stages if stage not in NVLINK_STAGES or member["node"] in paired]
        for member in members
    }
