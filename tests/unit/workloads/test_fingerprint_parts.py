"""Exact numbers and digests, what makes nodes comparable, and the parts' own agreement with float64."""

import pytest

torch = pytest.importorskip("torch")

from gpuval_workloads.fingerprint import sections, sizes  # noqa: E402 - all of them import torch
from gpuval_workloads.fingerprint.group import cpu_identity, fingerprint_group, loaded_library  # noqa: E402
from gpuval_workloads.fingerprint.sections import Recorder, flip_bit, rotary_tables, sha256, whole_numbers  # noqa: E402
from gpuval_workloads.fingerprint.sizes import BitFlip, parse_arguments  # noqa: E402
from gpuval_workloads.training.models import llama  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def digest(tensor):
    return int(Recorder(CPU).digest(tensor))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize("count", [1, 3, 8, 1001])
def test_any_one_flipped_bit_changes_the_digest(dtype, count):
    tensor = torch.arange(count).to(dtype)
    right = digest(tensor)
    data = tensor.view(torch.uint8)
    for byte in range(0, data.numel(), max(1, data.numel() // 50)):
        for bit in range(8):
            data[byte] ^= 1 << bit
            assert digest(tensor) != right
            data[byte] ^= 1 << bit
    assert digest(tensor) == right


def test_a_digest_is_of_bits_and_places_not_of_values():
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    assert digest(torch.tensor([1.0, 2.0, 3.0, 4.0])) != digest(torch.tensor([3.0, 4.0, 1.0, 2.0]))
    nan = torch.tensor([float("nan")])
    assert digest(nan) == digest(nan.clone())
    square = torch.arange(64.0).view(8, 8)
    assert digest(square.t()) == digest(square.t().contiguous())


def test_the_hash_is_of_names_and_digests():
    assert sha256(["a", "b"], [1, -2]) == sha256(["a", "b"], [1, -2])
    assert len({sha256(["a"], [1]), sha256(["a"], [2]), sha256(["b"], [1]), sha256(["a", "b"], [1, 1])}) == 4


def test_numbers_to_start_from_are_the_same_everywhere():
    """Recorded once. Where they change, with PyTorch, every fingerprint changes: its version is part of the group."""
    numbers = whole_numbers((4, 4), 127, torch.Generator().manual_seed(1))
    assert numbers.flatten().tolist() == [-57, 52, 92, -119, 6, -69, -86, -26, 82, 65, 76, 62, -21, -104, -24, 23]
    weights = sections.Weights(sizes.CPU.checked, 1).values
    for value in weights.values():
        assert torch.equal(value, value.bfloat16().float())  # exact in every precision
    assert weights["layers.0.ffn.up.weight"].std() == pytest.approx(0.018, rel=0.05)


def test_rotary_tables_are_those_of_the_model():
    for mine, theirs in zip(rotary_tables(16, 32, 10000.0), llama.rotary_tables(16, 32, 10000.0)):
        assert torch.allclose(mine, theirs, atol=3e-6)


def test_the_flipped_bit_is_one_bit_of_one_weight():
    weights = sections.Weights(sizes.CPU.checked, 1).values["layers.0.ffn.up.weight"]
    flipped = weights.clone()
    flip_bit(flipped, sizes.FLIPPED_BIT)
    changed = (weights.view(torch.int32) ^ flipped.view(torch.int32)).flatten()
    assert changed[changed != 0].tolist() == [1 << sizes.FLIPPED_BIT]
    index = changed.argmax()
    assert float(flipped.flatten()[index] / weights.flatten()[index]) == pytest.approx(1 + 2**-11, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_agrees_with_itself_and_with_float64(precision, one_thread):
    weights = sections.Weights(sizes.CPU.checked, 1)
    reference = sections.TrainingReference(weights, 3)
    assert reference.losses[-1] < reference.losses[0] - 0.5  # it learns: the backward pass counts
    training = sections.TrainingSection(CPU, weights, precision, 3, True)
    runs = []
    for flip in (False, False, True):
        recorder = Recorder(CPU)
        training.run(recorder, flip)
        runs.append((recorder.digests(), training.errors(reference)))
        wrong = [recorder.labels[i] for i, value in recorder.known.items() if runs[-1][0][i] != value]
        assert wrong == (
            ["training fp32, before step 1, layers.0.ffn.up.weight"] if flip and precision == "fp32" else []
        )
    assert runs[0] == runs[1]
    for name, error in runs[0][1].items():
        assert error * 5 < sections.LIMITS[name]
    if precision == "fp32":
        assert runs[2][0] != runs[0][0]
        assert runs[2][1]["training_fp32_loss"] < sections.LIMITS["training_fp32_loss"]  # the loss does not show it


def test_products_are_exact_where_they_say_so(one_thread):
    assert [product.is_exact for product in sizes.CPU.products] == [False, False, True, True, True]
    products = sections.Products(CPU, sizes.CPU.products)
    recorder = Recorder(CPU)
    products.run(recorder, lambda: None)
    digests = recorder.digests()
    assert len(recorder.known) == 3
    assert all(digests[index] == value for index, value in recorder.known.items())
    errors = products.errors()
    assert set(errors) == {"matmul_fp32", "matmul_bf16", "matmul_fp64"}
    for name, error in errors.items():
        assert error * 3 < sections.LIMITS[name]


def test_products_show_a_wrong_operand(one_thread):
    products = sections.Products(CPU, sizes.CPU.products[:1])
    products._operands[0][0][7, 7] += 100
    recorder = Recorder(CPU)
    products.run(recorder, lambda: None)
    right = Recorder(CPU)
    sections.Products(CPU, sizes.CPU.products[:1]).run(right, lambda: None)
    assert recorder.digests() != right.digests()


def test_gpu_products_are_exact_and_fit_fp16():
    for product in sizes.GPU.products:
        assert product.is_exact == (product.magnitude == 15 or product.precision == "fp64"), product
        if product.precision == "fp16":
            spread = product.magnitude**2 / 3 * product.inner**0.5 * sections._SCALES["fp16"]
            assert 8 * spread < 65504


def test_decoding_agrees_with_itself(one_thread):
    decoding = sections.Decoding(CPU, sizes.CPU)
    runs = []
    for _ in range(2):
        recorder = Recorder(CPU)
        decoding.run(recorder)
        runs.append(recorder.digests())
    assert runs[0] == runs[1]
    assert len(runs[0]) == 2 * sizes.CPU.tokens


def test_the_context_fits_the_tables_of_the_model():
    for kind in ("cpu", "cuda", "hpu"):
        size = sizes.sizes_for(kind)
        assert size.context <= size.checked.sequence_length
    assert "fp64" not in {product.precision for product in sizes.sizes_for("hpu").products}


def test_the_group_names_what_the_bits_depend_on():
    group = fingerprint_group(CPU, {"MKL_CBWR": "AVX2", "HOME": "/root"})
    assert torch.__version__ in group
    assert torch.backends.cpu.get_cpu_capability() in group
    assert "MKL_CBWR=AVX2" in group
    assert "HOME" not in group


CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8480C
stepping\t: 8
flags\t\t: {}

processor\t: 1
model name\t: another
"""


def test_cpus_that_can_do_different_things_differ():
    one, same, other = (cpu_identity(CPUINFO.format(flags)) for flags in ("fpu avx2", "avx2 fpu", "fpu avx2 amx_bf16"))
    assert one.startswith("Intel(R) Xeon(R) Platinum 8480C 6/143/8 flags ")
    assert one == same != other
    assert cpu_identity("") == cpu_identity("\x00garbage")


def test_a_loaded_library_is_found_by_its_name():
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 12  /venv/nvidia/cublas/lib/libcublasLt.so.12\n"
        "7f02-7f03 r-xp 00000000 08:01 13  /venv/nvidia/cublas/lib/libcublas.so.12\n"
    )
    assert loaded_library("libcublas.so", maps) == "/venv/nvidia/cublas/lib/libcublas.so.12"
    assert loaded_library("libcublasLt.so", maps) == "/venv/nvidia/cublas/lib/libcublasLt.so.12"
    assert loaded_library("librocblas.so", maps) is None


@pytest.mark.parametrize(("text", "flip"), [("gpu:3", BitFlip(3)), ("rank:1@2", BitFlip(1, 2)), ("0", BitFlip(0))])
def test_where_a_bit_is_flipped(text, flip):
    assert parse_arguments(["--inject-bit-flip", text]).inject_bit_flip == flip


def test_a_flip_hits_one_part_in_one_repeat_or_in_all():
    assert [BitFlip(1, 2).hits(1, repeat) for repeat in (1, 2, 3)] == [False, True, False]
    assert [BitFlip(1).hits(part, 5) for part in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    "arguments", [["--inject-bit-flip", "gpu"], ["--inject-bit-flip", "gpu:1@"], ["--seconds", "0"]]
)
def test_arguments_that_make_no_sense(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(arguments)
    assert "error:" in capsys.readouterr().err
