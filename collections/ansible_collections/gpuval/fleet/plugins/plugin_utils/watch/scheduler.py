"""The interface of a scheduler: all that gpuval asks of what brings plans to nodes, beside Ansible itself.

A scheduler is one class with a `name`: in a file `*scheduler.py` of a package beside this one, or in the `__init__.py`
of a folder `schedulers/NAME` of an extension. How it launches and watches is its `watch.placement.Placement`.
"""

from __future__ import annotations

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

#: What playbooks and roles ask of a scheduler, as `gpuval_scheduler`.
TRAITS = ("name", "work", "in_pods", "over_ssh", "bears_marks", "has_drains")


@dataclass(frozen=True)
class NodeProbes:
    """Findings by node, the seconds that they took, lines for people, and what the step returns beside."""

    findings: Mapping[str, ProbeFinding]
    seconds: float
    lines: Sequence[str]
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class NodeVerdicts:
    """The verdicts that were written on nodes, or removed: by node what it bore before and bears now.

    `missing`: nodes that the scheduler has not. `foreign`: nodes to drain that are out of service for others. `busy`:
    nodes that others kept changing. `still`: by node that keeps an earlier FAIL what it is to pass yet. `problem`: why
    some are unchanged.
    """

    changes: dict[str, tuple[str, str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    still: dict[str, frozenset[str]] = field(default_factory=dict)
    problem: str = ""
    #: Whether anything changed that is no verdict.
    noted: bool = False


#: Where evidence of a node goes: its archive, with a message and notes; or the state of one that has none, and why.
KeepArchive = Callable[[str, bytes, str, Mapping[str, str]], object]
KeepState = Callable[[str, str, str], object]


class Scheduler(ABC):
    """A context manager: what `watch` needs is open in it. `plans` and the others need no entering."""

    name: ClassVar[str] = ""
    #: What it is called in messages and as a row of the doctor, and what it makes for each node.
    title: ClassVar[str] = "the cluster"
    row_name: ClassVar[str] = "scheduler"
    work: ClassVar[str] = "jobs"
    #: Stages run in pods, whose images the cluster brings; nodes are reached over SSH by Ansible's own tasks.
    in_pods: ClassVar[bool] = False
    over_ssh: ClassVar[bool] = False
    #: Jobs of users may be its batch files.
    runs_batch_files: ClassVar[bool] = False
    #: Verdicts are written on nodes whenever that is asked, or as drains of nodes that failed.
    bears_marks: ClassVar[bool] = False
    has_drains: ClassVar[bool] = False
    #: What the step `mark_nodes` says of nodes that keep a FAIL, and of a run in which they pass.
    still_words: ClassVar[tuple[str, str]] = ("still FAIL", "removes it")

    def __init__(self, action: Any, options: Any, *, gangs: bool = False) -> None:
        """`options`: those of the step that asks."""
        self._action, self._options, self._task_vars, self._gangs = action, options, action.task_vars, gangs
        self._workloads = GANG_WORKLOADS if gangs else WORKLOADS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        return

    @abstractmethod
    def plans(self) -> Mapping[str, str]:
        """The plan of each node, as text for people. Raises PlanError."""

    @abstractmethod
    def watch(self, folder: RunFolder, limits: WatchLimits, checks: Sequence[Check]) -> list[str]:
        """Watch a run, or a round of gangs. Returns the nodes on which a plan was started."""

    @property
    def requests(self) -> int:
        """Requests to a cluster's API so far."""
        return 0

    @abstractmethod
    def address(self, run_id: str, member: Mapping[str, Any]) -> str:
        """The address of a member of a gang, for the others."""

    @abstractmethod
    def probe(self) -> NodeProbes:
        """Whether work can be placed on the nodes of the play. Raises GpuvalError."""

    @abstractmethod
    def reach(self, folder: RunFolder, node: str, stages: Sequence[str]) -> list[str]:
        """The command of a shell on a node, or of the log of its stages. Raises GpuvalError."""

    def answers(self, values: Mapping[str, Any]) -> str:
        """What the doctor says where the scheduler answers; `values`: variables of a host. Raises GpuvalError."""
        return ""

    def mark(self) -> NodeVerdicts:
        """Write the verdicts of a run on its nodes, or take them off. Raises GpuvalError."""
        raise NotImplementedError

    def clean(self) -> dict[str, Any]:
        """Remove what runs made, and see that it is gone. Returns the result of the step. Raises GpuvalError."""
        return {"changed": False, "msg": "it keeps nothing of runs"}

    def gather(
        self, run_id: str, nodes: Sequence[str], secrets: Collection[str], archive: KeepArchive, state: KeepState
    ) -> None:
        """Give out the evidence that the scheduler has of nodes, with secrets hidden."""
        return

    def _hosts(self) -> list[str]:
        return list(self._task_vars["ansible_play_hosts_all"])

    def _followed(self, folder: RunFolder, node: str, stages: Sequence[str]) -> list[str]:
        """The stage that was asked for, or those from the one that is at work."""
        if self._options.stage:
            return [self._options.stage]
        states = {
            stage: run_folder.read_object(folder.evidence_file(node, stage)).get("state", "pending") for stage in stages
        }
        return reach.from_stage(stages, reach.stage_at_work(stages, states))


class JobScheduler(Scheduler):
    """A scheduler that gets a job for each node, whose plan is made here from the node's Ansible variables."""

    @abstractmethod
    def order(self, run: Mapping[str, Any], name: str) -> Any:
        """What is to run on a node, with its `plan`. Raises PlanError."""

    @abstractmethod
    def placement(self, *common: Any) -> JobPlacement:
        """Made of the arguments that all have."""

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
        """These variables of a node (see `values_for`), and the declarations of its stages, also in later gangs."""
        later = [GANG_WORKLOADS] if run["nodes"][name].get("gang_stages") else []
        wanted = (self._workloads, *later, *PLAN_VARIABLES, *variables)
        chosen = values_for(self._action, name, self._task_vars, wanted, others, like)
        return chosen, {**(chosen[GANG_WORKLOADS] if later else {}), **chosen[self._workloads]}

    def _mark_cleaned(self, left: object) -> None:
        """Remember that runs were cleaned, unless something is left of them."""
        options = self._options
        if options.results_dir and not self._action.check_mode and not left:
            run_folder.mark_cleaned(options.results_dir, options.run_ids)


def scheduler_of(name: str) -> type[Scheduler]:
    """The scheduler of this name. Raises SettingError."""
    return extensions.load_class("schedulers", name, Scheduler)  # type: ignore[type-abstract]


#: The variables of a node with the declarations of its stages: its own ones, and those of gangs.
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
    """Variables of a node, templated. `like`: the host that has them; `others` replace some. Raises PlanError."""
    values = {**values_of(action, like or name, task_vars), **(others or {})}
    templar = templar_of(action, values)
    try:
        return {variable: templar.template(values[variable]) for variable in variables}
    except AnsibleError as error:
        raise plans.PlanError(f"{name}: {error.message}") from None


def plan_of(
    run: Mapping[str, Any], name: str, chosen: Mapping[str, Any], declared: Mapping[str, Any]
) -> dict[str, Any]:
    """The plan of a node, whose stages run where the runner does. `chosen` has PLAN_VARIABLES."""
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
