"""A simulated cluster whose containers run the real runner: what the Job says, with what is mounted in its pod.

The API server and the kubelets are those of tests/unit/cluster; records come by signed URLs into a real store.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.kit.cluster import ClusterKit, StageEnd, config_data, secret_data
from tests.kit.fleet import QUICK, Fleet, until
from tests.kit.processes import end_all_below

STAGE_SECONDS = 240
#: What the work of a stage that is to be struck says first, and how long its record may take to the store.
BEGUN, UPLOAD_SECONDS = "the work begins", 0.5
#: A stage that does next to nothing and says so.
WORK = {
    "command": ["sh", "-c", "echo worked: 3 items"],
    "image": "registry.example/work:1",
    "patterns": [{"name": "worked_items", "pattern": r"^worked: (?P<value>\d+) (?P<unit>items)"}],
    "timeout_seconds": 60,
}


def own_address():
    """An IPv4 address of this machine that is not the loopback's, as a controller gives to its nodes."""
    for found in psutil.net_if_addrs().values():
        for one in found:
            if one.family is socket.AF_INET and not one.address.startswith("127."):
                return one.address
    raise RuntimeError("this machine has no network interface but the loopback")


def mounted(run, folder):
    """Write what the pod mounts at /opt/gpuval into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for volume in run.pod["spec"]["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            kind, read, known = (
                ("configMap", config_data, run.config_maps)
                if "configMap" in source
                else ("secret", secret_data, run.secrets)
            )
            manifest = known[source[kind]["name"]]
            items = source[kind].get("items") or [
                {"key": key, "path": key} for part in ("data", "binaryData") for key in manifest.get(part) or {}
            ]
            for item in items:
                with contextlib.suppress(KeyError):
                    (folder / item["path"]).parent.mkdir(parents=True, exist_ok=True)
                    (folder / item["path"]).write_bytes(read(manifest, item["key"]))


@dataclass
class Containers:
    """`on_stage` of a ClusterKit: each stage is a process of the real runner, in folders of its pod."""

    root: Path
    #: Called with the run before its stage; may return a StageEnd to take its place.
    instead: object = None
    #: Called with the run before its stage: the signal that strikes its runner at work, or None.
    struck: object = None
    #: Called with the run: whether the pod's network does not let it to the store.
    walled_in: object = None
    running: dict = field(default_factory=dict)
    _lock: object = field(default_factory=threading.Lock)

    def __call__(self, run, moment):
        if moment != "start":
            return self.running.pop((run.pod["metadata"]["uid"], run.stage), None)
        end = (self.instead and self.instead(run)) or self._run(run)
        self.running[run.pod["metadata"]["uid"], run.stage] = end
        return None

    def _run(self, run):
        folder = self.root / run.pod["metadata"]["uid"]
        with self._lock:
            mounted(run, folder / "in")
            if self.walled_in and self.walled_in(run):
                urls = folder / "in" / "store.json"
                urls.write_text(re.sub(r"https://[^/\"]+/", "https://127.0.0.1:9/", urls.read_text()))
        spec = run.pod["spec"]
        container = next(
            each for each in [*spec.get("initContainers", []), *spec["containers"]] if each["name"] == run.container
        )
        places = {"/opt/gpuval": folder / "in", "/var/lib/gpuval": folder / "var", "/dev/shm": folder / "shm"}
        words = [*container["command"], *container.get("args", [])]
        for place, here in places.items():
            here.mkdir(parents=True, exist_ok=True)
            words = [re.sub(rf"^{place}(?=/|$)", str(here), word) for word in words]
        termination = folder / f"termination-{run.stage}"
        environment = {
            **{item["name"]: item["value"] for item in container.get("env", []) if "value" in item},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "GPUVAL_TERMINATION_LOG": str(termination),
        }
        output = folder / f"output-{run.stage}"
        with output.open("wb") as stream:
            process = subprocess.Popen(words, env=environment, stdout=stream, stderr=subprocess.STDOUT)
        strike = self.struck and self.struck(run)
        if strike:
            until(lambda: BEGUN in output.read_text(errors="replace"), f"{run.node} {run.stage}: its work begins")
            time.sleep(UPLOAD_SECONDS)
            process.send_signal(strike)
        code = process.wait(STAGE_SECONDS)
        report = termination.read_text() if termination.exists() else ""
        return StageEnd(exit_code=code, log=output.read_text(errors="replace"), termination=report)


@dataclass
class ClusterFleet(Fleet):
    """The nodes of a kit as an inventory of gpuval, validated as `make validate` would."""

    kit: ClusterKit = None
    expected: list = field(default_factory=list)
    #: Further options of the inventory.
    source: dict = field(default_factory=dict)

    def end(self):
        """End the playbooks and stores of this controller; what they left in the cluster is the kit's."""
        for playing in self._playing:
            playing.kill()
        end_all_below(self.root)

    @property
    def variables(self):
        return {
            "gpuval_results_dir": str(self.results),
            "gpuval_state_dir": str(self.root / "state"),
            "gpuval_store_address": own_address(),
            "gpuval_stages": ["facts", "work"],
            "work_workload": WORK,
            "gpuval_pods": {"image": "registry.example/facts:1"},
            "gpuval_heartbeat_seconds": 1,
            "run_poll_seconds": 0.5,
            **{key: value for key, value in QUICK.items() if key.startswith("run_")},
            **self.settings,
        }

    def start(self, playbook="gpuval.fleet.validate", *arguments, nodes=None):
        self.home.mkdir(parents=True, exist_ok=True)
        folder = self.root / "inventory"
        (folder / "group_vars").mkdir(parents=True, exist_ok=True)
        source = {"plugin": "gpuval.fleet.kubernetes_nodes", "kubeconfig": str(self.kit.kubeconfig), **self.source}
        if self.expected or nodes:
            source["expected"] = nodes or self.expected
        inventory = folder / "cluster.kubernetes.yml"
        inventory.write_text(json.dumps(source))
        (folder / "group_vars" / "all.json").write_text(
            json.dumps({"gpuval_kubeconfig": str(self.kit.kubeconfig), **self.variables})
        )
        return self._start([playbook, "-i", str(inventory), *arguments], self.root.parents[0], self.environment)
