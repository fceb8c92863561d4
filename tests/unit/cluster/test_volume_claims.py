"""Claims and volumes that keep pods from starting. Texts are those of Kubernetes 1.36."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import kinds, names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_diagnosis import PodLimits
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_tracker import PodTracker
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import row_of, subject_of

from tests.unit.cluster.test_pods import JOB, NODE, RUN, condition, event, job, node, pod, waiting

LIMITS = PodLimits(patience_seconds=300)
LUSTRE = {"name": "asked-0", "persistentVolumeClaim": {"claimName": "lustre"}}
SSD = {"name": "asked-1", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "local-ssd"}}}}
UNBOUND = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
EXTERNAL = (
    "Waiting for a volume to be created either by the external provisioner 'lustre.csi.storage.gke.io' or manually by "
    "the system administrator. If volume creation is delayed, please verify that the provisioner is running and "
    "correctly registered."
)


def claim_event(reason, message, claim="lustre", at=None):
    return event(reason, message, "PersistentVolumeClaim", claim, at)


def with_volumes(manifest, *volumes):
    """The pod as the watch brings it, with these volumes."""
    manifest["spec"]["volumes"] = [*volumes, {"name": "state", "emptyDir": {}}]
    return {"kind": "Pod", **kinds.trim("Pod", manifest)}


def pending(message, name=NODE, volumes=(LUSTRE,)):
    """The pod of a node that the scheduler does not place; an empty message: it has not said why."""
    conditions = [condition("PodScheduled", "Unschedulable", message, "False")] if message else []
    manifest = pod(host=None, conditions=conditions, name=f"{name}-pod")
    return with_volumes(of(manifest, name), *volumes)


def of(manifest, name):
    """The Job or pod as that of another node."""
    meta = manifest["metadata"] | {
        "annotations": names.node_metadata(RUN, "", name, 1)["annotations"],
        "uid": f"{name}-{manifest['kind']}",
    }
    return {**manifest, "metadata": meta | {"labels": names.node_metadata(RUN, "", name, 1)["labels"]}}


class Fleet:
    def __init__(self, *names):
        self.tracker, self.now, self.names = PodTracker(LIMITS), 1000.0, names
        for name in names:
            self.tracker.expect(name)
            made = job()
            made["metadata"]["name"] = f"{JOB}-{name}"
            self.see(node(name=name), of(made, name))

    def see(self, *objects):
        touched = set()
        for thing in objects:
            touched |= self.tracker.take(thing["kind"], "ADDED", thing, self.now)
        return touched

    def trouble(self, name=NODE):
        return self.tracker.status(name, self.now).trouble


@pytest.mark.parametrize(
    ("told", "events", "name", "words"),
    [
        ('0/2 nodes are available: persistentvolumeclaim "lustre" not found.', (), "claim_missing", "not found"),
        (
            '0/2 nodes are available: persistentvolumeclaim "lustre" is being deleted.', (), "claim_missing", "deleted",
        ),
        (UNBOUND, (), "claim_pending", "unbound immediate PersistentVolumeClaims. not found (claim lustre)"),
        (UNBOUND, [("ExternalProvisioning", EXTERNAL)], "claim_pending", "claim lustre: Waiting for a volume"),
        # The cluster has chosen another node for the claim, whose volume nobody makes.
        (
            "0/2 nodes are available: 1 node(s) didn't find available persistent volumes to bind.",
            [("ExternalProvisioning", EXTERNAL)], "claim_pending", "claim lustre: Waiting for a volume",
        ),
        # The scheduler waits for the volume before it says anything about the pod.
        ("", [("ExternalProvisioning", EXTERNAL)], "claim_pending", "claim lustre: Waiting for a volume"),
        (
            UNBOUND,
            [
                ("ExternalProvisioning", EXTERNAL),
                ("ProvisioningFailed", 'failed to provision volume with StorageClass "fast": rpc error: quota'),
            ],
            "claim_pending", 'claim lustre: failed to provision volume with StorageClass "fast": rpc error: quota',
        ),
        (
            UNBOUND, [("ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found')], "claim_class",
            'claim lustre: storageclass.storage.k8s.io "fast" not found',
        ),
        (
            UNBOUND,
            [("FailedBinding", "no persistent volumes available for this claim and no storage class is set")],
            "claim_class", "claim lustre: no persistent volumes available",
        ),
        (
            UNBOUND, [("FailedBinding", 'volume "pv-7" already bound to a different claim.')], "volume_claimed",
            'claim lustre: volume "pv-7" already bound to a different claim.',
        ),
        (
            UNBOUND, [("VolumeMismatch", 'Cannot bind to requested volume "pv-7": incompatible accessMode')],
            "claim_mismatch", 'claim lustre: Cannot bind to requested volume "pv-7": incompatible accessMode',
        ),
    ],
)  # fmt: skip
def test_a_claim_without_a_volume_is_one_finding_about_the_claim(told, events, name, words):
    fleet = Fleet(NODE, "gpu-2", "gpu-3")
    fleet.see(pending(told))
    assert fleet.see(*(claim_event(*each) for each in events)) == ({NODE} if events else set())
    first = fleet.trouble()
    assert (first.name, first.final, first.evidence, subject_of(first.name)) == (name, False, False, "site")
    assert words in first.message
    fleet.now += 200
    fleet.see(pending(told, "gpu-2"))
    assert fleet.trouble("gpu-2").message == first.message  # the report shows equal ones once
    fleet.now += 100
    # All pods that wait for the claim share its time limit: the last node is not given 300 s of its own.
    fleet.see(pending(told, "gpu-3"))
    assert [(one.name, one.final) for one in map(fleet.trouble, fleet.names)] == [(name, True)] * 3
    assert fleet.trouble().shared == "claim" and fleet.trouble().remedy.startswith(row_of(name).steps)


def test_a_claim_that_got_its_volume_has_no_trouble_and_the_next_one_its_whole_time():
    fleet = Fleet(NODE, "gpu-2")
    fleet.see(pending(UNBOUND), claim_event("ExternalProvisioning", EXTERNAL, at="2026-11-20T20:15:11Z"))
    fleet.now += 250
    made = claim_event("ProvisioningSucceeded", "Successfully provisioned volume pvc-1", at="2026-11-20T20:19:21Z")
    fleet.see(made, pending(""))
    assert fleet.trouble() is None
    fleet.see(with_volumes(pod([waiting("PodInitializing")], name=f"{NODE}-pod"), LUSTRE))
    fleet.now += 100
    fleet.see(pending(UNBOUND, "gpu-2"))
    assert not fleet.trouble("gpu-2").final


def test_what_only_one_of_two_claims_waits_for_is_told_of_that_one():
    scratch = {"name": "asked-1", "persistentVolumeClaim": {"claimName": "scratch"}}
    fleet = Fleet(NODE)
    fleet.see(pending(UNBOUND, volumes=(LUSTRE, scratch)))
    fleet.see(
        claim_event("FailedBinding", 'volume "old" already bound to a different claim.', at="2026-11-20T20:00:00Z")
    )
    fleet.see(claim_event("ExternalProvisioning", EXTERNAL, "scratch", at="2026-11-20T20:15:00Z"))
    assert (fleet.trouble().name, fleet.trouble().message[:14]) == ("claim_pending", "claim scratch:")


def test_a_claim_of_one_pod_alone_has_a_time_limit_of_its_own_and_no_name_of_the_pod():
    fleet = Fleet(NODE, "gpu-2")
    for name in fleet.names:
        fleet.see(pending("", name, volumes=(SSD,)))
        fleet.see(claim_event("ExternalProvisioning", EXTERNAL, f"{name}-pod-asked-1"))
        assert (fleet.trouble(name).name, fleet.trouble(name).final) == ("claim_pending", False)
        fleet.now += 300
    assert fleet.trouble().message == fleet.trouble("gpu-2").message
    assert fleet.trouble().message.startswith("claim asked-1: Waiting")


#: What the scheduler says of a node.
NO_PLACE = {
    "1 node(s) had volume node affinity conflict": "volume_elsewhere",
    "1 node(s) didn't match PersistentVolume's node affinity": "volume_elsewhere",
    "1 node(s) didn't find available persistent volumes to bind": "volume_elsewhere",
    "1 node(s) did not have enough free storage": "volume_elsewhere",
    "1 node(s) had no available volume zone": "volume_elsewhere",
    "1 node(s) exceed max volume count": "volume_elsewhere",
    "1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another "
    "pod": "volume_in_use",
    "1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)": "claim_pending",
}


@pytest.mark.parametrize(("told", "name"), NO_PLACE.items())
def test_a_volume_that_a_node_cannot_have_is_classed(told, name):
    fleet = Fleet(NODE)
    fleet.see(node(name="other"))
    fleet.see(pending(f"0/2 nodes are available: {told}, 1 node(s) didn't match Pod's node affinity/selector."))
    assert (fleet.trouble().name, subject_of(name)) == (name, "site")
    assert told[2:] in fleet.trouble().message and "(claim lustre)" in fleet.trouble().message


FOLDER = "/var/lib/kubelet/pods/0d9f7a4e-7a94-4b0f-9b0c-6f1f1fd1a7c2/volumes/kubernetes.io~nfs/asked-0"
#: What the kubelet and the attach controller say of a pod.
NO_MOUNT = {
    'MountVolume.SetUp failed for volume "asked-0" : mount failed: exit status 32 Mounting command: mount '
    f"Mounting arguments: -t nfs 10.0.0.2:/export {FOLDER} Output: mount: {FOLDER}: bad option; for several "
    "filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program.": "volume_client",
    'MountVolume.MountDevice failed for volume "pv-7" : kubernetes.io/csi: attacher.MountDevice failed to create '
    "newCsiDriverClient: driver name lustre.csi.storage.gke.io not found in the list of registered CSI "
    "drivers": "volume_client",
    'Multi-Attach error for volume "pv-7" Volume is already exclusively attached to one node and can\'t be attached to '
    "another": "volume_in_use",
    'MountVolume.SetUp failed for volume "asked-0" : mount.nfs: Connection timed out': "storage",
}


@pytest.mark.parametrize(("told", "name"), NO_MOUNT.items())
def test_a_volume_that_cannot_be_mounted_is_classed_and_the_summary_hides_no_cause(told, name):
    fleet = Fleet(NODE)
    fleet.see(with_volumes(pod([waiting("PodInitializing")], name=f"{NODE}-pod"), LUSTRE))
    fleet.see(event("FailedMount", told, name=f"{NODE}-pod", at="2026-11-20T20:15:11Z"))
    summary = "Unable to attach or mount volumes: unmounted volumes=[asked-0], unattached volumes=[]: timed out"
    fleet.see(event("FailedMount", summary, name=f"{NODE}-pod", at="2026-11-20T20:17:14Z"))
    assert (fleet.trouble().name, fleet.trouble().stage, fleet.trouble().shared) == (name, "facts", "")
    assert told[:30] in fleet.trouble().message and "/pods/" not in fleet.trouble().message
    assert "(claim lustre)" in fleet.trouble().message
