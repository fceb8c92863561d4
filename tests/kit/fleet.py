"""A small fleet on this machine: its inventory, its playbooks, what they leave, and the end of it all."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import find

from tests.kit.ansible_playbook import PROGRAM, SETTINGS
from tests.kit.fork_server import ForkedProcess
from tests.kit.processes import below, end_all_below

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "collections/ansible_collections/gpuval/fleet/schemas"
NODE_PYTHON = ROOT / ".venv-node/bin/python"
ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")

PLAYBOOK_SECONDS = 300
STEP_SECONDS = 240

#: As short as real work can be.
QUICK = {
    "gpuval_profile": "quick",
    "diagnostics_seconds": 1,
    "fingerprint_seconds": 1,
    "training_seconds": 3,
    "inference_requests": 2,
    "inference_concurrency": 2,
    "inference_max_tokens": 8,
    "gpuval_heartbeat_seconds": 2,
    "run_poll_seconds": 0.5,
}
ONE_RANK = {"training_arguments": ["--processes", "1"]}


@dataclass(frozen=True)
class Done:
    """A playbook that ended; `output` is its standard output and error, in order."""

    code: int
    output: str

    def __str__(self):
        return f"exit {self.code}\n{self.output}"

    @property
    def told(self):
        """The output without the line breaks and colours that Ansible puts into messages."""
        return " ".join(self.output.split())

    def recap(self, host="localhost"):
        """Ansible's counts for a host."""
        *_, line = re.findall(rf"^{re.escape(host)} +: (ok=.*)$", self.output, re.MULTILINE)  # with -v Ansible's, too
        return {name: int(count) for name, count in (pair.split("=") for pair in line.split())}


class PlaybookProcess(ForkedProcess):
    preloads = "tests.kit.ansible_playbook"


class Playing:
    """A playbook under way. Every wait has a deadline, and tells the output when it passes."""

    def __init__(self, command, cwd, environment):
        forked = command[: len(PROGRAM)] == PROGRAM and SETTINGS.items() <= environment.items()
        self._process = (PlaybookProcess if forked else subprocess.Popen)(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._lines = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self):
        with self._changed:
            return "".join(self._lines)

    @property
    def running(self):
        return self._process.poll() is None

    def expect(self, pattern, seconds=STEP_SECONDS):
        """Wait until the output matches."""
        deadline = time.monotonic() + seconds
        while True:
            ended = not self._reader.is_alive()
            found = re.search(pattern, self.output, re.MULTILINE)
            if found:
                return found
            assert not ended, f"the playbook ended without {pattern!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {pattern!r} within {seconds} s:\n{self.output}"
            with self._changed:
                self._changed.wait(0.2)

    def wait(self, seconds=PLAYBOOK_SECONDS):
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the playbook did not end within {seconds} s:\n{self.output}") from None
        self._reader.join(5)  # a process that outlives the playbook may hold its pipe
        return Done(code, self.output)

    def interrupt(self):
        """Ctrl-C."""
        os.kill(self._process.pid, signal.SIGINT)

    def kill(self):
        """KILL the playbook and its workers, as a crash of the controller does; what it detached lives on."""
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)
        self._reader.join(5)

    def _read(self):
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()


@dataclass
class Fleet:
    """Nodes that are all this machine, with results, store, node directory and home below `root`."""

    root: Path
    nodes: dict = field(default_factory=lambda: {"node-1": {}})
    settings: dict = field(default_factory=dict)
    prefix: tuple = ()
    more_environment: dict = field(default_factory=dict)
    engines: bool = False  # whether the nodes see the container engines of this machine
    _playing: list = field(default_factory=list)
    _mounts: list = field(default_factory=list)

    @property
    def results(self):
        return self.root / "results"

    @property
    def store_data(self):
        """The objects of the embedded store's bucket, as files."""
        return self.root / "state/store/data/gpuval"

    def node_base(self, node):
        """Where a node keeps its runs and its model cache."""
        return self.root / "node" / node

    @property
    def home(self):
        return self.root / "home"

    @property
    def variables(self):
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "gpuval_workload_python": str(NODE_PYTHON),
            "gpuval_runtime": "host",
            "gpuval_results_dir": str(self.results),
            "gpuval_state_dir": str(self.root / "state"),
            "gpuval_node_dir": str(self.root / "node" / "{{ inventory_hostname }}"),
            **QUICK,
            **self.settings,
        }

    @property
    def environment(self):
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ", "USER", "LOGNAME") if name in os.environ}
        return {
            **kept,
            **({} if self.engines else no_engines(self.root)),
            "PATH": os.pathsep.join([str(ANSIBLE_PLAYBOOK.parent), os.environ["PATH"]]),
            "HOME": str(self.home),
            **SETTINGS,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            **self.more_environment,
        }

    def start(self, playbook="gpuval.fleet.validate", *arguments, nodes=None):
        """Start a playbook on the fleet, or on other `nodes`."""
        self.home.mkdir(parents=True, exist_ok=True)
        inventory = self.root / "hosts.json"
        hosts = self.nodes if nodes is None else nodes
        inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": self.variables}}))
        return self._start([playbook, "-i", str(inventory), *arguments], ROOT, self.environment)

    def _start(self, arguments, cwd, environment):
        playing = Playing([*self.prefix, *PROGRAM, *arguments], cwd, environment)
        self._playing.append(playing)
        return playing

    def play(self, playbook="gpuval.fleet.validate", *arguments, seconds=PLAYBOOK_SECONDS, **options):
        return self.start(playbook, *arguments, **options).wait(seconds)

    def close(self):
        """Clean up after whatever happened; raises when `clean` left something running or lying about.

        Where the test itself has cleaned, nothing is there, and `clean` is not played again.
        """
        for playing in self._playing:
            playing.kill()
        try:
            if below(self.root) or self._left():
                done = self.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true")
                assert done.code == 0, done
        finally:
            survivors = end_all_below(self.root)
            for place in self._mounts:
                subprocess.run(["umount", str(place)], check=True, timeout=30)
        assert not survivors, f"processes were left after clean: {survivors}"
        assert not self._left(), f"files were left after clean: {self._left()}"

    def _left(self):
        return [path for node in self.nodes for path in self.node_base(node).rglob("*")]

    def mount(self, name, size):
        """A file system of its own, of so many bytes."""
        place = self.root / name
        place.mkdir()
        options = f"size={size},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(place)], check=True, timeout=30)
        self._mounts.append(place)
        return place

    @property
    def run_id(self):
        return (self.results / "latest").readlink().name

    @property
    def run_folder(self):
        return self.results / (self.results / "latest").readlink()

    def folder_of(self, run_id):
        """The folder of a run that is not the latest."""
        return find(self.results, run_id).path

    @property
    def folder_in_store(self):
        return self.store_data / self.run_id

    def read_run(self):
        return json.loads((self.run_folder / "run.json").read_text())

    def report(self):
        return report_file.unpacked(report_file.read(self.run_folder / "report.json"))

    def verdict(self, node):
        """The report's entry of a node."""
        (entry,) = [entry for entry in self.report()["nodes"] if entry["name"] == node]
        return entry

    def record(self, node, stage):
        return json.loads((self.run_folder / "nodes" / node / f"{stage}.json").read_text())

    def log(self, node, stage):
        return (self.run_folder / "nodes" / node / f"{stage}.log").read_text()

    def node_directory(self, node):
        return self.node_base(node) / self.run_id / node

    def runner_log(self, node):
        return (self.node_directory(node) / "runner.log").read_text()

    def at_work(self, node, stage, attempt=1, saying="", seconds=STEP_SECONDS):
        """Wait until an attempt of a stage has begun on the node and has said something."""
        until(lambda: self._said(node, stage, attempt, saying), f"{node} {stage} attempt {attempt} {saying!r}", seconds)

    def _said(self, node, stage, attempt, saying):
        try:
            text = (self.node_directory(node) / "logs" / f"{stage}.log").read_text(errors="replace")
        except OSError:
            return False
        _, started, after = text.partition(f"{stage} attempt {attempt} starts\n")
        return bool(started) and saying in after

    def assert_evidence(self, node, states):
        """Every stage has a valid record in the results and in the store, and its log if it ran."""
        kept = {stage["name"]: stage["state"] for stage in self.verdict(node)["stages"]}
        assert kept == states
        for stage, state in states.items():
            record = self.record(node, stage)
            valid("record", record)
            assert (record["run_id"], record["node"], record["stage"]) == (self.run_id, node, stage)
            assert record["state"] == state
            assert json.loads((self.folder_in_store / "records" / stage / f"{node}.json").read_text()) == record
            if state == "skipped":
                continue
            assert f"{stage} attempt {record['attempt']} ended: {state}" in self.log(node, stage)
            assert (self.folder_in_store / "logs" / stage / f"{node}.log").stat().st_size > 0
        if states.get("training") == "success":
            series = json.loads((self.run_folder / "nodes" / node / "training.series.json").read_text())
            valid("series", series)
            assert [curve["name"] for curve in series["series"]] == ["training_loss"]

    def decisive(self, node):
        """Required checks that failed or lack evidence."""
        return [
            check
            for check in self.verdict(node)["checks"]
            if check["severity"] == "required" and check["verdict"] in ("fail", "missing")
        ]


def valid(schema, document):
    jsonschema.validate(document, json.loads((SCHEMAS / f"{schema}.schema.json").read_text()))


def until(condition, what, seconds=STEP_SECONDS):
    """Wait for a condition; returns its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.1)


def stored(path):
    """A document of the store; empty for a moment while the store replaces it."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return json.loads(path.read_text())
    return {}


def at_once(*works):
    """Do several things that wait, at the same time; the first failure is raised."""
    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result()


def no_engines(root):
    """Environment in which no container of this machine is seen: a node refuses to work beside one of another run."""
    place = root / "engines"
    place.mkdir(parents=True, exist_ok=True)
    settings = place / "storage.conf"
    settings.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{place}/images"\nrunroot = "{place}/run"\n')
    return {"DOCKER_HOST": f"unix://{place}/docker.sock", "CONTAINERS_STORAGE_CONF": str(settings)}


def machine(root, machine_id, gpus=()):
    """A file tree that the facts stage takes for a machine of its own, with GPUs on the PCI bus that nothing drives."""
    (root / "etc").mkdir(parents=True)
    (root / "etc/machine-id").write_text(f"{machine_id}\n")
    (root / "proc").symlink_to("/proc")
    for address in gpus:
        device = root / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        for name, value in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2335"), ("numa_node", "0")):
            (device / name).write_text(f"{value}\n")
    return {"facts_root": str(root)}
