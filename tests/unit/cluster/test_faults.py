"""Each fault of a simulated cluster, from the Job to its class: API server, watch and fold together."""

import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import names, pod_records
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterAccess
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_diagnosis import PodLimits
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_tracker import PodTracker
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.streams import Streams

from tests.kit.cluster import ClusterKit, Fault, StageEnd

RUN, AT = "20261120-201500-3f2a", "2026-11-20T20:21:00Z"
STAGES = ("facts", "training", "loading")
IMAGE = "registry.test/gpuval:1"
SOON = PodLimits(0.3, 0.3)
PLAN = {
    "run_id": RUN,
    "node": "",
    "stages": [{"name": stage, "workload": stage, "command": ["true"], "image": None} for stage in STAGES],
}


def job(node, attempt=1, stages=STAGES, **spec):
    labels, notes = (
        names.node_metadata(RUN, "", node, attempt)["labels"],
        names.node_metadata(RUN, "", node, 1)["annotations"],
    )
    resources = {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}}
    *first, last = [
        {"name": stage, "image": IMAGE, "args": ["--stage", stage], "resources": resources} for stage in stages
    ]
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": node},
        "initContainers": first,
        "containers": [last],
    }
    meta = {"name": names.object_name(RUN, node, attempt), "labels": labels, "annotations": notes}
    template = {"metadata": {"labels": labels, "annotations": notes}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**meta, "namespace": "gpuval"},
        "spec": {"backoffLimit": 0, **spec, "template": template},
    }


class Watched:
    """A cluster, a watch and a tracker of what it reports."""

    def __init__(self, kit, cluster, limits):
        self.kit, self.cluster, self.tracker = kit, cluster, PodTracker(limits)
        selector = names.run_selector(RUN)
        self.streams = Streams(cluster, [("Job", selector), ("Pod", selector), ("Node", ""), ("Event", "")])

    def submit(self, node, attempt=1, **spec):
        self.tracker.expect(node, STAGES)
        self.cluster.create(job(node, attempt, **spec))

    def until(self, true_of, node, seconds=60.0, attempt=None):
        ends = time.monotonic() + seconds
        while not true_of(status := self.tracker.status(node, time.monotonic(), attempt)):
            assert time.monotonic() < ends, status
            for kind, change, obj in self.streams.take(0.05):
                self.tracker.take(kind, change, obj, time.monotonic())
        return status

    def done(self, node, attempt=None):
        return self.until(lambda status: status.done, node, attempt=attempt)


@pytest.fixture
def watched(tmp_path):
    with (
        ClusterKit(tmp_path, stage_seconds=0.02, eviction_seconds=0.1, retry_seconds=0.1, grace_seconds=0.02) as kit,
        Cluster(ClusterAccess(str(kit.kubeconfig), "", "gpuval")) as cluster,
    ):
        kit.add_nodes(3)
        watched = Watched(kit, cluster, SOON)
        with watched.streams:
            yield watched


NODE = "node-001"


@pytest.mark.parametrize(
    ("fault", "name", "stage", "evidence"),
    [
        (Fault("image_pull", stage="training"), "image_not_found", "training", False),
        (Fault("image_pull"), "image_not_found", "facts", False),
        (Fault("invalid_image"), "image_name", "facts", False),
        (Fault("create_container", stage="training"), "container_refused", "training", False),
        (Fault("run_container"), "image_without_python", "facts", False),
        (
            Fault("unschedulable", message="0/3 nodes are available: 1 Insufficient nvidia.com/gpu."),
            "gpus_in_use",
            None,
            False,
        ),
        (Fault("quota"), "quota", None, False),
        (Fault("evicted", stage="training"), "evicted", "training", False),
        (Fault("preempted", stage="training"), "preempted", "training", False),
        (Fault("drained", stage="training"), "drained", "training", False),
        (Fault("oom", stage="training"), "oom_killed", "training", True),
        (Fault("exit", stage="training", exit_code=139), "container_failed", "training", True),
        (Fault("exit", stage="training", exit_code=2), "runner_refused", "training", False),
        (Fault("node_lost", stage="training"), "node_lost", "training", False),
        (Fault("node_deleted", stage="training"), "node_lost", "training", False),
        (Fault("admission"), "gpu_allocation", None, False),
        (Fault("deleted", stage="training"), "pod_deleted", "training", False),
    ],
    ids=lambda value: f"{value.kind}-{value.stage or 'first'}" if isinstance(value, Fault) else "",
)
def test_a_fault_is_classed(watched, fault, name, stage, evidence):
    watched.kit.fault(NODE, fault)
    watched.submit(NODE)
    status = watched.done(NODE)
    trouble = status.trouble
    assert (trouble.name, trouble.final, trouble.evidence) == (name, True, evidence)
    assert stage is None or trouble.stage == stage
    assert trouble.message and "{node}" not in trouble.remedy
    owed = pod_records.owed(status, {**PLAN, "node": NODE}, {}, AT)
    assert [record["stage"] for record in owed.records] == (["training"] if evidence else [])


@pytest.mark.parametrize(("kind", "name"), [("deleted", "pod_deleted"), ("job_deleted", "job_deleted")])
def test_a_pod_deleted_in_its_last_stage_has_another_turn_after_its_removal_too(watched, kind, name):
    watched.kit.settings.removal_seconds = 1.2  # times of the API are whole seconds
    watched.kit.fault(NODE, Fault(kind, stage="loading", attempt=1))
    watched.submit(NODE)
    removed = watched.until(lambda status: status.done and not watched.kit.all("Pod"), NODE)
    watched.until(lambda _status: watched.tracker._attempts[NODE][1].pod.gone, NODE)
    for status in (removed, watched.tracker.status(NODE, time.monotonic())):
        assert (status.trouble.name, status.trouble.evidence, status.trouble.retryable) == (name, False, True)
    watched.submit(NODE, attempt=2)
    assert watched.done(NODE, attempt=2).trouble is None


def test_a_healthy_node_has_no_trouble(watched):
    watched.submit(NODE)
    status = watched.done(NODE)
    assert (status.trouble, [one.exit_code for one in status.stages.values()]) == (None, [0, 0, 0])


@pytest.mark.parametrize("names_taints", [True, False], ids=["before-1.34", "since-1.34"])
def test_a_taint_is_classed_whether_the_scheduler_names_it_or_not(watched, names_taints):
    kit = watched.kit
    kit.settings.names_taints = names_taints
    control = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
    dedicated = [{"key": "dedicated", "value": "search", "effect": "NoSchedule"}]
    kit.add_node("control-001", taints=control)
    kit.set_node("node-002", taints=dedicated)
    kit.lose_node(NODE)
    for node, name in ((NODE, "node_not_ready"), ("node-002", "tainted")):
        watched.submit(node)
        trouble = watched.done(node).trouble
        assert (trouble.name, trouble.final) == (name, True)
        assert "control-plane" not in trouble.message and "claims" not in trouble.message
        assert ("unreachable" if node == NODE else "dedicated") in trouble.message


def test_a_volume_that_is_not_there_is_reported_until_it_is(watched):
    wanted = job(NODE)
    volume = {"name": "store", "secret": {"secretName": "late"}}
    wanted["spec"]["template"]["spec"]["volumes"] = [volume]
    watched.tracker.limits = PodLimits()
    watched.tracker.expect(NODE, STAGES)
    watched.kit.settings.pull_seconds = 1.0
    watched.cluster.create(wanted)
    assert watched.until(lambda status: status.trouble, NODE).trouble.name == "storage"
    watched.kit.put({"kind": "Secret", "metadata": {"name": "late", "namespace": "gpuval"}, "data": {}})
    status = watched.until(lambda status: not status.trouble, NODE)
    assert (status.phase, status.started) == ("pulling", False)
    assert watched.done(NODE).trouble is None


def test_the_deadline_of_a_job(watched):
    watched.kit.fault(NODE, Fault("hang", stage="training"))
    watched.submit(NODE, activeDeadlineSeconds=1)
    status = watched.done(NODE)
    assert (status.trouble.name, status.trouble.stage) == ("deadline_exceeded", "training")


def test_a_stage_that_failed_is_no_trouble_of_the_pod(watched):
    said = '{"stage":"loading","state":"failure","exit_code":1,"signal":null,"message":"too few bytes"}'
    ends = {"loading": StageEnd(exit_code=1, termination=said)}
    watched.kit.on_stage = lambda run, moment: ends.get(run.stage) if moment == "end" else None
    watched.submit(NODE)
    status = watched.done(NODE)
    assert status.trouble is None
    (record,) = pod_records.owed(status, {**PLAN, "node": NODE}, {"facts": DONE, "training": DONE}, AT).records
    assert (record["stage"], record["state"]) == ("loading", "failure")


DONE = {"state": "success", "attempt": 1}


def test_a_fault_that_mends_itself_in_time_is_borne(watched):
    watched.tracker.limits = PodLimits()
    watched.kit.fault(NODE, Fault("image_pull", times=1))
    watched.submit(NODE)
    watched.until(lambda status: status.trouble is not None, NODE)
    watched.kit.repair(NODE)
    assert watched.done(NODE).trouble is None


def test_a_second_attempt_follows_an_eviction(watched):
    watched.kit.fault(NODE, Fault("evicted", stage="training", attempt=1))
    watched.submit(NODE)
    assert watched.done(NODE).trouble.retryable
    watched.submit(NODE, attempt=2)
    assert watched.done(NODE, attempt=2).trouble is None
    assert watched.tracker.status(NODE, 0.0).attempt == 2


def test_nothing_is_lost_when_the_watch_breaks(watched):
    watched.kit.stage_seconds_of["training"] = 0.5
    watched.kit.fault(NODE, Fault("oom", stage="training"))
    watched.submit(NODE)
    watched.until(lambda status: status.started, NODE)
    watched.kit.drop_watches()
    watched.kit.compact()
    assert watched.done(NODE).trouble.name == "oom_killed"
