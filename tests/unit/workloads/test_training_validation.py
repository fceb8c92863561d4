from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpuval_workloads.common.device import CPU, TorchDevices  # noqa: E402
from gpuval_workloads.common.ranks import Ranks  # noqa: E402
from gpuval_workloads.training.models.llama import Llama, repeat_heads, rotary_tables, rotate  # noqa: E402
from gpuval_workloads.training.models.shapes import LlamaShape  # noqa: E402
from gpuval_workloads.training.validation import Gradients, complain  # noqa: E402

GOOD_GRADIENTS = Gradients(nonfinite_count=0, mismatch_count=0, seconds=1.0)
GOOD = {
    "diagnostics_matmul_fp32_error_ratio": 1e-6,
    "diagnostics_matmul_bf16_error_ratio": 2e-3,
    "diagnostics_matmul_bf16_tflops": 1.0,
    "diagnostics_memory_error_count": 0,
    "diagnostics_collective_error_count": 0,
}


def figures(**changes):
    return [{"name": name, "value": value} for name, value in {**GOOD, **changes}.items()]


@pytest.mark.parametrize(
    ("accelerator", "changes", "words"),
    [
        (CPU, {}, None),
        (CPU, {"diagnostics_matmul_fp32_error_ratio": 2e-4}, "rank:1: fp32 product off by 0.0002, limit 0.0001"),
        (CPU, {"diagnostics_matmul_fp32_error_ratio": float("nan")}, "rank:1: fp32 product off by nan"),
        (
            TorchDevices("cuda", 2, "nccl"),
            {"diagnostics_matmul_bf16_error_ratio": 2e-2},
            "gpu:1: bf16 product off by 0.02, limit 0.01",
        ),
        (CPU, {"diagnostics_memory_error_count": 3}, "rank:1: 3 x an element wrong after a copy"),
        (CPU, {"diagnostics_collective_error_count": 4}, "rank:1: 4 x an element wrong after a collective"),
    ],
)
def test_what_is_wrong_is_named_with_its_part(accelerator, changes, words):
    complaints = complain(Ranks(0, 2, accelerator), GOOD_GRADIENTS, [figures(), figures(**changes)])
    assert (complaints == []) if words is None else (len(complaints) == 1 and words in complaints[0])


def test_gradients_that_differ_or_are_no_numbers():
    bad = Gradients(nonfinite_count=1, mismatch_count=2, seconds=1.0)
    assert len(complain(Ranks(0, 1, CPU), bad, [figures()])) == 2


def test_rotation_depends_on_distance_alone():
    cos, sin = rotary_tables(8, 16, 10000.0)
    q, k = torch.randn(8), torch.randn(8)
    turned_q, turned_k = (rotate(x.expand(1, 1, 16, 8), cos, sin)[0, 0] for x in (q, k))
    assert turned_q[5] @ turned_k[2] == pytest.approx(float(turned_q[13] @ turned_k[10]), abs=1e-4)
    assert turned_q.norm(dim=-1).tolist() == pytest.approx([float(q.norm())] * 16, rel=1e-5)


def test_heads_of_a_group_share_their_keys():
    x = torch.arange(2.0).view(1, 2, 1, 1)
    assert repeat_heads(x, 3).flatten().tolist() == [0, 0, 0, 1, 1, 1]


def test_llama_does_not_look_ahead():
    shape = LlamaShape(32, 2, 4, 2, 64, 16, 8, 1, 1e-3)
    model = Llama(shape, 8)
    logits = {}
    model.head.register_forward_hook(lambda _module, _inputs, output: logits.update(now=output.detach()))
    tokens = torch.randint(16, (1, 8))
    model(tokens, tokens)
    before = logits["now"]
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 16
    model(changed, tokens)
    assert torch.allclose(before[0, :5], logits["now"][0, :5], atol=1e-6)
    assert not torch.allclose(before[0, 5:], logits["now"][0, 5:], atol=1e-6)


def test_initial_weights_follow_the_seed():
    shape = LlamaShape(32, 2, 4, 2, 64, 16, 8, 1, 1e-3)
    models = [Llama(shape, 8) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2)):
        model.initialize(torch.Generator().manual_seed(seed))
    first, same, other = (model.head.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_poison_reaches_every_loss():
    from gpuval_workloads.training.models.resnet import ResNet18
    from gpuval_workloads.training.worker import poison

    llama = Llama(LlamaShape(32, 2, 4, 2, 64, 16, 8, 1, 1e-3), 8)
    for model, inputs in (
        (llama, (torch.zeros(1, 8, dtype=torch.long),) * 2),
        (ResNet18(), (torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))),
    ):
        assert torch.isfinite(model(*inputs))
        poison(model)
        assert torch.isnan(model(*inputs))


def test_device_description_needs_no_gpu():
    from gpuval_workloads.common.ranks import software_environment

    environment = software_environment(SimpleNamespace(accelerator=CPU, world_size=2))
    assert environment["devices"] == []
    assert environment["torch"] == torch.__version__
