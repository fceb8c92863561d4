"""What fleets of gangs share: nodes in containers that have the workloads' packages, and what they are asked for."""

import json

from tests.kit.container_fleet import Node
from tests.kit.fleet import ROOT

PACKAGES = ROOT / ".venv-node/lib"
INSIDE = "/opt/python"
RUN_SECONDS = 900

#: Of a search by sockets on shaped links.
SIZE_BYTES = 1 << 19

#: What every node may send, far less than processes that share two cores reach: so that all healthy pairs are alike.
USUAL, SLOW = "10mbit", "2mbit"
#: What may be sent at once after a wait for a core: else each wait makes a pair slower by what it takes.
CATCH_UP = ["burst", "128k", "cburst", "128k"]
FAST_ENOUGH = {
    "name": "gang_is_fast",
    "stage": "collective",
    "metric": "gang_all_reduce_bus_bytes_per_second",
    "unit": "bytes/s",
    "kind": "min",
    "value": 5e5,
    "severity": "required",
    "of_gang": True,
    "source": "Measured on this machine.",
    "remedy": "See what the search found.",
}


def torch_node(number, **declared):
    """A machine that has the workloads' packages; its Python is of the version that they were installed for."""
    return Node(f"node-{number}", volumes={str(PACKAGES.resolve()): INSIDE}, **declared)


def settings(**others):
    (site,) = PACKAGES.glob("python3*/site-packages")
    return {
        "gpuval_stages": ["facts"],
        "gpuval_environment": {
            "PYTHONPATH": f"{INSIDE}/{site.parent.name}/site-packages",
            "OMP_NUM_THREADS": "1",  # the nodes share the cores of one machine
        },
        "gpuval_heartbeat_seconds": 2,
        "gpuval_telemetry": False,
        "run_poll_seconds": 0.5,
        "collective_seconds": 2,
        "collective_largest_bytes": 1 << 20,
        "deepspeed_seconds": 4,
        "deepspeed_size": "tiny",
        "fabric_seconds": 2,
        "fabric_largest_bytes": 1 << 20,
        **others,
    }


def gangs(fleet):
    return json.loads((fleet.run_folder / "gangs/gangs.json").read_text())


def stored(fleet, place):
    return json.loads((fleet.store_data / fleet.run_id / place).read_text())
