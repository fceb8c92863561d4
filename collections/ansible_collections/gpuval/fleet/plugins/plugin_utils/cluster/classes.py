"""Why a node of a cluster failed, as one word with a remedy, from the texts of the Kubernetes API. Pure.

The counterpart of `records.launch_errors` for SSH. A text without a match has no class: an unknown failure never counts
as a known one.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..records.launch_errors import AGAIN, LaunchClass, known_class
from .api import ClusterError, Forbidden

#: Classes by the Node object alone, before anything is placed on it (see `nodes.py`).
OF_NODES = (
    known_class(
        "node_missing",
        "check that the node joined the cluster under the expected name (kubectl get nodes)",
    ),
    known_class(
        "node_not_ready",
        "check why the kubelet is silent or failing (kubectl describe node {node}; on the node: journalctl -u kubelet)",
    ),
    known_class(
        "cordoned",
        "kubectl uncordon {node}, or let gpuval use cordoned nodes by a toleration of "
        "node.kubernetes.io/unschedulable in gpuval_pods.tolerations",
    ),
    known_class("node_pressure", "free what the message names on the node (kubectl describe node {node})"),
    known_class("tainted", "tolerate the taint in gpuval_pods.tolerations, or remove it from the node"),
    known_class("not_selected", "label the node, or change gpuval_pods.node_selector"),
    known_class("wrong_hostname", "give the node a kubernetes.io/hostname label of its own; the Job is pinned by it"),
    known_class("no_gpu_resource", "check that driver and device plugin run on the node"),
    known_class("gpus_partitioned", "restore whole GPUs on the node (MIG mode off, no time slicing or MPS)"),
)

#: Classes by texts of scheduler, kubelet and controllers about a pod or Job, in the order in which they are tried.
OF_PODS = (
    known_class(
        "disk_full",
        "free space on the node (images and logs of other work), or choose smaller images",
        r"no space left on device",
        r"disk quota exceeded",
    ),
    known_class(
        "image_name",
        "fix the reference in gpuval_images or gpuval_pods.image",
        r"\bInvalidImageName\b",
        r"couldn't parse image (?:name|reference)",
        r"invalid reference format",
    ),
    known_class(
        "image_denied",
        "name a Secret of the namespace with access to the registry in gpuval_pods.image_pull_secrets",
        r"\b(?:pull|resolve)\b.*(?:unauthorized|access denied|\bdenied:|403 Forbidden|no basic auth credentials"
        r"|authentication required)",
    ),
    known_class(
        "image_not_found",
        "fix the tag or digest in gpuval_images, or push the image; it must be built for the node's architecture",
        r"manifest unknown",
        r"(?:pull|resolve)\b.*\bnot found",
        r"no match for platform in manifest",
    ),
    known_class(
        "registry_away",
        "check that the node reaches the registry (DNS, proxy, firewall, rate limit); a lower "
        "gpuval_max_transfers pulls on fewer nodes at once",
        r"\bpull\b.*(?:dial tcp|i/o timeout|no such host|connection refused|TLS handshake|deadline exceeded"
        r"|toomanyrequests|\b429\b|x509:|connection reset|\bEOF\b)",
    ),
    known_class(
        "image_pull",
        "check the events of the pod (kubectl describe pod) for the registry's answer",
        r"\bErrImagePull\b",
        r"\bImagePullBackOff\b",
        r"\bRegistryUnavailable\b",
        r"\bErrImageNeverPull\b",
        r"\bImageInspectError\b",
        r"Failed to pull image",
        r"Back-off pulling image",
    ),
    known_class(
        "quota",
        "raise or free the quota of the namespace (kubectl describe quota)",
        r"exceeded quota",
        r"\bmust specify (?:limits|requests)\.",
        r"(?:maximum|minimum) \S+ usage per (?:Container|Pod)",
    ),
    known_class(
        "pod_security",
        "set gpuval_pods.run_as_user to a number but 0, for the standard `restricted`; else label the namespace "
        "pod-security.kubernetes.io/enforce=baseline, or =privileged for what gpuval_pods asks of the host",
        r"violates PodSecurity",
    ),
    known_class(
        "pod_refused",
        "request less in gpuval_pods, or let the namespace allow it (the policies of the cluster)",
        r"admission webhook .* denied",
        r"ValidatingAdmissionPolicy .* denied",
        r"serviceaccount .* not found",
        r"no PriorityClass with name",
        r"RuntimeClass .* not found",
    ),
    known_class(
        "gpus_in_use",
        "end the pods that use the node's GPUs (kubectl get pods -A --field-selector spec.nodeName={node}), or wait",
        r"Insufficient (?:nvidia\.com|amd\.com|habana\.ai|gpu\.intel\.com)/\S+",
    ),
    known_class(
        "unschedulable",
        "check what the scheduler lacks; request less in gpuval_pods, or free it on the node",
        r"\bUnschedulable\b",
        r"\bFailedScheduling\b",
        r"\d+/\d+ nodes are available",
        r"\bOutOf(?:cpu|memory|pods|ephemeral-storage)\b",
    ),
    known_class(
        "gpu_allocation",
        "check the device plugin's log on the node: it cannot allocate an advertised GPU; restart it, or the node",
        r"\bUnexpectedAdmissionError\b",
        r"Allocate failed due to",
        r"\bOutOf(?:nvidia\.com|amd\.com|habana\.ai)/\S+",
    ),
    known_class(
        "storage",
        "check that the volume of gpuval_pods.model_cache exists and can be mounted on the node (kubectl describe pod)",
        r"\bFailedMount\b",
        r"\bFailedAttachVolume\b",
        r"MountVolume\.\S+ failed",
        r"persistentvolumeclaim .* not found",
        r"unbound immediate PersistentVolumeClaims",
        r"volume node affinity conflict",
    ),
    known_class(
        "container_refused",
        "fix the cause named above: the container engine rejects the container (runtime of the GPU vendor, image "
        "without gpuval_pods.python, security context)",
        r"\bCreateContainerError\b",
        r"\bCreateContainerConfigError\b",
        r"\bRunContainerError\b",
        r"\bStartError\b",
        r"\bFailedCreatePodSandBox\b",
        r"failed to create (?:containerd task|shim task)",
    ),
    known_class(
        "preempted",
        "give the pods a higher priority class (gpuval_pods.priority_class), or keep other pods off the nodes",
        r"\bPreempt(?:ed|ionByScheduler|ing)\b",
    ),
    known_class(
        "drained",
        "wait until the drain is complete (upgrade, autoscaler, kubectl drain)",
        r"\bEvictionByEvictionAPI\b",
        r"\bDeletionByTaintManager\b.*(?:ToBeDeleted|disrupted|disruption)",
        r"Eviction API: evicting",
    ),
    known_class(
        "evicted",
        "check what ran low on the node (memory, disk, process ids), and request it in gpuval_pods.resources",
        r"\bEvicted\b",
        r"\bTerminationByKubelet\b",
        r"The node was low on resource",
        r"exceeds the total limit of|exceeded its local ephemeral storage limit",
    ),
    known_class(
        "node_lost",
        "check that the machine is up, and its kubelet's log for that time; replace a node that was removed",
        r"\bNodeLost\b",
        r"\bDeletionByTaintManager\b",
        r"\bDeletionByPodGC\b",
        r"\bTaintManagerEviction\b",
        r"\bNodeNotReady\b",
        r"\bNodeShutdown\b",
        r"node is shutting down",
        r"node no longer exists",
    ),
    known_class(
        "deadline_exceeded",
        "check which stage took so long; gpuval_deadline_seconds gives the run longer",
        r"\bDeadlineExceeded\b",
        r"was active on the node longer than",
        r"was active longer than specified deadline",
    ),
    known_class(
        "oom_killed",
        "raise the memory limit in gpuval_pods.resources, or check what else fills the node's memory",
        r"\bOOMKilled\b",
    ),
    known_class(
        "pod_deleted", "find the cause of the deletion in the API's audit log: gpuval deletes pods at clean only"
    ),
    known_class("pod_failed", "check the log of the pod's container"),
)

#: Of containers, pods and Jobs by their state; some have texts of the container runtime.
OF_CONTAINERS = (
    # The runtime could not provide accelerators: the one start failure that speaks about the node.
    known_class(
        "accelerator_runtime",
        "repair driver and container toolkit of the node (nvidia-smi, rocm-smi or hl-smi on it; the pods of the device "
        "plugin or GPU operator)",
        r"nvidia-container-(?:cli|runtime|toolkit)",
        r"\bNVML\b|driver (?:error|not loaded|rpc error)|driver/library version mismatch",
        r"no-gpu-has-|unresolvable CDI devices|failed to inject (?:CDI )?devices|/dev/(?:nvidia|kfd|dri/|accel|hl)",
    ),
    known_class(
        "image_without_python",
        "use an image that has Python 3.9 or newer, or name its interpreter in gpuval_pods.python",
        r"python[0-9.]*\W.{0,60}(?:executable file not found|no such file or directory)",
    ),
    known_class(
        "container_lost", "check in the node's journal why its containers vanished (a reboot, a restarted runtime)"
    ),
    known_class("container_failed", "read the log of the stage and the kernel log of the node"),
    known_class("runner_refused", "read the log of the stage: the runner names the missing input"),
    known_class("node_refused", "the kubelet rejected the pod: fix the cause named above"),
    known_class("job_deleted", "find the cause of the deletion (audit log, a clean of another controller)"),
    known_class("job_set_ended", "fix what ended the other members of its gang, which the report names"),
    known_class("no_pod", "check that the cluster's Job controller works (kubectl describe job)"),
    known_class("not_starting", "check what the kubelet waits for (kubectl describe pod, the kubelet's journal)"),
    known_class(
        "suspended",
        "let the queue admit the Job (kubectl get workloads), raise run_pod_admission_seconds, or exclude the "
        "namespace from the queue",
    ),
)

#: Answers of the API server to the controller.
OF_API = (
    known_class("forbidden", "grant the rule that the message names (docs/kubernetes.md has the whole Role)"),
    known_class("api_refused", "fix the cause named above"),
    known_class("api_away", "check that the controller reaches the API server with this kubeconfig (kubectl version)"),
)

CLASSES = (*OF_NODES, *OF_PODS, *OF_CONTAINERS, *OF_API)
_NAMED = {known.name: known for known in CLASSES}


def named(name: str) -> LaunchClass:
    """The class of that name."""
    return _NAMED[name]


def remedy_of(name: str) -> str:
    """What to do about a class of that name, before one validates again."""
    return _NAMED[name].remedy.removesuffix(f", {AGAIN}")


def classify(text: str, among: Iterable[LaunchClass] = OF_PODS) -> LaunchClass | None:
    """The class of a text about a pod, Job or event; None when unknown.

    OF_PODS is ordered so that the registry's answer counts more than `ErrImagePull`.
    """
    return next((known for known in among if known.pattern is not None and known.pattern.search(text)), None)


def of_error(error: ClusterError) -> LaunchClass:
    """The class of a failed request. The patterns for SSH (`Connection refused`) do not apply here."""
    if isinstance(error, Forbidden):
        return _NAMED["forbidden"]
    if 400 <= error.code < 500 and error.code != 429:
        return classify(str(error)) or _NAMED["api_refused"]
    return _NAMED["api_away"]
