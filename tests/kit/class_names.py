"""Every word that the class of a node can be, but for checks of a user's own."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.link_losses import FAILURE_CLASS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.racks import CHECKS, OF_PLANE
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import failure_classes, launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.properties import VERSIONS

from tests.kit.builders import SHIPPED

STATES = ("failure", "crash", "timeout", "skipped", "missing", "pending", "running", "cancelled")
#: Groups of a file of classes whose names are patterns of checks and ends.
PATTERNED = ("criteria", "ends", "judge")
#: Names of checks of the judge itself.
OWN = (
    "accelerator",
    "accelerators_in_use",
    "gpu_order",
    "nic_count",
    "cabling",
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
    files = [failure_classes.read(path) for path in failure_classes.files() if path != failure_classes.LAUNCH]
    named = {row.name for groups in files for group, rows in groups.items() if group not in PATTERNED for row in rows}
    ends = (*STATES, "figures", "plausible", "coherent", "hidden_fault", "shared", "refused")
    stages = {f"{stage}_{state}" for stage in ("image", "training") for state in ends}
    ended = {launch_errors.runner_gone(text)["class"] for text in ("out of memory", "exit code 1")}
    return sorted(
        {
            *shipped,
            *launches,
            *named,
            *stages,
            *ended,
            *OWN,
            FAILURE_CLASS,
            OF_PLANE,
            *(check.name for check in CHECKS),
            *(f"versions_{kind}" for kind in VERSIONS),
        }
    )
