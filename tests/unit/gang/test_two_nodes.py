"""Two nodes have no third one to compare with: the report has their speed, and that its quality is unknown."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import session
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.orchestrate import GangSettings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunError

from tests.kit.gang_bed import USUAL, Bed, build


def searched(tmp_path, count, **settings):
    bed = Bed(tmp_path, build(count, 1, rack=0, noise=0.0), stages=["fabric"], **settings)
    bed.go()
    nodes = bed.judge(bed.document)["nodes"]
    return bed, [next(one for one in node["checks"] if one["name"] == "fabric_speed_known") for node in nodes]


def test_of_two_nodes_the_speed_is_reported_and_that_its_quality_is_unknown(tmp_path):
    bed, checks = searched(tmp_path, 2)
    assert set(bed.verdicts().values()) == {"PASS"}
    for check in checks:
        assert (check["severity"], check["verdict"]) == ("advisory", "warn")
        assert f"they reach {USUAL / 1e9:.3g} GB/s on the bus; whether that is slow is unknown" in check["reason"]
    assert "2 nodes have no third node to compare with" in bed.said[-1]


def test_more_nodes_may_all_be_slow(tmp_path):
    bed, checks = searched(tmp_path, 5)
    assert set(bed.verdicts().values()) == {"PASS"}
    for check in checks:
        assert (check["severity"], check["verdict"]) == ("advisory", "warn")
        assert "5 nodes were compared with each other only: they reach " in check["reason"]
    assert "gpuval_gang_expected_bytes_per_second" in bed.said[-1]


@pytest.mark.parametrize("count", [2, 5])
def test_an_expected_speed_settles_it(tmp_path, count):
    bed, checks = searched(tmp_path, count, expected_bytes_per_second=0.9 * USUAL)
    assert set(bed.verdicts().values()) == {"PASS"}
    assert {check["verdict"] for check in checks} == {"pass"}
    assert "is unknown" not in " ".join(bed.said)


@pytest.mark.parametrize("count", [2, 5])
def test_nodes_that_are_all_slower_than_expected_are_not_accepted(tmp_path, count):
    bed, _ = searched(tmp_path, count, expected_bytes_per_second=1.5 * USUAL)
    assert set(bed.verdicts().values()) == {"INCOMPLETE"}
    assert "slower than expected" in " ".join(bed.said)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_an_expected_speed_that_is_none_is_refused(value):
    with pytest.raises(RunError, match="gpuval_gang_expected_bytes_per_second"):
        session.ensure_valid(GangSettings(expected_bytes_per_second=value))
