"""Why a node or a job of a Slurm cluster failed, as one word with a remedy. Pure.

The counterpart of `records.launch_errors` for SSH and `cluster.classes` for Kubernetes.
"""

from __future__ import annotations

from ..records import launch_errors
from ..records.launch_errors import LaunchClass, known_class

#: By the node's state, before a job is placed on it.
OF_NODES = (
    known_class("slurm_node_missing", "add the node to slurm.conf, or correct its name in the list of expected nodes"),
    known_class(
        "slurm_node_down",
        "check slurmd on the node (scontrol show node {node}; systemctl status slurmd), then scontrol update "
        "nodename={node} state=resume",
    ),
    known_class(
        "slurm_drained",
        "repair what the reason names, then scontrol update nodename={node} state=resume",
    ),
    known_class(
        "slurm_reserved",
        "set gpuval_slurm_reservation to that reservation (scontrol show reservation), or wait for its end",
    ),
)
#: By the state of the job, or by what sbatch says.
OF_JOBS = (
    known_class(
        "slurm_away",
        "check slurmctld (scontrol ping)",
    ),
    known_class(
        "slurm_refused",
        "correct gpuval_slurm_partition, gpuval_slurm_account, gpuval_slurm_qos, gpuval_slurm_reservation or "
        "gpuval_slurm_arguments by what sbatch says",
    ),
    known_class(
        "slurm_pending",
        "see what holds the job (squeue --start --nodelist={node}); raise gpuval_deadline_seconds, or set "
        "gpuval_slurm_reservation",
    ),
    known_class("slurm_preempted", "use a partition or QOS that is not preempted, or a reservation"),
    known_class("slurm_cancelled", "ask who cancelled the job (sacct -j, log of slurmctld)"),
    known_class(
        "slurm_node_failed",
        "check slurmd, power and network of the node (scontrol show node {node}; its console)",
    ),
    known_class("slurm_time_limit", "raise gpuval_deadline_seconds, and the partition's MaxTime if it is shorter"),
    known_class(
        "slurm_requeued", "release or cancel the job that was requeued (squeue --me; scontrol release, scancel)"
    ),
    known_class("slurm_out_of_memory", "see what filled the memory of the job (seff, log of slurmd on the node)"),
    known_class(
        "slurm_job_failed",
        "set gpuval_slurm_output to a file that the nodes can write, and read there what the job printed",
    ),
    known_class(
        "slurm_job_forgotten",
        "raise MinJobAge in slurm.conf: Slurm forgot the job before a controller saw its end",
    ),
)
_NAMED = {known.name: known for known in (*OF_NODES, *OF_JOBS)}


def named(name: str) -> LaunchClass:
    """The class of that name, of Slurm or of launches. Raises KeyError."""
    return _NAMED[name] if name in _NAMED else _launch_class(name)


def _launch_class(name: str) -> LaunchClass:
    known = launch_errors.named(name)
    if known is None:
        raise KeyError(name)
    return known
