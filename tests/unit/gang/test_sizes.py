"""A group that is measured at another size, since somebody holds memory, is no answer: its speed accuses nobody."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import rounds

from tests.kit.builders import make_record, metric
from tests.kit.gang_bed import USUAL, Bed, Died, Fault, build

SMALL, USUAL_BYTES = 1 << 20, 8 << 30
HELD = "node-003"


def record(node, size=USUAL_BYTES, bus=USUAL):
    figures = [metric(rounds.ERRORS, 0), metric(rounds.BUS, bus, "bytes/s"), metric(rounds.LARGEST, size, "bytes")]
    return make_record(node, "fabric", metrics=figures, environment={"gang": {"joined": True}})


def result(size, usual):
    return rounds.result_of(("a", "b"), {node: record(node, size) for node in "ab"}, usual)


@pytest.mark.parametrize(("size", "usual"), [(SMALL, USUAL_BYTES), (USUAL_BYTES, SMALL)])
def test_another_size_than_that_of_most_is_no_answer(size, usual):
    found = result(size, usual)
    assert (found.state, found.bus_bytes_per_second) == ("missing", None)
    assert "end the processes that occupy it" in found.message


@pytest.mark.parametrize(("size", "usual"), [(USUAL_BYTES, USUAL_BYTES), (USUAL_BYTES, None), (None, USUAL_BYTES)])
def test_the_same_size_and_one_of_unknown_size_are_compared(size, usual):
    assert result(size, usual).bus_bytes_per_second == USUAL


def test_wrong_elements_are_wrong_at_any_size():
    records = {node: record(node, SMALL) for node in "ab"}
    records["a"]["metrics"][0]["value"] = 3
    assert rounds.result_of(("a", "b"), records, USUAL_BYTES).state == "wrong"


def test_most_decide_and_the_larger_of_two():
    assert rounds.usual_size([8, 8, 1, None]) == 8
    assert rounds.usual_size([1, 8]) == 8
    assert rounds.usual_size([None]) is None


def held(path):
    """A stranger holds the memory of one node, whose pairs are slower for their small size."""
    gang = build(8, 1, rack=0, noise=0.0)
    gang.bad[HELD] = Fault("slow", 0.03)
    bed = Bed(path, gang, stages=["fabric"])
    bed.sizes = dict.fromkeys(gang.nodes, USUAL_BYTES) | {HELD: SMALL}
    return bed


def test_a_node_whose_memory_is_held_is_not_called_slow(tmp_path):
    bed = held(tmp_path)
    bed.go()
    assert bed.verdicts() == dict.fromkeys(bed.gang.nodes, "PASS") | {HELD: "INCOMPLETE"}
    (found,) = bed.document["findings"].values()
    assert found["nodes"][HELD] == "untested"
    assert "measured at 1048576 bytes, most groups at 8589934592" in " ".join(found["evidence"][HELD])


def test_another_controller_knows_the_sizes_of_rounds_before(tmp_path):
    whole = held(tmp_path / "whole")
    whole.go()
    for step in range(8, whole.happened, 3):
        bed = held(tmp_path / str(step))
        bed.dies_at = step
        with pytest.raises(Died):
            bed.go()
        bed.go()
        assert bed.verdicts() == whole.verdicts()
