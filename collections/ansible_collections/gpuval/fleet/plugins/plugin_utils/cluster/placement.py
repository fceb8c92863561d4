"""Runs the nodes' plans on a Kubernetes cluster: creates a Job for each node in its turn, and follows it by watches."""

import contextlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...module_utils.store import StoreError
from ..core import schemas
from ..core.escape import clean_text
from ..core.grouping import values_by_key
from ..core.text import some_of
from ..gang import keys
from ..records import launch_errors
from ..records.documents import FINAL_STATES, LAUNCHED
from ..records.evidence import RunEvidence, as_written, object_key, take_record
from ..records.failure_classes import row_of
from ..runs import folder as run_folder
from ..runs import plans
from ..watch import launch_inputs
from ..watch.decisions import NodeView, backoff
from ..watch.placement import Event, JobPlacement, LaunchEnd, NodeNews, NodeOutages, PlannedAttempt
from . import cleaning, dra, gangs, manifests, names, new_nodes, nodes, pod_classes, pod_records
from .api import Cluster, ClusterError, Forbidden
from .config_maps import PlanPlace, code_config_map, plan_config_maps, plan_key
from .pod_diagnosis import PodLimits, PodTrouble
from .pod_settings import PodSettings
from .pod_state import ENDED, termination_report
from .pod_tracker import PodStatus, PodTracker
from .pod_volumes import model_volumes
from .streams import Streams

FIRST_LIST_SECONDS = 60.0
#: Longest interval between checks of time limits.
TICK_SECONDS = 2.0
#: Seconds for which a watch may be interrupted before a warning.
TROUBLE_SECONDS = 30.0
LOG_BYTES = 8 << 20
#: Seconds after which the GPUs that nodes publish by DRA are read again, if a node has no usable GPU.
DEVICES_SECONDS = 60.0
#: Number of lines read from the end of a container's output, where the stage's record is.
LOG_LINES = 2000
_AMOUNT = re.compile(r"\d\S*")


@dataclass(frozen=True)
class PodOrder:
    """What to run on one node: its plan, in the form that SSH hosts get, its pod's settings, its SKU."""

    plan: Mapping[str, Any]
    settings: PodSettings
    sku: str


class ClusterPlacement(JobPlacement):
    """Starts and watches a run's Jobs in a cluster. Objects have the labels of their run; existing objects are kept."""

    def __init__(
        self,
        cluster: Cluster,
        *common: Any,
        limits: PodLimits | None = None,
        newcomers: new_nodes.Newcomers | None = None,
        node_selector: str = "",
    ) -> None:
        super().__init__(*common)
        self._cluster, self._pods = cluster, PodTracker(limits)
        #: Decides which new nodes join the run; None: no node joins.
        self._newcomers = newcomers
        #: Label selector of the nodes to watch; empty: all.
        self._node_selector = node_selector
        self._round = gangs.round_of(self._folder)
        #: For each node that joined the run and is no host of the play, the host whose variables it uses.
        self._like: dict[str, str] = {}
        self._open = contextlib.ExitStack()
        self._nodes: dict[str, Mapping[str, Any]] = {}
        self._known: dict[str, PodOrder] = {}
        self._places: dict[tuple[str, int], PlanPlace] = {}
        #: By gang name, the ConfigMap and key of its list of members.
        self._gangs: dict[str, PlanPlace] = {}
        #: By node name, the ResourceClaimTemplate of its ComputeDomain.
        self._channels: dict[str, str] = {}
        #: Names of the ResourceClaimTemplates that this controller created.
        self._templates: set[str] = set()
        self._devices: dra.ClusterDevices | None = None
        self._devices_read_at = float("-inf")
        #: Whether the cluster has JobSets for gangs, and the gangs whose Jobs are created.
        self._has_sets = False
        self._submitted: set[str] = set()
        self._deleted: set[str] = set()
        #: By node and attempt, stages that an ended pod left open through no fault of the stages.
        self._settled: dict[tuple[str, int], list[str]] = {}
        #: By node and attempt, the pod's status at its end; later changes of the Job come from this controller.
        self._closed: dict[tuple[str, int], PodStatus] = {}
        #: Nodes that changed before the watch had handled their launch.
        self._unread: set[str] = set()
        self._looked_at = float("-inf")
        self._by_store = True
        #: By node, consecutive failed reads of its output, and the monotonic time before which it is not read again.
        self._misses: dict[str, int] = {}
        self._unread_until: dict[str, float] = {}
        self._warned: dict[str, str] = {}
        self._outages = NodeOutages(row_of("node_not_ready"))

    @property
    def busy(self) -> bool:
        return bool(self._events)

    def begin(self, views: Mapping[str, NodeView]) -> None:
        """Read the state of the cluster, and create what all pods share."""
        self._views = views
        for view in views.values():
            self.add(view)
        selector = names.run_selector(self._run["run_id"])
        kinds = [
            ("Job", selector),
            ("Pod", selector),
            ("Node", self._node_selector),
            ("Event", "", "involvedObject.kind!=Node"),
        ]
        self._streams = self._open.enter_context(Streams(self._cluster, kinds))
        self._wait_for_lists()
        for name in views:
            self._devices_for(self._nodes.get(name))
        self._readmit_joined()
        self._warn_of_twins()
        code = code_config_map(self._run["run_id"], self._cluster.namespace, launch_inputs.archives(bytecode=False))
        self._make(code)
        self._code = code["metadata"]["name"]
        self._has_sets = self._round is not None and self._cluster.serves("JobSet")
        #: How many members of a gang a Kueue queue admits together; 0: not yet read from the cluster.
        self._max_queued = 0
        now = time.monotonic()
        self._submitted = {self._gang(name) for name in views if self._pods.status(name, now).job}
        self._recall_plans(name for name in views if self._pods.status(name, now).job)
        todo = [name for name in views if name in self.present and not views[name].complete]
        orders = []
        for name in todo:
            try:
                orders.append(self._order(name))
            except plans.PlanError as error:
                self._warn(f"{name}: {error}")
        if any(order.settings.devices == "dra" for order in orders):
            self._read_devices()
        self._put_plans(order.plan for order in orders)
        if self._round and orders:
            self._share_in_round(orders[0])
        shared = []
        for order in orders if not self._round else ():  # multi-node rounds load no models
            for volume in model_volumes(self._run["run_id"], self._cluster.namespace, order.settings):
                if volume not in shared:
                    shared.append(volume)
                    self._make(volume)

    def _recall_plans(self, launched: Iterable[str]) -> None:
        """Write the plan files of launched nodes that the run's folder lacks, from the cluster's ConfigMaps: an earlier
        controller made their Jobs, and its folder is lost. The nodes' records name the nonce of these plans."""
        lacking = {name for name in launched if not self._folder.plan_file(name).exists()}
        selector = names.run_selector(self._run["run_id"])
        listed = self._cluster.list("ConfigMap", selector, untrimmed=True)[0] if lacking else []
        texts = {key: text for item in listed for key, text in (item.get("data") or {}).items()}
        for name in lacking:
            if text := texts.get(plan_key(name, 1)):
                plan = json.loads(text)
                schemas.validate("plan", plan, what=f"the plan of {name} in the cluster")
                run_folder.write_json(self._folder.plan_file(name), plan)

    def _warn_of_twins(self) -> None:
        """Warn of nodes with the same machine id: two kubelets on one machine would test the same hardware at once."""
        present = self._views.keys() & self._nodes.keys()
        by_machine = values_by_key((_machine_id(self._nodes[name]), name) for name in present)
        for twins in sorted(sorted(found) for found in by_machine.values() if len(found) > 1):
            self._warn(
                f"{some_of(twins)} have one machine id: if they are one machine, keep one of them in the inventory; "
                "otherwise give each an id of its own (systemd-machine-id-setup) and restart its kubelet"
            )

    def _make(self, manifest: Mapping[str, Any]) -> None:
        self._cluster.create(gangs.labelled(manifest, self._round))

    def _share_in_round(self, member: PodOrder) -> None:
        """Create the objects that members of a multi-node round share, before `member`, the first, starts. Raises
        ClusterError."""
        run_id, shared = self._run["run_id"], self._run.get("gangs", {})
        try:
            manifests_made, self._gangs = manifests.shared_by_round(
                run_id, self._cluster.namespace, keys.files_for(self._folder, member.plan["node"]), shared
            )
        except plans.PlanError as error:
            raise ClusterError(str(error)) from None
        for manifest in manifests_made:
            self._make(manifest)
        if member.settings.devices != "plugin":
            self._make_compute_domains(shared)

    def _make_compute_domains(self, shared: Mapping[str, Mapping[str, Any]]) -> None:
        """Create the ComputeDomains of each gang, where the cluster has NVIDIA's driver for them."""
        labels = {name: node["metadata"].get("labels") or {} for name, node in self._nodes.items()}
        domains = []
        for gang, content in shared.items():
            members = {member["node"]: labels.get(member["node"], {}) for member in content["members"]}
            domains += dra.compute_domains(self._run["run_id"], self._cluster.namespace, gang, members)
        if not domains or not self._cluster.serves("ComputeDomain"):
            return
        try:
            for domain, nodes_in_domain in domains:
                self._make(domain)
                channel = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
                self._channels |= dict.fromkeys(nodes_in_domain, channel)
        except Forbidden as error:
            self._warn(f"gangs get no ComputeDomain, so their GPUs may not reach each other over NVLink: {error}")

    def _readmit_joined(self) -> None:
        """Admit nodes again that joined under an earlier controller and are no hosts of this play."""
        if self._newcomers is None:
            return
        self._newcomers.know({*self._nodes, *self._views, *self.everyone})
        hosts = self._described(self.everyone)
        for name, expected in self._run["nodes"].items():
            if expected.get("joined_at") and name not in self.everyone and name in self._nodes:
                description = nodes.describe(self._nodes[name], self._devices)
                like = new_nodes.most_like(description, hosts, self._newcomers.skus)
                if like:
                    self._admit(name, like)

    def _described(self, chosen: Iterable[str]) -> list[dict[str, Any]]:
        return [nodes.describe(self._nodes[name], self._devices) for name in sorted(chosen) if name in self._nodes]

    def _read_devices(self) -> dra.ClusterDevices:
        """The GPUs that nodes publish by DRA, at most `DEVICES_SECONDS` old."""
        now = time.monotonic()
        if self._devices is None or now - self._devices_read_at > DEVICES_SECONDS:
            self._devices, self._devices_read_at = dra.read(self._cluster), now
            if self._devices.warning:
                self._warn_once("devices", self._devices.warning)
        return self._devices

    def _devices_for(self, node: Mapping[str, Any] | None) -> dra.ClusterDevices | None:
        """The GPUs that nodes publish by DRA; None, without a request, while each `node` so far has a device plugin."""
        return self._read_devices() if self._devices or (node and not nodes.has_plugin(node)) else None

    def _finding(self, name: str, order: PodOrder) -> dict[str, str] | None:
        """Why no pod can be placed on a node: failure class, message and remedy; None if one can."""
        about = name, self._nodes.get(name), order.settings, order.sku, self._run["nodes"][name]["gpu_count"]
        finding = nodes.finding_for(*about, self._devices)
        # read again: the node may publish its GPUs by now
        return nodes.finding_for(*about, self._read_devices()) if finding and self._devices else finding

    def _admit(self, name: str, like: str) -> None:
        """Add a node to the run that is no host of the play; `like`: the host whose variables it uses."""
        self._like[name] = like
        self.present.add(name)
        self.everyone.add(name)

    def new_nodes(self) -> dict[str, dict[str, Any]]:
        """Admit nodes that came up since the watch began, that the selector chooses and pods can be placed on. Returns
        what is expected of each, by name."""
        if self._newcomers is None:
            return {}
        hosts = self._views.keys() & (self.present - self._like.keys())
        try:
            joined = self._newcomers.ready(
                self._run["nodes"],
                lambda: self._described(hosts),
                lambda like: self._order(like).settings,
                self._devices_for,
            )
        except (ClusterError, plans.PlanError) as error:
            self._warn_once("joined", f"new nodes cannot be checked for joining the run: {error}")
            return {}
        for name, (like, expected) in joined.items():
            self._admit(name, like)
            self._run["nodes"][name] = expected
        return {name: expected for name, (_like, expected) in joined.items()}

    def add(self, view: NodeView) -> None:
        view.pulling = True
        self._pods.expect(view.name, view.stages)

    def _wait_for_lists(self) -> None:
        """Wait until the watch has listed each kind of object once: afterwards a node not listed does not exist."""
        deadline = time.monotonic() + FIRST_LIST_SECONDS
        missing = {"Job", "Pod", "Node", "Event"}
        while missing:
            for kind, change, document in self._streams.take(1.0):
                if change == "SYNC":
                    missing.discard(kind)
                self._take_change(kind, change, document)
            if missing and time.monotonic() > deadline:
                causes = "; ".join(why for _seconds, why in self._streams.trouble().values())
                lists = ", ".join(sorted(missing))
                raise ClusterError(f"no list of {lists} within {FIRST_LIST_SECONDS:.0f} s: {causes}")

    def _put_plans(self, made: Iterable[Mapping[str, Any]]) -> None:
        objects, places = plan_config_maps(self._run["run_id"], self._cluster.namespace, list(made))
        for manifest in objects:
            self._make(manifest)
        self._places.update(places)

    def _order(self, name: str) -> PodOrder:
        if name not in self._known:
            like = self._like.get(name, "")
            order = self._orders(name, self._nodes.get(name), like)
            path = self._folder.plan_file(name)
            if not path.exists():
                run_folder.write_json(path, plans.without_members(manifests.pod_plan(order.plan, order.settings)))
            # Use the plan as read from its file: Ansible's tagged strings take several times the memory.
            plan = plans.with_members(self._folder.read_plan(name), self._run)
            self._known[name] = PodOrder(plan, order.settings, order.sku)
        return self._known[name]

    def launch(self, view: NodeView, attempt: PlannedAttempt, seconds: float) -> None:
        """Create the node's Job. `seconds`: left of the run."""
        earlier_launch = self._folder.read_launch(view.name)
        launch = attempt.launch(view.name, earlier_launch)
        if "nonce" in earlier_launch:
            launch["nonce"] = earlier_launch["nonce"]
        is_refused = False
        try:
            launch = self._start_job(view, launch, seconds)
        except ClusterError as error:
            why, message = pod_classes.of_error(error), pod_classes.without_pod_name(str(error))
            launch = {**launch, "state": "failed", "message": message, "class": why.name, "remedy": why.remedy}
            is_refused = why.name in pod_classes.OF_REFUSALS
            if is_refused:
                self._report_refusal(why.name, message)
        except (plans.PlanError, StoreError) as error:
            launch = {**launch, "state": "failed", "message": str(error)}
        launch = launch_errors.described(launch)
        view.attempt_ended = False
        if launch["state"] not in LAUNCHED and earlier_launch.get("state") in LAUNCHED and launch["attempt"] > 1:
            launch = self._attempt_failed(view, launch)
        self._events.append(self._keep_launch(view, launch, reported=is_refused))

    def _attempt_failed(self, view: NodeView, launch: dict[str, Any]) -> dict[str, Any]:
        """Close a further attempt that could not start, so that the node keeps the evidence of the earlier attempt."""
        reason = {key: launch[key] for key in ("class", "message", "remedy")}
        trouble = PodTrouble(reason["class"], reason["message"], remedy=reason["remedy"], final=True)
        key = (view.name, launch["attempt"])
        self._settled[key] = []
        self._closed[key] = PodStatus(*key, ENDED, trouble=trouble, started=True, done=True)
        view.attempt_ended = True
        self._warn(f"{view.name}: attempt {launch['attempt']} cannot be made: {reason['message']}")
        return {**launch, "state": "started", "message": "", "class": None, "remedy": None, "contact": reason}

    def _start_job(self, view: NodeView, launch: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Create the node's Job, unless it exists, and return the launch. `seconds`: left of the run."""
        status, node = self._pods.status(view.name, time.monotonic(), launch["attempt"]), self._nodes.get(view.name)
        job: str | None = status.job
        if job:  # created by an earlier controller, applied from rendered manifests, or part of the gang's JobSet
            launch["machine"] = self._folder.read_launch(view.name).get("machine") or (
                _machine(node) if node and status.job_set else None
            )
        else:
            launch, item = self._prepare_attempt(view, launch, seconds)
            if item is None:
                return launch
            job = self._submit(view, item, seconds)
        nonce = self._order(view.name).plan.get("nonce", "")
        started = {**launch, "job": job, "state": "started", "message": "", "runner": "alive", "nonce": nonce}
        return started if self._store.reachable else {**started, "store_reachable": False}

    def _prepare_attempt(
        self, view: NodeView, launch: dict[str, Any], seconds: float
    ) -> tuple[dict[str, Any], manifests.PodAttempt | None]:
        """The launch of an attempt, and the attempt with all that its pod needs; None instead, with the reason in the
        launch, if no pod can be placed. `seconds`: left of the run."""
        name, attempt = view.name, launch["attempt"]
        order, node = self._order(name), self._nodes.get(name)
        before = self._folder.read_launch(name).get("machine")
        finding = self._finding(name, order)
        if finding or node is None:
            return {**launch, "state": "unreachable", **(finding or {})}, None
        plan = order.plan
        launch["machine"] = _machine(node)
        if attempt > 1:
            if before and before != launch["machine"]:
                self._warn(f"{name}: another machine has this name now: all its stages run again")
                launch["stages"] = list(view.stages)
            if order.settings.loses_models:
                launch["stages"] = plans.with_needs(plan["stages"], launch["stages"])
            plan = plans.for_attempt(plan, launch["stages"], attempt)
        if (name, attempt) not in self._places:
            self._put_plans([plan])
        stages = [stage["name"] for stage in plan["stages"]]
        try:
            documents = {**self._store.given(name, stages, seconds), "secrets": self._store.secrets(plan)}
        except plans.PlanError as error:
            return {**launch, "state": "refused", "message": str(error)}, None
        if not self._store.reachable:
            documents["store"] = {}  # a pod without access to the store prints its records
        if attempt > 1:
            self._keep_logs(name, attempt - 1, stages)
            # The pod of the earlier attempt may still wait for a debug shell.
            self._delete_waiting(name, self._pods.status(name, time.monotonic(), attempt - 1))
        return launch, manifests.PodAttempt(
            manifests.target_of(name, nodes.describe(node, self._devices)),
            order.settings,
            {**plan, "deadline_seconds": min(plan["deadline_seconds"], seconds)},
            order.sku,
            earlier=[as_written(record) for record in view.records.values()] if attempt > 1 else (),
            **documents,
        )

    def _submit(self, view: NodeView, item: manifests.PodAttempt, seconds: float) -> str:
        """Create a node's Job, or the JobSet of its gang. Returns the Job's name. `seconds`: left of the run."""
        gang = self._gang(view.name)
        if self._has_sets and gang and gang not in self._submitted and item.plan["attempt"] == 1:
            jobs = [self._job(member) for member in [item, *self._others_of(gang, view, seconds)]]
            if item.settings.queue and not self._max_queued:
                self._max_queued = gangs.max_pod_sets(self._cluster)
            job_set = gangs.job_set(self._run["run_id"], self._cluster.namespace, gang, jobs, self._max_queued)
            if job_set:
                self._make(job_set)
                now = time.monotonic()
                for job in gangs.jobs_of_set(job_set):  # expect its Jobs from now on, to notice if it creates none
                    self._pods.take("Job", "ADDED", job, now)
            self._submitted.add(gang)
            if job_set:
                return str(self._pods.status(view.name, time.monotonic(), 1).job)
        job = self._job(item)
        self._make(job)
        return str(job["metadata"]["name"])

    def _job(self, item: manifests.PodAttempt) -> dict[str, Any]:
        """The Job of an attempt, after creating the objects that its pod mounts."""
        run = manifests.ClusterRun(
            self._run["run_id"], self._cluster.namespace, self._code, self._gangs, self._channels
        )
        template = manifests.claim_template_of(run.run_id, run.namespace, item)
        if template and template["metadata"]["name"] not in self._templates:
            self._make(template)
            self._templates.add(template["metadata"]["name"])
        job = manifests.job_of(run, item, self._places[item.plan["node"], item.plan["attempt"]])
        self._make(manifests.secret_of(run, item))
        return gangs.labelled(job, self._round)

    def _gang(self, name: str) -> str:
        return str(self._run["nodes"][name].get("gang", {}).get("name", ""))

    def _others_of(self, gang: str, first_view: NodeView, seconds: float) -> list[manifests.PodAttempt]:
        """The other members of a gang that can start; a member that cannot start gets a launch with the reason."""
        items = []
        for view in self._views.values():
            if view is first_view or view.name not in self.present or view.complete or self._gang(view.name) != gang:
                continue
            launch = {"attempt": 1, "stages": list(view.stages)}
            with contextlib.suppress(ClusterError, plans.PlanError, StoreError):
                _launch, item = self._prepare_attempt(view, launch, seconds)
                items += [item] if item else []
        return items

    def next_attempt(self, view: NodeView) -> PlannedAttempt | None:
        """One more attempt for a node whose pod was evicted, lost or never started through no fault of its stages; none
        in a round of gangs, whose other members continued or ended without it."""
        if self._round:
            return None
        attempt = view.attempt
        status = self._closed.get((view.name, attempt))
        stages_left = self._settled.get((view.name, attempt))
        trouble = status.trouble if status and status.done else None
        if not stages_left or attempt >= self.MAX_ATTEMPTS or trouble is None or not trouble.retryable:
            return None
        if self._finding(view.name, self._order(view.name)):
            return None  # the node is retried if it returns while other nodes are at work
        return PlannedAttempt(attempt + 1, [stage for stage in view.stages if stage in stages_left])

    def withdraw(self, view: NodeView) -> bool:
        """Delete the node's Job if its pod has not started. Returns whether that was done."""
        status = self._pods.status(view.name, time.monotonic(), view.attempt)
        if view.busy or status.started:
            return False
        self._delete_waiting(view.name, status)
        return status.job in self._deleted

    def fetch(self, view: NodeView, *, by_store: bool) -> None:
        """Read records from the pod's output, for a node that cannot reach the store. `by_store`: whether to put them
        into the store."""
        self._by_store = by_store
        result = self._from_output(view, view.attempt)
        self._keep_records(view, {key: result[key] for key in self._accepted(result)})
        if result:
            self._events.append(NodeNews(view.name, records=result))
        self._events.append(LaunchEnd(view.name, "fetch"))

    def wait(self, seconds: float) -> list[Event]:
        """Wait up to `seconds` for events: ended launches and fetches, and the cluster's news of nodes."""
        until = time.monotonic() + max(0.0, seconds)
        while True:
            ended, self._events = self._events, []
            now = time.monotonic()
            touched: set[str] = set()
            for event in self._streams.take(0.0 if ended or self._unread else max(0.0, min(until - now, TICK_SECONDS))):
                touched |= self._take_change(*event)
            now = time.monotonic()
            if now - self._looked_at >= TICK_SECONDS:  # time limits expire without any event
                touched, self._looked_at = set(self._views), now
            touched |= self._unread
            self._unread = {name for name in touched if name in self._views and self._views[name].busy}
            for name in (touched - self._unread) & self._views.keys():
                news = self._news_of(self._views[name], now)
                if news:
                    ended.append(news)
            for kind, (trouble_seconds, why) in self._streams.trouble().items():  # a later list brings missed changes
                if trouble_seconds > TROUBLE_SECONDS:
                    self._warn_once(f"watch of {kind}", f"no updates of {kind}s from the cluster: {why}")
            if ended or now >= until:
                return ended

    def _take_change(self, kind: str, change: str, thing: Mapping[str, Any]) -> set[str]:
        """Handle a changed object of the watch; `change` is ADDED, MODIFIED, DELETED or SYNC. Returns names of nodes
        that it may concern."""
        if kind == "Node" and change != "SYNC":
            name = thing["metadata"]["name"]
            if change == "DELETED":
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = thing
            if self._newcomers is not None:
                self._newcomers.see(name, self._nodes.get(name))
        return self._pods.take(kind, change, thing, time.monotonic())

    def _news_of(self, view: NodeView, now: float) -> NodeNews | None:
        """What is new about a launched node: state, records, pulled images; None if nothing is new."""
        if view.launch.get("state") not in LAUNCHED or view.busy or view.not_measured_again:
            return None
        attempt = view.attempt
        status = self._closed.get((view.name, attempt)) or self._pods.status(view.name, now, attempt)
        trouble, was_pulling = status.trouble, view.pulling
        refused = trouble is not None and bool(trouble.shared)
        view.pulling = not (status.started or status.done or refused)
        brought = was_pulling and not view.pulling
        if trouble is not None and refused:
            self._report_refusal(trouble.name, trouble.message)
        records: dict[str, bytes] | None = None
        view.attempt_ended = False
        if status.done and not (view.complete and not pod_records.cut_short(status, view.records)):
            records = self._settle_ended_pod(view, status, now)
            if not view.attempt_ended:
                return None
        launch = pod_records.launch_of(status, view.launch)
        if status.started and (view.complete or not status.done):
            reason = "" if view.complete else nodes.not_ready(self._nodes.get(view.name))
            launch = self._outages.noted(view.name, launch, reason, now)
        is_new = launch != view.launch
        # A finished image pull is news too: the next node may start its pull.
        if not (is_new or records is not None or brought):
            return None
        return NodeNews(view.name, launch if is_new else None, records, reported=refused)

    def _settle_ended_pod(self, view: NodeView, status: PodStatus, now: float) -> dict[str, bytes] | None:
        """Handle a pod that ended with final records missing: wait for records, read the pod's output, then write why
        records are missing. Returns new records by key; None while it waits."""
        key = (view.name, status.attempt)
        if key in self._settled:
            view.attempt_ended = True
            return None
        if now - self._ended_at.setdefault(key, now) < self.SETTLE_SECONDS and not view.complete:
            return None
        view.attempt_ended = True
        records = self._from_output(view, status.attempt)
        printed = self._accepted(records)
        record_by_stage = {**view.records, **{record["stage"]: record for record in printed.values()}}
        plan = self._order(view.name).plan
        if status.attempt > 1:
            plan = plans.for_attempt(plan, view.launch.get("stages") or view.stages, status.attempt)
        moment, attempt = run_folder.now(), status.attempt
        owed = pod_records.owed(status, plan, record_by_stage, moment)
        self._settled[key] = [*owed.cut_off, *owed.not_run]
        self._closed[key] = status
        # Without evidence about the node, the cause is in the launch's `contact` only.
        for name in owed.not_run if status.trouble and status.trouble.evidence else ():
            end = pod_records.PodStageEnd(None, plan, name, attempt, moment, record_by_stage.get(name))
            owed.records.append(end.skipped(status.trouble))
        for record in owed.records:
            key_of = object_key(self._run["folder"], "records", record["stage"], view.name)
            printed[key_of], records[key_of] = record, json.dumps(record).encode()
        self._keep_records(view, {key_of: records[key_of] for key_of in printed})
        self._delete_waiting(view.name, status)
        return records

    def _delete_waiting(self, name: str, status: PodStatus, *, whole_set: bool = False) -> None:
        """Delete an attempt's Job unless it has ended: a waiting Job would hold the node's GPUs. `whole_set`: delete
        also a JobSet of which other Jobs may be at work."""
        if not status.job or (status.phase == ENDED and not status.held):
            return
        if status.job_set and not status.held and not whole_set:
            return  # its JobSet would create the Job again and has members at work: it is deleted with the round
        kind, target = ("JobSet", status.job_set) if status.job_set else ("Job", status.job)
        if target in self._deleted:
            return
        try:
            self._cluster.delete(kind, target)
            self._deleted.add(target)
        except ClusterError as error:
            self._warn(f"{name}: its {kind} {target} is left to wait: {error}")

    def _stated_by(self, view: NodeView) -> dict[str, list[str]]:
        stated: dict[str, list[str]] = {}
        for attempt in range(1, view.attempt + 1):
            stages = self._pods.status(view.name, time.monotonic(), attempt).stages
            stated = stated if stages else {}  # a pod that is gone may have changed any result
            for stage, container in stages.items():
                report = termination_report(stage, container)
                stated = {key: values for key, values in stated.items() if not key.endswith(f"/{stage}")}
                stated |= report.digests if report else {}
        return stated

    def _is_ending(self, view: NodeView) -> bool:
        status = self._pods.status(view.name, time.monotonic(), view.attempt)
        return view.complete and status.started and not status.done

    def _follow(self, seconds: float) -> None:
        for event in self._streams.take(seconds):
            self._take_change(*event)

    def finish(self) -> None:
        """Keep the digests that pods stated. After a multi-node round, delete its waiting Jobs, which hold nodes. After
        a round of a search, delete all its objects: a search has many rounds, and the results have the evidence."""
        if self._round is None or not self._round.is_of_a_search:
            with contextlib.suppress(ClusterError):  # without the cluster's answer, only the store confirms the results
                self._keep_digests("kubernetes", self._is_ending, self._follow)
        if self._round is None:
            return
        now = time.monotonic()
        for view in self._views.values():
            status = self._pods.status(view.name, now, view.attempt)
            if status.held or not view.complete:  # a complete node's pod ends by itself once its log is in the store
                self._delete_waiting(view.name, status, whole_set=True)
        if self._round.is_of_a_search:
            try:
                claims = {"ResourceClaimTemplate": self._templates, "ComputeDomain": self._channels}
                for kind in (*cleaning.kinds_of(self._cluster), *(kind for kind in claims if claims[kind])):
                    self._cluster.delete_all(kind, names.run_selector(self._run["run_id"]))
            except ClusterError as error:
                self._warn(f"what round {self._round.name} made is left for clean: {error}")

    def _accepted(self, records: Mapping[str, bytes]) -> dict[str, Mapping[str, Any]]:
        """The valid ones of the records that a pod printed, by store key: its output is untrusted."""
        checked = {key: take_record(RunEvidence(), self._run, key, raw) for key, raw in records.items()}
        return {key: record for key, record in checked.items() if record}

    def _keep_records(self, view: NodeView, records: Mapping[str, bytes]) -> None:
        """Put records, by key, into the store for later readers; the results have them in any case."""
        try:
            for key, raw in records.items() if self._by_store else ():
                self._store.client.put(key, raw, "application/json")
        except StoreError as error:
            self._warn_once(view.name, f"{view.name}: what its pod printed is not in the store: {error}")

    def unsettled(self) -> bool:
        return any(map(self._is_unsettled, self._views.values()))

    def _is_unsettled(self, view: NodeView) -> bool:
        """Whether the node's runner was cancelled and the cluster has not reported the cause yet."""
        attempt = view.attempt
        if view.launch.get("state") not in LAUNCHED or (view.name, attempt) in self._settled:
            return False
        if not any(record["state"] == "cancelled" and record["attempt"] == attempt for record in view.records.values()):
            return False
        status = self._pods.status(view.name, time.monotonic(), attempt)
        return not status.done or bool(pod_records.cut_short(status, view.records))

    def _from_output(self, view: NodeView, attempt: int) -> dict[str, bytes]:
        """Save the output of an attempt's pod as the node's logs. Returns newer records in it, {store key: JSON}."""
        status = self._pods.status(view.name, time.monotonic(), attempt)
        data_by_key: dict[str, bytes] = {}
        if not status.pod:
            return data_by_key
        now = time.monotonic()
        if now < self._unread_until.get(view.name, 0.0) or nodes.not_ready(self._nodes.get(view.name)):
            return data_by_key  # only the node's kubelet has the output
        for stage, container in status.stages.items():
            record = view.records.get(stage, {})
            is_final = record.get("state") in FINAL_STATES and record.get("attempt", 1) >= attempt
            if container.state == "waiting" or is_final:
                continue
            try:
                text = self._cluster.log(
                    status.pod, names.container_name(stage), limit_bytes=LOG_BYTES, tail_lines=LOG_LINES
                )
            except ClusterError as error:  # back off: reads from an absent kubelet delay all nodes
                self._warn_once(view.name, f"{view.name}: the output of {stage} cannot be read: {error}")
                self._misses[view.name] = self._misses.get(view.name, 0) + 1
                self._unread_until[view.name] = time.monotonic() + backoff(self._misses[view.name])
                break
            self._misses.pop(view.name, None)
            raw, text = pod_records.split_output(text, stage)
            if raw is not None:
                data_by_key[object_key(self._run["folder"], "records", stage, view.name)] = raw
            log = self._folder.evidence_file(view.name, stage, "logs")
            if text and (not log.exists() or log.stat().st_size < len(text)):
                _write_log(log, text)
        return data_by_key

    def _keep_logs(self, name: str, attempt: int, stages: Iterable[str]) -> None:
        """Keep the logs of an attempt's stages under names of their own: the next attempt starts with empty logs."""
        for stage in stages:
            log = self._folder.evidence_file(name, stage, "logs")
            earlier_log = log.with_name(f"{stage}.attempt-{attempt}.log")
            if earlier_log.exists():
                continue
            if log.exists():
                log.replace(earlier_log)
                continue
            key = object_key(self._run["folder"], "logs", stage, name)
            try:
                raw = self._store.client.get(key, max_bytes=LOG_BYTES)
            except StoreError:
                continue  # the store has no log of this stage
            _write_log(earlier_log, raw[:LOG_BYTES].decode(errors="replace"))

    def _report_refusal(self, failure_class: str, message: str) -> None:
        """Warn once that the namespace refuses pods for this reason, even if the amounts in the message change."""
        key = f"{failure_class} {_AMOUNT.sub('', message)}"
        if key not in self._warned:
            self._warn_once(key, f"namespace {self._cluster.namespace}: {message}: {row_of(failure_class).steps}")

    def _warn_once(self, key: str, line: str) -> None:
        if self._warned.get(key) != line:
            self._warned[key] = line
            self._warn(line)

    def close(self) -> None:
        self._open.close()


def _write_log(path: Path, text: str) -> None:
    lines = (clean_text(line) for line in text.splitlines())
    run_folder.write_bytes(path, ("\n".join(lines) + "\n").encode())


def _machine_id(node: Mapping[str, Any]) -> str:
    machine_id = ((node.get("status") or {}).get("nodeInfo") or {}).get("machineID")
    return str(machine_id or node["metadata"].get("uid") or "")


def _machine(node: Mapping[str, Any]) -> str:
    """Identity of a Node's machine: uid and machine id. Names are reused, and clones of one disk share a machine id."""
    return " ".join(dict.fromkeys(filter(None, (str(node["metadata"].get("uid") or ""), _machine_id(node)))))
