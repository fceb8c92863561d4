"""Why a node or a job of a Slurm cluster failed, as one word with a remedy.

The counterpart of `records.launch_errors` for SSH and `cluster.classes` for Kubernetes.
"""

from __future__ import annotations

from ..records import failure_classes, launch_errors

_GROUPS = failure_classes.read("slurm")
#: By the node's state, before a job is placed on it; by the state of the job, or by what sbatch says.
OF_NODES, OF_JOBS = _GROUPS["nodes"], _GROUPS["jobs"]
#: Of Slurm and of launches.
NAMED = {**launch_errors.NAMED, **{known.name: known for known in (*OF_NODES, *OF_JOBS)}}
