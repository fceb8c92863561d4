"""Names, addresses and secrets around a run that a delivery must not contain."""

import contextlib
import getpass
import os
import re
import shlex
import socket
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ...module_utils.redaction import is_secret
from ..records import environment
from .addresses import canonical
from .conversion import InternalData
from .ordinary_names import is_ordinary

#: Variables of a node that hold its name or address.
ADDRESSES = ("ansible_host", "ansible_ssh_host")
ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")
USERS = ("ansible_user", "ansible_ssh_user")
URL, HOST, ENVIRONMENT, SECRETS = "gpuval_s3_endpoint", "gpuval_store_address", "gpuval_environment", "gpuval_secrets"
VARIABLES = (*ADDRESSES, *ARGUMENTS, *USERS, URL, HOST, ENVIRONMENT, SECRETS, "gpuval_node_ids")
#: Suffixes of variables that hold the path of a file, not a secret itself.
_FILES = ("_file", "_path", "_dir")
HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_MADE_UP_NAME = re.compile(r"[0-9_.-]|[a-z][A-Z]")
_JUMP_OPTIONS = re.compile(r"(?:^|\s)-(?:J|o\s*ProxyJump[= ])\s*([^\s\"']+)", re.IGNORECASE)
_PROXY_COMMAND = re.compile(r"ProxyCommand[= ]\s*(.*)", re.IGNORECASE)
_WITH_VALUE = frozenset(f"-{letter}" for letter in "oiplFWJEcmbBDLRSeQwIO")


def is_secret_variable(name: str) -> bool:
    """Whether the value of a variable with this name may be a secret, not the path of one."""
    return (is_secret(name) or name.lower().endswith("_pass")) and not name.lower().endswith(_FILES)


@dataclass
class Sensitive(InternalData):
    """Collects sensitive data from the controller, the inventory and the nodes' facts."""

    #: {other name of a node (alias), such as a host name: nodes that have it}
    nodes_of: dict[str, set[str]] = field(default_factory=dict)
    #: Aliases that nodes themselves reported, which may be any word; and aliases that the inventory declares.
    claimed: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)
    #: Names of switches that only nodes reported, which may be any word.
    switches: set[str] = field(default_factory=set)

    def add_controller(self, project: Path) -> None:
        """Add the names of this machine and its users, and the folders of the user and of ``project``."""
        self.hosts |= {socket.gethostname(), socket.gethostname().partition(".")[0]}
        home = Path.home()
        self.users |= {os.environ.get("USER", ""), os.environ.get("SUDO_USER", ""), home.name} - {""}
        with contextlib.suppress(KeyError, OSError):
            self.users.add(getpass.getuser())
        for folder, replacement in ((PurePosixPath(project), "project"), (PurePosixPath(home), "~")):
            if len(folder.parts) > 2:
                self.folders[str(folder)] = replacement

    def add_variables(self, node: str, values: Mapping[str, Any]) -> None:
        texts = {name: str(value) for name, value in values.items() if isinstance(value, str)}
        for name in ADDRESSES:
            self._machine(texts.get(name, ""), node)
        for name in ARGUMENTS:
            for user, host in jumps(texts.get(name, "")):
                self._machine(host, None)
                self.users.add(user)
        self.users |= {texts.get(name, "") for name in USERS}
        self._machine(urlsplit(texts.get(URL, "")).hostname or "", None)
        self._machine(texts.get(HOST, ""), None)
        secrets, variables = (
            values[name] if isinstance(values.get(name), Mapping) else {} for name in (SECRETS, ENVIRONMENT)
        )
        declared = [
            value for entries in (values, variables) for name, value in entries.items() if is_secret_variable(str(name))
        ]
        self.secrets |= {str(value) for value in (*declared, *secrets.values()) if isinstance(value, str)}
        self.users.discard("")
        self.secrets.discard("")

    def add_facts(self, node: str, facts: Mapping[str, Any] | None) -> None:
        """Add what a node's facts report: its host name, its MAC addresses, ids and names of switches at its ports."""
        reported = (facts or {}).get("environment")
        for hostname in environment.texts(reported, "os.hostname"):
            if HOST_NAME.fullmatch(hostname):
                self._machine(hostname, node, claimed=True)
                self._machine(hostname.partition(".")[0], node, claimed=True)
        self.macs |= set(environment.texts(reported, "nics[].address"))
        self.macs |= set(environment.texts(reported, "cabling[].neighbours[].id"))
        for switch in environment.texts(reported, "cabling[].neighbours[].name"):
            self.switches |= switch_names(switch)

    def add_plan(self, run: Mapping[str, Any]) -> None:
        """Add the switches in the cabling plan of a run's nodes."""
        for node in run["nodes"].values():
            for cable in node.get("declared", {}).get("cabling", ()):
                for name in switch_names(cable["switch"]):
                    self._machine(name, None)

    def of_run(self, names: Mapping[str, str], own_words: Container[str], run_id: str) -> InternalData:
        """The internal data for a run. ``names``: {node: unique id}. An alias of one node is replaced by the node's id,
        one of several nodes or of a host outside the run by a placeholder. Ids and ``own_words`` of gpuval, which occur
        in all texts, are no aliases."""
        in_use = {identity.lower() for identity in names.values()}
        refused = {
            alias
            for alias in self.claimed - self.declared
            if alias.lower() in in_use or all(label in own_words for label in alias.lower().split("."))
        }
        self.claimed -= refused | self.declared
        usable = {alias: nodes for alias, nodes in self.nodes_of.items() if alias not in refused}
        alone = {alias: next(iter(nodes)) for alias, nodes in usable.items() if len(nodes) == 1 and alias not in names}
        aliases = {alias: names[node] for alias, node in alone.items() if node in names}
        switches = {name for name in self.switches if name.lower() not in own_words and not is_ordinary(name)}
        hosts = (self.hosts | switches | usable.keys()) - names.keys() - aliases.keys()
        return replace(self, names=names, aliases=aliases, hosts=hosts, run_id=run_id)

    def _machine(self, name: str, node: str | None, *, claimed: bool = False) -> None:
        """Add the name or address of a machine; ``node``: the node that it is, None for another machine."""
        name = name.strip().strip("[]")
        if address := canonical(name):
            self.addresses.add(address)
        elif node is None and not is_ordinary(name):  # a common word identifies no machine
            self.hosts.add(name)
        elif node is not None and not is_ordinary(name):
            self.nodes_of.setdefault(name, set()).add(node)
            (self.claimed if claimed else self.declared).add(name)


def switch_names(name: str) -> set[str]:
    """The names to replace for a switch: its host name and its domain separately, so that names with and without domain
    get the same placeholder. A name of letters only is left out, as it may be any word."""
    host, _, domain = name.partition(".") if HOST_NAME.fullmatch(name) else (name, "", "")
    return {part for part in (host, domain if "." in domain else "") if _MADE_UP_NAME.search(part)}


def jumps(arguments: str) -> list[tuple[str, str]]:
    """(user, host) of each jump host in SSH arguments; the user may be empty."""
    hops = [hop for chain in _JUMP_OPTIONS.findall(arguments) for hop in chain.split(",")]
    for command in _PROXY_COMMAND.findall(arguments):
        try:
            words = shlex.split(command.strip("\"'"))
        except ValueError:
            words = command.split()
        skip = False
        for word in words[1:]:
            if skip or word.startswith("-"):
                skip = not skip and word in _WITH_VALUE
            elif "%" not in word:
                hops.append(word)
    machines = []
    for hop in filter(None, hops):
        user, _at, host = hop.removeprefix("ssh://").rpartition("@")
        host = host.strip("\"'")
        is_bracketed = host.startswith("[") and "]" in host
        machines.append((user, host[1 : host.index("]")] if is_bracketed else host.split(":")[0]))
    return machines
