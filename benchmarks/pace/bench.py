"""One validation at simulated pace: the controller's own code, nodes that only take their time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / "benchmarks" / name) for name in ("report", "localisation", "detection"))]

import fleet as figures
import gangs as network
import healthy
import steps
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import orchestrate, rounds, session
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import coherence, criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watch import RunWatch, WatchLimits
from declared import Variables
from fleets import Noise
from simulated import BEGIN, Bandwidth, Clock, Fleet, MemoryStore, Outcome, SimulatedPlacement, drawn

from tests.kit import builders

SKU, GPUS = "h200", 8
GOAL_SECONDS = 7200
IMAGES = {name: {"reference": f"registry.example/{name}:1"} for name in ("training", "inference")}
SETTINGS = {
    "heartbeat_seconds": 10.0, "runtime": "docker", "python": "python3", "models_dir": None, "telemetry_seconds": 1.0,
}  # fmt: skip
#: Stages take so much more or less than their plans expect, relative.
SPREAD = 0.03
ALL_REDUCE = "diagnostics_all_reduce_bus_bytes_per_second"
#: Of the phases the first.
OWN = "nodes' own stages"
PROGRAM = Path(__file__).with_name("run.py")
HANG = "no output for {seconds:.0f} s"
#: When the node that dies does so, in seconds since the run began.
DIES_SECONDS = 600.0


class Faults:
    """One node of each kind, far from each other."""

    def __init__(self, names: list[str]) -> None:
        chosen = [names[len(names) * (2 * number + 1) // 10] for number in range(5)]
        self.slow, self.crashes_once, self.hangs, self.dies, self.slow_in_gangs = chosen

    def titles(self) -> dict[str, str]:
        return {
            self.slow: "all-reduce between its GPUs 5.5 % slower",
            self.crashes_once: "training crashes once",
            self.hangs: "training hangs, each time",
            self.dies: f"dies {DIES_SECONDS:.0f} s after the start",
            self.slow_in_gangs: "30 % slower with other nodes",
        }


class Figures:
    """What the stages of the fleet report."""

    def __init__(self, names: list[str], faults: Faults, clock: Clock) -> None:
        self.faults, self._clock = faults, clock
        self._numbers = {name: number for number, name in enumerate(names)}
        self._gangs: dict[tuple[str, str], Any] = {}
        self._network = network.build(len(names), 1)
        self._network.bad = {
            self._network.nodes[self._numbers[faults.slow_in_gangs]]: network.Fault("slow", factor=0.7)
        }

    def outcome(self, run: Mapping[str, Any], name: str, stage: Mapping[str, Any], attempt: int) -> Outcome:
        draw = drawn(run["run_id"], name, stage["name"], attempt)
        seconds = stage["expected_seconds"] * draw.gauss(1, SPREAD)
        if stage["name"] == "training" and name == self.faults.hangs:
            message = HANG.format(seconds=stage["inactivity_seconds"])
            ended = {"state": "timeout", "exit_code": None, "signal": "SIGKILL", "message": message}
            return Outcome(seconds / 3 + stage["inactivity_seconds"], ended)
        if stage["name"] == "training" and name == self.faults.crashes_once and attempt == 1:
            return Outcome(seconds / 2, {"state": "crash", "exit_code": 1, "message": "rank 5 ended by SIGSEGV"})
        if "gangs" in run:
            return Outcome(seconds, self._together(run, name, stage["name"]))
        return Outcome(seconds, self._alone(run, name, stage["name"], attempt, seconds))

    def _alone(self, run: Mapping[str, Any], name: str, stage: str, attempt: int, seconds: float) -> dict[str, Any]:
        if stage not in figures.STAGES:
            return reported(stage, name)
        # the same node each time, with another error of measurement
        records = figures.healthy(name, self._numbers[name], drawn("node", name), run["run_id"])
        draw, record = drawn(name, stage, attempt), records[stage]
        for metric in record["metrics"]:
            if name == self.faults.slow and metric["name"] == ALL_REDUCE:
                metric["value"] *= 0.945
            if healthy.is_measured(metric["name"], metric["unit"]) and metric["value"]:
                metric["value"] = float(f"{metric['value'] * draw.gauss(1, 0.001):.6g}")
        return {key: record[key] for key in ("metrics", "fingerprints", "environment")}

    def _together(self, run: Mapping[str, Any], name: str, stage: str) -> dict[str, Any]:
        gang = run["nodes"][name]["gang"]["name"]
        members = [member["node"] for member in run["gangs"][gang]["members"]]
        key = (run["run_id"], gang)
        if key not in self._gangs:
            self._gangs[key], _ = self._network.measure([self._network.nodes[self._numbers[node]] for node in members])
        found = reported("collective" if stage == gang_document.FABRIC else stage, name)
        for metric in found["metrics"]:
            if metric["name"] == rounds.BUS:
                metric["value"] = self._gangs[key].bus_bytes_per_second
        found["environment"] |= {"gang": {"name": gang, "nodes": len(members), "joined": True}}
        return found


def figures_apart() -> AbstractContextManager[Any]:
    """Figures are drawn one by one: rules that hold them against each other are off."""
    return mock.patch.object(coherence, "checks", lambda *_: [])


def reported(stage: str, name: str) -> dict[str, Any]:
    """A healthy record of a stage of which benchmarks/report has no figures of real nodes."""
    if stage == "image":
        return {"metrics": [builders.metric("image_duration_seconds", 60.0, "seconds")]}
    noise = Noise(f"{stage} {name}", 1.0, **healthy.SETTINGS["normal"])
    levels = dict.fromkeys(healthy.SPREADS, 1.0)
    metrics = list(healthy.figures_of(stage, SKU, noise, levels, {}))
    return {"metrics": metrics, "fingerprints": dict(healthy.FINGERPRINTS.get(stage, {})),
            "environment": {"infiniband": "yes"} if stage == "rdma" else {}}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """What is validated. The store gives `store_gbits` to all nodes together; one reads at most `node_gbits`."""

    nodes: int = 100
    profile: str = "standard"
    image_bytes: float = 8e9
    model_bytes: float = 16e9
    store_gbits: float = 25.0
    node_gbits: float = 10.0


class Bench:
    """A run of the scene in a folder of its own; `show` gets the console's lines, with the simulated seconds."""

    def __init__(self, scene: Scene, folder: Path, show: Callable[[str], None] = lambda _line: None) -> None:
        self.clock, self.scene, self._show = Clock(), scene, show
        self.store = MemoryStore(self.clock)
        self.names = [figures.name_of(number) for number in range(scene.nodes)]
        self.variables = Variables(
            self.names, gpuval_profile=scene.profile, gpuval_images=IMAGES, gpuval_runtime="docker",
            gpuval_sku=SKU, ansible_run_tags=["all"], role_path=str(ROOT),
        )  # fmt: skip
        self.workloads = {**self.variables["run_workloads"], **self.variables["run_gang_workloads"]}
        self.faults = Faults(self.names)
        self.checks = criteria.load(criteria.shipped_files())
        self.lines: list[str] = []
        #: By phase: simulated seconds, and seconds of the controller's processor.
        self.phases: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        #: By round of gangs, simulated seconds.
        self.rounds: dict[str, float] = {}
        self._again_at: float | None = None
        #: The most memory of judge and report.
        self.memory = 0.0
        with self.clock.installed():
            run = self._run()
            self.folder = RunFolder(folder / run["run_id"])
            self.folder.write_run(run)
        self.fleet = Fleet(
            self.clock, self.store,
            Bandwidth(self.clock, scene.store_gbits / 8 * 1e9, scene.node_gbits / 8 * 1e9),
            Figures(self.names, self.faults, self.clock).outcome,
            {"image": scene.image_bytes, "loading": scene.model_bytes},
            {self.faults.dies: self.clock.now + DIES_SECONDS},
        )  # fmt: skip

    def _run(self) -> dict[str, Any]:
        run, run_id = figures.run_of(self.scene.nodes), f"{self.clock.moment():%Y%m%d-%H%M%S}-pace"
        for node in run["nodes"].values():
            node |= {"stages": self.variables["gpuval_stages"], "gang_stages": self.variables["run_gang_stages"]}
        return {
            **run, "run_id": run_id, "folder": run_id, "created_at": run_folder.now(), "finished_at": None,
            "deadline_seconds": self.variables["gpuval_deadline_seconds"], "profile": self.scene.profile,
            "workloads": {stage: one.get("workload", stage) for stage, one in self.workloads.items()},
        }  # fmt: skip

    def say(self, line: str, *_: object) -> None:
        self._again_at = self.clock.now if "measured again" in line else self._again_at
        self.lines.append(f"{self.clock.now - BEGIN:7.0f} s  {line}")
        self._show(self.lines[-1])

    def watch(self, below: RunFolder) -> None:
        """A watch of the run, or of a round of gangs."""
        chosen = {name: self.variables[f"run_{name}"] for name in
                  ("poll_seconds", "pull_seconds", "silence_seconds", "lost_seconds")}  # fmt: skip
        chosen |= {"retries": self.variables["gpuval_retries"], "wait_for_node": self.variables["gpuval_wait_for_node"]}
        chosen |= {name: self.variables[f"gpuval_{name}"] for name in ("max_nodes_at_once", "max_transfers")}
        if "gangs" in below.read_run():
            chosen |= {**session.LIMITS, "lost_seconds": self.variables["run_gang_lost_seconds"]}
        placement = SimulatedPlacement(self.fleet, below, self.workloads, SETTINGS)
        shown = dict.fromkeys(("display", "warning", "progress"), self.say)
        display: Any = SimpleNamespace(**shown, end_progress=lambda: None)
        backend: Any = self.store.backend()
        store: Any = self.store
        began = self.clock.now
        RunWatch(WatchLimits(**chosen), below, backend, self.checks, placement, display, store).run()
        if below is not self.folder:
            self.rounds[below.path.name] = self.clock.now - began

    def gangs(self) -> None:
        variables = self.variables
        settings = orchestrate.GangSettings(
            round_seconds=variables["run_gang_round_seconds"],
            search_seconds=variables["gpuval_gang_search_seconds"],
            search_round_seconds=variables["run_gang_search_round_seconds"],
        )
        judge = session.judge_of(self.folder, self.checks, [], "")

        def judged(document: Mapping[str, Any] | None) -> dict[str, Any]:
            with self.clock.counting():
                return judge(document)

        context = orchestrate.GangContext(
            self.watch, judged, lambda _document: None, self.say,
            repeatable={check.name for check in self.checks if check.retry},
        )  # fmt: skip
        placed = {name: orchestrate.GangNode(f"10.0.{number // 200}.{number % 200 + 1}", GPUS)
                  for number, name in enumerate(self.names)}  # fmt: skip
        with mock.patch("ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.keys.make"):
            orchestrate.Gangs(self.folder, settings, context).run_all(
                placed, session.properties(self.folder, self.folder.read_run())
            )

    @property
    def total(self) -> float:
        return sum(self.phases.values())

    def _phase(self, title: str, work: Callable[[], None]) -> None:
        began, spent, own = self.clock.now, time.process_time(), self.clock.own_seconds
        work()
        self.phases[title] = self.clock.now - began
        self.cpu[title] = time.process_time() - spent - (self.clock.own_seconds - own)

    def run(self) -> dict[str, Any]:
        with self.clock.installed(), figures_apart():
            self._phase(OWN, lambda: self.watch(self.folder))
            if self._again_at is not None:
                self.phases |= {OWN: self._again_at - BEGIN, "second measurements": self.clock.now - self._again_at}
            self._phase("gangs and search", self.gangs)
            self.folder.write_run({**self.folder.read_run(), "finished_at": run_folder.now()})
        for step in ("judge", "report"):
            cost = steps.measured(step, self.folder.path, PROGRAM)
            self.phases[step], self.cpu[step] = cost["seconds"], cost["cpu"]
            self.memory = max(self.memory, cost["memory"])
        return json.loads((self.folder.path / "report.json").read_text())
