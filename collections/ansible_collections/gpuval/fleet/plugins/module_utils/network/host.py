"""The machine's network: reads its state and runs the commands that change it. Every command has a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from ..atomic_file import replace_file
from ..hardware.tools import toolbox
from ..hardware.tree import Tree
from ..node_directory import NodeError, boot_id
from .changes import HOSTS_FILE, LIMITS_FILE, NetworkChange
from .hosts_file import read_block, set_block
from .state import NetworkState, find_route, parse_interfaces, parse_routes, route_words

COMMAND_SECONDS = 15
NET = "/sys/class/net"
SYSCTLS = Path("/proc/sys")


class Deadline:
    """A time limit in seconds for several steps together."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return self._end - time.monotonic()

    def check(self, step: str) -> None:
        if self.left() <= 0:
            raise NodeError(f"not done after {self.seconds:g} s, at: {step}")


class NetworkHost:
    """The network of this machine. `deadline` limits all its commands together."""

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self._run = toolbox()

    def ip(self, *words: str) -> str:
        """Run `ip` with arguments, such as `link show`, and return its output. Raises NodeError with its error text."""
        command = f"ip {' '.join(words)}"
        self.deadline.check(command)
        seconds = max(0.1, min(COMMAND_SECONDS, self.deadline.left()))
        outcome = self._run("ip", *words, timeout=seconds)
        if outcome.missing:
            raise NodeError("the command `ip` is missing: install the package iproute2 (or iproute)")
        if outcome.timed_out:
            raise NodeError(f"`{command}` did not end within {seconds:.0f} s: the driver may hang, see dmesg")
        if not outcome.ok:
            reason = " ".join((outcome.stderr or outcome.stdout).split())[-300:]
            raise NodeError(f"`{command}`: {reason or f'exit {outcome.returncode}'}")
        return outcome.stdout

    def state(self, sysctls: Iterable[str] = ()) -> NetworkState:
        tree = Tree()
        physical = [name for name in tree.entries(NET) if tree.exists(f"{NET}/{name}/device")]
        drivers = {name: tree.link_name(f"{NET}/{name}/device/driver") for name in physical}
        show = ("-json", "-details")
        try:
            routes_of_6 = self.ip("-6", *show, "route", "show")
        except NodeError:  # a kernel without IPv6
            routes_of_6 = "[]"
        return NetworkState(
            interfaces=parse_interfaces(self.ip(*show, "address", "show"), drivers),
            routes=(*parse_routes(self.ip("-4", *show, "route", "show"), 4), *parse_routes(routes_of_6, 6)),
            sysctls={name: _read_text(sysctl_path(name)) for name in sysctls},
            hosts_block=read_block(_read_text(Path(HOSTS_FILE), strip=False) or ""),
            limits=_read_text(Path(LIMITS_FILE), strip=False),
            boot_id=boot_id(),
        )

    def make(self, change: NetworkChange) -> None:
        """Apply a change of the network: set its value `after`."""
        link = ("link", "set", "dev", change.interface)
        if change.kind in ("flap", "state"):
            self.ip(*link, "down" if change.kind == "flap" else change.after)
        elif change.kind == "mtu":
            self.ip(*link, "mtu", str(change.after))
        elif change.kind == "address":
            # `broadcast +` sets IPv4's broadcast address, which the kernel refuses for /31 and /32
            is_wide = "." in change.subject and int(change.subject.rpartition("/")[2]) < 31
            broadcast = ["broadcast", "+"] if change.after and is_wide else []
            verb = "add" if change.after else "del"
            self.ip("address", verb, change.subject, *broadcast, "dev", change.interface)
        elif change.kind == "route":
            route, verb = change.after or change.before, "replace" if change.after else "del"
            self.ip(f"-{route['version']}", "route", verb, *route_words(route))
        elif change.kind == "sysctl":
            try:
                sysctl_path(change.subject).write_text(change.after, encoding="ascii")
            except OSError as error:
                problem = f"{change.subject} cannot be set to {change.after!r}: {error.strerror}"
                raise NodeError(f"{problem}; in a container it is read-only") from error
        elif change.kind == "hosts":
            text = _read_text(Path(HOSTS_FILE), strip=False) or ""
            write_file(Path(HOSTS_FILE), set_block(text, change.after))
        elif change.kind == "limits":
            write_file(Path(LIMITS_FILE), change.after)
        else:
            raise NodeError(f"unknown kind of change: {change.kind}")

    def bring_up(self, interface: str, lost: dict[str, Any]) -> None:
        """Set an interface up and restore the addresses and routes (`lost`) that it lost when it went down."""
        state = self.state()
        if interface not in state.interfaces:
            raise NodeError(f"{interface} is gone: its driver does not show it any more, see dmesg")
        if not state.interfaces[interface].up:
            self.ip("link", "set", "dev", interface, "up")
            state = self.state()
        for address in lost.get("addresses", []):
            if address not in state.interfaces[interface].addresses:
                self.ip("address", "add", address, "dev", interface)
        # routes to networks first: a gateway needs one
        for route in sorted(lost.get("routes", []), key=lambda route: "gateway" in route):
            if not find_route(state, route["dst"], route["metric"]):
                self.ip(f"-{route['version']}", "route", "replace", *route_words(route))


def sysctl_path(name: str) -> Path:
    """Return a kernel parameter's file: as in sysctl(8), `net.ipv4.conf.eth0/1.mtu` is `net/ipv4/conf/eth0.1/mtu`."""
    first = next((letter for letter in name if letter in "./"), ".")
    return SYSCTLS / (name if first == "/" else name.translate(str.maketrans("./", "/.")))


def write_file(path: Path, text: Optional[str]) -> None:
    """Write a file, atomically unless a container engine mounted it; a `text` of None removes the file."""
    try:
        if text is None:
            path.unlink(missing_ok=True)
            return
        data = text.encode("utf-8", "surrogateescape")
        status = path.stat() if path.exists() else None
        try:
            if status is None:
                replace_file(path, data, 0o644)
            else:
                replace_file(path, data, status.st_mode & 0o7777, owner=(status.st_uid, status.st_gid))
        except OSError:
            if status is None or path.is_symlink():
                raise
            path.write_bytes(data)
    except OSError as error:
        raise NodeError(f"{path} cannot be written: {error.strerror}") from error


def _read_text(path: Path, strip: bool = True) -> Optional[str]:
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")  # unchanged, also its line ends
    except OSError:
        return None
    return text.strip() if strip else text
