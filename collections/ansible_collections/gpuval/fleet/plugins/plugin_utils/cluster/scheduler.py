"""Runs gpuval's steps on Kubernetes: watch, probe, reach, marks, evidence, clean."""

import shlex
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

from ansible.errors import AnsibleActionFail, AnsibleError

from ..core.escape import one_line
from ..core.host_values import templar_of, values_of
from ..core.paths import project_path
from ..judge import repairs
from ..judge.check import Check
from ..runs import failed_checks, node_ids
from ..runs import folder as run_folder
from ..runs.folder import RunError, RunFolder
from ..ssh import findings as ssh_findings
from ..watch import launch_inputs, reach
from ..watch.scheduler import JobScheduler, KeepArchive, KeepState, NodeProbes, NodeVerdicts, plan_of, values_for
from ..watch.watch import WatchLimits
from . import cleaning, dra, marks, names, node_evidence, nodes, permissions, pod_settings
from .api import Cluster, ClusterAccess, ClusterError, Forbidden
from .gangs import member_address
from .named_nodes import hostname_selectors, list_named
from .new_nodes import Newcomers
from .placement import ClusterPlacement, PodOrder
from .pod_diagnosis import PodLimits
from .pod_settings import PodSettingsError

ANSWER_SECONDS = 20.0
FOLLOW_SECONDS = 2.0
FOLLOW_LINES = 5000
POD_VARIABLES = ("gpuval_pods", "gpuval_kueue_queue", "gpuval_images")


class KubernetesScheduler(JobScheduler):
    """Runs gpuval's steps on a Kubernetes cluster: a Job for each node, and one connection for all rounds of gangs."""

    name = "kubernetes"
    row_name = "kubeconfig"
    work = "pods"
    in_pods = True
    bears_marks = True

    _cluster: Cluster

    def __enter__(self) -> Self:
        self._cluster = Cluster(self._options)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._cluster.close()

    def order(
        self, run: Mapping[str, Any], name: str, node: Mapping[str, Any] | None = None, like: str = ""
    ) -> PodOrder:
        """What to run on a node. For a node that joined the run, `node` is its Node object, and `like` the host whose
        variables it uses. Raises PlanError."""
        expected, others = run["nodes"][name], {}
        if like and node is not None:
            others = {
                "inventory_hostname": name,
                "inventory_hostname_short": name.split(".", maxsplit=1)[0],
                "kubernetes_node": {"exists": True, **nodes.describe(node)},
            }
        chosen, declared = self._declared(run, name, POD_VARIABLES, others, like)
        plan = plan_of(run, name, chosen, launch_inputs.with_needed_packages(expected, declared, in_pods=True))
        settings = pod_settings.parse(*(chosen[variable] for variable in POD_VARIABLES))
        return PodOrder(plan, settings, expected["sku"])

    def watch(self, folder: RunFolder, limits: WatchLimits, checks: Sequence[Check]) -> list[str]:
        if self._gangs:  # pods of a gang wait for each other, so no pod may wait for image pulls of others
            limits = replace(limits, max_transfers=0)
        return super().watch(folder, limits, checks)

    def placement(self, *common: Any) -> ClusterPlacement:
        options = self._options
        limits = PodLimits(options.patience_seconds, options.start_seconds, options.admission_seconds)
        newcomers = self._newcomers()
        selector = "" if newcomers else self._node_selector(common[0]["nodes"])
        return ClusterPlacement(self._cluster, *common, limits=limits, newcomers=newcomers, node_selector=selector)

    def _node_selector(self, node_names: Iterable[str]) -> str:
        """A label selector for the watch of the run's nodes. Empty, for all nodes, if the inventory lacks the hostname
        label of a node, or if the nodes are too many for one selector."""
        hostvars, hostnames = self._task_vars["hostvars"], []
        for name in node_names:
            facts = (hostvars[name].get(nodes.VARIABLE) if name in hostvars else None) or {}
            hostnames.append(str(facts.get("hostname") or "") if facts.get("exists") else name)
            if not facts or not names.is_label_value(hostnames[-1]):
                return ""
        selectors = list(hostname_selectors(hostnames))
        return selectors[0] if len(selectors) == 1 else ""

    def _newcomers(self) -> Newcomers | None:
        options = self._options
        if self._gangs or not options.accept_new_nodes:
            return None

        def matches(name: str) -> bool:
            return bool(self._cluster.list("Node", options.selector, fields=f"metadata.name={name}")[0])

        labels = options.label_groups or nodes.LABEL_GROUPS
        ids = node_ids.NodeIdReader(project_path)(options.ids)
        return Newcomers(matches, options.skus, ids, self._action._display.display, labels)

    def address(self, run_id: str, member: Mapping[str, Any]) -> str:
        """The address of a gang's member: its pod's DNS name, or the node's address. Raises RunError."""
        name, hostvars = member["node"], self._task_vars["hostvars"]
        settings = pod_settings.parse(*values_for(self._action, name, self._task_vars, POD_VARIABLES).values())
        facts = (hostvars[name].get("kubernetes_node") if name in hostvars else None) or {}  # get() raises
        try:
            return member_address(run_id, name, self._options.namespace, settings, facts.get("addresses"))
        except PodSettingsError as error:
            raise RunError(str(error)) from None

    @property
    def requests(self) -> int:
        return sum(self._cluster.asked.values())

    def probe(self) -> NodeProbes:
        """Whether pods can be placed on each host, from its Node object."""
        expected: dict[str, dict[str, Any]] = {}
        names_by_cluster: dict[ClusterAccess, list[str]] = {}
        for name in self._hosts():
            values = self._variables(name)
            if values.get("gpuval_placement") == self.name:
                access = ClusterAccess(
                    *(str(values.get(key) or "") for key in ("gpuval_kubeconfig", "gpuval_kube_context"))
                )
                names_by_cluster.setdefault(access, []).append(name)
                expected[name] = nodes.expected_of(name, values)
        began = time.monotonic()
        descriptions: dict[str, dict[str, Any]] = {}
        warnings = []
        for access, of_cluster in names_by_cluster.items():
            with Cluster(access) as cluster:
                listed, published = list_named(cluster, of_cluster), None
                always_claims = any(expected[name]["settings"].always_claims for name in of_cluster)
                if always_claims or not all(map(nodes.has_plugin, listed.values())):
                    published = dra.read(cluster)
                    warnings.append(published.warning)
            descriptions |= {name: nodes.describe(node, published) for name, node in listed.items()}
        findings = {name: nodes.finding(name, descriptions.get(name), **demand) for name, demand in expected.items()}
        seconds = time.monotonic() - began
        lines = ssh_findings.summary_of_cluster(findings, seconds)
        devices = (nodes.devices_of(descriptions.get(name) or {}) for name in expected)
        lines += [f"  {line}" for line in (dra.summary(devices), *dict.fromkeys(warnings)) if line]
        return NodeProbes(findings, seconds, lines, {"short": ssh_findings.fewer_gpus(findings)})

    def _variables(self, name: str) -> dict[str, Any]:
        """The host variables that hold a node's cluster access and expectations, with templates rendered."""
        values = values_of(self._action, name, self._task_vars)
        templar = templar_of(self._action, values)
        wanted = ("gpuval_placement", "gpuval_kubeconfig", "gpuval_kube_context", *nodes.EXPECTED_VARIABLES)
        try:
            return {key: templar.template(values[key]) for key in wanted if key in values}
        except AnsibleError as error:
            raise AnsibleActionFail(f"{name}: {error.message}") from None

    def reach(self, folder: RunFolder, node: str, stages: Sequence[str]) -> list[str]:
        options, display = self._options, self._action.display
        run_id = folder.read_run()["run_id"]
        selector = f"{names.run_selector(run_id)},{names.NODE_LABEL}={names.label_value(node)}"
        with Cluster(options) as cluster:
            pod = reach.newest(cluster.list("Pod", selector)[0])
            if pod is None:
                raise reach.ReachError(
                    "the cluster has no pod of this run on it: its turn has not come, or it was cleaned"
                )
            wanted = names.container_name(options.stage) if options.stage else ""
            container = reach.container_of(options.what, pod, wanted)
            access = {"kubeconfig": options.kubeconfig, "context": options.context, "namespace": options.namespace}
            words = reach.in_pod(options.what, access, pod["metadata"]["name"], container)
            is_one = options.what == reach.SHELL or bool(wanted)  # kubectl itself ends when the container ends
            if (is_one and shutil.which("kubectl")) or self._action.check_mode:
                return words
            if options.what == reach.SHELL:
                raise reach.ReachError(f"a shell needs kubectl, which is not installed here: {shlex.join(words)}")
            while container:
                display.display(f"{container}:")
                _follow(display, cluster, pod["metadata"]["name"], container)
                following = "" if wanted else None
                while following is None:  # while a further container may start
                    latest = _pod_named(cluster, pod["metadata"]["name"])
                    following = reach.container_after(latest, container) if latest else ""
                    if following is None:
                        time.sleep(FOLLOW_SECONDS)
                container = following
            return []

    def place(self, settings: str) -> str:
        options = self._options
        access = ClusterAccess(options.kubeconfig, options.context)
        try:
            with Cluster(access, deadline_seconds=ANSWER_SECONDS) as cluster:
                return f"{settings.partition(' of ')[0]} of cluster {cluster.read_uid()}"
        except ClusterError as error:
            self._action.display.warning(
                f"the run belongs to {settings}, since the cluster's own identity cannot be read: {error}"
            )
            return settings

    def answers(self, values: Mapping[str, Any]) -> str:
        access = ClusterAccess(
            *(str(values.get(name) or "") for name in ("gpuval_kubeconfig", "gpuval_kube_context", "gpuval_namespace"))
        )
        with Cluster(access, deadline_seconds=ANSWER_SECONDS) as cluster:
            listed, published = cluster.list("Node")[0], dra.read(cluster)
        devices = dra.summary(nodes.devices_of(nodes.describe(node, published)) for node in listed)
        warning = "" if all(map(nodes.has_plugin, listed)) else published.warning
        answers = f"the API server answers, {len(listed)} node(s)"
        return "; ".join(filter(None, (answers, devices, warning, "`make prepare` checks permissions")))

    def mark(self) -> NodeVerdicts:
        try:
            with Cluster(self._options) as cluster:
                return self._mark(cluster)
        except Forbidden as error:
            what = "no verdict is changed on the nodes"
            if any(request.subresource for request in error.asked):
                what = "the condition of the nodes does not follow their marks"
            raise AnsibleActionFail(f"{what}: {error}\n{permissions.BIND_MARKS}") from None

    def _mark(self, cluster: Cluster) -> NodeVerdicts:
        options, trial = self._options, self._action.check_mode
        if options.state == "absent":
            verdicts = marks.remove_marks(cluster, options.nodes, options.marked_by, trial=trial)
        else:
            folder = self._action.folder(options)
            report = run_folder.read_report(folder)
            repairs.withhold_acceptance(report, folder, options.repairs, self._action.display.warning)
            listed = marks.read_nodes(cluster, [node["name"] for node in report["nodes"]])
            settings: Any = {"taint": options.taint, "max_age_days": options.max_age_days, "trial": trial}
            verdicts = marks.set_marks(cluster, self._marks_of(report, listed), listed, **settings)
        verdicts.problem = f"others keep changing {', '.join(verdicts.busy)}: run it again" if verdicts.busy else ""
        return verdicts

    def _marks_of(self, report: Mapping[str, Any], nodes_by_name: Mapping[str, Any]) -> dict[str, marks.Mark]:
        """By node name, the verdict to write, with the checks that the node has yet to pass before FAIL is removed."""
        run, marks_by_name = report["run"], {}
        for judged in report["nodes"]:
            name = judged["name"]
            if self._options.nodes and name not in self._options.nodes:
                continue
            node = nodes_by_name.get(name)
            failed = node is not None and marks.has_failed(node)
            is_whole = failed_checks.is_whole(run, judged)
            noted = marks.marks_of(node)["annotations"][failed_checks.ANNOTATION] if node else None
            decision = failed_checks.decide(failed_checks.parse(noted), judged, failed=failed, full=is_whole)
            verdict = failed_checks.verdict_after(judged, run, marks.verdict_of(node), failed=failed)
            if verdict is None:
                continue
            cleared = verdict != judged["verdict"] and not decision.stays
            failure_class = one_line(judged["class"], 96) if verdict != failed_checks.PASS and judged["class"] else None
            of_run = (run["run_id"], run["judged_at"])
            marks_by_name[name] = marks.Mark(verdict, *of_run, decision.stays, cleared, failure_class, decision.open)
        return marks_by_name

    def gather(
        self, run_id: str, nodes: Sequence[str], secrets: Collection[str], archive: KeepArchive, state: KeepState
    ) -> None:
        """Write an evidence archive for each node that the cluster knows; other nodes are reported, without failure."""
        seconds = self._options.seconds
        deadline = time.monotonic() + seconds
        try:
            with Cluster(self._options, deadline_seconds=min(60.0, seconds)) as cluster:
                limit_bytes = self._options.limit_bytes
                node_evidence.gather(cluster, run_id, nodes, secrets, archive, state, limit_bytes, deadline)
        except ClusterError as error:
            for node in nodes:
                state(node, "unreachable", f"the cluster: {error}")
            self._action.display.warning(f"no evidence of the cluster: {error}")

    def clean(self) -> dict[str, Any]:
        options, run_ids, trial = self._options, self._options.run_ids, self._action.check_mode
        with Cluster(options) as cluster:
            cleaned = cleaning.clean(cluster, run_ids, options.deadline_seconds, trial=trial, volumes=options.volumes)
        self._mark_cleaned(cleaned.left or options.keep_models)  # keep_models leaves volumes of models
        lines = cleaning.lines(run_ids, cleaned, options.namespace, trial=trial)
        self._action.display.display(*lines)
        before = "".join(f"{kind} {name}\n" for kind, removed in cleaned.removed.items() for name in removed)
        return {
            "changed": bool(cleaned.count),
            "failed": bool(cleaned.left),
            "removed": cleaned.removed,
            "left": [asdict(leftover) for leftover in cleaned.left],
            "diff": {"before": before, "after": ""},
            "msg": "; ".join(lines),
        }


def _pod_named(cluster: Cluster, name: str) -> Mapping[str, Any] | None:
    return next(iter(cluster.list("Pod", fields=f"metadata.name={name}")[0]), None)


def _follow(display: Any, cluster: Cluster, pod: str, container: str) -> None:
    """Print the log of a container as it grows, until the container has ended."""
    before: list[str] = []
    ended = False
    while True:
        lines = cluster.log(pod, container, tail_lines=FOLLOW_LINES if before else reach.LINES).splitlines()
        display.display(*reach.beyond(before, lines))
        before = lines or before
        if ended:
            return
        latest = _pod_named(cluster, pod)
        if latest is None:
            return
        ended = reach.containers(latest).get(container) != "running"
        if not ended:
            time.sleep(FOLLOW_SECONDS)
