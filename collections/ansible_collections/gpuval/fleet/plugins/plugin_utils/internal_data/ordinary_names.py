"""Tells names of nodes that are common words: a delivery keeps them in running text, and replaces them as names."""

import re

from ..core import extensions

#: Ordinary words of logs: in running text they name no node, and their conversion would spoil the text.
ORDINARY = frozenset(
    {"localhost", "node", "nodes", "host", "hosts", "gpu", "cpu", "master", "worker", "server", "client", "head",
     "login", "local", "root", "admin", "user", "ubuntu", "debian", "centos", "rocky", "ec2-user", "core", "nobody",
     "home", "data", "none", "true", "false", "test", "linux", "runner", "controller", "project", "nvidia", "amd",
     "gaudi", "vm"}
)  # fmt: skip
SHORTEST_NAME = 3


def is_ordinary(name: str) -> bool:
    """Whether the name of a node is a common word, a stage, a number, or shorter than SHORTEST_NAME."""
    is_word = name.lower() in ORDINARY or name.lower() in extensions.found("stages")
    return len(name) < SHORTEST_NAME or is_word or not re.search("[A-Za-z]", name)
