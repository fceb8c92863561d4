"""Make the collection and what runs on a node importable from the checkout."""

import sys
from pathlib import Path

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
COLLECTION = ROOT / "collections" / "ansible_collections" / "gpuval" / "fleet"

sys.path[:0] = [
    str(ROOT),  # tests.kit
    str(COLLECTION / "node"),
    *(str(ROOT / "benchmarks" / name) for name in ("detection", "localisation")),
]
_AnsibleCollectionFinder(paths=[str(ROOT / "collections")])._install()

# How fast the machine is, with other tests beside, says nothing of a property.
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any pace")


#: Their nodes are containers or namespaces, where nothing is seen of what runs on the machine beside them.
APART = (
    "test_container_fleet.py",
    "test_faults.py",
    "test_gang_mpi.py",
    "test_gang_search.py",
    "test_gangs.py",
    "test_gangs_controller_killed.py",
    "test_network.py",
    "test_run_keys.py",
    "test_store_over_network.py",
)


class FileScheduling(LoadScopeScheduling):
    """With several workers (``-n 2``) a unit test's file stays together, and all other tests run one after another.

    A node refuses a run beside another one's containers, and there is one machine; but for tests that are ``APART``.
    """

    def _split_scope(self, nodeid):
        path = nodeid.partition("::")[0]
        if path.startswith("tests/unit/"):
            return path
        return "fleets apart" if path.endswith(APART) else "the machine"


def pytest_xdist_make_scheduler(config, log):
    return FileScheduling(config, log)
