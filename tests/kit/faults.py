"""The faults that can befall a node, as data: what the machine is, how the fault is caused, and what must become of it.

All of them befall one run, each a node of its own, so that what every other node makes of it shows too.
"""

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Optional

from tests.kit import host_image
from tests.kit.container_fleet import ContainerFleet, Node, nap

CUT_SECONDS = 30
SETTINGS = {
    "gpuval_stages": ["facts", "image", "work"],
    "work_workload": nap(8),
    "run_silence_seconds": 15,
    "run_pull_seconds": 5,
    "run_lost_seconds": 50,  # how long the run waits for a node that never comes back; longer than CUT_SECONDS
    "run_launch_seconds": 100,  # how long for one whose launch hangs; others have to get through on two busy cores
    "gpuval_deadline_seconds": 240,
}
LONG = {"work_workload": nap(CUT_SECONDS + 15)}  # for what takes its time while the node works


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
    after: str = ""  # the node whose work `cause` waits for, if it is another one
    mend: Optional[Callable[[ContainerFleet, str], None]] = None  # so that the node can be cleaned
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


def stop_store(fleet, node):
    """The store takes connections and says nothing, neither to nodes nor to the controller."""
    servers = json.loads((fleet.root / "state/store/store.json").read_text())
    pids = [servers[name]["pid"] for name in ("writer", "reader")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(CUT_SECONDS)
    for pid in pids:  # the controller may have put others in their place
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def hang(fleet, node):
    """Logins are taken, and whatever is begun then does not end."""
    fleet.bed.execute(node, "sh", "-c", f"cat >{PYTHON}; chmod 755 {PYTHON}", input="#!/bin/sh\nexec sleep 3600\n")


def unhang(fleet, node):
    text = '#!/bin/sh\nexec python3 "$@"\n'
    fleet.bed.execute(node, "sh", "-c", f"cat >{PYTHON}; pkill -x sleep; true", input=text)


def power_on(fleet, node):
    fleet.bed.start(node)


def power_off_before(fleet, node):
    fleet.bed.stop(node)


def give_image(architecture):
    """An image in the store, which the node's stage is to run in."""

    def make(fleet, node):
        reference = f"gpuval-test-{node}:1"
        layer, archive = fleet.root / f"{node}-layer.tar", fleet.root / f"{node}.tar"
        host_image.write_foreign_root(layer)
        host_image.write_archive(archive, reference, layer, architecture)
        fleet.nodes[node] |= {
            "gpuval_runtime": "docker",
            "gpuval_images": {node: {"reference": reference, "archive": str(archive)}},
            "work_workload": {**nap(1), "image": reference, "needs": ["image"]},
        }
        done = fleet.play("gpuval.fleet.build", "--limit", node)
        assert done.code == 0, done

    return make


def corrupt_image(fleet, node):
    """One bit of the archive in the store is another than when it was put there."""
    give_image(OWN_ARCHITECTURE)(fleet, node)
    (archive,) = (fleet.store_data / "images").glob(f"{node}-*.tar")
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.unlink()  # the controller's own copy may be the same file
    archive.write_bytes(data)


PYTHON = "/usr/local/bin/python-that-hangs"
OWN_ARCHITECTURE, OTHER_ARCHITECTURE = (
    ("arm64", "amd64") if platform.machine() in ("aarch64", "arm64") else ("amd64", "arm64")
)


FAULTS = [
    Fault("healthy-1", "none", "PASS"),
    Fault("healthy-2", "none", "PASS"),
    Fault("sshd-killed", "sshd and its sessions killed while the node works, back after 10 s", "PASS", cause=kill_sshd,
          variables={"work_workload": nap(20)}),
    Fault("rebooted", "power lost while the node works, back after 5 s", "PASS", cause=reboot),
    Fault("power-off", "power lost while the node works, for good", "INCOMPLETE", "lost contact", cause=power_off,
          variables=LONG),
    Fault("network-cut", f"network cut for {CUT_SECONDS} s while the node works", "PASS", cause=cut_network,
          variables=LONG),
    Fault("store-stopped", f"the store is silent for {CUT_SECONDS} s while the node works", "PASS", cause=stop_store,
          variables=LONG),
    Fault("second-run", "a second run is started on the node", "PASS", cause=second_run,
          variables={"work_workload": nap(75)}),  # less than the hung launch, whatever the second playbook takes
    Fault("late", "switched off at the start, on while others work", "PASS", before=power_off_before, cause=power_on,
          after="healthy-1"),
    Fault("hung-launch", "the login works, then the launch hangs", "INCOMPLETE",
          "Timed out after|no answer within", before=hang, mend=unhang,
          variables={"ansible_python_interpreter": PYTHON}),
    Fault("nowhere", "nothing at the address", "INCOMPLETE", "nowhere", before=nowhere, listed=False),
    Fault("no-sshd", "no sshd runs", "INCOMPLETE", "refused", machine={"sshd": False}),
    Fault("wrong-key", "the host key is not the one that is known", "INCOMPLETE", "host key", before=change_host_key),
    Fault("twice-a", "the machine is listed twice", "INCOMPLETE", "listed twice: twice-b", variables=LONG),
    Fault("twice-b", "the machine is listed twice: the other name", "INCOMPLETE", "listed twice: twice-a",
          before=another_name, listed=False),
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
        "sudo-password", "sudo asks for a password that is not set", "INCOMPLETE", "sudo password",
        machine={"user": "ops", "sudo": "password"}, variables={"ansible_become_password": None},
    ),
    Fault("old-python", "Python is 3.6", "INCOMPLETE", "Python", machine={"python": "old"}),
    Fault("no-python", "there is no Python", "INCOMPLETE", "python", machine={"python": "missing"}),
    Fault(
        "corrupted-image", "the archive of an image is corrupted in the store", "INCOMPLETE", "SHA-256",
        machine={"engine": "docker"}, before=corrupt_image,
    ),
    Fault(
        "foreign-image", "the image is for another processor", "INCOMPLETE", f"is for {OTHER_ARCHITECTURE}",
        machine={"engine": "docker"}, before=give_image(OTHER_ARCHITECTURE),
    ),
    Fault(
        "no-engine", "containers were asked for and there is no engine", "INCOMPLETE", "no container engine",
        variables={"gpuval_runtime": "docker", "work_workload": {**nap(1), "image": "example.org/nothing:1"}},
    ),
]  # fmt: skip


@dataclass(frozen=True)
class OtherRun:
    """A run of its own beside the great one, on machines of its own, for what befalls the run as a whole."""

    name: str
    faults: list[Fault]
    settings: Mapping[str, Any]
    play: Callable[[ContainerFleet], Any]


def kill_controller(fleet):
    """SIGKILL to the whole session, and the same command again."""
    first = fleet.start()
    for node in fleet.nodes:
        fleet.at_work(node, "work", saying="naps")
    first.kill()
    fleet.killed = fleet.read_run()
    return fleet.play()


def list_again(variables=None):
    def before(fleet, node):
        fleet.nodes[node] = {**fleet.nodes["window-1"], **(variables or {})}

    return before


OTHER_RUNS = [
    OtherRun(
        "killed",
        [
            Fault("killed-1", "the controller killed while nodes work, the same command given again", "PASS"),
            Fault("killed-2", "none", "PASS"),
        ],
        {"work_workload": nap(20)},
        kill_controller,
    ),
    OtherRun(
        "window",
        [
            Fault("window-1", "listed twice, one node at a time: its first name", "INCOMPLETE",
                  "listed twice: window-forced .and window-again. has the same host key"),
            Fault("window-2", "none", "PASS"),
            Fault("window-3", "none", "PASS"),
            Fault("window-again", "listed twice, launched after the first name has ended", "INCOMPLETE",
                  "listed twice: window-1", before=list_again(), listed=False),
            Fault("window-forced", "listed twice, and launched by force", "INCOMPLETE",
                  "listed twice: window-1 has the same host key", before=list_again({"gpuval_force": True}),
                  listed=False),
        ],
        {"gpuval_max_nodes_at_once": 1, "work_workload": nap(3)},
        lambda fleet: fleet.play(),
    ),
]  # fmt: skip
EVERY_FAULT = [*FAULTS, *(fault for other in OTHER_RUNS for fault in other.faults)]


class FaultyFleet(ContainerFleet):
    def __init__(self, root):
        self.second = self.hung_clean = None
        self.others = {}
        self.causing = []
        self.failures = []
        machines = [Node(fault.node, **fault.machine) for fault in EVERY_FAULT if fault.listed]
        super().__init__(root, machines, SETTINGS)
        for fault in EVERY_FAULT:
            if fault.before:
                fault.before(self, fault.node)
            declared = {**self.nodes[fault.node], **fault.variables}
            self.nodes[fault.node] = {name: value for name, value in declared.items() if value is not None}
        self.all_nodes = self.nodes
        self.nodes = {fault.node: self.nodes[fault.node] for fault in FAULTS}

    def play_through(self):
        """All runs, with every fault caused in its time."""
        playing = self.start()
        for fault in self.faults_caused:
            self._beside(self._cause, fault)
        self._beside(self._play_others)
        done = playing.wait(420)
        for thread in self.causing:
            thread.join(240)
        if not self.failures:
            self.hung_clean = self.play("gpuval.fleet.clean", "-e", "cleanup_node_seconds=10", "--limit", "hung-launch")
        for fault in FAULTS:
            if fault.mend:
                fault.mend(self, fault.node)
        if self.failures:
            raise self.failures[0]
        return done

    @property
    def faults_caused(self):
        return [fault for fault in FAULTS if fault.cause]

    def _beside(self, function, *arguments):
        thread = threading.Thread(target=self._kept, args=(function, *arguments))
        thread.start()
        self.causing.append(thread)

    def _kept(self, function, *arguments):
        try:
            function(*arguments)
        except BaseException as error:
            self.failures.append(error)

    def _cause(self, fault):
        self.at_work(fault.after or fault.node, "work", saying="naps", seconds=240)
        fault.cause(self, fault.node)

    def _play_others(self):
        """Once the launches of the great run are done, so that they all have the time that they need."""
        self.at_work("store-stopped", "work", saying="naps", seconds=240)
        for other in OTHER_RUNS:
            nodes = {fault.node: self.all_nodes[fault.node] for fault in other.faults}
            controller = self.controller(other.name, nodes, **other.settings)
            self.others[other.name] = controller, other.play(controller)
