"""Nodes as containers: sshd and Python each, on one bridge, and what their sshd and their network card counted."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
IMAGE = "gpuval-bench-node"
START_SECONDS = 60
END_SECONDS = 120


def docker(*words: str, seconds: float = 120) -> str:
    """Run a docker command; returns what it prints."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise SystemExit(f"docker {' '.join(words[:3])}: {done.stderr.strip()[-600:]}")
    return done.stdout.strip()


@dataclass(frozen=True)
class Counts:
    """What the nodes saw, all together."""

    connections: int
    sessions: int
    network_bytes: int
    cpu_seconds: float

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True)))


class Nodes:
    """`count` containers with a network of their own; a context that removes both."""

    def __init__(self, count: int, folder: Path, base: str) -> None:
        self.folder, self.count, self.base = folder, count, base
        self.prefix = f"gpuval-bench-{folder.name[-6:].lower().strip('-_')}"
        self.names = [f"node-{number:03d}" for number in range(1, count + 1)]
        self.addresses: dict[str, str] = {}
        self._pids: dict[str, int] = {}

    @property
    def key(self) -> Path:
        return self.folder / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def __enter__(self) -> Nodes:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True, timeout=30)
        docker("build", "-q", "-t", IMAGE, "--build-arg", f"BASE={self.base}", str(HERE), seconds=900)
        docker("network", "create", self.prefix)
        self.gateway = docker("network", "inspect", self.prefix, "-f", "{{(index .IPAM.Config 0).Gateway}}")
        try:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(self._start, self.names))
            self._trust()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        while not self._removed():  # on a busy machine docker still unplugs a node that it has removed
            if time.monotonic() > deadline:
                print(f"left behind: containers or the network named {self.prefix}", file=sys.stderr)
                return
            time.sleep(3)

    def _removed(self) -> bool:
        try:
            ours = docker("ps", "-aq", "--filter", f"name={self.prefix}-").split()
            if ours:
                docker("rm", "-f", *ours, seconds=600)
            docker("network", "rm", self.prefix)
        except SystemExit:
            return False
        return True

    def counts(self) -> Counts:
        """Of all nodes, since they started."""
        with ThreadPoolExecutor(8) as pool:
            logs = list(pool.map(self._log, self.names))
        return Counts(
            connections=sum(log.count("Accepted publickey for") for log in logs),
            sessions=sum(log.count("Starting session: ") for log in logs),
            network_bytes=sum(self._network_bytes(pid) for pid in self._pids.values()),
            cpu_seconds=sum(self._cpu_seconds(pid) for pid in self._pids.values()),
        )

    def _start(self, name: str) -> None:
        container = f"{self.prefix}-{name}"
        docker(
            "run", "-d", "--init", "--name", container, "--hostname", name, "--network", self.prefix,
            "--ulimit", "nofile=4096:4096", "-v", f"{self.key}.pub:/etc/gpuval-bench.pub:ro", IMAGE,
        )  # fmt: skip
        shown = docker(
            "inspect", container, "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}} {{.State.Pid}}"
        )
        address, pid = shown.split()
        self.addresses[name], self._pids[name] = address, int(pid)

    def _trust(self) -> None:
        """Host keys as a real inventory has them: pinned before the first connection."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            done = subprocess.run(
                ["ssh-keyscan", "-t", "ed25519", *self.addresses.values()],
                capture_output=True, text=True, timeout=START_SECONDS, check=False,
            )  # fmt: skip
            lines = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
            if len(lines) == self.count:
                self.known_hosts.write_text("\n".join(lines) + "\n")
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"only {len(lines)} of {self.count} nodes answer after {START_SECONDS} s")
            time.sleep(1)

    def _log(self, name: str) -> str:
        words = ["docker", "logs", f"{self.prefix}-{name}"]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True)
        return done.stdout.decode(errors="replace")

    @staticmethod
    def _network_bytes(pid: int) -> int:
        for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
            card, _, figures = line.partition(":")
            if card.strip() == "eth0":
                numbers = figures.split()
                return int(numbers[0]) + int(numbers[8])
        return 0

    @staticmethod
    def _cpu_seconds(pid: int) -> float:
        """Of all processes that ever ran in the container, by its control group (version 1 or 2)."""
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "cpuacct" in controllers.split(","):
                return int(Path(f"/sys/fs/cgroup/cpuacct{path}/cpuacct.usage").read_text()) / 1e9
            stat = Path(f"/sys/fs/cgroup{path}/cpu.stat")
            if not controllers and stat.exists():
                return int(stat.read_text().split()[1]) / 1e6
        return 0.0
