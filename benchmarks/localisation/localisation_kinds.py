"""What is planted into a gang, by kind."""

from __future__ import annotations

import random
from collections.abc import Callable

from gangs import Fault, Gang

NODE_FAULTS = [
    Fault("slow", 0.9),
    Fault("slow", 0.7),
    Fault("slow", 0.1),
    Fault("wrong"),
    Fault("timeout"),
    Fault("crash"),
]
LINK_FAULTS = [Fault("slow", 0.8), Fault("slow", 0.5), Fault("slow", 0.1), Fault("timeout")]


def nodes(count: int, faults: list[Fault] = NODE_FAULTS) -> Callable[[Gang, random.Random], None]:
    def plant(gang: Gang, drawn: random.Random) -> None:
        away = {node for pair in gang.links for node in pair}
        names = drawn.sample([node for node in gang.nodes if node not in away], count)
        gang.bad.update({node: drawn.choice(faults) for node in names})

    return plant


def links(
    count: int, faults: list[Fault] = LINK_FAULTS, anywhere: bool = False
) -> Callable[[Gang, random.Random], None]:
    def plant(gang: Gang, drawn: random.Random) -> None:
        size = len(gang.nodes)
        while len(gang.links) < count:
            place = drawn.randrange(size)
            other = drawn.choice([way for way in range(size) if way != place]) if anywhere else (place + 1) % size
            pair = frozenset((gang.nodes[place], gang.nodes[other]))
            if not any(pair & known for known in gang.links):
                gang.links[pair] = drawn.choice(faults)

    return plant


def switch(gang: Gang, drawn: random.Random) -> None:
    racks = sorted({gang.topology.place(node, "rack") for node in gang.nodes})
    gang.racks[drawn.choice(racks)] = drawn.choice(LINK_FAULTS)


KINDS: dict[str, list[Callable[[Gang, random.Random], None]]] = {
    "none": [],
    "1 bad node": [nodes(1)],
    "2 bad nodes": [nodes(2)],
    "3 bad nodes": [nodes(3)],
    "5 bad nodes": [nodes(5)],
    "1 node 10 % slower": [nodes(1, [Fault("slow", 0.9)])],
    "1 node wrong in half the rounds": [nodes(1, [Fault("wrong", rate=0.5)])],
    "1 node, in groups of 8 only": [nodes(1, [Fault("slow", 0.5, least=8), Fault("timeout", least=8)])],
    "1 bad link of the ring": [links(1)],
    "2 bad links of the ring": [links(2)],
    "1 link 10 % slower": [links(1, [Fault("slow", 0.9)])],
    "1 bad link anywhere": [links(1, anywhere=True)],
    "bad switch of a rack": [switch],
    "2 bad nodes, 1 bad link": [links(1), nodes(2)],
    "1 bad node, bad switch": [switch, nodes(1)],
}
