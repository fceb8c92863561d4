"""Fleets for the tests of the whole road: real playbooks, real work, faults that are really injected."""

import shutil
import socket
import subprocess
from contextlib import contextmanager

import pytest

from tests.kit.cluster_fleet import ClusterFleet
from tests.kit.fleet import ANSIBLE_PLAYBOOK, NODE_PYTHON, Fleet
from tests.kit.needs import SYS_ADMIN, lacking
from tests.kit.podman_pod import PodmanPods
from tests.kit.processes import end_all_below
from tests.kit.slurm_bed import SlurmBed
from tests.kit.slurm_fleet import SlurmFleet


@pytest.fixture(scope="session", autouse=True)
def environments():
    for program in (ANSIBLE_PLAYBOOK, NODE_PYTHON):
        if not program.exists():
            pytest.skip(f"{program} is missing: `make setup` makes it")


@pytest.fixture(scope="session")
def closed_port():
    """A port of the loopback that refuses connections for as long as the tests last."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(autouse=True)
def nothing_goes_on(request):
    """A test that failed, or that has no clean, leaves no store and no playbook at work for those that follow."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder:
        end_all_below(folder)


@pytest.fixture(scope="module")
def new_fleet(tmp_path_factory):
    """A context that ends with `clean`: ``with new_fleet("name", nodes=...) as fleet``."""

    @contextmanager
    def make(name, **options):
        fleet = Fleet(tmp_path_factory.mktemp(name), **options)
        try:
            yield fleet
        finally:
            fleet.close()

    return make


@pytest.fixture
def new_controller(tmp_path, kit):
    """A controller of the cluster of the module's fixture `kit`, which ends with the test."""
    fleets = []

    def make(**settings):
        fleets.append(ClusterFleet(tmp_path / "fleet", kit=kit, settings=settings))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.end()


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    made = PodmanPods(tmp_path_factory.mktemp("podman"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory):
    with SlurmBed(tmp_path_factory.mktemp("slurm")) as bed:
        yield bed


@pytest.fixture
def slurm(slurm_cluster):
    """A Slurm cluster of two nodes, idle and without jobs: see tests/kit/slurm_bed.py."""
    slurm_cluster.reset()
    return slurm_cluster


@pytest.fixture
def new_slurm_fleet(tmp_path, slurm):
    """Makes fleets of the cluster's two nodes, and cleans them at the end."""
    made = []

    def make(**options):
        made.append(SlurmFleet(tmp_path / "fleet", slurm, **options))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


@pytest.fixture(scope="session")
def as_root():
    for tool in ("mount", "umount", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} (util-linux)")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        lacking(SYS_ADMIN.format(to="to mount file systems and to make namespaces"))
