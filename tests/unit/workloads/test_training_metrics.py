import pytest
from gpuval_workloads.training.config import (
    MAX_WINDOW_STEPS,
    TrainingBounds,
    TrainingConfig,
    llama_size,
    parse_arguments,
    precision,
)
from gpuval_workloads.training.models import shapes
from gpuval_workloads.training.models.shapes import SIZES

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("8b", 8_030_261_248), ("1b", 1_100_048_384)],  # as published for Llama 3.1 8B and TinyLlama 1.1B
)
def test_llama_parameters_as_published(size, parameters):
    assert shapes.llama_parameters(SIZES[size]) == parameters


@pytest.mark.parametrize("size", sorted(SIZES))
def test_llama_parameters_as_built(size):
    from gpuval_workloads.training.models.llama import Llama

    with torch.device("meta"):
        model = Llama(SIZES[size], 16)
    assert sum(p.numel() for p in model.parameters()) == shapes.llama_parameters(SIZES[size])


def test_llama_flops_by_hand():
    shape = SIZES["8b"]
    weights = 8_030_261_248 - 128256 * 4096
    assert shapes.llama_flops(shape, 8192, 3) == 3 * (6 * weights + 12 * 32 * 4096 * 8192)


def test_llama_flops_agree_with_the_counter_of_pytorch():
    """Both count the whole attention square; the formula takes the norms' few weights for products too."""
    from gpuval_workloads.training.models.llama import Llama
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    shape = SIZES["tiny"]
    model = Llama(shape, 64)
    tokens = torch.randint(shape.vocabulary, (2, 64))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, tokens)
    assert 3 * counter.get_total_flops() == pytest.approx(shapes.llama_flops(shape, 64, 128), rel=0.02)


def test_resnet18_as_published_and_built():
    from gpuval_workloads.training.models.resnet import ResNet18

    built = sum(p.numel() for p in ResNet18().parameters())
    assert built == 11_173_962
    assert shapes.resnet18_macs() == pytest.approx(0.56e9, rel=0.01)


def test_resnet18_flops_agree_with_the_counter_of_pytorch():
    from gpuval_workloads.training.models.resnet import ResNet18
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        ResNet18()(torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))
    assert 3 * counter.get_total_flops() == shapes.resnet18_flops(2)


@pytest.mark.parametrize(
    ("is_gpu", "memory", "size"), [(False, 0, "tiny"), (True, 141e9, "1b"), (True, 80e9, "1b"), (True, 24e9, "small")]
)
def test_automatic_size(is_gpu, memory, size):
    assert llama_size(TrainingConfig(), is_gpu, int(memory)) == size
    assert llama_size(TrainingConfig(size="8b"), is_gpu, int(memory)) == "8b"


def test_automatic_precision():
    assert (precision(TrainingConfig(), True), precision(TrainingConfig(), False)) == ("bf16", "fp32")
    assert precision(TrainingConfig(precision="fp32"), True) == "fp32"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--steps", "0"],
        ["--seconds", "-1"],
        ["--seconds", "inf"],
        ["--model", "gpt"],
        ["--model", "resnet18", "--size", "1b"],
        ["--model", "llama", "--data-dir", "/data"],
    ],
)
def test_arguments_that_make_no_sense(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(arguments)
    assert "error:" in capsys.readouterr().err


def run_to_the_end(bounds: TrainingBounds, step_seconds: float) -> tuple[int, float]:
    """Return the steps taken and the seconds after the warm-up."""
    done, measured, windows = 0, 0.0, 0
    while window := bounds.next_window(done, measured, step_seconds if done else 0.0):
        assert 1 <= window <= max(MAX_WINDOW_STEPS, bounds.warmup_steps)
        if done >= bounds.warmup_steps:
            measured += window * step_seconds
        done += window
        windows += 1
        assert windows < 10_000
    return done, measured


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 250])
@pytest.mark.parametrize("step_seconds", [0.0001, 0.3, 5.0])
def test_steps_are_exact(steps, step_seconds):
    assert run_to_the_end(TrainingBounds.of(TrainingConfig(steps=steps), 10, is_gpu=True), step_seconds)[0] == steps


@pytest.mark.parametrize("step_seconds", [0.001, 0.3, 2.0])
def test_seconds_hold_to_within_a_step(step_seconds):
    _, seconds = run_to_the_end(TrainingBounds.of(TrainingConfig(seconds=10), 10, is_gpu=False), step_seconds)
    assert abs(seconds - 10) <= step_seconds


def test_one_step_is_accepted_after_the_warm_up_however_late():
    assert run_to_the_end(TrainingBounds.of(TrainingConfig(seconds=1), 10, is_gpu=False), 60.0)[0] == 3


def test_the_first_bound_counts():
    assert TrainingBounds.of(TrainingConfig(steps=100, epochs=2), 10, False).max_steps == 20
    assert TrainingBounds.of(TrainingConfig(steps=15, epochs=2), 10, False).max_steps == 15
    assert TrainingBounds.of(TrainingConfig(), 10, False) == TrainingBounds(2, None, 60.0)
    assert TrainingBounds.of(TrainingConfig(epochs=3), 10, False).seconds is None
