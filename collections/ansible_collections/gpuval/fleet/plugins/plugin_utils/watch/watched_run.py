"""The state of a watched run: run.json, a view of each node, the evidence, clocks, and what a resume needs."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ...module_utils.store import Store
from ..records.evidence import RunEvidence
from ..runs import folder as run_folder
from ..runs import opening
from .decisions import NodeView

MEMORY_FILE = "watch.json"
#: The launch of a node that was never launched.
UNKNOWN = {"state": "unknown", "message": "the node was never started"}


@dataclass
class Memory:
    """The state that a controller needs to resume the watch. Times are seconds since the run was opened."""

    #: {key of a record that was read: its version in the store}
    seen: dict[str, str] = field(default_factory=dict)
    #: {key of a record that was read: digest of its bytes (records/digests.py)}
    digests: dict[str, str] = field(default_factory=dict)
    #: For each node: restarts of its runner, when it changed last, and when records were fetched from it last.
    restarts: dict[str, int] = field(default_factory=dict)
    changed: dict[str, float] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    #: {node: time until which its second measurement may start}
    begin_by: dict[str, float] = field(default_factory=dict)
    begun_at: str | None = None
    window: list[int] | None = None


class WatchedRun:
    """A run that this controller watches. Times are seconds of its monotonic clock."""

    def __init__(self, folder: run_folder.RunFolder, store: Store, say: Callable[[str], None]) -> None:
        self.folder, self.store, self.say = folder, store, say
        self.info = folder.read_run()
        stored = run_folder.read_object(self._memory_file)
        self.memory = Memory(**{key.name: stored[key.name] for key in fields(Memory) if key.name in stored})
        launches, plans = folder.read_launches(), folder.read_plans()
        self.evidence = RunEvidence(launches=launches, problems=folder.read_problems())
        now = time.monotonic()
        #: When the run was opened.
        self.opened = now - run_folder.seconds_since(self.info["created_at"])
        self.start_clock(now)
        self.views = {
            name: self._view(name, plans.get(name), launches.get(name, UNKNOWN)) for name in self.info["nodes"]
        }

    @property
    def _memory_file(self):
        return self.folder.state / MEMORY_FILE

    def start_clock(self, now: float) -> None:
        """Compute the run's deadline from the start of its first watch, or from when the last nodes joined."""
        if self.memory.begun_at is None:
            self.memory.begun_at = run_folder.now()
        joined = [node["joined_at"] for node in self.info["nodes"].values() if node.get("joined_at")]
        self.begun = now - run_folder.seconds_since(max([self.memory.begun_at, *joined]))
        self.deadline = self.begun + self.info["deadline_seconds"] + run_folder.DEADLINE_SLACK_SECONDS

    def seconds_left(self, now: float) -> float:
        """Seconds that a node launched at ``now`` may work: those left of gpuval_deadline_seconds."""
        return float(self.info["deadline_seconds"]) - max(0.0, now - self.begun)

    def restore_times(self, now: float) -> None:
        """Restore when each node last changed, and was last fetched from, as an earlier watch saved it."""
        for view in self.views.values():
            view.changed_at = self.opened + self.memory.changed.get(view.name, now - self.opened)
            fetched = self.memory.asked.get(view.name)
            view.fetched_at = None if fetched is None else self.opened + fetched

    def save(self) -> None:
        views = self.views.values()
        self.memory.changed = {view.name: view.changed_at - self.opened for view in views}
        self.memory.asked = {view.name: view.fetched_at - self.opened for view in views if view.fetched_at is not None}
        run_folder.write_json(self._memory_file, asdict(self.memory))
        run_folder.write_json(self.folder.problems_file, self.evidence.problems)

    def join(self, nodes: Mapping[str, Any], now: float) -> list[NodeView]:
        """Add nodes ({name: entry for run.json}) to the run, to be launched after all others. Returns their views."""
        document = {**self.info, "created_at": run_folder.now(), "nodes": dict(nodes)}
        self.info, names = opening.merge(self.folder.read_run(), document)
        self.folder.write_run(self.info)
        self.start_clock(now)
        for name in names:
            view = self.views[name] = self._view(name, None, UNKNOWN)
            view.changed_at, view.to_start = now, True
        return [self.views[name] for name in names]

    def write_launch(self, view: NodeView, launch: dict[str, Any]) -> None:
        self.folder.write_launch(view.name, launch)
        self.know_launch(view, launch)

    def know_launch(self, view: NodeView, launch: dict[str, Any]) -> None:
        view.launch = self.evidence.launches[view.name] = launch

    def _view(self, name: str, plan: Mapping[str, Any] | None, launch: Mapping[str, Any]) -> NodeView:
        stages = self.info["nodes"][name]["stages"]
        plan = plan or {"stages": [{"name": stage, "expected_seconds": None} for stage in stages]}
        return NodeView(name, plan, launch, restarts=self.memory.restarts.get(name, 0))
