"""Slurm nodes that differ from their peers are measured again; a queue that starts nothing holds no run."""

import pytest

from tests.kit import slow_peer
from tests.kit.fleet import until
from tests.kit.slurm_bed import SlurmBed
from tests.kit.slurm_fleet import SlurmFleet

NAMES = tuple(f"gpu-{number}" for number in range(1, slow_peer.NODES + 1))
#: On a node: its work lasts until this file is there.
GO = "/tmp/go"


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    with SlurmBed(tmp_path_factory.mktemp("slurm"), nodes=NAMES) as bed:
        yield bed


@pytest.fixture
def fleet(tmp_path, bed):
    bed.reset()
    for name in NAMES:
        bed.execute(name, "rm", "-f", GO)
    fleet = SlurmFleet(
        tmp_path / "fleet", bed, settings={**slow_peer.settings(tmp_path, GO), "gpuval_wait_for_node": 15}
    )
    yield fleet
    bed.call("scancel", "--user=root")
    fleet.close()


def measured(fleet, bed, before=lambda: None):
    """Validates the nodes; returns those that were to be measured again. `before` is called while all of them work for
    the first time."""
    playing = fleet.start()
    until(lambda: list(bed.jobs().values()).count("RUNNING") == len(NAMES), "all nodes work", 120)
    before()
    for name in NAMES:
        bed.execute(name, "touch", GO)
    return slow_peer.measured_again(playing.wait(240))


def test_the_slow_node_and_two_good_ones_are_measured_again(fleet, bed):
    known = len(bed.jobs())
    again = measured(fleet, bed)
    assert {name for name in NAMES if fleet.record(name, "work")["attempt"] == 2} == {*again}
    slow_peer.assert_only_first_differs(fleet.report(), again)
    assert [state for _, state in sorted(bed.jobs().items())][known:] == ["COMPLETED"] * (len(NAMES) + len(again))


def test_a_queue_that_starts_nothing_leaves_the_first_verdict_with_a_warning(fleet, bed):
    """Others' jobs are next on the nodes, and do not end."""

    def others():
        for name in NAMES:
            bed.call("sbatch", "--exclusive", f"--nodelist={name}", "--time=60", "--wrap", "sleep 3000")

    again = measured(fleet, bed, others)
    slow_peer.assert_only_first_differs(fleet.report(), again, "is pending (")
    states = [state for _, state in sorted(bed.jobs().items())][-len(NAMES) - len(again) :]
    assert states == ["RUNNING"] * len(NAMES) + ["CANCELLED"] * len(again)
