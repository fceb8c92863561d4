"""A loss that has too few steps to fall is no evidence against a node."""

import pytest

from tests.kit.builders import SHIPPED, judge_metric, metric

(LOSS_FALLS,) = [check for check in SHIPPED if check.name == "training_loss_falls"]


def losses(first, last, steps=None):
    counted = [] if steps is None else [metric("training_steps_count", steps)]
    return [metric("training_loss_first", first, "loss"), metric("training_loss_last", last, "loss"), *counted]


@pytest.mark.parametrize(
    ("steps", "last", "verdict"),
    [
        (3, 9.526, "missing"),  # fell by 4.74 % in 190 s
        (9, 10.0, "missing"),
        (10, 9.526, "fail"),
        (200, 10.0, "fail"),
        (3, 9.0, "pass"),
        (200, 4.0, "pass"),
        (None, 9.526, "fail"),
        (3, None, "fail"),  # NaN
    ],
)
def test_too_few_steps_do_not_fail_a_node(steps, last, verdict):
    (entry,) = judge_metric(LOSS_FALLS, losses(10.0, last, steps))
    assert entry["verdict"] == verdict
    if verdict == "missing":
        assert f"training_steps_count is {steps}, fewer than 10: too little work" in entry["reason"]
        assert "train longer" in entry["remedy"]
