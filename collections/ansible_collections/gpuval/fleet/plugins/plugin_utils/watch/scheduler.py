"""The interface of a scheduler (SSH, Kubernetes, Slurm), which runs plans on nodes.

A scheduler is one class with a `name`: in a file `*scheduler.py` of a package beside this one, or in the `__init__.py`
of a folder `schedulers/NAME` of an extension. Its `watch.placement.Placement` launches plans and fetches evidence.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean

from ..core import extensions
from ..core.host_values import templar_of, values_of
from ..judge.check import Check
from ..runs import folder as run_folder
from ..runs import plans
from ..runs.folder import RunFolder
from ..ssh.findings import ProbeFinding
from . import launch_inputs, reach
from .placement import JobPlacement
from .watch import RunWatch, WatchLimits

#: Attributes of a scheduler that playbooks and roles read from the variable `gpuval_scheduler`.
TRAITS = ("name", "work", "in_pods", "over_ssh", "bears_marks", "has_drains")


@dataclass(frozen=True)
class NodeProbes:
    """The result of a probe: findings by node, its duration in seconds, lines for the console, further fields."""

    findings: Mapping[str, ProbeFinding]
    seconds: float
    lines: Sequence[str]
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class NodeVerdicts:
    """The result of writing or removing verdicts on nodes. `changes`: {node: (verdict before, now)}. `missing`: nodes
    that the scheduler does not know. `foreign`: nodes to drain that others took out of service. `busy`: nodes that
    others kept changing. `still`: {node that keeps an earlier FAIL: checks that it must pass}. `problem`: why some
    nodes are unchanged."""

    changes: dict[str, tuple[str, str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    still: dict[str, frozenset[str]] = field(default_factory=dict)
    problem: str = ""


#: Functions that keep a node's logs (node, archive, message, notes by file), or why it has none (node, state, why).
KeepArchive = Callable[[str, bytes, str, Mapping[str, str]], object]
KeepState = Callable[[str, str, str], object]


class Scheduler(ABC):
    """A scheduler as gpuval uses it. A context manager: `watch` must run inside it, other methods need not."""

    name: ClassVar[str] = ""
    #: The name in messages, the name of the row of `make doctor`, and the word for what it submits for each node.
    title: ClassVar[str] = "the cluster"
    row_name: ClassVar[str] = "scheduler"
    work: ClassVar[str] = "jobs"
    #: Whether stages run in pods, whose images the cluster pulls; and whether Ansible's own tasks reach nodes over SSH.
    in_pods: ClassVar[bool] = False
    over_ssh: ClassVar[bool] = False
    #: Whether users' jobs may be batch files of this scheduler.
    runs_batch_files: ClassVar[bool] = False
    #: Whether verdicts can be written on nodes at any time; and whether failed nodes are drained.
    bears_marks: ClassVar[bool] = False
    has_drains: ClassVar[bool] = False
    #: What the step `mark_nodes` prints about nodes that keep a FAIL, and about a run in which these pass.
    still_words: ClassVar[tuple[str, str]] = ("still FAIL", "removes it")

    def __init__(self, action: Any, options: Any, *, gangs: bool = False) -> None:
        """`action`: the action plugin; `options`: those of its step; `gangs`: whether it runs multi-node stages."""
        self._action, self._options, self._task_vars, self._gangs = action, options, action.task_vars, gangs
        self._workloads = GANG_WORKLOADS if gangs else WORKLOADS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        return

    @abstractmethod
    def plans(self) -> Mapping[str, str]:
        """{node: its plan as text}, which check mode shows. Raises PlanError."""

    @abstractmethod
    def watch(self, folder: RunFolder, limits: WatchLimits, checks: Sequence[Check]) -> list[str]:
        """Watch a run, or a round of multi-node tests, until it ends. Returns the nodes on which a plan was started."""

    @property
    def requests(self) -> int:
        """Number of requests that were sent to a cluster's API so far."""
        return 0

    @abstractmethod
    def address(self, run_id: str, member: Mapping[str, Any]) -> str:
        """The network address at which other nodes of a multi-node test reach the node of `member`."""

    @abstractmethod
    def probe(self) -> NodeProbes:
        """Check whether work can be placed on the nodes of the play. Raises GpuvalError."""

    @abstractmethod
    def reach(self, folder: RunFolder, node: str, stages: Sequence[str]) -> list[str]:
        """The command for a shell on a node, or for the log of its stages. Raises GpuvalError."""

    def place(self, settings: str) -> str:
        """The identity of the cluster that runs are placed on, as text that differs between clusters. `settings`: the
        same by settings alone. Raises GpuvalError."""
        return settings

    def answers(self, values: Mapping[str, Any]) -> str:
        """What `make doctor` prints if the scheduler answers; `values`: variables of a host. Raises GpuvalError."""
        return ""

    def mark(self) -> NodeVerdicts:
        """Write the verdicts of a run on its nodes (labels, drains), or remove them. Raises GpuvalError."""
        raise NotImplementedError

    def clean(self) -> dict[str, Any]:
        """Remove what runs made, and check that it is gone. Returns the result of the step. Raises GpuvalError."""
        return {"changed": False, "msg": "this scheduler keeps nothing of runs"}

    def gather(
        self, run_id: str, nodes: Sequence[str], secrets: Collection[str], archive: KeepArchive, state: KeepState
    ) -> None:
        """Collect the scheduler's own evidence about nodes: pass each archive to `archive`, or why there is none to
        `state`. `secrets`: texts to hide."""
        return

    def _hosts(self) -> list[str]:
        return list(self._task_vars["ansible_play_hosts_all"])

    def _followed(self, folder: RunFolder, node: str, stages: Sequence[str]) -> list[str]:
        return reach.followed_stages(folder, node, stages, self._options.stage)


class JobScheduler(Scheduler):
    """A scheduler that gets one job for each node. The controller makes the node's plan from its Ansible variables."""

    @abstractmethod
    def order(self, run: Mapping[str, Any], name: str) -> Any:
        """The description of the job for node `name`, with its `plan`. Raises PlanError."""

    @abstractmethod
    def placement(self, *common: Any) -> JobPlacement:
        """Make the placement; `common`: arguments of `JobPlacement`."""

    def plans(self) -> dict[str, str]:
        hosts = self._task_vars["ansible_play_hosts"]
        return {name: launch_inputs.shown(self.order(self._options.run, name).plan) for name in hosts}

    def watch(self, folder: RunFolder, limits: WatchLimits, checks: Sequence[Check]) -> list[str]:
        run, display = folder.read_run(), self._action._display
        store = launch_inputs.NodeStore.of(self._options.store, run, self.name)
        hosts, all_hosts = self._task_vars["ansible_play_hosts"], self._hosts()
        orders = functools.partial(self.order, run)
        placement = self.placement(run, folder, store, orders, hosts, all_hosts, display.warning)
        try:
            started = RunWatch(limits, folder, store.access, checks, placement, display, store.client).run()
            placement.finish()
        finally:
            placement.close()
        return started

    def _declared(
        self,
        run: Mapping[str, Any],
        name: str,
        variables: Sequence[str],
        others: Mapping[str, Any] | None = None,
        like: str = "",
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """({variable: value} of PLAN_VARIABLES and `variables`, {stage: declaration}) of a node; see `values_for`."""
        later = [GANG_WORKLOADS] if run["nodes"][name].get("gang_stages") else []
        wanted = (self._workloads, *later, *PLAN_VARIABLES, *variables)
        chosen = values_for(self._action, name, self._task_vars, wanted, others, like)
        return chosen, {**(chosen[GANG_WORKLOADS] if later else {}), **chosen[self._workloads]}

    def _mark_cleaned(self, left: object) -> None:
        """Record that the runs were cleaned, unless something is `left` of them."""
        options = self._options
        if options.results_dir and not self._action.check_mode and not left:
            run_folder.mark_cleaned(options.results_dir, options.run_ids)


def scheduler_of(name: str) -> type[Scheduler]:
    """The class of the scheduler ``name``: ssh, kubernetes, slurm or one of an extension. Raises SettingError."""
    return extensions.load_class("schedulers", name, Scheduler)  # type: ignore[type-abstract]


#: Variables with a node's stage declarations: of its own stages, and of multi-node stages.
WORKLOADS, GANG_WORKLOADS = "run_workloads", "run_gang_workloads"
PLAN_VARIABLES = (
    *("gpuval_heartbeat_seconds", "gpuval_telemetry", "gpuval_telemetry_seconds"),
    *("gpuval_workload_python", "gpuval_models_dir", "gpuval_container"),
)


def values_for(
    action: Any,
    name: str,
    task_vars: Mapping[str, Any],
    variables: tuple[str, ...],
    others: Mapping[str, Any] | None = None,
    like: str = "",
) -> dict[str, Any]:
    """{variable: templated value} of node `name`. `like`: host to read them from instead; `others`: values that replace
    those of the host. Raises PlanError."""
    values = {**values_of(action, like or name, task_vars), **(others or {})}
    templar = templar_of(action, values)
    try:
        return {variable: templar.template(values[variable]) for variable in variables}
    except AnsibleError as error:
        raise plans.PlanError(f"{name}: {error.message}") from None


def plan_of(
    run: Mapping[str, Any], name: str, chosen: Mapping[str, Any], declared: Mapping[str, Any]
) -> dict[str, Any]:
    """The plan of node `name`, whose stages run on the host as the runner does. `chosen`: values of PLAN_VARIABLES;
    `declared`: {stage: declaration}."""
    sampled = boolean(chosen["gpuval_telemetry"])
    return plans.build(
        plans.PlanSettings.of(
            run,
            name,
            created_at=run_folder.now(),
            heartbeat_seconds=float(chosen["gpuval_heartbeat_seconds"]),
            runtime="host",
            python=chosen["gpuval_workload_python"],
            models_dir=chosen["gpuval_models_dir"] or None,
            container=chosen["gpuval_container"],
            telemetry_seconds=float(chosen["gpuval_telemetry_seconds"]) if sampled else 0.0,
        ),
        run["nodes"][name]["stages"],
        declared,
    )
