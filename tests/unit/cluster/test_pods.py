"""What Jobs, Pods, Nodes and Events say about a node. Texts are those of Kubernetes 1.30 to 1.36 and of containerd."""

import json
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import (
    names,
    pod_classes,
    pod_diagnosis,
    pod_state,
    pod_tracker,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_diagnosis import PodLimits
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_tracker import PodTracker
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import row_of

TEXTS = json.loads((Path(__file__).parent / "data" / "pod_texts.json").read_text())
RUN, NODE = "20261120-201500-3f2a", "gpu-pool-7x2vd"
STAGES = ("facts", "training", "gpu_memory")
JOB = names.object_name(RUN, NODE, 1)
POD = f"{JOB}-h7k2p"
IMAGE = "registry.example/gpuval/training@sha256:" + "a" * 64


def cases(section):
    return [tuple(case.values()) for case in TEXTS[section]]


def meta(name, attempt=1, **more):
    return {
        "name": name,
        "uid": f"uid-{name}",
        "namespace": "gpuval",
        "creationTimestamp": "2026-11-20T20:15:10Z",
        "labels": names.node_metadata(RUN, "", NODE, attempt)["labels"],
        "annotations": names.node_metadata(RUN, "", NODE, 1)["annotations"],
        **more,
    }


def job(attempt=1, conditions=(), suspend=False, **status):
    return {
        "kind": "Job",
        "metadata": meta(names.object_name(RUN, NODE, attempt), attempt),
        "spec": {"backoffLimit": 0, "suspend": suspend},
        "status": {"conditions": list(conditions), **status},
    }


def condition(kind, reason="", message="", status="True"):
    return {"type": kind, "status": status, "reason": reason, "message": message}


def waiting(reason, message=""):
    return {"waiting": {"reason": reason, "message": message}}


def running(at="2026-11-20T20:16:00Z"):
    return {"running": {"startedAt": at}}


def ended(code=0, reason=None, message="", at="2026-11-20T20:20:00Z", **more):
    reason = reason or ("Completed" if code == 0 else "Error")
    state = {"exitCode": code, "reason": reason, "startedAt": "2026-11-20T20:16:00Z", "finishedAt": at}
    return {"terminated": {**state, **({"message": message} if message else {}), **more}}


def pod(states=(), phase="Pending", host=NODE, conditions=(), reason="", message="", attempt=1, name=POD, **more):
    states = [*states, *[waiting("PodInitializing")] * (len(STAGES) - len(states))]
    reported = [
        {"name": names.container_name(stage), "state": state, "restartCount": 0, "image": IMAGE}
        for stage, state in zip(STAGES, states)
    ]
    *first, last = [{"name": names.container_name(stage), "image": IMAGE} for stage in STAGES]
    scheduled = [condition("PodScheduled")] if host else []
    status = {"phase": phase, "conditions": [*scheduled, *conditions]}
    if host:
        status |= {"initContainerStatuses": reported[:-1], "containerStatuses": reported[-1:]}
    if reason:
        status |= {"reason": reason, "message": message}
    spec = {"initContainers": first, "containers": [last], **({"nodeName": host} if host else {})}
    return {"kind": "Pod", "metadata": meta(name, attempt, **more), "spec": spec, "status": status}


def node(
    ready="True",
    reason="KubeletReady",
    message="kubelet is posting ready status",
    name=NODE,
    uid=None,
    made=None,
    **spec,
):
    labels = {"kubernetes.io/hostname": name}
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "creationTimestamp": made, "labels": labels},
        "spec": spec,
        "status": {"conditions": [condition("Ready", reason, message, ready)]},
    }


def event(reason, message="", kind="Pod", name=POD, at=None, **more):
    about = {"kind": kind, "name": name}
    level = "Normal" if reason in (*pod_state.PROGRESS_REASONS, "BackOff") else "Warning"
    told = {"reason": reason, "message": message, "type": level, "lastTimestamp": at, **more}
    return {"kind": "Event", "involvedObject": about, **told}


LOST = node("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")


class Cluster:
    """A tracker, and a clock to turn."""

    def __init__(self, *objects, limits=None):
        self.tracker, self.now = PodTracker(limits), 1000.0
        self.tracker.expect(NODE, STAGES)
        self.see(node(), job(), *objects)

    def see(self, *objects, change="MODIFIED"):
        for obj in objects:
            self.tracker.take(obj["kind"], change, obj, self.now)
        return self.status

    @property
    def status(self):
        return self.tracker.status(NODE, self.now)

    @property
    def trouble(self):
        return self.status.trouble


# --- how far it is ---------------------------------------------------------------------------------------------------


def test_a_node_that_nothing_was_seen_of_waits():
    tracker = PodTracker()
    tracker.expect("n9")
    assert tracker.status("n9", 0.0).phase == "waiting"
    assert tracker.status("n9", 0.0).attempt == 1


def test_a_pod_goes_through_its_stages():
    cluster = Cluster()
    told = []

    def look():
        status = cluster.status
        assert status.trouble is None
        told.append((status.phase, status.stage, status.started, status.done))

    look()
    for states, phase in (
        ([waiting("PodInitializing")], "Pending"),
        ([running()], "Pending"),
        ([ended()], "Pending"),
        ([ended(), running()], "Pending"),
        ([ended(), ended(), running()], "Running"),
        ([ended(), ended(), ended()], "Succeeded"),
    ):
        cluster.see(pod(states, phase))
        look()
    assert told == [
        ("pending", None, False, False),
        ("pulling", "facts", False, False),
        ("running", "facts", True, False),
        ("pulling", "training", True, False),
        ("running", "training", True, False),
        ("running", "gpu_memory", True, False),
        ("ended", None, True, True),
    ]


def test_a_second_attempt_is_the_one_that_counts():
    cluster = Cluster(pod([ended(137, "OOMKilled")], "Failed"))
    cluster.see(job(2), pod([running()], attempt=2, name="second"))
    assert (cluster.status.attempt, cluster.status.phase, cluster.trouble) == (2, "running", None)
    assert cluster.tracker.status(NODE, cluster.now, attempt=1).trouble.name == "oom_killed"


def test_objects_of_others_are_no_business_of_the_run():
    tracker = PodTracker()
    assert (
        tracker.take("Pod", "ADDED", {"metadata": {"name": "theirs", "uid": "1"}, "spec": {}, "status": {}}, 0.0)
        == set()
    )
    assert tracker.take("Pod", "SYNC", None, 0.0) == set()
    assert tracker.take("ConfigMap", "ADDED", {"metadata": {}}, 0.0) == set()
    assert not tracker._attempts


def test_an_injected_container_is_no_stage():
    pod_with_mesh = pod([ended(), ended(), running()], "Running")
    pod_with_mesh["spec"]["containers"].append({"name": "istio-proxy", "image": "x"})
    pod_with_mesh["status"]["containerStatuses"].append({"name": "istio-proxy", "state": ended(1)})
    status = Cluster(pod_with_mesh).status
    assert list(status.stages) == list(STAGES)
    assert status.trouble is None


# --- images and containers -------------------------------------------------------------------------------------------

PULL = f'failed to pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": '


@pytest.mark.parametrize(["reason", "message", "name"], cases("images"))
def test_an_image_that_does_not_come_is_borne_for_a_while(reason, message, name):
    cluster = Cluster(pod([waiting(reason, message)]), limits=PodLimits(patience_seconds=300))
    assert (cluster.trouble.name, cluster.trouble.stage, cluster.trouble.final) == (name, "facts", False)
    assert reason in cluster.trouble.message
    assert not cluster.status.done
    cluster.now += 299
    assert not cluster.trouble.final
    cluster.now += 1
    assert cluster.trouble.final
    assert cluster.status.done
    assert not cluster.trouble.evidence


def test_the_reason_of_a_pull_is_kept_while_the_kubelet_backs_off_and_its_time_goes_on():
    cluster = Cluster(pod([waiting("ErrImagePull", f"{PULL}dial tcp 10.0.0.9:443: connection refused")]))
    cluster.now += 200
    cluster.see(pod([waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')]))
    assert cluster.trouble.name == "registry_away"
    assert "connection refused" in cluster.trouble.message
    cluster.now += 100
    assert cluster.trouble.final


def test_a_pull_that_succeeds_after_all_was_no_trouble():
    cluster = Cluster(pod([waiting("ErrImagePull", "pull: i/o timeout")]))
    cluster.now += 299
    assert cluster.see(pod([running()])).trouble is None
    cluster.now += 10
    assert not cluster.status.done


def test_back_off_without_a_reason_takes_that_of_the_event():
    cluster = Cluster(
        event("Failed", f'Failed to pull image "{IMAGE}": {PULL}{IMAGE}: not found'),
        pod([waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')]),
    )
    assert cluster.trouble.name == "image_not_found"


BACK_OFF = pod([waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')])


def moment(seconds):
    return f"2026-11-20T20:{20 + seconds // 60}:{seconds % 60:02}Z"


def failing_pull(*retries, timed=True, lost=()):
    """A pod whose first pull failed at once, and which was pulled again so many seconds later, with the same end."""
    cluster = Cluster()
    for second in (0, *retries):
        cluster.now = 1000.0 + second
        at = moment(second) if timed else None
        cluster.see(event("Pulling", PULLING, at=at))
        cluster.now += 6
        cluster.see(pod([waiting("ErrImagePull", f"{PULL}dial tcp 10.0.0.9:443: i/o timeout")]))
        at = moment(second + 6) if timed else None
        if second not in lost:
            cluster.see(event("Failed", f'Failed to pull image "{IMAGE}"', at=at))
        cluster.see(BACK_OFF)
    return cluster


@pytest.mark.parametrize("timed", [False, True])
def test_a_second_pull_is_given_the_time_of_an_image(timed):
    cluster = failing_pull(timed=timed)
    began = cluster.now
    cluster.now = 1200.0
    cluster.see(event("Pulling", PULLING, at=moment(200) if timed else None))  # the waiting reason stays
    cluster.now += 900
    assert (cluster.trouble.name, cluster.trouble.final, cluster.status.done) == ("registry_away", False, False)
    assert "pulling again" in cluster.trouble.message
    assert cluster.see(pod([running()])).trouble is None
    # Had it failed, its time would have gone on.
    cluster = failing_pull(timed=timed)
    cluster.now = 1200.0
    cluster.see(event("Pulling", PULLING, at=moment(200) if timed else None))
    cluster.now += 900
    cluster.see(event("BackOff", f'Back-off pulling image "{IMAGE}"', at=moment(1100) if timed else None))
    left = 300 - (1200 - began)
    cluster.now += left - 1
    assert not cluster.trouble.final
    cluster.now += 1
    assert (cluster.trouble.name, cluster.status.done) == ("registry_away", True)


def test_a_second_pull_that_hangs_has_the_time_of_a_start():
    cluster = failing_pull()
    cluster.see(event("Pulling", PULLING, at=moment(30)))
    cluster.now += 1800
    assert (cluster.trouble.name, cluster.status.done) == ("registry_away", True)


@pytest.mark.parametrize("lost", [(), (150, 310)])
def test_an_image_that_never_comes_is_final_however_often_it_is_pulled(lost):
    # The kubelet drops events of a pod that has had many: then its status tells how a pull ended.
    cluster = failing_pull(10, 30, 70, 150, 310, lost=lost)
    assert cluster.trouble.name == "registry_away"
    cluster.now = 1000 + 310 + 6 + 30
    assert cluster.status.done


def test_the_status_of_the_last_pull_may_come_after_the_news_of_the_next():
    cluster = failing_pull()
    cluster.see(pod([waiting("ErrImagePull", "i/o timeout")]))
    cluster.now += 20
    cluster.see(event("Pulling", PULLING, at=moment(26)))
    cluster.now += 0.5
    cluster.see(BACK_OFF)
    cluster.now += 600
    assert not cluster.status.done


@pytest.mark.parametrize(("reason", "name"), [("InvalidImageName", "image_name"), ("ErrImageNeverPull", "image_pull")])
def test_an_image_that_cannot_come_is_final_at_once(reason, name):
    cluster = Cluster(pod([waiting(reason, 'Failed to apply default image tag "a b": couldn\'t parse')]))
    assert (cluster.trouble.name, cluster.trouble.final, cluster.status.done) == (name, True, True)


def test_the_image_of_a_later_stage_names_that_stage():
    status = Cluster(pod([ended(), waiting("ErrImagePull", "pull: manifest unknown")])).status
    assert (status.stage, status.trouble.stage, status.started) == ("training", "training", True)


@pytest.mark.parametrize(["reason", "message", "name", "evidence"], cases("starts"))
def test_a_container_that_does_not_start(reason, message, name, evidence):
    cluster = Cluster(pod([ended(), waiting(reason, message)]), limits=PodLimits(patience_seconds=150))
    trouble = cluster.trouble
    assert (trouble.name, trouble.stage, trouble.final, trouble.evidence) == (name, "training", False, evidence)
    cluster.now += 60
    assert cluster.status.done


def test_a_start_that_failed_for_good_is_distinguished_from_the_ended_container():
    said = 'exec: "python3": executable file not found in $PATH: unknown'
    failed = ended(128, "StartError", f"failed to create containerd task: {said}", startedAt="1970-01-01T00:00:00Z")
    status = Cluster(pod([failed], "Failed")).status
    assert (status.trouble.name, status.trouble.evidence, status.started) == ("image_without_python", False, False)
    assert status.stages["facts"].signal is None


@pytest.mark.parametrize(["reason", "message", "name"], cases("events"))
def test_a_pod_that_cannot_be_prepared_is_explained_by_its_events(reason, message, name):
    cluster = Cluster(pod([waiting("PodInitializing")]))
    assert cluster.trouble is None
    cluster.see(event(reason, message))
    assert cluster.trouble.name == name
    assert message[:40] in cluster.trouble.message


SECRET = (
    'MountVolume.SetUp failed for volume "store" : failed to sync secret cache: timed out waiting for the condition'
)
SANDBOX = "Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
PULLING = f'Pulling image "{IMAGE}"'


@pytest.mark.parametrize(
    ("reason", "said"), [("FailedMount", SECRET), ("FailedAttachVolume", "x"), ("FailedCreatePodSandBox", SANDBOX)]
)
@pytest.mark.parametrize("progress", sorted(pod_state.PROGRESS_REASONS))
@pytest.mark.parametrize("timed", [False, True])
def test_what_was_amiss_before_the_pull_is_forgotten_when_it_pulls(reason, said, progress, timed):
    cluster = Cluster(pod([waiting("PodInitializing")]))
    first, second = ("2026-11-20T20:15:11Z", "2026-11-20T20:15:15Z") if timed else (None, None)
    cluster.see(event(reason, said, at=first))
    assert cluster.trouble is not None
    cluster.now += 4
    cluster.see(event(progress, PULLING, at=second))
    cluster.now += 600  # a large image
    assert (cluster.trouble, cluster.status.phase, cluster.status.done) == (None, "pulling", False)
    cluster.now += 1200
    assert cluster.trouble.name == "not_starting"


def test_what_was_amiss_before_the_pull_is_forgotten_when_the_sandbox_is_there():
    cluster = Cluster(pod([waiting("PodInitializing")]), event("FailedMount", SECRET))
    cluster.now += 4
    cluster.see(pod([waiting("PodInitializing")], conditions=[condition("PodReadyToStartContainers")]))
    cluster.now += 300
    assert (cluster.trouble, cluster.status.done) == (None, False)


def test_a_mount_that_fails_all_the_time_is_final():
    missing = condition("PodReadyToStartContainers", status="False")
    cluster = Cluster(pod([waiting("PodInitializing")], conditions=[missing]))
    for second in (0, 100, 200, 300):
        cluster.now = 1000.0 + second
        at = f"2026-11-20T20:{20 + second // 60}:{second % 60:02}Z"
        cluster.see(event("FailedMount", SECRET, at=at, count=second))
    assert (cluster.trouble.name, cluster.status.done) == ("storage", True)


def test_events_are_put_in_order_by_their_times_and_else_as_they_came():
    early, late = "2026-11-20T20:15:11Z", "2026-11-20T20:16:00Z"
    waits = pod([waiting("PodInitializing")])
    # After a list they come as they will.
    listed = Cluster(waits, event("Pulling", at=late), event("FailedMount", SECRET, at=early))
    assert listed.trouble is None
    # An event that came again is told with its last time.
    again = Cluster(waits, event("Pulling", at=early), event("FailedMount", SECRET, at=late))
    assert again.trouble.name == "storage"
    again.see(event("FailedMount", "an older one, of another volume", at=early))
    assert SECRET in again.trouble.message
    # Those of events.k8s.io have other fields; within a second the arrival counts.
    series = {"count": 3, "lastObservedTime": "2026-11-20T20:16:00.900000Z"}
    newer = event("FailedMount", SECRET, eventTime="2026-11-20T20:15:01.500000Z", series=series)
    assert Cluster(waits, newer, event("Pulling", at=early)).trouble.name == "storage"
    assert Cluster(waits, newer, event("Pulling", at=late)).trouble is None


def test_a_pod_that_starts_silently_is_given_long_for_its_image():
    cluster = Cluster(pod([waiting("PodInitializing")]), limits=PodLimits(start_seconds=1800))
    cluster.now += 1799
    assert cluster.trouble is None
    cluster.now += 1
    assert (cluster.trouble.name, cluster.status.done) == ("not_starting", True)


# --- scheduling ------------------------------------------------------------------------------------------------------

PREEMPTION = "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
FOREIGN = "2 node(s) didn't match Pod's node affinity/selector"


def unscheduled(message):
    return pod(host="", conditions=[condition("PodScheduled", "Unschedulable", message, "False")])


@pytest.mark.parametrize("more", [" ", " no new claims to deallocate, "])
@pytest.mark.parametrize(["message", "spec", "name", "told"], cases("scheduling"))
def test_the_scheduler_s_own_reason_for_this_node(message, spec, name, told, more):
    cluster = Cluster(limits=PodLimits(patience_seconds=300))
    cluster.see(node(**spec), node(name="other"), unscheduled(message + more + PREEMPTION))
    trouble = cluster.trouble
    assert (trouble.name, trouble.final) == (name, False)
    assert told in trouble.message
    assert "preemption" not in trouble.message
    assert "claims" not in trouble.message
    assert "control-plane" not in trouble.message
    cluster.now += 300
    assert cluster.status.done and not cluster.status.started


UNNAMED = "0/3 nodes are available: 3 node(s) had untolerated taint(s). no new claims to deallocate, "


def test_a_taint_without_a_name_on_a_node_that_is_not_ready():
    # The taint of the node controller comes a little after its condition.
    cluster = Cluster()
    cluster.see(node("False", "KubeletNotReady", "no CNI"), unscheduled(UNNAMED + PREEMPTION))
    assert cluster.trouble.name == "node_not_ready"
    assert "it is not ready" in cluster.trouble.message


def test_a_taint_without_a_name_on_a_node_that_is_unknown():
    tracker = PodTracker()
    for obj in (job(), unscheduled(UNNAMED + PREEMPTION)):
        tracker.take(obj["kind"], "ADDED", obj, 0.0)
    trouble = tracker.status(NODE, 0.0).trouble
    assert (trouble.name, trouble.message) == ("tainted", "Unschedulable: node(s) had untolerated taint(s)")


def test_a_node_that_the_cluster_has_not_is_missing():
    tracker = PodTracker()
    message = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    for obj in (job(), unscheduled(message)):
        tracker.take(obj["kind"], "ADDED", obj, 0.0)
    assert tracker.status(NODE, 0.0).trouble.name == "node_missing"


def test_a_node_with_another_s_hostname_says_so():
    cluster = Cluster()
    renamed = node()
    renamed["metadata"]["labels"]["kubernetes.io/hostname"] = "ip-10-0-0-7"
    message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    cluster.see(renamed, unscheduled(message))
    assert cluster.trouble.name == "wrong_hostname"
    assert "ip-10-0-0-7" in cluster.trouble.message


@pytest.mark.parametrize(["message", "name"], cases("refusals"))
def test_a_pod_that_may_not_be_made_is_explained_by_its_job_s_event(message, name):
    cluster = Cluster(event("FailedCreate", message, "Job", JOB), limits=PodLimits(patience_seconds=300))
    text = pod_classes.without_pod_name(message)
    assert (cluster.trouble.name, cluster.trouble.message, cluster.trouble.final) == (name, text, False)
    assert "gpuval-1" not in text
    cluster.now += 120
    assert cluster.status.done
    cluster.see(pod())
    assert cluster.trouble is None


def refused(tracker, node_name, now, suffix="a1b2c"):
    """What a quota of the namespace does to the Job of a node, and the trouble that it is."""
    own = job()
    own["metadata"] |= {
        "name": f"job-{node_name}",
        "annotations": names.node_metadata(RUN, "", node_name, 1)["annotations"],
    }
    said = f'Error creating: pods "job-{node_name}-{suffix}" is forbidden: exceeded quota: gpus, used: pods=2'
    tracker.take("Job", "ADDED", own, now)
    tracker.take("Event", "ADDED", event("FailedCreate", said, "Job", f"job-{node_name}"), now)
    return tracker.status(node_name, now).trouble


def test_a_refusal_of_the_namespace_is_one_text_and_one_time_for_all_nodes():
    tracker = PodTracker(PodLimits(patience_seconds=300))
    first = refused(tracker, "n1", 0.0)
    assert first.shared and not first.final
    for name, at in (("n1", 10.0), ("n2", 100.0)):
        assert refused(tracker, name, at, suffix="x7k2p").message == first.message
    assert refused(tracker, "n3", 120.0).final, "the patience is for the namespace, not for each batch of nodes"


@pytest.mark.parametrize("change", ["created", "ended"])
def test_a_namespace_that_admits_again_has_new_patience(change):
    tracker = PodTracker(PodLimits(patience_seconds=300))
    if change == "ended":
        tracker.take("Pod", "ADDED", pod([running()], phase="Running"), 0.0)
    refused(tracker, "n1", 0.0)
    after = pod() if change == "created" else pod([ended()] * 3, phase="Succeeded")
    tracker.take("Pod", "MODIFIED", after, 110.0)
    assert not refused(tracker, "n2", 120.0).final
    assert tracker.status("n2", 240.0).trouble.final


def test_an_event_may_come_before_its_job():
    tracker = PodTracker()
    tracker.take("Event", "ADDED", event("FailedCreate", "exceeded quota: gpus", "Job", JOB), 0.0)
    tracker.take("Job", "ADDED", job(), 1.0)
    assert tracker.status(NODE, 1.0).trouble.name == "quota"


def test_a_job_without_a_pod_is_reported_after_a_while():
    cluster = Cluster(limits=PodLimits(patience_seconds=300))
    assert cluster.trouble is None
    cluster.now += 120
    assert (cluster.trouble.name, cluster.status.done) == ("no_pod", True)


def test_a_queue_may_hold_a_job_back_for_ever():
    cluster = Cluster()
    cluster.see(job(suspend=True))
    cluster.now += 1e6
    assert (cluster.trouble.name, cluster.trouble.final, cluster.status.done) == ("suspended", False, False)


def test_a_queue_may_take_back_what_it_gave():
    cluster = Cluster()
    cluster.see(pod([running()], phase="Running"))
    assert not cluster.status.held
    cluster.see(job(suspend=True))
    assert cluster.trouble is None, "its pod is still at work"
    cluster.see(pod([running()], phase="Running", deletionTimestamp="2026-11-20T20:30:00Z"))
    assert (cluster.trouble.name, cluster.status.done) == ("suspended", False)
    last = ended(143, at="2026-11-20T20:30:01Z")
    cluster.see(pod([last], phase="Failed", deletionTimestamp="2026-11-20T20:30:00Z"), change="DELETED")
    assert (cluster.trouble.name, cluster.status.done, cluster.status.held) == ("suspended", True, True)
    assert "preempted by its queue" in cluster.trouble.message
    cluster.see(job(suspend=True), change="DELETED")
    assert not cluster.status.held


# --- ends ------------------------------------------------------------------------------------------------------------


def disrupted(reason, message=""):
    return [condition("DisruptionTarget", reason, message)]


LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 3256Ki."
SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
HIGHER = "default-scheduler: preempting to accommodate a higher priority pod"
NO_DEVICES = (
    "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
    "Requested: 8, Available: 7, which is unexpected"
)
NO_ROOM = "Pod was rejected: Node didn't have enough resource: "
NOT_LOCATED = "The container could not be located when the pod was terminated"


@pytest.mark.parametrize(
    ("name", "told", "end", "reason", "disruption"),
    [
        ("evicted", LOW, ended(137), "Evicted", ("TerminationByKubelet", LOW)),
        ("evicted", LOW, ended(137), "Evicted", None),
        ("preempted", HIGHER, ended(143), "", ("PreemptionByScheduler", HIGHER)),
        ("drained", "Eviction API: evicting", ended(143), "", ("EvictionByEvictionAPI", "Eviction API: evicting")),
        ("node_lost", SHUTDOWN, ended(143), "Terminated", ("TerminationByKubelet", SHUTDOWN)),
        ("gpu_allocation", NO_DEVICES, None, "UnexpectedAdmissionError", None),
        ("gpu_allocation", f"{NO_ROOM}nvidia.com/gpu", None, "OutOfnvidia.com/gpu", None),
        ("node_refused", f"{NO_ROOM}cpu", None, "OutOfcpu", None),
        ("container_lost", NOT_LOCATED, ended(137, "ContainerStatusUnknown", NOT_LOCATED), "", None),
    ],
)
def test_what_happens_to_a_pod_from_outside_proves_nothing_about_its_node(name, told, end, reason, disruption):
    states = [ended(), end] if end else []
    conditions = disrupted(*disruption) if disruption else []
    status = Cluster(pod(states, "Failed", reason=reason, message=told, conditions=conditions)).status
    assert (status.trouble.name, status.trouble.evidence, status.trouble.final) == (name, False, True)
    assert told in status.trouble.message
    assert status.trouble.retryable
    assert status.done


@pytest.mark.parametrize(
    ("state", "name", "told"),
    [
        (ended(137, "OOMKilled"), "oom_killed", "OOMKilled: the kernel killed the container of training"),
        (ended(137), "container_failed", "killed by SIGKILL"),
        (ended(139), "container_failed", "killed by SIGSEGV"),
        (ended(134), "container_failed", "killed by SIGABRT"),
        (ended(70), "container_failed", "exit code 70"),
    ],
)
def test_a_container_that_dies_by_itself_speaks_about_its_node(state, name, told):
    cluster = Cluster(pod([ended(), state], "Failed"))
    assert (cluster.trouble.name, cluster.trouble.stage, cluster.trouble.evidence) == (name, "training", True)
    assert told in cluster.trouble.message
    assert not cluster.trouble.retryable  # retry.py decides, by what the stage allows
    assert cluster.status.done


def test_a_runner_that_refuses_says_nothing_about_the_node():
    said = "error: /opt/gpuval/plan.json does not exist"
    trouble = Cluster(pod([ended(2, message=said)], "Failed")).trouble
    assert (trouble.name, trouble.evidence) == ("runner_refused", False)
    assert said in trouble.message


def test_a_last_stage_that_tells_of_a_failure_is_no_trouble():
    said = '{"stage":"gpu_memory","state":"success","exit_code":0,"signal":null,"message":""}'
    failed = [condition("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")]
    cluster = Cluster(pod([ended(), ended(), ended(1, message=said)], "Failed"))
    cluster.see(job(conditions=failed))
    assert (cluster.trouble, cluster.status.done) == (None, True)


def test_a_last_stage_silently_did_not_end_by_itself():
    assert Cluster(pod([ended(), ended(), ended(1)], "Failed")).trouble.name == "container_failed"


DEADLINE = [condition("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")]


def test_the_deadline_ends_a_pod_at_work():
    cluster = Cluster(pod([ended(), running()]))
    cluster.see(job(conditions=[condition("FailureTarget", *list(DEADLINE[0].values())[2:])]))
    assert not cluster.status.done  # the kubelet gives it the time to end
    deleting = {"deletionTimestamp": "2026-11-20T22:15:40Z", "deletionGracePeriodSeconds": 30}
    cluster.see(pod([ended(), ended(143)], "Failed", **deleting), job(conditions=DEADLINE))
    trouble = cluster.trouble
    assert (trouble.name, trouble.stage, trouble.evidence) == ("deadline_exceeded", "training", False)
    assert cluster.status.done


def test_at_its_deadline_a_pod_may_be_deleted_before_its_job_says_so():
    cluster = Cluster(pod([ended(), running()]))
    asked = {"deletionTimestamp": "2026-11-20T20:18:30Z", "deletionGracePeriodSeconds": 30}
    cluster.see(pod([ended(), running()], **asked))
    assert "somebody" not in cluster.trouble.message
    cluster.see(job(conditions=[condition("FailureTarget", *list(DEADLINE[0].values())[2:])]))
    assert cluster.trouble.name == "deadline_exceeded"


def test_what_held_a_pod_up_until_the_deadline_is_the_cause():
    cluster = Cluster(unscheduled(f"0/3 nodes are available: 1 Insufficient nvidia.com/gpu, {FOREIGN}."))
    cluster.see(job(conditions=DEADLINE))
    cluster.see(unscheduled("x"), change="DELETED")
    assert (cluster.trouble.name, cluster.status.done) == ("gpus_in_use", True)
    assert "until the deadline" in cluster.trouble.message


def test_a_pod_deleted_from_outside():
    cluster = Cluster(pod([ended(), running()]))
    asked = {"deletionTimestamp": "2026-11-20T20:18:30Z", "deletionGracePeriodSeconds": 30}
    cluster.see(pod([ended(), running()], **asked))
    assert (cluster.trouble.name, cluster.status.done) == ("pod_deleted", False)
    assert cluster.trouble.message == f"its pod {POD} is being deleted"
    cluster.see(pod([ended(), ended(137, at="2026-11-20T20:18:30Z")], "Failed", **asked))
    assert (cluster.trouble.name, cluster.trouble.evidence, cluster.status.done) == ("pod_deleted", False, True)
    cluster.see(pod([ended(), ended(137, at="2026-11-20T20:18:30Z")], "Failed", **asked), change="DELETED")
    cluster.see(job(conditions=[condition("Failed", "BackoffLimitExceeded", "backoff limit")]))
    assert cluster.trouble.name == "pod_deleted"
    assert cluster.trouble.message == f"its pod {POD} was deleted from outside the run"


def deleted_at(at, grace=30):
    return {"deletionTimestamp": f"2026-11-20T20:{at}Z", "deletionGracePeriodSeconds": grace}


@pytest.mark.parametrize("name", ["pod_deleted", "job_deleted"])
@pytest.mark.parametrize("end_at", ["18:02", "17:58"], ids=["after", "clock-of-the-node-late"])
@pytest.mark.parametrize("code", [137, 1], ids=["killed", "runner-ended"])
def test_the_removal_of_a_pod_is_no_new_deletion(name, end_at, code):
    """The kubelet removes a deleted pod without grace, and the API server sets the time of its deletion anew."""
    end = ended(code, at=f"2026-11-20T20:{end_at}Z", message=CANCELLED if code == 1 else "")
    cluster = Cluster(pod([ended(), ended(), running()], "Running"))
    if name == "job_deleted":
        cluster.see(job(), change="DELETED")
    cluster.see(pod([ended(), ended(), running()], "Running", **deleted_at("18:30")))
    cluster.see(pod([ended(), ended(), end], "Failed", **deleted_at("18:30")))
    for change in ("MODIFIED", "DELETED"):
        cluster.see(pod([ended(), ended(), end], "Failed", **deleted_at("18:03", grace=0)), change=change)
        trouble = cluster.trouble
        assert (trouble.name, trouble.evidence, trouble.retryable, cluster.status.done) == (name, False, True, True)


CANCELLED = '{"stage":"gpu_memory","state":"cancelled","exit_code":null,"signal":null,"message":""}'


@pytest.mark.parametrize(
    ("end", "name"),
    [
        (ended(137, at="2026-11-20T20:18:02Z"), "pod_deleted"),
        (ended(143, at="2026-11-20T20:16:20Z"), "pod_deleted"),  # the rest of the grace period went to a sidecar
        (ended(1, at="2026-11-20T20:18:02Z", message=CANCELLED), "pod_deleted"),
        (ended(137, at="2026-11-20T20:18:06Z"), "pod_deleted"),  # the clock of the node is ahead
        (ended(137, at="2026-11-20T20:16:02Z"), "container_failed"),  # long before the deletion
        (ended(7, at="2026-11-20T20:18:02Z"), "container_failed"),
        (ended(139, at="2026-11-20T20:18:02Z"), "container_failed"),
        (ended(137, "OOMKilled", at="2026-11-20T20:18:02Z"), "oom_killed"),
    ],
    ids=["killed", "slow", "cancelled", "clock", "long-before", "failed", "segfault", "oom"],
)
def test_a_deleted_pod_that_is_first_seen_at_its_removal(end, name):
    """A controller that resumes has not seen when the deletion was requested: only how and when the container ended."""
    removed = pod([ended(), ended(), end], "Failed", **deleted_at("18:05", grace=0))
    removed["spec"]["terminationGracePeriodSeconds"] = 106
    cluster = Cluster(removed)
    assert (cluster.trouble.name, cluster.trouble.evidence) == (name, name != "pod_deleted")


def test_a_sidecar_that_the_kubelet_stopped_excuses_no_container_that_failed():
    removed = pod([ended(), ended(), ended(7, at="2026-11-20T20:18:02Z")], "Failed", **deleted_at("18:05", grace=0))
    sidecar = {"name": "mesh", "state": ended(143, at="2026-11-20T20:18:04Z"), "restartCount": 0, "image": IMAGE}
    removed["spec"]["containers"].append({"name": "mesh", "image": IMAGE})
    removed["status"]["containerStatuses"].append(sidecar)
    assert Cluster(removed).trouble.name == "container_failed"


def test_a_job_that_waits_for_its_pods_is_deleted():
    cluster = Cluster(pod([ended(), running()], **deleted_at("18:30")))
    waits = job()
    waits["metadata"] |= {"deletionTimestamp": "2026-11-20T20:18:00Z", "finalizers": ["foregroundDeletion"]}
    cluster.see(waits)
    assert (cluster.trouble.name, cluster.trouble.retryable, cluster.status.done) == ("job_deleted", True, False)


def test_a_container_that_failed_is_not_excused_by_a_deletion_seen_later():
    end = ended(137, at="2026-11-20T20:18:02Z")
    cluster = Cluster(pod([ended(), end], "Failed"))
    cluster.see(pod([ended(), end], "Failed", **deleted_at("18:30")))
    cluster.see(pod([ended(), end], "Failed", **deleted_at("18:03", grace=0)), change="DELETED")
    assert cluster.trouble.name == "container_failed"


def test_a_pod_that_is_gone_silently_was_deleted():
    cluster = Cluster(pod([ended(), running()]))
    cluster.see(pod([ended(), running()]), change="DELETED")
    assert (cluster.trouble.name, cluster.status.done) == ("pod_deleted", True)


def test_a_pod_killed_for_memory_and_deleted_afterwards_was_killed_for_memory():
    cluster = Cluster(pod([ended(), ended(137, "OOMKilled", at="2026-11-20T20:18:00Z")], "Failed"))
    asked = {"deletionTimestamp": "2026-11-20T20:30:00Z", "deletionGracePeriodSeconds": 0}
    dead = pod([ended(), ended(137, "OOMKilled", at="2026-11-20T20:18:00Z")], "Failed", **asked)
    cluster.see(dead)
    cluster.see(dead, job(), change="DELETED")
    assert cluster.trouble.name == "oom_killed"


def test_a_job_deleted_from_outside_before_it_has_a_pod():
    cluster = Cluster()
    cluster.see(job(), change="DELETED")
    assert (cluster.trouble.name, cluster.status.done) == ("job_deleted", True)


def test_a_job_that_failed_while_the_watch_was_away():
    cluster = Cluster()
    cluster.see(job(conditions=[condition("Failed", "BackoffLimitExceeded", "backoff limit")]))
    assert (cluster.trouble, cluster.status.done) == (None, False)  # its pod may come by the other watch
    cluster.now += 6
    assert (cluster.trouble.name, cluster.trouble.evidence, cluster.status.done) == ("pod_failed", False, True)


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_a_node_that_falls_silent_may_come_back():
    cluster = Cluster(pod([ended(), running()]), limits=PodLimits(patience_seconds=300))
    cluster.see(LOST)
    assert (cluster.trouble.name, cluster.trouble.stage, cluster.trouble.final) == ("node_lost", "training", False)
    assert "Kubelet stopped posting" in cluster.trouble.message
    cluster.now += 299
    assert cluster.see(node()).trouble is None
    cluster.see(LOST)
    cluster.now += 300
    assert (cluster.trouble.final, cluster.status.done, cluster.trouble.evidence) == (True, True, False)


def test_a_pod_that_a_silent_node_cannot_end_is_over_all_the_same():
    cluster = Cluster(pod([ended(), running()]))
    cluster.see(LOST)
    away = disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    asked = {"deletionTimestamp": "2026-11-20T20:28:30Z", "deletionGracePeriodSeconds": 30}
    cluster.see(pod([ended(), running()], conditions=away, **asked))
    assert (cluster.trouble.name, cluster.status.done) == ("node_lost", True)


def test_a_taint_that_drives_pods_off_a_sound_node_is_a_drain():
    away = disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    assert Cluster(pod([ended(), running()], conditions=away)).trouble.name == "drained"


def test_a_node_that_leaves_the_cluster_takes_its_pod_along():
    cluster = Cluster(pod([ended(), running()]))
    cluster.see(node(), change="DELETED")
    assert (cluster.trouble.name, cluster.status.done) == ("node_lost", True)
    cluster.see(
        pod([ended(), running()], conditions=disrupted("DeletionByPodGC", "PodGC: node no longer exists")),
        change="DELETED",
    )
    assert cluster.trouble.name == "node_lost"
    assert cluster.status.done


@pytest.mark.parametrize("told", [True, False], ids=["deleted", "deletion-missed"])
def test_a_node_made_again_under_its_name_has_not_the_pods_of_the_old_one(told):
    cluster = Cluster(pod([ended(), running()]))
    if told:
        cluster.see(node(), change="DELETED")
        assert cluster.status.done
    cluster.see(node(uid="uid-2"), change="ADDED")
    assert (cluster.trouble.name, cluster.trouble.retryable, cluster.status.done) == ("node_lost", True, True)
    assert "another has its name" in cluster.trouble.message
    cluster.see(pod([ended(), running()]), node(), change="MODIFIED" if told else "DELETED")
    cluster.see(node(uid="uid-2"))
    assert (cluster.trouble.name, cluster.status.done) == ("node_lost", True)
    # The next attempt is on the new one.
    cluster.see(job(2), pod([running()], attempt=2, name="second"))
    assert (cluster.trouble, cluster.status.phase, cluster.status.done) == (None, "running", False)
    cluster.see(node(uid="uid-2"), change="DELETED")
    assert cluster.trouble.name == "node_lost"


@pytest.mark.parametrize(
    ("at", "lost"), [("2026-11-20T20:15:20Z", True), ("2026-11-20T20:30:00Z", False), (None, False)]
)
@pytest.mark.parametrize("first", ["pod", "node"])
def test_a_pod_older_than_its_node_is_lost_though_the_old_one_was_unseen(at, lost, first):
    tracker = PodTracker()
    placed_at = condition("PodScheduled") | {"lastTransitionTime": at}
    objects = [job(), pod([running()], conditions=[placed_at]), node(made="2026-11-20T20:30:00Z")]
    for obj in objects if first == "pod" else reversed(objects):
        tracker.take(obj["kind"], "ADDED", obj, 0.0)
    status = tracker.status(NODE, 0.0)
    assert (status.done, bool(status.trouble)) == (lost, lost)


def test_a_node_of_another_name_than_the_inventory_s_is_known_by_its_pod():
    cluster = Cluster(pod([ended(), running()], host="ip-10-0-0-7"))
    silent = node("False", "KubeletNotReady", "container runtime is down", name="ip-10-0-0-7")
    assert cluster.tracker.take("Node", "MODIFIED", silent, cluster.now) == {NODE}
    assert "container runtime is down" in cluster.trouble.message


def test_a_heartbeat_of_a_node_concerns_no_node():
    cluster = Cluster(pod([running()]))
    assert cluster.tracker.take("Node", "MODIFIED", node(), cluster.now) == set()


# --- classes, hostile texts, size ------------------------------------------------------------------------------------


def test_every_class_of_a_reason_is_known():
    for name in {*pod_diagnosis._DISRUPTIONS.values(), *pod_diagnosis._POD_REASONS.values()}:
        assert row_of(name).remedy.endswith("--limit {node}")


def test_texts_of_the_cluster_are_cleaned():
    status = Cluster(pod([waiting("ErrImagePull", "pull:\x1b[31m\u202e not found\n\nx" + "y" * 9000)])).status
    assert status.trouble.message.isprintable()
    assert len(status.trouble.message) <= pod_state.MESSAGE_CHARACTERS


@pytest.mark.parametrize("broken", [{}, {"metadata": None}, {"metadata": {"annotations": None}}, []])
@pytest.mark.parametrize("kind", ["Job", "Pod", "Node", "Event"])
def test_objects_without_form_do_no_harm(kind, broken):
    assert PodTracker().take(kind, "ADDED", broken, 0.0) == set()


def test_events_are_kept_within_bounds(monkeypatch):
    monkeypatch.setattr(pod_tracker, "MAX_EVENT_OBJECTS", 3)
    tracker = PodTracker()
    for number in range(9):
        tracker.take("Event", "ADDED", event("Failed", "x", name=f"pod-{number}"), 0.0)
    assert len(tracker._events) == 3


def test_a_thousand_nodes_are_folded_in_a_moment():
    tracker = PodTracker()
    for number in range(1000):
        for obj in (job(), pod([ended(), running()], name=f"p{number}")):
            obj["metadata"]["annotations"] = names.node_metadata(RUN, "", f"n{number}", 1)["annotations"]
            tracker.take(obj["kind"], "ADDED", obj, 0.0)
        tracker.take("Node", "ADDED", node(name=f"n{number}"), 0.0)
    assert all(tracker.status(f"n{number}", 1.0).phase == "running" for number in range(1000))


def test_what_a_cluster_resolves_soon_or_never_has_less_time():
    assert (PodLimits(5, 7).soon_seconds, PodLimits().soon_seconds, PodLimits(0, 0).soon_seconds) == (2, 120, 0)
