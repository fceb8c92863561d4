"""The loss of one seed takes one course, whatever a device's rounding; wrong arithmetic leaves it."""

import itertools
import math
from dataclasses import replace

import pytest

from tests.kit.builders import SHIPPED

torch = pytest.importorskip("torch")

from gpuval_workloads.common.device import CPU  # noqa: E402
from gpuval_workloads.common.ranks import Ranks  # noqa: E402
from gpuval_workloads.training.config import TrainingConfig  # noqa: E402
from gpuval_workloads.training.task import (  # noqa: E402
    MAX_GRADIENT_NORM,
    WARMUP_STEPS,
    adamw,
    build_task,
    course,
    update,
)

SMALL = TrainingConfig(batch_size=4, sequence_length=32)
#: One unit in the last place of bf16 is 2^-8 to 2^-7 of a number.
ROUNDING = 2**-7


def losses(config, ranks, steps, noise=None, spoil=None):
    """The mean losses of so many ranks, each with its own data; ``noise`` draws how each gradient is rounded.

    ``spoil`` is a hook of the linear layers, for the last rank alone.
    """
    tasks = [build_task(config, Ranks(rank, ranks, CPU)) for rank in range(ranks)]
    first = tasks[0]
    is_last = False
    for module in first.model.modules():
        if spoil and isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda *call: spoil(*call) if is_last else None)
    optimizer, found = adamw(first, CPU), []
    for step in range(1, steps + 1):
        loss = torch.zeros(())
        for task in tasks:
            is_last = task is tasks[-1]
            loss = loss + first.model(*next(task.batches)) / ranks
        loss.backward()
        for parameter in first.model.parameters() if noise else ():
            rounding = torch.rand(parameter.shape, generator=noise) * 2 - 1
            parameter.grad.mul_(1 + ROUNDING * rounding)
        update(optimizer, first, step)
        found.append(float(loss))
    return found


@pytest.fixture(autouse=True)
def on_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        (TrainingConfig(precision="fp32"), 1),
        # Small, since a CPU takes ten times as long for bf16.
        (TrainingConfig(precision="bf16", batch_size=4, sequence_length=64), 2),
    ],
    ids=["fp32-1", "bf16-2"],
)
def test_one_seed_takes_one_course_whatever_the_rounding_and_never_jumps(config, ranks):
    steps = WARMUP_STEPS + 10
    one, other = (losses(config, ranks, steps, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert one != other
    for step in range(10, steps + 1, 10):
        assert one[step - 1] == pytest.approx(other[step - 1], rel=0.01), step
    lowest = itertools.accumulate(one, min)
    assert max(loss - low for loss, low in list(zip(one[1:], lowest))[WARMUP_STEPS:]) < 0.3
    assert one[-1] < 0.8 * one[0]


def test_the_rate_grows_for_so_many_steps_and_gradients_are_bounded():
    task = build_task(SMALL, Ranks(0, 1, CPU))
    optimizer = adamw(task, CPU)
    seen = []

    def keep(optimizer, _, __):
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in task.model.parameters()])
        seen.append((optimizer.param_groups[0]["lr"], float(norm)))

    optimizer.register_step_pre_hook(keep)
    for step in (1, WARMUP_STEPS // 2, WARMUP_STEPS, 10 * WARMUP_STEPS):
        for parameter in task.model.parameters():
            parameter.grad = torch.full_like(parameter, 100.0)
        update(optimizer, task, step)
    rates, norms = zip(*seen)
    assert rates == pytest.approx([task.learning_rate * share for share in (1 / WARMUP_STEPS, 0.5, 1, 1)])
    assert norms == pytest.approx([MAX_GRADIENT_NORM] * 4, rel=1e-3)
    assert all(parameter.grad is None for parameter in task.model.parameters())


def test_a_gradient_that_is_no_number_stays_visible():
    task = build_task(SMALL, Ranks(0, 1, CPU))
    for parameter in task.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    parameter.grad.view(-1)[0] = math.inf
    update(adamw(task, CPU), task, 1)
    assert not math.isfinite(float(task.model(*next(task.batches))))


def test_the_course_names_all_that_decides_it_and_not_how_it_is_compiled():
    def of(world_size=2, is_compiled=False, **fields):
        return course(build_task(replace(SMALL, **fields), Ranks(0, 1, CPU), is_compiled), world_size)

    one = of()
    assert one == ("llama-tiny 4x32 fp32 x2 seed 1234 rate 0.003, generated Markov chain of 256 symbols")
    assert of(is_compiled=True) == one
    others = [of(4), of(seed=1), of(batch_size=8), of(precision="bf16"), of(learning_rate=1e-3), of(model="resnet18")]
    assert len({one, *others}) == 7


@pytest.mark.slow
@pytest.mark.parametrize(("size", "shows"), [(1, False), (10, True)])
def test_one_wrong_product_in_10_000_on_one_of_two_ranks_shows_from_ten_times_the_usual_on(size, shows):
    """The known course is that of both processes of a CPU node, in skus/cpu.yml."""
    draw = torch.Generator().manual_seed(5)

    def spoil(_, __, products):
        hit = torch.rand(products.shape, generator=draw) < 1e-4
        return products + hit * (size * products.detach().pow(2).mean().sqrt())

    (known,) = [check for check in SHIPPED if check.name == "training_loss_step_80_of_2_cpu"]
    loss = losses(TrainingConfig(), 2, 80, spoil=spoil)[-1]
    assert (not known.low <= loss <= known.high) == shows
