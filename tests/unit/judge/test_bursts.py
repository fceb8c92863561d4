"""The plain cases of benchmarks/bursts: a part that loses time in bursts is named, a healthy one is not."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def bursts():
    path = Path(__file__).parents[3] / "benchmarks/bursts/run.py"
    spec = importlib.util.spec_from_file_location("bursts", path)
    module = sys.modules["bursts"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bursts"]


@pytest.mark.parametrize("pattern", ["periodic", "random"])
def test_laps_lose_the_share_that_bursts_take(bursts, pattern):
    laps = bursts.laps(random.Random(3), 60.0, 0.002, 0.01, 0.1, pattern)
    assert laps.seconds == pytest.approx(60, rel=0.02)
    assert laps.count * 0.002 / laps.seconds == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("pattern", ["periodic", "random"])
@pytest.mark.parametrize("number", [1, 4], ids=["memory", "link"])
def test_a_part_that_loses_a_tenth_in_bursts_is_named_and_a_healthy_one_is_not(bursts, pattern, number):
    figure, draw = bursts.FIGURES[number], random.Random(5)
    seconds = figure.seconds("standard")
    for share, found in ((0.1, True), (0.0, False)):
        summary = bursts.laps(draw, seconds, figure.lap, 0.001, share, pattern).summary()
        assert summary.spread_ratio < 0.02, "the median deviation does not show it" if share else ""
        assert bursts.is_found(draw, figure, seconds, summary, 16) == found
