"""Runs the nodes' plans on a Slurm cluster: submits a job for each node or gang in its turn, and polls squeue for all
jobs at once."""

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils.node_directory import base_directory
from ...module_utils.store import StoreError
from ..core.errors import GpuvalError, SettingError
from ..core.units import duration
from ..gang import keys
from ..records import launch_errors
from ..records.documents import FINAL_STATES, LAUNCHED
from ..records.failure_classes import row_of
from ..runs import folder as run_folder
from ..runs import plans
from ..ssh import findings
from ..watch import launch_inputs
from ..watch.decisions import NodeView, keep_started
from ..watch.placement import Event, JobPlacement, LaunchEnd, NodeNews, NodeOutages, PlannedAttempt
from . import nodes, script
from .commands import Slurm, SlurmError
from .jobs import ENDED, JobEnd, SlurmJob, describe_pending, end_of, members_of, of_run
from .limits import WallLimit, chosen_option, wall_limit

POLL_SECONDS = 2.0
#: Seconds between polls while slurmctld does not answer.
AWAY_POLL_SECONDS = 15.0
#: Seconds between tries to submit while the user's limit of jobs is reached.
FULL_SECONDS = 15.0
NODES_SECONDS = 10.0
#: Seconds for which squeue may not show a job that was submitted.
UNSEEN_SECONDS = 30.0
VARIABLES = ("gpuval_node_dir", "gpuval_force", *script.VARIABLES)
NO_STORE = (
    "jobs of Slurm report to the store alone, and the embedded store listens on the controller's loopback: set "
    "gpuval_store_address to the address by which the nodes reach this controller, or gpuval_s3_endpoint"
)


@dataclass(frozen=True)
class JobOrder:
    """What to run on one node: its plan, the settings of its job, and gpuval's folder on the node. `requirements`: what
    its stages, and later multi-node stages, need there."""

    plan: Mapping[str, Any]
    settings: script.JobSettings
    directory: str
    force: bool = False
    requirements: Sequence[Mapping[str, Any]] = ()


class SlurmPlacement(JobPlacement):
    """Submits and follows a run's jobs, one for each gang of a round. A resuming controller finds them by the comment
    `gpuval:RUN:NODE:ATTEMPT`, with the round's id and the gang's leader."""

    def __init__(self, slurm: Slurm, *common: Any) -> None:
        super().__init__(*common)
        self._slurm = slurm
        #: Launches to do: node, attempt, and the monotonic time at which the run ends.
        self._launches: deque[tuple[NodeView, PlannedAttempt, float]] = deque()
        self._jobs: dict[tuple[str, int], SlurmJob] = {}
        self._ends: dict[tuple[str, int], JobEnd] = {}
        self._unseen_since: dict[tuple[str, int], float] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        #: By (gang's leader, attempt), why the gang has no job, for the launches of its other members.
        self._refused: dict[tuple[str, int], GpuvalError] = {}
        #: By (node, attempt), the digests that its ended job stated: Slurm forgets jobs after some minutes.
        self._stated: dict[tuple[str, int], dict[str, list[str]]] = {}
        self._polled_at = self._listed_at = float("-inf")
        #: By node, the limit that keeps its job from being submitted; then the monotonic time of the next try.
        self._full: dict[str, str] = {}
        self._full_until = float("-inf")
        self._away = ""
        self._outages = NodeOutages(row_of("slurm_node_down"))

    @property
    def busy(self) -> bool:
        return bool(self._events or self._launches)

    def begin(self, views: Mapping[str, NodeView]) -> None:
        """Find the jobs of an earlier controller. Raises SlurmError where Slurm does not answer."""
        self._views = views
        self._jobs = of_run(self._slurm.jobs(), self._run["run_id"])
        self._list_nodes()

    def _list_nodes(self, seconds: float = NODES_SECONDS) -> None:
        """Read the states of Slurm's nodes, unless that was done within the last `seconds`. Raises SlurmError."""
        now = time.monotonic()
        if now - self._listed_at >= seconds:
            self._nodes, self._listed_at = {node["name"]: node for node in self._slurm.nodes()}, now

    def launch(self, view: NodeView, attempt: PlannedAttempt, seconds: float) -> None:
        view.attempt_ended = False
        self._launches.append((view, attempt, time.monotonic() + seconds))

    def _key(self, view: NodeView) -> tuple[str, int]:
        """Key of the Slurm job that runs a node's current attempt: (the gang's leader or the node itself, attempt)."""
        return self._members(view.name)[0], view.attempt

    def _members(self, name: str) -> list[str]:
        return members_of(self._run, name)

    def _launch(self, view: NodeView, attempt: PlannedAttempt, seconds: float) -> LaunchEnd:
        """Submit the node's job, unless an earlier controller or another member of its gang has done so. `seconds`:
        left of the run. Raises SlurmError while slurmctld is away, and while the user's limit of jobs is reached."""
        before = self._folder.read_launch(view.name)
        launch = {**attempt.launch(view.name, before), "machine": view.name}  # Slurm's name of the node
        try:
            launch = self._start_job(view, launch, seconds)
        except SlurmError as error:
            if error.away or error.full:
                raise
            end = JobEnd.of("slurm_too_short" if error.short else "slurm_refused", str(error), view.name)
            launch |= {"state": "failed", **end.launch}
        except (plans.PlanError, SettingError) as error:
            launch |= {"state": "refused", "message": str(error)}
        except StoreError as error:
            launch |= {"state": "failed", "message": f"the store cannot be used: {error}"}
        return self._keep_launch(view, keep_started(before, launch_errors.described(launch)))

    def _start_job(self, view: NodeView, launch: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Submit the job unless it exists, and return the launch with the result. `seconds`: left of the run."""
        order, key = self._order(view.name), (self._members(view.name)[0], launch["attempt"])
        launch["nonce"] = order.plan.get("nonce", "")
        if key in self._refused:
            raise self._refused[key]
        job, members = self._jobs.get(key), self._members(view.name)
        if job is None:
            self._list_nodes()
            for name in members:
                finding = nodes.finding(name, self._nodes.get(name), reservation=order.settings.reservation)
                if finding.state != findings.REACHABLE:
                    whose = "" if name == view.name else f"{name}, a member of its gang: "
                    message = whose + finding.message
                    return {**launch, "state": "unreachable", **finding.reason, "message": message}
            if not self._store.reachable:
                raise plans.PlanError(NO_STORE)
            try:
                job_id = self._submit(view, launch, order, seconds)
            except GpuvalError as error:
                passes = isinstance(error, SlurmError) and (error.away or error.full)
                if len(members) > 1 and not passes:
                    self._refused[key] = error
                raise
            job = SlurmJob(job_id, "PENDING", "", self._run["run_id"], *key)
            if len(members) > 1:
                self._jobs[key] = job
        return {**launch, "state": "started", "message": "", "job": str(job.id)}

    def _submit(self, view: NodeView, launch: dict[str, Any], order: JobOrder, seconds: float) -> int:
        """Submit the job of a node, or of its gang, and return the job's id. `seconds`: left of the run."""
        names, number, run_id = self._members(view.name), launch["attempt"], self._run["run_id"]
        orders = {name: order if name == view.name else self._order(name) for name in names}
        settings = orders[names[0]].settings
        other = next((name for name in names if orders[name].settings != settings), None)
        if other:
            pair = f"{names[0]} and {other}"
            raise SettingError(f"{pair} are one gang, which is one job: set the same gpuval_slurm_* for both")
        limit = wall_limit(self._slurm, settings)
        if limit.seconds < seconds:
            limit = self._checked(limit, order, launch["stages"])
        lasts = min(seconds, limit.seconds)
        members = {name: self._parameters(self._views[name], launch, order, lasts) for name, order in orders.items()}
        code, mark = launch_inputs.archives(), script.jobs.comment(run_id, names[0], number)
        parameters = {"members": members} if len(names) > 1 else members[view.name]
        gpus = min(nodes.gpus(self._nodes[name])[1] for name in names)
        data = script.batch(parameters, code["runner"], code["workloads"], mark, gpus=gpus)
        idle = bool(self._run.get("only_idle"))
        words = script.arguments(settings, run_id, names, number, seconds, limit.seconds, idle=idle)
        return self._slurm.submit(words, data)

    def _checked(self, limit: WallLimit, order: JobOrder, chosen: Collection[str]) -> WallLimit:
        """The time limit to request, where Slurm's `limit` is less than the run has left. Raises SlurmError if the
        chosen stages surely take longer; if a QOS may lift the limit, the job requests all of the run's time."""
        stages = [stage for stage in order.plan["stages"] if not chosen or stage["name"] in chosen]
        needed = max(60.0, sum(stage["expected_seconds"] or 0.0 for stage in stages))
        text = f"{limit.source}: jobs get {duration(max(0.0, limit.seconds))}"
        if needed <= limit.seconds:
            self._warn(f"{text}, less than the run has left")
            return limit
        text += f", and the stages take about {duration(needed)}"
        if limit.holds:
            raise SlurmError(text, short=True)
        self._warn(f"{text}: the job does not start unless its QOS exempts it")
        return WallLimit()

    def _parameters(self, view: NodeView, launch: dict[str, Any], order: JobOrder, seconds: float) -> dict[str, Any]:
        """The parameters that the job passes to gpuval's program on the node. `seconds`: time limit of the job."""
        name, number, plan = view.name, launch["attempt"], order.plan
        documents = self._store.given(name, [stage["name"] for stage in plan["stages"]], seconds)
        documents["folders"] = self._store.sizes(launch_inputs.folders(plan))
        if number > 1:  # the job of the earlier attempt deleted its models
            launch["stages"] = plans.with_needs(plan["stages"], launch["stages"])
            plan = plans.for_attempt(plan, launch["stages"], number)
        plan = plans.with_members(plan, self._run)
        return {
            "directory": order.directory,
            "plan": {**plan, "deadline_seconds": min(plan["deadline_seconds"], seconds)},
            "controller": launch_inputs.controller_name(),
            "earlier": {stage: dict(record) for stage, record in view.records.items()} if number > 1 else {},
            "keys": keys.files_for(self._folder, name),
            "requirements": order.requirements,
            "force": order.force,
            "secrets": self._store.secrets(plan),
            **documents,
        }

    def _order(self, name: str) -> JobOrder:
        """What to run on a node. The first attempt's plan is written to its file once, and read from there later."""
        order, path = self._orders(name), self._folder.plan_file(name)
        if not path.exists() or self._folder.read_launch(name).get("state") == "refused":
            run_folder.write_json(path, plans.without_members(order.plan))
            return order
        return replace(order, plan=self._folder.read_plan(name))

    def fetch(self, view: NodeView, *, by_store: bool) -> None:
        """Report whether the node's job is there: a node under Slurm sends its results to the store only."""
        job = self._jobs.get(self._key(view))
        failed, message = bool(self._away) or job is None, self._away or "Slurm shows no job of it"
        self._events.append(LaunchEnd(view.name, "fetch", failed=failed, message=message))

    def wait(self, seconds: float) -> list[Event]:
        until = time.monotonic() + max(0.0, seconds)
        while True:
            events, self._events = self._events, []
            now = time.monotonic()
            if now - self._polled_at >= (AWAY_POLL_SECONDS if self._away else POLL_SECONDS):
                self._poll(now)
            if self._launches and not self._away:
                events += self._launch_next(now)
            events += filter(None, [self._news(view, now) for view in self._views.values()])
            remaining = until - time.monotonic()
            if events or remaining <= 0:
                return events
            time.sleep(min(remaining, 0.5))

    def _launch_next(self, now: float) -> list[Event]:
        """Start the next launch, only one, since each may last as long as a command's time limit. If slurmctld did not
        answer, the launch waits until a poll shows whether Slurm has the job."""
        view, attempt, until = self._launches[0]
        if until <= now or now < self._full_until:
            return []
        try:
            ended = self._launch(view, attempt, until - now)
        except SlurmError as error:
            if error.full:  # try other nodes next: their jobs may use another account or QOS
                self._full[view.name], self._full_until = str(error), now + FULL_SECONDS
                self._launches.rotate(-1)
            else:
                self._lost_slurmctld(error)
            return []
        self._launches.popleft()
        self._full.pop(view.name, None)
        self._full_until = now
        return [ended]

    def _poll(self, now: float) -> None:
        self._polled_at = now
        try:
            self._jobs = of_run(self._slurm.jobs(), self._run["run_id"])
            noted = {key: job for key, job in self._jobs.items() if job.note and key not in self._stated}
            self._stated |= {key: stated for key, job in noted.items() if (stated := job.stated)}
            self._list_nodes()
        except SlurmError as error:
            self._lost_slurmctld(error)
            return
        self._away = ""

    def _lost_slurmctld(self, error: SlurmError) -> None:
        if not self._away:
            self._warn(f"{error}; jobs that run continue: {row_of('slurm_away').steps}")
        self._away, self._polled_at = str(error), time.monotonic()

    def _news(self, view: NodeView, now: float) -> NodeNews | None:
        """What is new about a node whose job was submitted; None if nothing is new. `now`: monotonic seconds."""
        launch, key = view.launch, self._key(view)
        ended = view.attempt_ended or view.not_measured_again
        if launch.get("state") not in LAUNCHED or view.busy or ended or self._away:
            return None
        job = self._jobs.get(key)
        if job is None:
            if view.complete or now - self._unseen_since.setdefault(key, now) < UNSEEN_SECONDS:
                return None
            message = f"Slurm does not remember job {launch.get('job', '')}"
            return self._closed(view, JobEnd.of("slurm_job_forgotten", message, view.name))
        self._unseen_since.pop(key, None)
        # With several partitions, Slurm may show the limit of one while the job waits for another.
        never_starts = job.over_limit and "," not in chosen_option(self._orders(job.node).settings, "partition")
        if never_starts and (key in self._ends or self._cancel(job)):
            return self._closed(view, self._ends.setdefault(key, end_of(job, None)))
        if job.waits:
            return self._news_if_changed(view, {**launch, "message": describe_pending(job)})
        if job.suspended and not view.complete:  # measurements would include the pause
            if key not in self._ends and self._cancel(job):
                self._ends[key] = JobEnd.of("slurm_preempted", f"job {job.id} was suspended, and cancelled", job.node)
            return None
        if ENDED.get(job.state) == "slurm_node_failed" and view.complete and key not in self._ends:
            # record an outage of the complete node; the next call of `noted` ends it
            self._ends[key] = end_of(job, None)
            self._outages.noted(view.name, launch, self._ends[key].message, now)
        if not job.ended or view.complete:
            finding = nodes.finding(view.name, self._nodes.get(view.name), reservation="any")
            reason = finding.message if finding.state == "slurm_node_down" and not view.complete else ""
            return self._news_if_changed(view, self._outages.noted(view.name, {**launch, "message": ""}, reason, now))
        if now - self._ended_at.setdefault(key, now) < self.SETTLE_SECONDS:
            return None
        if key not in self._ends:
            try:
                self._ends[key] = self._end_of(job, str(launch.get("message") or ""))
            except SlurmError as error:
                self._lost_slurmctld(error)
                return None
        return self._closed(view, self._ends[key])

    def _end_of(self, job: SlurmJob, waited: str) -> JobEnd:
        """Why a job ended. Raises SlurmError while slurmctld is away."""
        try:
            code = self._slurm.exit_code(job.id)
        except SlurmError as error:
            if error.away:
                raise
            code = None  # the job's state is enough
        end, members = end_of(job, code, waited=waited), self._members(job.node)
        cancelled = end.name == "slurm_cancelled"  # if the node is drained too, a failed Prolog or an operator did it
        if not cancelled and (len(members) == 1 or end.name not in ("slurm_node_failed", "slurm_job_failed")):
            return end
        self._list_nodes(POLL_SECONDS)
        verb, state, name = ("lost", "slurm_node_down", "slurm_node_failed")
        if cancelled:
            verb, state, name = ("was cancelled on", "slurm_drained", "slurm_drained")
        findings_by_name = {node: nodes.finding(node, self._nodes.get(node), reservation="any") for node in members}
        away = [node for node, finding in findings_by_name.items() if finding.state == state]
        if not away:
            return end
        message = f"job {job.id} {verb} {', '.join(away)}: {findings_by_name[away[0]].message}"
        return JobEnd.of(name, message, away[0])

    def _cancel(self, job: SlurmJob, *options: str) -> bool:
        """Cancel a job. Returns whether slurmctld accepted that."""
        try:
            self._slurm.cancel([job.id], *options)
        except SlurmError as error:
            self._lost_slurmctld(error)
            return False
        return True

    def _closed(self, view: NodeView, end: JobEnd) -> NodeNews | None:
        """Close an attempt whose job ended while stages lack a final record, and return the news of the node."""
        view.attempt_ended = True
        if end.refused and not view.records:
            return self._news_if_changed(view, {**view.launch, **end.launch, "state": "refused"})
        return self._news_if_changed(view, {**view.launch, "message": "", "contact": end.launch})

    @staticmethod
    def _news_if_changed(view: NodeView, launch: dict[str, Any]) -> NodeNews | None:
        return NodeNews(view.name, launch) if launch != view.launch else None

    def next_attempt(self, view: NodeView) -> PlannedAttempt | None:
        """One more attempt for a node whose job was preempted, or that failed and is back; None for a gang."""
        attempt = view.attempt
        end = self._ends.get(self._key(view))
        open_stages = [stage for stage in view.stages if view.state(stage) not in FINAL_STATES]
        may_repeat = attempt < self.MAX_ATTEMPTS and len(self._members(view.name)) == 1
        if not (open_stages and end and end.retryable and may_repeat):
            return None
        try:
            self._list_nodes()
        except SlurmError:
            return None
        reservation = self._orders(view.name).settings.reservation
        finding = nodes.finding(view.name, self._nodes.get(view.name), reservation=reservation)
        return PlannedAttempt(attempt + 1, open_stages) if finding.state == findings.REACHABLE else None

    def withdraw(self, view: NodeView) -> bool:
        """Drop the node's launch, or cancel its pending job. Returns whether the node now has no job."""
        if any(waiting is view for waiting, *_ in self._launches):
            self._launches = deque(item for item in self._launches if item[0] is not view)
            return True
        self._poll(time.monotonic())
        job = self._jobs.get(self._key(view))
        if job is None or not job.waits or self._away or not self._cancel(job, "--state=PENDING"):
            return False
        self._poll(time.monotonic())  # the job may have begun meanwhile
        return self._jobs.get(self._key(view), job).state == "CANCELLED"

    def close(self) -> None:
        """Do nothing: the controller holds nothing open, and running jobs continue."""

    def _is_ending(self, view: NodeView) -> bool:
        """Whether a node's results are complete, and its job, unless a gang's, has yet to state their digests."""
        key = view.name, view.attempt
        works = key in self._jobs and not self._jobs[key].ended and len(self._members(view.name)) == 1
        return view.complete and works and key not in self._stated

    def _stated_by(self, view: NodeView) -> dict[str, list[str]]:
        stated: dict[str, list[str]] = {}
        for attempt in range(1, view.attempt + 1):
            of_attempt = self._stated.get((view.name, attempt))
            stated = {**stated, **of_attempt} if of_attempt else {}  # a job that broke off may have changed any result
        return stated

    def _follow(self, seconds: float) -> None:
        time.sleep(seconds)
        self._poll(time.monotonic())

    def finish(self) -> None:
        """Keep the digests that jobs stated, cancel jobs that no controller awaits, write why nodes had no job."""
        self._poll(time.monotonic())
        self._keep_digests("slurm", self._is_ending, self._follow)
        complete = {view.name for view in self._views.values() if view.complete}
        complete -= {self._key(view)[0] for view in self._views.values() if not view.complete}
        unawaited = [job.id for job in self._jobs.values() if job.waits or not (job.ended or job.node in complete)]
        try:
            self._slurm.cancel(unawaited)
        except SlurmError as error:
            self._warn(f"jobs {unawaited} are left, `make clean` cancels them: {error}")
        for view, _attempt, _until in self._launches:
            if self._away and not view.launched:
                self._failed(view, "slurm_away", self._away)
            elif view.name in self._full and not view.launched:
                self._failed(view, "slurm_refused", self._full[view.name])
        for view in self._views.values():
            job = self._jobs.get(self._key(view))
            if job and job.waits and view.launch.get("state") in LAUNCHED and not view.complete:
                self._failed(view, "slurm_pending", describe_pending(job))

    def _failed(self, view: NodeView, name: str, message: str) -> None:
        reason = JobEnd.of(name, message, view.name).launch
        self._folder.write_launch(view.name, {**self._folder.read_launch(view.name), **reason, "state": "failed"})


def directory_of(chosen: object) -> str:
    """gpuval's folder on the nodes: `chosen` (gpuval_node_dir), else the default for the jobs' user."""
    return str(chosen).rstrip("/") if chosen else str(base_directory(""))
