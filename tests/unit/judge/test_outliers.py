"""A part beside its peers on the same node."""

import math

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_statistics import Peers
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import check as make_check
from tests.kit.builders import judge_metric, metric

SLOW = make_check(
    "slow", metric="training_model_tflops", kind="outlier", peers="node", scope="gpu", max_below=0.05, retry=True
)
LATE = make_check(
    "late", metric="training_compute_p50_seconds", kind="outlier", peers="node", scope="gpu", max_above=0.1
)


def rates(*values, name="training_model_tflops", unit="TFLOP/s"):
    return [metric(name, value, unit, f"gpu:{index}") for index, value in enumerate(values)]


def held(check, values, **fields):
    entries = judge_metric(check, rates(*values, name=check.metric), gpus=len(values), **fields)
    return [(entry["part"], entry["verdict"]) for entry in entries]


def test_the_slow_part_is_named_with_what_it_is_compared_with():
    (entry,) = judge_metric(SLOW, rates(751, 749, 750, 680, 752, 748, 750, 751))
    assert (entry["part"], entry["verdict"], entry["value"]) == ("gpu:3", "fail", 680)
    assert entry["reason"] == ("training_model_tflops 680 TFLOP/s, 9.333 % under the median 750 TFLOP/s of 8")
    assert entry["expected"] == "at most 5 % under the median of its peers"


def test_a_part_that_takes_longer_is_named():
    assert held(LATE, [0.1, 0.101, 0.125, 0.1]) == [("gpu:2", "fail")]
    assert held(LATE, [0.1, 0.101, 0.05, 0.1]) == [("gpu:1", "pass")]  # faster is no fault


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([100, 100, 96, 100], ("gpu:2", "pass")),  # within the margin
        ([100, 100, 94, 100], ("gpu:2", "fail")),
        ([80, 90, 100, 110, 120, 85, 95, 105], ("gpu:0", "pass")),  # 18 % under the median, as noisy as the others
        ([50, 50, 50, 25, 25, 25], ("gpu:3", "pass")),  # two kinds of parts accuse nobody
    ],
)
def test_both_the_margin_and_the_noise_must_be_exceeded(values, expected):
    assert held(SLOW, values) == [expected]


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_are_not_compared(count):
    (entry,) = judge_metric(SLOW, rates(*[700.0, 300.0][:count]), gpus=count)
    assert entry["verdict"] == "skipped"


def test_parts_that_are_missing_make_it_missing_and_are_no_peers():
    entries = judge_metric(SLOW, rates(750, 750, 750), gpus=8, gpu_count=8)
    assert [(entry["part"], entry["verdict"]) for entry in entries] == [("gpu:3", "missing")]
    entries = judge_metric(SLOW, rates(750, 600), gpus=8, gpu_count=8)
    assert {entry["verdict"] for entry in entries} == {"missing"}
    assert judge_metric(SLOW, [], gpus=8)[0]["verdict"] == "missing"


def test_a_figure_that_is_no_number_fails_and_is_no_peer():
    assert ("gpu:1", "fail") in held(SLOW, [750, None, 750, 750])


def test_several_units_cannot_be_compared():
    mixed = [*rates(750, 750), *(metric("training_model_tflops", 0.7, "PFLOP/s", f"gpu:{i}") for i in (2, 3))]
    assert {entry["verdict"] for entry in judge_metric(SLOW, mixed, gpus=4)} == {"missing"}


def test_links_are_compared_with_links():
    links = make_check(
        "links", metric="peer", kind="outlier", peers="node", scope="link", parts_from="links", max_below=0.2
    )
    figures = [metric("links", 6)] + [
        metric("peer", rate, "bytes/s", f"link:gpu{a}>gpu{b}")
        for a, b, rate in ((0, 1, 3e11), (0, 2, 3e11), (1, 0, 3.1e11), (1, 2, 3e11), (2, 0, 1e11), (2, 1, 3e11))
    ]
    entries = judge_metric(links, figures, gpus=3)
    assert [(entry["part"], entry["verdict"]) for entry in entries] == [("link:gpu2>gpu0", "fail")]
    assert judge_metric(links, figures[:-1], gpus=3)[-1]["verdict"] == "missing"


def test_one_gpu_has_no_links_and_two_without_any_are_missing():
    links = make_check("links", metric="peer", kind="max", value=0, scope="link", parts_from="links")
    (entry,) = judge_metric(links, [metric("links", 0)], gpus=1)
    assert entry["verdict"] == "skipped"
    assert judge_metric(links, [metric("links", 0)], gpus=2)[0]["verdict"] == "missing"
    assert judge_metric(links, [], gpus=1)[0]["verdict"] == "missing"


def test_a_median_of_zero_is_reported():
    (entry,) = judge_metric(SLOW, rates(0, 0, 0, 5), gpus=4)
    assert entry["verdict"] == "missing"
    assert "median of 0" in entry["reason"]


@given(st.lists(st.floats(1, 1e15), min_size=3, max_size=16), st.floats(0.01, 0.9))
def test_most_parts_are_never_accused(values, margin):
    """Deviations beyond six medians of deviations are fewer than half, whatever the figures."""
    group = Peers.of(values)
    accused = [value for value in values if group.is_outlier(value, margin, margin, 6)]
    assert len(accused) <= len(values) // 2
    assert all(math.isfinite(group.badness(value, margin, margin)) for value in values)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_below": None}, "max_below|max_above|not valid"),
        ({"peers": "fleet"}, "unit"),
        ({"group_by": ["torch"]}, "peers: fleet"),
        ({"alike": ["torch"]}, "peers: fleet"),
        ({"spread_from": "spread"}, "peers: fleet"),
        ({"relative_to": "node"}, "peers: fleet"),
        ({"peers": "fleet", "unit": "TFLOP/s", "scope": "node", "relative_to": "node"}, "scope of parts"),
        ({"peers": "fleet", "unit": "TFLOP/s", "min_peers": 1}, "min_peers"),
        ({"scope": "node"}, "scope"),
        ({"max_below": -1}, "max_below"),
    ],
)
def test_refusals(fields, said):
    entry = {
        "name": "x", "stage": "training", "metric": "m", "kind": "outlier", "severity": "required", "scope": "gpu",
        "peers": "node", "max_below": 0.1, "source": "s", "remedy": "r", **fields,
    }  # fmt: skip
    entry = {key: value for key, value in entry.items() if value is not None}
    with pytest.raises(criteria.CriteriaError, match=said):
        criteria.parse({"schema": "gpuval.criteria/1", "checks": [entry]})
