"""The test bed itself, and a whole run over SSH on machines of their own."""

import pytest

from tests.kit.container_fleet import ContainerFleet, Node, nap

pytestmark = pytest.mark.quick
MACHINES = [
    Node("plain"),
    Node("user", user="ops", sudo="free"),
    Node("password", user="ops", sudo="password"),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    settings = {"gpuval_stages": ["facts", "work"], "work_workload": nap(1)}
    with ContainerFleet(tmp_path_factory.mktemp("machines"), MACHINES, settings) as fleet:
        yield fleet


def test_every_machine_passes(fleet):
    done = fleet.play()
    assert done.code == 0, str(done)
    assert fleet.report()["counts"] == {"expected": 3, "PASS": 3, "FAIL": 0, "INCOMPLETE": 0, "flaky": 0}
