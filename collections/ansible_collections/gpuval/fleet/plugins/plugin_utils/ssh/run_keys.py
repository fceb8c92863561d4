"""SSH keys for the multi-node work of one run: a key pair for logins, a host key for each node, and ssh's files.

They are made on the controller and never enter the store. A run's keys open nothing but the sshd that a stage starts in
its own container from the files made here; no account of a node knows them.
"""

import contextlib
import json
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ...module_utils.network.parallel import in_parallel
from ..core import files
from ..core.errors import GpuvalError
from .known_hosts import host_id, is_address

#: Mount point of the node's `ssh` folder in containers, read-only.
INSIDE = "/opt/gpuval/ssh"
LOCK_SECONDS = 30
RESOLVE_SECONDS = 10


class RunKeysError(GpuvalError):
    """The keys cannot be made; the message says what to do."""


@dataclass(frozen=True)
class KeyPair:
    private: str
    public: str


def make_pair() -> KeyPair:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public.decode())


class RunKeys:
    """The keys of a run in `results/<inventory>/<run_id>/.state/ssh`, for this user alone."""

    def __init__(self, folder: Path):
        self.folder = folder

    def login(self) -> KeyPair:
        return self._pair(self.folder / "id_ed25519")

    def host(self, node: str) -> KeyPair:
        return self._pair(self.folder / "hosts" / node)

    def remove(self) -> bool:
        """Remove all keys of the run. Returns whether there were any."""
        if not self.folder.exists():
            return False
        shutil.rmtree(self.folder)
        return True

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Lock the keys within the context: nodes are handled in parallel, and the first makes the keys for all."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self.folder / "lock"
        late = RunKeysError(f"another gpuval has held {lock} for {LOCK_SECONDS} s: end it")
        return files.locked(lock, LOCK_SECONDS, late)

    def resolved(self, names_of: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """{node: IP addresses} for {node: names and addresses}. Names are looked up once, then read from a file. Raises
        RunKeysError."""
        file = self.folder / "addresses.json"
        with contextlib.suppress(OSError, ValueError, KeyError):
            cached = json.loads(file.read_text())
            if cached["wanted"] == names_of:
                return cached["addresses"]
        addresses = resolve(names_of)
        text = json.dumps({"wanted": names_of, "addresses": addresses}, indent=1)
        files.replace(file, text.encode(), files.PRIVATE)
        return addresses

    def _pair(self, path: Path) -> KeyPair:
        public = path.with_name(f"{path.name}.pub")
        if not (path.exists() and public.exists()):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            pair = make_pair()
            files.replace(path, pair.private.encode(), files.PRIVATE)
            files.replace(public, f"{pair.public}\n".encode(), files.PRIVATE)
        return KeyPair(path.read_text(), public.read_text().strip())


def resolve(names_of: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """{node: IP addresses} for {node: names and addresses}: from= in authorized_keys compares addresses. Raises
    RunKeysError."""

    def look_up(name: str) -> list[str] | str:
        if is_address(name):
            return [name]
        try:
            return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError) as error:
            return str(getattr(error, "strerror", None) or error)

    late = f"the name service did not answer within {RESOLVE_SECONDS} s"
    names = dict.fromkeys(name for listed in names_of.values() for name in listed)
    answers = in_parallel({name: partial(look_up, name) for name in names}, RESOLVE_SECONDS, at_once=len(names))
    answers = {name: answers.get(name, late) for name in names}
    failed = {
        node: name for node, listed in names_of.items() for name in reversed(listed) if isinstance(answers[name], str)
    }
    if failed:
        node, name = next(iter(failed.items()))
        raise RunKeysError(
            f"{node} has no address that other nodes could see ({name}: {answers[name]}): set ssh_keys_addresses of "
            f"the node to its addresses in the network of the multi-node work ({len(failed)} node(s) like this)"
        )
    return {
        node: list(dict.fromkeys(address for name in listed for address in answers[name]))
        for node, listed in names_of.items()
    }


def node_files(run_id: str, node: str, keys: RunKeys, addresses: Mapping[str, list[str]], port: int) -> dict[str, str]:
    """The files of a node's `ssh` folder, {name: text}. Paths in them are valid inside containers. `addresses`: {node:
    IP addresses} of all members; `port`: of their sshd."""
    login, host = keys.login(), keys.host(node)
    return {
        "gpuval.json": json.dumps({"schema": "gpuval.keys/1", "run_id": run_id, "node": node}) + "\n",
        "id_ed25519": login.private,
        "id_ed25519.pub": f"{login.public} gpuval-{run_id}\n",
        "authorized_keys": authorized(login.public, run_id, addresses),
        "ssh_host_ed25519_key": host.private,
        "ssh_host_ed25519_key.pub": f"{host.public} {node}\n",
        "known_hosts": "".join(
            f"{','.join(host_id(name, port) for name in dict.fromkeys([peer, *listed]))} {keys.host(peer).public}\n"
            for peer, listed in addresses.items()
        ),
        "sshd_config": _template("sshd_config").format(inside=INSIDE, port=port),
        "ssh_config": ssh_config(addresses, port),
    }


def authorized(public: str, run_id: str, addresses: Mapping[str, list[str]]) -> str:
    """The authorized_keys line that lets only nodes with these `addresses` log in, without forwarding or terminal."""
    sources = list(dict.fromkeys(address for listed in addresses.values() for address in listed))
    return f'restrict,from="{",".join(sources)}" {public} gpuval-{run_id}\n'


def ssh_config(addresses: Mapping[str, list[str]], port: int) -> str:
    hosts = "".join(f"Host {node}\n  HostName {listed[0]}\n" for node, listed in addresses.items())
    return hosts + _template("ssh_config").format(inside=INSIDE, port=port)


def _template(name: str) -> str:
    return Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")
