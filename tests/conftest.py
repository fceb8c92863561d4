"""Make the collection and what runs on a node importable from the checkout."""

import gc
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
COLLECTION = ROOT / "collections" / "ansible_collections" / "gpuval" / "fleet"

sys.path[:0] = [
    str(ROOT),  # tests.kit
    str(COLLECTION / "node"),
    *(str(ROOT / "benchmarks" / name) for name in ("coherence", "detection", "localisation", "pace")),
]
_AnsibleCollectionFinder(paths=[str(ROOT / "collections")])._install()

acceptance = import_module("ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.acceptance")
acceptance.PROOFS = ROOT / "tests" / "kit" / "acceptance.yml"

# How fast the machine is, with other tests beside, says nothing of a property.
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any pace")


#: Files of one scope run one after another, on one worker: what they measure depends on the cores that are left.
TOGETHER = {
    "tests/integration/test_gang_search.py": "gangs",
    "tests/integration/test_gangs.py": "gangs",
    "tests/integration/test_gangs_controller_killed.py": "gangs",
    "tests/integration/test_gang_mpi.py": "gangs",
    "tests/integration/test_faults.py": "gangs",  # thirty machines
}
#: Begun first, so that no worker is left alone with them in the end.
LONGEST = (
    "tests/integration/test_molecule.py",
    "tests/integration/test_gang_search.py",
    "tests/integration/test_gangs.py",
    "tests/integration/test_gangs_controller_killed.py",
    "tests/integration/test_gang_mpi.py",
    "tests/integration/test_faults.py",
    "tests/integration/test_containers.py",
    "tests/integration/test_cluster_faults.py",
    "tests/integration/test_slurm.py",
    "tests/integration/",
    "tests/browser/",
    "tests/unit/workloads/",
    "tests/unit/runner/",
)
#: Tests of these folders are `slow` unless they are marked `quick`; other tests are marked where they are.
SLOW = ("tests/integration/", "tests/browser/")
#: What marks the tests of a tier where they are not usual, by the start of the option `-m`.
MARKS = {"not slow": "mark.quick", "slow": "mark.slow"}


class FileScheduling(LoadScopeScheduling):
    """With several workers (``-n 3``) the tests of a file stay together: they share its fixtures."""

    def _split_scope(self, nodeid):
        path = nodeid.partition("::")[0]
        return TOGETHER.get(path, path)


def place(item):
    """Where the item comes in the order of LONGEST."""
    return next((number for number, path in enumerate(LONGEST) if item.nodeid.startswith(path)), len(LONGEST))


def pytest_ignore_collect(collection_path, config):
    """Leave out files without a test of the tier: importing all takes each worker 40 s of CPU."""
    tier = next((tier for tier in MARKS if config.option.markexpr.startswith(tier)), None)
    if tier is None or collection_path.suffix != ".py":
        return None
    is_slow = collection_path.relative_to(ROOT).as_posix().startswith(SLOW)
    return True if is_slow != (tier == "slow") and MARKS[tier] not in collection_path.read_text() else None


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(SLOW) and not item.get_closest_marker("quick"):
            item.add_marker("slow")
    items.sort(key=place)


@pytest.fixture(autouse=True)
def usual_umask():
    """What runs on nodes sets its process' umask, which later tests in this process would have, too."""
    os.umask(0o022)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Do not look for garbage meanwhile, nor later among the million objects that stay: a look takes half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # the order of LONGEST
    return FileScheduling(config, log)
