"""The interface of a placement (SSH, Kubernetes, Slurm): it brings plans to nodes, and to the watch evidence that is
not in the store. `launch` and `fetch` return at once; the work runs beside the watch and `wait` reports how it ended. A
launch writes the node's plan file and launch file into the run's folder; the watch reads both when it has ended."""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Union

from ..records.failure_classes import FailureClass
from ..runs import folder as run_folder
from .decisions import NodeView
from .launch_inputs import NodeStore

#: Seconds between two queries of jobs that are about to end.
FOLLOW_SECONDS = 1.0


@dataclass(frozen=True)
class PlannedAttempt:
    """An attempt of a plan to launch. `number`: 1 for the first; `stages`: names, all stages if empty."""

    number: int = 1
    stages: Sequence[str] = ()
    #: Maximum seconds from the launch to the end of the attempt.
    seconds: float = math.inf

    def launch(self, node: str, known: Mapping[str, Any]) -> dict[str, Any]:
        """A new launch document for this attempt. `known`: the node's last launch document, whose attempt counts if a
        controller that resumes the run starts at 1 again."""
        number, stages = self.number, list(self.stages)
        if known.get("attempt", 1) > number:
            number, stages = known["attempt"], known["stages"]
        return {"node": node, "attempt": number, "stages": stages, "at": run_folder.now()}


@dataclass(frozen=True)
class LaunchEnd:
    """The end of a launch or fetch. `failed`: it ended before writing the launch file, because of `message`.
    `reported`: the placement has already reported this, once for all nodes."""

    node: str
    kind: Literal["launch", "fetch"]
    started: bool = False
    failed: bool = False
    unreachable: bool = False
    message: str = ""
    reported: bool = False


@dataclass(frozen=True)
class NodeNews:
    """A change that a placement noticed on a node. `launch`: the new content of its launch file. `records`: {key in the
    store: untrusted record that came another way}. Both None: the node's images are present, so the next transfer may
    begin. `reported`: as in `LaunchEnd`."""

    node: str
    launch: Mapping[str, Any] | None = None
    records: Mapping[str, bytes] | None = None
    reported: bool = False


Event = Union[LaunchEnd, NodeNews]


@dataclass
class NodeOutages:
    """Tracks nodes that do not answer their scheduler for a while. ``failure``: the class of such an outage."""

    failure: FailureClass
    #: {(node, attempt): start of its outage in monotonic seconds, the same time as text, reason}
    _open: dict[tuple[str, Any], tuple[float, str, str]] = field(default_factory=dict)

    def noted(self, node: str, launch: Mapping[str, Any], reason: str, now: float) -> dict[str, Any]:
        """A node's launch document; once an outage is over, with the outage among its interruptions. ``reason``: why
        the node does not answer now; empty if it answers, or its work has ended."""
        key = (node, launch.get("attempt", 1))
        if reason:
            self._open.setdefault(key, (now, run_folder.now(), reason))
        if reason or key not in self._open:
            return dict(launch)
        began, at, why = self._open.pop(key)
        message = f"no answer from {at} for {now - began:.0f} s ({why}); its work went on"
        outage = {"class": self.failure.name, "message": message, "remedy": self.failure.remedy}
        return {**launch, "interruptions": [*launch.get("interruptions", ()), outage]}


class Placement(Protocol):
    #: `present`: nodes that tasks can run on. `everyone`: all hosts of the play, including failed ones.
    present: set[str]
    everyone: set[str]

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a launch or fetch still runs, so that its event is still to come."""

    @abstractmethod
    def launch(self, view: NodeView, attempt: PlannedAttempt, seconds: float) -> None:
        """Start an attempt of the node's plan. `seconds`: time left of the run."""

    @abstractmethod
    def fetch(self, view: NodeView, *, by_store: bool) -> None:
        """Fetch a node's records and logs that the store lacks, or all new ones if records do not come `by_store`."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """Wait at most ``seconds`` for events. Returns them at once if there are any."""

    @abstractmethod
    def close(self) -> None:
        """Stop processes of launches and fetches that still run on the controller."""

    def begin(self, views: Mapping[str, NodeView]) -> None:
        """Prepare the launches of a run; called once, before the first one."""
        return

    def next_attempt(self, view: NodeView) -> PlannedAttempt | None:
        """A further attempt for a done node that was interrupted through no fault of its own (an eviction)."""
        return None

    def withdraw(self, view: NodeView) -> bool:
        """Cancel a node's attempt that waits to start. Returns False if it may have started already."""
        return False

    def unsettled(self) -> bool:
        """Whether `next_attempt` may still return an attempt for a node whose records are complete."""
        return False

    def new_nodes(self) -> Mapping[str, Mapping[str, Any]]:
        """{node name: entry for run.json} of the nodes that appeared since the last call and join the run."""
        return {}

    def add(self, view: NodeView) -> None:
        """Prepare the launch of a node that joined the run."""
        return


class JobPlacement(Placement):
    """A placement that submits one job for each node. `orders`: function that makes the description of a node's job."""

    #: The last records of a node may arrive so many seconds after its job ended.
    SETTLE_SECONDS = 6.0
    MAX_ATTEMPTS = 2

    def __init__(
        self,
        run: Mapping[str, Any],
        folder: run_folder.RunFolder,
        store: NodeStore,
        orders: Callable[..., Any],
        present: Iterable[str],
        everyone: Iterable[str],
        warn: Callable[[str], None],
    ) -> None:
        self.present, self.everyone = set(present), set(everyone)
        self._run, self._folder, self._store, self._orders, self._warn = run, folder, store, orders, warn
        self._views: Mapping[str, NodeView] = {}
        self._events: list[Event] = []
        #: {(node, attempt): when its job ended}: its last records may arrive later.
        self._ended_at: dict[tuple[str, int], float] = {}

    def _keep_launch(self, view: NodeView, launch: Mapping[str, Any], *, reported: bool = False) -> LaunchEnd:
        """Write the launch file of a node. Returns the event that ends the launch."""
        self._folder.write_launch(view.name, launch)
        return LaunchEnd(
            view.name, "launch", launch["state"] == "started", message=launch["message"], reported=reported
        )

    def _keep_digests(
        self, channel: str, is_ending: Callable[[NodeView], bool], follow: Callable[[float], object]
    ) -> None:
        """Keep the digests of results that nodes state at the ends of their jobs. First wait for jobs that are about to
        end: call `follow` (with seconds) while `is_ending` is true of a node. `channel`: how the digests arrive."""
        until, views = time.monotonic() + self.SETTLE_SECONDS, self._views.values()
        while time.monotonic() < until and any(map(is_ending, views)):
            follow(FOLLOW_SECONDS)
        for view in views:
            stated, known = self._stated_by(view), self._folder.read_digests(view.name)
            if stated or known.stated:  # digests of an earlier attempt do not hold for this one
                known.channel, known.stated = channel, stated
                run_folder.write_json(self._folder.digests_file(view.name), vars(known))

    def _stated_by(self, view: NodeView) -> dict[str, list[str]]:
        """{result: digests} that a node stated at the ends of its jobs, of the last attempt that changed the result."""
        return {}

    @abstractmethod
    def finish(self) -> None:
        """After the watch: keep the digests that jobs stated, and cancel the jobs that are not needed any more."""
