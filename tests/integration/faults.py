"""The faults that can befall a node, as data: what the machine is, how the fault is caused, and what must become of it.

All of them befall one run, each a node of its own, so that what every other node makes of it shows too.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from container_fleet import ContainerFleet, Node, nap

WORK_SECONDS = 40  # long enough for what befalls a node in the middle of its work, and for 30 s without a network
CUT_SECONDS = 30
SETTINGS = {
    "gpuval_stages": ["facts", "work"],
    "work_workload": nap(WORK_SECONDS),
    "run_silence_seconds": 20,
    "run_pull_seconds": 5,
    "gpuval_deadline_seconds": 180,  # how long the run waits for a node that never comes back
}


@dataclass(frozen=True)
class Fault:
    """One fault of one node.

    `verdict` and `says` are what the report must tell of the node: its verdict and a pattern of what is said of it.
    `cause` runs when the node is at work; without one the machine has the fault from the beginning.
    """

    node: str
    fault: str
    verdict: str
    says: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)  # in the inventory, over the machine's own
    before: Optional[Callable[[ContainerFleet, str], None]] = None  # once the machines are there
    cause: Optional[Callable[[ContainerFleet, str], None]] = None  # once the node is at work
    listed: bool = True  # a machine of the test bed; otherwise only a line in the inventory


def change_host_key(fleet, node):
    fleet.bed.change_host_key(node)


def kill_sshd(fleet, node):
    fleet.bed.kill_sshd(node)
    time.sleep(10)
    fleet.bed.start_sshd(node)


def reboot(fleet, node):
    fleet.bed.stop(node)
    time.sleep(5)
    fleet.bed.start(node)


def power_off(fleet, node):
    fleet.bed.stop(node)
    fleet.away.add(node)


def cut_network(fleet, node):
    fleet.bed.cut_network(node, CUT_SECONDS)


def nowhere(fleet, node):
    fleet.nodes[node] = {**fleet.nodes["healthy-1"], "ansible_host": fleet.bed.unused_address()}


def another_name(fleet, node):
    fleet.nodes[node] = dict(fleet.nodes["twice-a"])


def second_run(fleet, node):
    """Another person validates the same machine meanwhile."""
    other = fleet.controller(f"second-{node}", [node])
    fleet.second = other.play(seconds=120)


FAULTS = [
    Fault("healthy-1", "none", "PASS"),
    Fault("healthy-2", "none", "PASS"),
    Fault("sshd-killed", "sshd and its sessions killed while the node works, back after 10 s", "PASS", cause=kill_sshd),
    Fault("rebooted", "power lost while the node works, back after 5 s", "PASS", cause=reboot),
    Fault("power-off", "power lost while the node works, for good", "INCOMPLETE", "no record", cause=power_off),
    Fault("network-cut", f"network cut for {CUT_SECONDS} s while the node works", "PASS", cause=cut_network),
    Fault("second-run", "a second run is started on the node", "PASS", cause=second_run),
    Fault("nowhere", "nothing at the address", "INCOMPLETE", "nowhere", before=nowhere, listed=False),
    Fault("no-sshd", "no sshd runs", "INCOMPLETE", "refused", machine={"sshd": False}),
    Fault("wrong-key", "the host key is not the one that is known", "INCOMPLETE", "host key", before=change_host_key),
    Fault("twice-a", "the machine is listed twice", "FAIL", "twice"),
    Fault(
        "twice-b",
        "the machine is listed twice: the other name",
        "INCOMPLETE",
        "listed twice",
        before=another_name,
        listed=False,
    ),
    Fault(
        "disk-full", "no room on the disk of the node's folder", "INCOMPLETE", "space",
        machine={"tmpfs": {"/var/lib/gpuval": "64k"}},
    ),
    Fault(
        "hung", "the work hangs", "FAIL", "timeout",
        variables={"work_workload": nap(600, timeout_seconds=10)},
    ),
    Fault("clock-off", "the clock is five hours slow", "PASS", machine={"clock": "-5h"}),
    Fault(
        "sudo-password", "sudo asks for a password that nobody gave", "INCOMPLETE", "sudo password",
        machine={"user": "ops", "sudo": "password"}, variables={"ansible_become_password": None},
    ),
    Fault("old-python", "Python is 3.6", "INCOMPLETE", "Python", machine={"python": "old"}),
    Fault("no-python", "there is no Python", "INCOMPLETE", "python", machine={"python": "missing"}),
    Fault(
        "no-engine", "containers were asked for and there is no engine", "FAIL", "docker",
        variables={"gpuval_runtime": "docker", "work_workload": {**nap(1), "image": "example.org/nothing:1"}},
    ),
]  # fmt: skip


class FaultyFleet(ContainerFleet):
    """The machines of these faults."""

    def __init__(self, root, faults=FAULTS, settings=None):
        self.faults = faults
        self.second = None
        self.causing = []
        self.failures = []
        machines = [Node(fault.node, **fault.machine) for fault in faults if fault.listed]
        super().__init__(root, machines, {**SETTINGS, **(settings or {})})
        for fault in faults:
            if fault.before:
                fault.before(self, fault.node)
            declared = {**self.nodes[fault.node], **fault.variables}
            self.nodes[fault.node] = {name: value for name, value in declared.items() if value is not None}

    def play_through(self):
        """The whole run, with every fault caused in its time."""
        playing = self.start()
        for fault in self.faults:
            if fault.cause:
                thread = threading.Thread(target=self._cause, args=(fault,))
                thread.start()
                self.causing.append(thread)
        done = playing.wait(420)
        for thread in self.causing:
            thread.join(120)
        if self.failures:
            raise self.failures[0]
        return done

    def _cause(self, fault):
        try:
            self.at_work(fault.node, "work", saying="naps", seconds=240)
            fault.cause(self, fault.node)
        except BaseException as error:
            self.failures.append(error)
