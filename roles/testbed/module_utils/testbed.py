"""A test bed: machines with sshd, as containers of Docker on a network of their own, and what can happen to them.

Standard library only: the role's module and the tests use it alike.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Optional

FILES = Path(__file__).resolve().parents[1] / "files"
BASE_IMAGE = "gpuval-debian:bookworm"
LABEL = "gpuval.testbed"
SUBNETS = [f"10.{second}.{third}" for second in (231, 232, 233) for third in range(0, 256, 4)]
FIRST_ADDRESS = 10
MAX_NODES = 990
AT_ONCE = 6
BUILD_SECONDS = 900
CALL_SECONDS = 120
READY_SECONDS = 60
DETACH_SECONDS = 15
TOOLS = {"nvidia": "nvidia-smi", "amd": "amd-smi", "gaudi": "hl-smi"}
PCI_IDS = {
    "nvidia": {"vendor": "0x10de", "class": "0x030200", "device": "0x2335"},
    "amd": {"vendor": "0x1002", "class": "0x120000", "device": "0x75a0"},
    "gaudi": {"vendor": "0x1da3", "class": "0x120000", "device": "0x1020"},
}
FIRST_BUS = 0x18  # files/node/smi counts from the same
GROUP = "gpuval-testbed"
ENGINE_FOLDERS = {"docker": "/var/lib/docker", "podman": "/var/lib/containers"}
ENGINE_CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN")
SECURITY = ("seccomp=unconfined", "systempaths=unconfined", "apparmor=unconfined")
CHOICES = {
    "sudo": ("none", "free", "password"),
    "engine": ("none", "docker", "podman"),
    "python": ("present", "missing", "old"),
}


class TestbedError(Exception):
    """The test bed cannot be what was asked; the message says what to do."""

    __test__ = False


@dataclass(frozen=True)
class Node:
    """A machine as declared."""

    name: str
    user: str = "root"  # the user that the inventory logs in as
    sudo: str = "none"  # of another user than root: none, free, password
    engine: str = "none"  # a container engine of its own: none, docker, podman
    python: str = "present"  # present, missing, old (says that it is 3.6)
    clock: str = ""  # how far the clock is off, as libfaketime writes it: -5h
    gpus: Optional[Mapping[str, Any]] = None  # what the vendor's tool tells: see README
    tmpfs: Mapping[str, str] = field(default_factory=dict)  # folder: size, for a disk that is soon full
    volumes: Mapping[str, str] = field(
        default_factory=dict
    )  # folder of this machine: where the node finds it, read-only
    net_admin: bool = False  # may change its own interfaces and packet filter
    sshd: bool = True
    machine_id: str = ""  # two nodes with the same one are one machine listed twice
    variables: Mapping[str, Any] = field(default_factory=dict)  # for the inventory

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise TestbedError(
                    f"{self.name}: {name} is {getattr(self, name)!r}: choose one of {', '.join(choices)}"
                )
        vendor = (self.gpus or {}).get("vendor", "nvidia")
        if vendor not in TOOLS:
            raise TestbedError(f"{self.name}: gpus.vendor is {vendor!r}: choose one of {', '.join(TOOLS)}")

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> Node:
        unknown = set(declared) - {each.name for each in fields(cls)}
        if unknown:
            raise TestbedError(f"{declared.get('name')}: unknown {', '.join(sorted(unknown))}")
        return cls(**declared)


class Testbed:
    """Nodes that belong together, with their keys in `folder`; `create` again adds what is missing."""

    __test__ = False

    def __init__(self, folder: Path, name: str = "", files: Path = FILES) -> None:
        self.folder = Path(folder).resolve()
        self.files = files
        self._file = self.folder / "testbed.json"
        kept = json.loads(self._file.read_text()) if self._file.exists() else {}
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:6]
        self.name: str = kept.get("name") or f"gpuval-testbed-{name or 'nodes'}-{digest}"
        self.subnet: str = kept.get("subnet", "")
        self.password: str = kept.get("password") or secrets.token_urlsafe(12)
        self.nodes: dict[str, Node] = {each["name"]: Node.of(each) for each in kept.get("nodes", [])}

    # What there is

    @property
    def key(self) -> Path:
        """The private key that logs in to every node."""
        return self.folder / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def gateway(self) -> str:
        """This machine, as the nodes reach it."""
        return f"{self.subnet}.1"

    def address(self, name: str) -> str:
        return self._address(list(self.nodes).index(name))

    def unused_address(self, number: int = 0) -> str:
        """An address of the nodes' network at which nothing is."""
        return self._address(MAX_NODES + number)

    def container(self, name: str) -> str:
        return f"{self.name}-{name}"

    def host_key(self, name: str) -> str:
        """The public host key of a node: type and key."""
        text = (self.folder / name / "ssh_host_ed25519_key.pub").read_text()
        return " ".join(text.split()[:2])

    def host_variables(self, name: str) -> dict[str, Any]:
        """What an inventory says of a node."""
        node = self.nodes[name]
        variables: dict[str, Any] = {
            "ansible_host": self.address(name),
            "ansible_user": node.user,
            "ansible_ssh_private_key_file": str(self.key),
        }
        if node.user != "root" and node.sudo != "none":
            variables["ansible_become"] = True
        if node.user != "root" and node.sudo == "password":
            variables["ansible_become_password"] = self.password
        return {**variables, **node.variables}

    def inventory(self, variables: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
        hosts = {name: self.host_variables(name) for name in self.nodes}
        common = {
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.known_hosts}",
            "testbed_gateway": self.gateway,
        }
        return {"testbed": {"hosts": hosts, "vars": {**common, **(variables or {})}}}

    # Making and removing it

    def create(self, nodes: Iterable[Node]) -> list[str]:
        """Make the nodes that are not there yet and wait until all answer; returns the names of those made."""
        wanted = list(nodes)
        if len({node.name for node in wanted}) < len(wanted):
            raise TestbedError("two nodes have the same name")
        if len(self.nodes) + len(wanted) > MAX_NODES:
            raise TestbedError(f"more than {MAX_NODES} nodes do not fit on one network")
        for engine in sorted({node.engine for node in wanted}):
            build_image(engine, self.files)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.key.exists():
            _make_key(self.key, "testbed")
        self._make_network()
        there = set(self._containers())
        made = [node for node in wanted if self.container(node.name) not in there]
        self.nodes.update({node.name: node for node in wanted})
        self._save()
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._make_node, made))
        self._write_known_hosts()
        self.wait([node.name for node in wanted])
        return [node.name for node in made]

    def destroy(self) -> bool:
        """Remove the nodes, their disks and their network; returns whether there was anything."""
        containers = self._containers(everything=True)
        for some in range(0, len(containers), 25):
            docker("rm", "--force", "--volumes", *containers[some : some + 25], seconds=300)
        labelled = ("--quiet", "--filter", f"label={LABEL}={self.name}")
        volumes = docker("volume", "ls", *labelled).split()
        if volumes:
            docker("volume", "rm", "--force", *volumes)
        self._remove_groups()
        networks = docker("network", "ls", *labelled).split()
        for network in networks:
            _remove_network(network)
        known = self.folder.exists()
        for name in self.nodes:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for file in (self._file, self.key, self.key.with_suffix(".pub"), self.known_hosts):
            file.unlink(missing_ok=True)
        return bool(containers or volumes or networks) or known

    def wait(self, names: Optional[Iterable[str]] = None, seconds: float = READY_SECONDS) -> None:
        """Wait until sshd (and the engine, where there is one) answers on the nodes."""
        names = list(self.nodes if names is None else names)
        deadline = time.monotonic() + seconds
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: self._wait(name, deadline), names))

    # What can happen to a node

    def execute(self, name: str, *command: str, seconds: float = CALL_SECONDS, input: str = "") -> str:
        """Run a command as root on a node, past its sshd."""
        interactive = ["--interactive"] if input else []
        return docker("exec", *interactive, self.container(name), *command, seconds=seconds, input=input)

    def stop(self, name: str) -> None:
        """Take the power away."""
        docker("kill", self.container(name))

    def start(self, name: str) -> None:
        docker("start", self.container(name))
        self.wait([name])

    def restart(self, name: str) -> None:
        """Reboot without shutting down: the disk stays, the boot id is another."""
        self.stop(name)
        self.start(name)

    def kill_sshd(self, name: str) -> None:
        """End sshd and all sessions; what was detached lives on."""
        docker("exec", self.container(name), "pkill", "-KILL", "-x", "sshd", accept=(0, 1))

    def start_sshd(self, name: str) -> None:
        environment = ("--env", "FAKETIME_DONT_FAKE_MONOTONIC=1")
        docker("exec", *environment, self.container(name), "/usr/sbin/sshd")
        self.wait([name])

    def disconnect(self, name: str) -> None:
        """Pull the network cable."""
        docker("network", "disconnect", "--force", self.name, self.container(name))

    def connect(self, name: str) -> None:
        docker("network", "connect", "--ip", self.address(name), self.name, self.container(name))

    def cut_network(self, name: str, seconds: float) -> None:
        self.disconnect(name)
        time.sleep(seconds)
        self.connect(name)

    def change_host_key(self, name: str) -> None:
        """What an attacker in the middle, or a machine installed anew, looks like. `known_hosts` keeps the old key."""
        key = self.folder / name / "ssh_host_ed25519_key"
        old = key.with_suffix(".pub").read_text()
        for file in (key, key.with_suffix(".pub")):
            file.unlink()
        _make_key(key, name)
        if old == key.with_suffix(".pub").read_text():
            raise TestbedError(f"{name} kept its host key")
        place = "/etc/ssh/ssh_host_ed25519_key"
        self.execute(name, "install", "-m", "600", "/testbed/ssh_host_ed25519_key", place)
        self.execute(name, "pkill", "-HUP", "-o", "-x", "sshd")
        self._wait(name, time.monotonic() + READY_SECONDS)

    def set_gpus(self, name: str, gpus: Mapping[str, Any]) -> None:
        """Change what the vendor's tool of a node tells from now on."""
        _write(self.folder / name / "gpus.json", json.dumps(gpus), mode=0o644)

    def block_port(self, name: str, port: int) -> None:
        """Let a node reach no such TCP port anywhere; the node needs `net_admin` or an engine."""
        self.execute(name, "iptables", "-I", "OUTPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP")

    def unblock_port(self, name: str, port: int) -> None:
        self.execute(name, "iptables", "-D", "OUTPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP")

    # Inside

    def _address(self, index: int) -> str:
        prefix, third = self.subnet.rsplit(".", 1)
        number = FIRST_ADDRESS + index
        return f"{prefix}.{int(third) + number // 256}.{number % 256}"

    def _containers(self, everything: bool = True) -> list[str]:
        shown = ["--all"] if everything else []
        listed = docker("ps", *shown, "--filter", f"label={LABEL}={self.name}", "--format", "{{.Names}}")
        return listed.split()

    def _make_network(self) -> None:
        found = docker("network", "ls", "--quiet", "--filter", f"label={LABEL}={self.name}").split()
        if found:
            shown = json.loads(docker("network", "inspect", found[0]))
            self.subnet = shown[0]["IPAM"]["Config"][0]["Subnet"].rsplit(".", 1)[0]
            return
        start = secrets.randbelow(len(SUBNETS))
        complaint = ""
        for subnet in [*SUBNETS[start:], *SUBNETS[:start]]:
            made = _call(
                "network", "create", "--label", f"{LABEL}={self.name}", "--subnet", f"{subnet}.0/22",
                "--gateway", f"{subnet}.1", self.name,
            )  # fmt: skip
            if made.returncode == 0:
                self.subnet = subnet
                return
            complaint = made.stderr.strip()
            if "overlap" not in complaint.lower():
                break
        raise TestbedError(f"docker network create failed: {complaint}")

    def _make_node(self, node: Node) -> None:
        place = self.folder / node.name
        place.mkdir(exist_ok=True)
        if not (place / "ssh_host_ed25519_key").exists():
            _make_key(place / "ssh_host_ed25519_key", node.name)
        machine_id = self._machine_id(node)
        settings = {
            "machine_id": machine_id,
            "serial": f"TB{machine_id[:10]}".upper(),
            "user": node.user,
            "sudo": node.sudo,
            "python": node.python,
            "clock": node.clock,
            "sshd": "yes" if node.sshd else "no",
            "reboots": "yes",
            "tools": TOOLS[node.gpus.get("vendor", "nvidia")] if node.gpus is not None else "",
        }
        _write(place / "node.conf", "".join(f"{name}={_quoted(value)}\n" for name, value in settings.items()))
        _write(place / "authorized_keys", self.key.with_suffix(".pub").read_text())
        _write(place / "password", self.password)
        _write(place / "gpus.json", json.dumps(node.gpus or {}), mode=0o644)
        _plug_in(place / "pci", node.gpus)
        docker("run", "--detach", *self._options(node, place), image_of(node.engine, self.files), seconds=300)

    def _options(self, node: Node, place: Path) -> list[str]:
        options = [
            "--name", self.container(node.name), "--hostname", node.name, "--label", f"{LABEL}={self.name}",
            "--network", self.name, "--ip", self.address(node.name), "--log-driver", "none",
            "--volume", f"{place}:/testbed:ro",
        ]  # fmt: skip
        for folder, size in node.tmpfs.items():
            options += ["--tmpfs", f"{folder}:rw,exec,mode=755,size={size}"]
        for folder, inside in node.volumes.items():
            options += ["--volume", f"{folder}:{inside}:ro"]
        if Path("/sys/bus/pci/devices").is_dir():
            options += ["--volume", f"{place / 'pci'}:/sys/bus/pci/devices:ro"]
        if Path("/sys/devices/virtual/dmi/id").is_dir():
            options += ["--tmpfs", "/sys/devices/virtual/dmi/id:rw,size=64k"]
        if node.engine == "none":
            # By its control group a program could tell that this is no machine.
            options += ["--cgroupns", "private"]
            # To mount a boot id of its own; Docker's profile for AppArmor forbids that.
            options += ["--cap-add", "SYS_ADMIN", "--security-opt", "apparmor=unconfined"]
            if node.net_admin:
                options += ["--cap-add", "NET_ADMIN"]
            return options
        volume = f"{self.container(node.name)}-engine"
        docker("volume", "create", "--label", f"{LABEL}={self.name}", volume)
        options += ["--volume", f"{volume}:{ENGINE_FOLDERS[node.engine]}"]
        if Path("/sys/fs/cgroup/cgroup.controllers").exists():
            # Version 2 of cgroups: a tree of its own that it may write to comes only with --privileged.
            return [*options, "--privileged", "--cgroupns", "private"]
        for capability in ENGINE_CAPABILITIES:
            options += ["--cap-add", capability]
        for security in SECURITY:
            options += ["--security-opt", security]
        return [*options, "--cgroup-parent", f"/{GROUP}", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup"]

    def _remove_groups(self) -> None:
        """Control groups (version 1) that the nodes' engines made in the tree that they share with this machine."""
        for node in self.nodes.values():
            if node.engine != "docker":
                continue
            for group in Path("/sys/fs/cgroup").glob(f"*/{GROUP}-{self._machine_id(node)}"):
                for folder, _, _ in os.walk(group, topdown=False):
                    with contextlib.suppress(OSError):
                        Path(folder).rmdir()

    def _machine_id(self, node: Node) -> str:
        return node.machine_id or hashlib.sha256(f"{self.name}/{node.name}".encode()).hexdigest()[:32]

    def _wait(self, name: str, deadline: float) -> None:
        node, address = self.nodes[name], self.address(name)
        while node.sshd and not _answers(address):
            self._still_time(name, "sshd", deadline)
        while not node.sshd and not self._succeeds(name, "test", "-e", "/run/testbed.ready"):
            self._still_time(name, "the node", deadline)
        while node.engine != "none" and not self._succeeds(name, node.engine, "info"):
            self._still_time(name, node.engine, deadline)

    def _still_time(self, name: str, what: str, deadline: float) -> None:
        if time.monotonic() < deadline:
            time.sleep(0.1)
            return
        log = _call("exec", self.container(name), "tail", "-n", "5", "/var/log/dockerd.log").stdout
        raise TestbedError(
            f"{what} of {name} ({self.address(name)}) does not answer: docker logs {self.container(name)}\n{log}"
        )

    def _succeeds(self, name: str, *command: str) -> bool:
        return _call("exec", self.container(name), *command).returncode == 0

    def _write_known_hosts(self) -> None:
        lines = [f"{self.address(name)} {self.host_key(name)}\n" for name in self.nodes]
        _write(self.known_hosts, "".join(lines))

    def _save(self) -> None:
        kept = {
            "name": self.name,
            "subnet": self.subnet,
            "password": self.password,
            "nodes": [asdict(node) for node in self.nodes.values()],
        }
        _write(self._file, json.dumps(kept))


def engine_answers() -> bool:
    """Whether a Docker engine is there that can hold a test bed."""
    return shutil.which("docker") is not None and _call("version", "--format", "{{.Server.Version}}").returncode == 0


def image_of(engine: str, files: Path = FILES) -> str:
    """The image of nodes with that engine; its tag changes with what it is made from."""
    digest = hashlib.sha256()
    for file in sorted(path for path in (files / "node").rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(files)} {os.access(file, os.X_OK)}\n".encode() + file.read_bytes())
    return f"gpuval-testbed:{engine}-{digest.hexdigest()[:12]}"


def build_image(engine: str, files: Path = FILES) -> str:
    """Make the image of nodes with that engine, unless it is there; returns its name."""
    image = image_of(engine, files)
    if _call("image", "inspect", image).returncode == 0:
        return image
    if _call("image", "inspect", BASE_IMAGE).returncode != 0:
        made = subprocess.run(
            [str(files / "make-base"), BASE_IMAGE], capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
        if made.returncode != 0:
            raise TestbedError(made.stderr.strip()[-2000:])
    docker(
        "build", "--quiet", "--network", "host", "--build-arg", f"BASE={BASE_IMAGE}", "--build-arg", f"ENGINE={engine}",
        "--tag", image, str(files / "node"), seconds=BUILD_SECONDS,
    )  # fmt: skip
    return image


def _remove_network(network: str) -> None:
    """Docker at times counts a container that is gone: such an empty network stays until docker is started again."""
    deadline = time.monotonic() + DETACH_SECONDS
    while True:
        try:
            docker("network", "rm", network)
        except TestbedError as error:
            if "active endpoints" not in str(error):
                raise
        else:
            return
        ends = docker("network", "inspect", "--format", "{{range .Containers}}{{.Name}} {{end}}", network).split()
        for end in ends:
            docker("network", "disconnect", "--force", network, end, accept=(0, 1))
        if time.monotonic() > deadline:
            if ends:
                raise TestbedError(f"network {network} cannot be removed: {', '.join(ends)} stay in it")
            return
        time.sleep(1)


def docker(*arguments: str, seconds: float = CALL_SECONDS, accept: tuple[int, ...] = (0,), input: str = "") -> str:
    """Call Docker; returns what it printed."""
    done = _call(*arguments, seconds=seconds, input=input)
    if done.returncode not in accept:
        raise TestbedError(f"docker {' '.join(arguments[:3])} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def _call(*arguments: str, seconds: float = CALL_SECONDS, input: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["docker", *arguments],
            env={**os.environ, "DOCKER_BUILDKIT": "0"},  # what every engine has; the images need nothing newer
            input=input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise TestbedError("docker is not installed: the test bed needs Docker") from None
    except subprocess.TimeoutExpired:
        raise TestbedError(f"docker {' '.join(arguments[:3])} did not end within {seconds:g} s") from None


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=2) as connection:
            connection.settimeout(5)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _make_key(path: Path, comment: str) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(command, check=True, timeout=30, stdin=subprocess.DEVNULL)


def _plug_in(bus: Path, gpus: Optional[Mapping[str, Any]]) -> None:
    """A PCI bus with the declared GPUs, as sysfs shows it; the host's own never show on a node."""
    shutil.rmtree(bus, ignore_errors=True)
    bus.mkdir()
    vendor = (gpus or {}).get("vendor", "nvidia")
    for index in range(int(gpus.get("count", 8)) if gpus is not None else 0):
        device = bus / f"0000:{FIRST_BUS + index:02x}:00.0"
        device.mkdir()
        for name, value in {**PCI_IDS[vendor], "numa_node": "0"}.items():
            (device / name).write_text(f"{value}\n")


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file as a whole: nodes read some of them, and never a half one."""
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    fresh.replace(path)
