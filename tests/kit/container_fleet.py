"""A fleet of machines with sshd, each a container on a network of its own: see roles/testbed for what they can be.

with ContainerFleet(tmp_path, [Node("one"), Node("two", user="ops", sudo="free")]) as fleet:
    done = fleet.play()
    fleet.bed.restart("one")
"""

import concurrent.futures
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import pytest

from tests.kit.fleet import ROOT, Fleet, at_once, until
from tests.kit.ports import free_port
from tests.kit.processes import below, end_all_below, read

sys.path.insert(0, str(ROOT / "roles/testbed/module_utils"))

from testbed import Node, Testbed, TestbedError, engine_answers

__all__ = ["ContainerFleet", "Node", "Testbed", "TestbedError", "engine_answers", "nap", "needs_docker"]

NODE_DIR = "/var/lib/gpuval"
ASK_SECONDS = 0.5  # a command on a node costs this machine more than a look at a file


def needs_docker():
    """Skip, with the reason, where no test bed can be made."""
    if engine_answers():
        return
    if os.environ.get("GPUVAL_TESTS_NEED_DOCKER"):
        pytest.fail("no Docker engine answers, and GPUVAL_TESTS_NEED_DOCKER says that one must")
    pytest.skip("no Docker engine answers: the nodes of these tests are containers (.ci/run brings one)")


NAP = """
import json, os, sys, time
print("naps", flush=True)
time.sleep(float(sys.argv[1]))
with open(os.environ["GPUVAL_RESULT_FILE"], "w") as file:
    json.dump({"state": "success", "message": "slept well"}, file)
print("wakes", flush=True)
"""


def nap(seconds, **declared):
    """A workload that only takes time, and says so: fit for `<stage>_workload`."""
    command = ["{runner_python}", "-c", NAP, str(seconds)]
    return {"command": command, "timeout_seconds": 120, "inactivity_seconds": 0, **declared}


class ContainerFleet(Fleet):
    """`Fleet` whose nodes are machines of their own; `close` cleans, looks for leftovers, removes the machines."""

    def __init__(self, root, machines, settings=None):
        super().__init__(root, settings=dict(settings or {}), engines=True)
        needs_docker()
        self.bed = Testbed(root / "testbed", "test")
        self.closed = []  # what else plays on these machines
        self.away = set()  # nodes that the closing `clean` cannot reach
        try:
            self.bed.create(machines)
        except BaseException:
            self.bed.destroy()
            raise
        self.nodes = {name: self.bed.host_variables(name) for name in self.bed.nodes}
        # Where nodes reach it they upload: records are there at once, and no task fetches them every run_pull_seconds.
        store = {"gpuval_store_address": self.bed.gateway, "gpuval_store_port": free_port()}
        self.settings = {**store, **self.settings}

    def controller(self, name, nodes, **settings):
        """Another controller, with results and a store of its own, that knows only these of the machines.

        `nodes` are names of this fleet's, or names with their variables.
        """
        settings = {**self.settings, "gpuval_store_port": free_port(), **settings}
        other = OtherController(self.root / name, settings=settings)
        other.bed, other.away = self.bed, self.away
        other.nodes = dict(nodes) if isinstance(nodes, dict) else {node: self.nodes[node] for node in nodes}
        self.closed.append(other)
        return other

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.close()
        except BaseException:
            if error is None:
                raise
            # The first failure says more than what it left behind.

    @property
    def variables(self):
        inherited = super().variables
        for name in ("ansible_connection", "ansible_python_interpreter", "gpuval_workload_python"):
            inherited.pop(name)
        return {
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.bed.known_hosts} -o ConnectTimeout=5",
            **inherited,
            "gpuval_node_dir": NODE_DIR,
            "gpuval_sku": "cpu",
            **self.settings,
        }

    def node_base(self, node):
        raise NotImplementedError("a machine of its own: ask it with bed.execute")

    def node_directory(self, node):
        return f"{NODE_DIR}/{self.run_id}/{node}"

    def runner_log(self, node):
        return self.bed.execute(node, "cat", f"{self.node_directory(node)}/runner.log")

    def _said(self, node, stage, attempt, saying):
        time.sleep(ASK_SECONDS)
        try:
            text = self.bed.execute(node, "cat", f"{self.node_directory(node)}/logs/{stage}.log")
        except (TestbedError, OSError):
            return False
        _, started, after = text.partition(f"{stage} attempt {attempt} starts\n")
        return bool(started) and saying in after

    def close(self):
        try:
            if self.closed:
                at_once(*(other.close for other in self.closed))
            for playing in self._playing:
                playing.kill()
            self.end_connections()
            if not self.home.exists() or not (below(self.root) or self._left()):
                return
            done = self.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true")
            self.end_connections()
            survivors = end_all_below(self.root)
            assert self.away or done.code == 0, done
            assert not survivors, f"processes were left after clean: {survivors}"
            assert not (left := self._left()), f"left after clean: {left}"
        finally:
            end_all_below(self.root)
            self.bed.destroy()

    def _left(self):
        nodes = sorted(self.bed.nodes.keys() - self.away)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return {node: found for node, found in zip(nodes, pool.map(self.left_on, nodes), strict=True) if found}

    def left_on(self, node):
        """Files and processes of runs on a node."""
        files, running = f"find {NODE_DIR} -mindepth 1", f"pgrep -af {NODE_DIR}/ | grep -v pgrep"
        return self.bed.execute(node, "sh", "-c", f"test ! -d {NODE_DIR} || {files}; {running} || true").splitlines()

    @property
    def control_paths(self):
        """Where Ansible's SSH connections have their sockets, whose paths have 107 characters at most."""
        return Path(tempfile.gettempdir(), f"gpuval-cp-{zlib.crc32(str(self.root).encode()):08x}")

    @property
    def environment(self):
        return {**super().environment, "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.control_paths)}

    def end_connections(self):
        """Ansible keeps its SSH connections for a minute; they are not leftovers."""
        for path in self.control_paths.glob("*"):
            with contextlib.suppress(subprocess.SubprocessError):
                command = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "any"]
                subprocess.run(command, capture_output=True, timeout=10, check=False)
        shutil.rmtree(self.control_paths, ignore_errors=True)
        until(lambda: not [pid for pid in below(self.root) if read(pid, "cmdline").startswith(b"ssh: ")], "no ssh", 60)


class OtherController(ContainerFleet):
    """A controller on machines that are another's: it makes and removes none."""

    def __init__(self, root, settings):
        Fleet.__init__(self, root, settings=settings, engines=True)

    def close(self):
        for playing in self._playing:
            playing.kill()
        if self.home.exists():
            done = self.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true")
            self.end_connections()
            survivors = end_all_below(self.root)
            assert done.code == 0, str(done)
            assert not survivors, f"processes were left after clean: {survivors}"
