"""Every word that the class of a node can be, but for checks of a user's own."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import classes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.versions import KINDS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import failure_classes, launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import classes as slurm_classes

from tests.kit.builders import SHIPPED

STATES = ("failure", "crash", "timeout", "skipped", "missing", "pending", "running", "cancelled")
#: Names of checks of the judge itself.
OWN = (
    "accelerator",
    "accelerators_in_use",
    "gpu_order",
    "nic_count",
    "sku",
    "sku_gpu_count",
    "gpu_uuids",
    "evidence_unchanged",
    "stages",
    "interrupted",
    "same_machine_twice",
    "nothing_proven",
    "services_declared",
    "mounts_declared",
)


def class_names():
    """Every word that a node's class can be, but for checks of a site's own."""
    shipped = {one.name for one in SHIPPED if one.required}
    launches = set(launch_errors.NAMED)
    causes = {row.name for row in failure_classes.read("stages")["causes"]}
    clusters = {one.name for one in (*classes.CLASSES, *classes.OF_NODES)}
    clusters |= {one.name for one in (*slurm_classes.OF_NODES, *slurm_classes.OF_JOBS)}
    ends = (*STATES, "figures", "plausible", "coherent", "hidden_fault", "shared")
    stages = {f"{stage}_{state}" for stage in ("image", "training") for state in ends}
    ended = {launch_errors.runner_gone(text)["class"] for text in ("out of memory", "exit code 1")}
    return sorted(
        {*shipped, *launches, *causes, *clusters, *stages, *ended, *OWN, *(f"versions_{kind}" for kind in KINDS)}
    )
