"""Runs plans on hosts over SSH, or on this machine, by Ansible's own tasks in place of a scheduler."""

import base64
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean

from ..core.paths import ROLES
from ..judge.check import Check
from ..runs import folder as run_folder
from ..runs.folder import RunFolder
from ..runs.plans import PlanError
from ..ssh import findings as ssh_findings
from ..ssh import prober as ssh_prober
from ..ssh.known_hosts import Pins, kex_file, pin_file, ssh_arguments
from ..ssh.node_tasks import MAX_WORKERS, NodeTasks
from ..ssh.openssh import kex_options
from ..store.access import open_store
from . import launch_inputs, reach
from .decisions import NodeView
from .placement import Event, LaunchEnd, NodeNews, Placement, PlannedAttempt
from .scheduler import NodeProbes, Scheduler
from .watch import RunWatch, WatchLimits

#: Arguments of a launch in check mode, which shows plans.
SHOWN = ("run", "run_id", "results_dir", "store")
SHOW_SECONDS = 60


class SshScheduler(Scheduler):
    """Runs plans on hosts over SSH, with Ansible's tasks."""

    name = "ssh"
    over_ssh = True

    def plans(self) -> dict[str, str]:
        launch_inputs.warm_schemas()
        names, plans, problems = self._task_vars["ansible_play_hosts"], {}, []
        arguments = {key: getattr(self._options, key) for key in SHOWN}
        arguments["results_dir"] = str(self._options.results_dir)  # Ansible variables cannot hold a Path
        tasks = NodeTasks(self._action, self._task_vars, min(forks(), MAX_WORKERS))
        try:
            for name in names:
                tasks.submit(name, "launch", TASKS / "launch.yml", arguments, SHOW_SECONDS)
            while tasks.busy:
                for outcome in tasks.wait(SHOW_SECONDS):
                    if outcome.failed:
                        problems.append(f"{outcome.node}: {outcome.message}")
                    else:
                        plans[outcome.node] = (outcome.result or {}).get("diff", {}).get("after", "")
        finally:
            tasks.close()
        if problems:
            raise PlanError("; ".join(problems))
        return plans

    def watch(self, folder: RunFolder, limits: WatchLimits, checks: Sequence[Check]) -> list[str]:
        access = open_store(self._options.store)
        launch_inputs.warm(access.connection())
        seconds = {kind: getattr(self._options, f"{kind}_seconds") for kind in ("launch", "fetch", "send")}
        place = {"run_id": folder.path.name, "results_dir": str(folder.path.parent), "store": self._options.store}
        placement = SshPlacement(self._action, self._task_vars, seconds, limits.max_transfers, place)
        try:
            return RunWatch(limits, folder, access, checks, placement, self._action._display).run()
        finally:
            placement.close()

    def address(self, _run_id: str, member: Mapping[str, Any]) -> str:
        return member["address"]

    def probe(self) -> NodeProbes:
        options = self._options
        if options.timeout_seconds <= 0:
            raise AnsibleActionFail("gpuval_probe_timeout_seconds must be greater than 0")
        began = time.monotonic()
        pins = Pins(pin_file(options.state_dir, self._task_vars.get("ansible_inventory_sources") or []))
        hostvars, default = self._task_vars["hostvars"], self._action.connection
        targets = [ssh_prober.from_variables(name, hostvars[name], default) for name in self._hosts()]
        prober = ssh_prober.Prober(pins, options.timeout_seconds, options.accept_new_host_keys)
        findings = prober.probe_all(targets)
        changed = False
        if not self._action.check_mode and any(target.ssh for target in targets):
            changed = ssh_prober.pin(pins, findings)
            # Choose the fast key exchange for Ansible's own connections once here, instead of for each connection.
            text = " ".join(kex_options(prober.settings) if options.fast_kex else []) + "\n"
            path = kex_file(pins.path)
            if not path.exists() or path.read_text() != text:
                run_folder.write_bytes(path, text.encode())
        seconds = time.monotonic() - began
        if self._action.remembers():
            # a ProxyCommand may have secrets
            plain = [target for target in targets if "proxycommand" not in " ".join(target.options).lower()]
            self._action.remember(ways={target.node: self._way(target, hostvars[target.node]) for target in plain})
        lines = ssh_findings.summary(findings, seconds, pins.path)
        return NodeProbes(findings, seconds, lines, {"changed": changed, "known_hosts": str(pins.path)})

    def reach(self, folder: RunFolder, node: str, stages: Sequence[str]) -> list[str]:
        options = self._options
        if node not in self._task_vars["hostvars"]:
            raise reach.ReachError("the node is no host of this inventory")
        values = self._task_vars["hostvars"][node]
        target = ssh_prober.from_variables(node, values, self._action.connection)
        if not (way := self._way(target, values)):
            raise reach.ReachError(f"the connection to the node is {target.connection}, neither SSH nor local")
        return reach.over_ssh(options.what, folder, node, self._followed(folder, node, stages), *way)

    def _way(self, target: ssh_prober.SshTarget, values: Mapping[str, Any]) -> tuple[list[str], str] | None:
        """How to reach a node: words of ssh with options and host (empty for this host), and the user to become (empty
        for none). None for a connection that is neither SSH nor local."""
        if not target.ssh and target.connection not in ("local", "ansible.builtin.local"):
            return None
        connection: list[str] = []
        if target.ssh:
            pins = pin_file(self._options.state_dir, self._task_vars.get("ansible_inventory_sources") or [])
            connection = [target.executable, *shlex.split(ssh_arguments(pins, "")), *target.options, target.host]
        become = boolean(values.get("ansible_become", False), strict=False)
        return connection, str(values.get("ansible_become_user") or "root") if become else ""


#: Folder with the task files of the role `run`, one task each.
TASKS = ROLES / "run/tasks"
#: Seconds for which `wait` blocks on launches and fetches before it checks transfers of images.
TURN_SECONDS = 0.5


class SshPlacement(Placement):
    """Runs tasks of three kinds on nodes: launch, fetch, and send (images that do not come by the store)."""

    def __init__(
        self,
        action: Any,
        task_vars: Mapping[str, Any],
        seconds: Mapping[str, float],
        transfers: int,
        arguments: Mapping[str, Any],
    ) -> None:
        """`seconds`: {kind of task: time limit on one node}; `transfers`: how many nodes get images at once, 0 for as
        many as Ansible has forks; `arguments`: those that all tasks have."""
        self.present = set(task_vars["ansible_play_hosts"])
        self.everyone = set(task_vars["ansible_play_hosts_all"])
        self._seconds, self._arguments = seconds, dict(arguments)
        self._tasks = NodeTasks(action, task_vars, min(forks(), MAX_WORKERS))
        #: Separate workers: a transfer takes minutes, mostly waiting, and must not delay launches and fetches.
        self._sends = NodeTasks(action, task_vars, transfers or forks())
        #: {node whose images are being sent: (attempt to launch then, when it was requested, seconds left then)}
        self._ordered: dict[str, tuple[PlannedAttempt, float, float]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._tasks.busy or self._sends.busy)

    def launch(self, view: NodeView, attempt: PlannedAttempt, seconds: float) -> None:
        """Start an attempt of the node's plan, first sending the node images that do not come by the store."""
        if view.needs_images:
            self._ordered[view.name] = (attempt, time.monotonic(), seconds)
            self._sends.submit(view.name, "send", TASKS / "send.yml", self._arguments, self._seconds["send"])
        else:
            self._launch(view.name, attempt, seconds)

    def fetch(self, view: NodeView, *, by_store: bool) -> None:
        self._submit(view.name, "fetch", {"by_store": by_store})

    def wait(self, seconds: float) -> list[Event]:
        """Wait at most ``seconds`` for the end of launches and fetches. Returns at once when any ended."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            ended = self._ended(max(0.0, min(left, TURN_SECONDS)))
            if ended or left <= 0:
                return ended

    def _ended(self, wait_seconds: float) -> list[Event]:
        ended: list[Event] = []
        for outcome in (*self._sends.wait(0.0), *self._tasks.wait(wait_seconds)):
            result = outcome.result or {}
            if result.get("interpreter"):
                self._tasks.use_interpreter(outcome.node, result["interpreter"])
            if outcome.kind == "send":  # the record of the image stage shows a failed transfer
                attempt, at, left = self._ordered.pop(outcome.node)
                self._launch(outcome.node, attempt, max(1.0, left - (time.monotonic() - at)))
            else:
                kind: Literal["launch", "fetch"] = "launch" if outcome.kind == "launch" else "fetch"
                started = bool(result.get("changed"))
                objects = result.get("objects", {})
                records = {key: base64.b64decode(text) for key, text in objects.items() if "/records/" in key}
                if records:
                    ended.append(NodeNews(outcome.node, records=records))
                ended.append(
                    LaunchEnd(outcome.node, kind, started, outcome.failed, outcome.unreachable, outcome.message)
                )
        return ended

    def close(self) -> None:
        self._tasks.close()
        self._sends.close()

    def _launch(self, name: str, attempt: PlannedAttempt, seconds_left: float) -> None:
        launch = {"attempt": attempt.number, "stages": list(attempt.stages), "deadline_seconds": seconds_left}
        self._submit(name, "launch", launch)

    def _submit(self, name: str, kind: Literal["launch", "fetch"], arguments: Mapping[str, Any]) -> None:
        self._tasks.submit(name, kind, TASKS / f"{kind}.yml", {**self._arguments, **arguments}, self._seconds[kind])


def forks() -> int:
    return context.CLIARGS.get("forks") or 5
