"""The loss at fixed steps beside the known course of the shape; tests/unit/judge/test_comparisons.py compares peers."""

import pytest

from tests.kit.builders import SHIPPED, judge_metric, metric

COURSE = "llama-tiny 16x128 fp32 x2 seed 1234 rate 0.003, generated Markov chain of 256 symbols"
(OF_2,) = [check for check in SHIPPED if check.name == "training_loss_step_80_of_2_cpu"]


def verdicts(metrics, **fingerprints):
    entries = judge_metric(OF_2, metrics, gpus=0, sku="cpu", vendor="cpu", fingerprints=fingerprints)
    return [entry["verdict"] for entry in entries]


@pytest.mark.parametrize(("loss", "verdict"), [(0.99, "warn"), (1.01, "pass"), (1.03, "pass"), (1.05, "warn")])
def test_a_loss_off_its_known_course_is_a_warning_on_either_side(loss, verdict):
    assert verdicts([metric("training_loss_step_80", loss, "loss")], training_course=COURSE) == [verdict]


def test_another_course_and_a_record_of_before_are_not_judged_by_it():
    off = [metric("training_loss_step_80", 5.0, "loss")]
    assert verdicts(off, training_course=COURSE.replace("x2", "x4")) == ["skipped"]
    assert verdicts([metric("training_loss_last", 5.0, "loss")]) == []


def test_the_known_course_is_that_of_the_training_as_shipped():
    pytest.importorskip("torch")
    from gpuval_workloads.common.device import CPU
    from gpuval_workloads.common.ranks import Ranks
    from gpuval_workloads.training.config import TrainingConfig
    from gpuval_workloads.training.task import build_task, course

    assert course(build_task(TrainingConfig(), Ranks(0, 1, CPU)), 2) == COURSE
    assert dict(OF_2.applies.fingerprints)["training_course"] == (COURSE,)
