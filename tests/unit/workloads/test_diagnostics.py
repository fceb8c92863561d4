import itertools
import json
import math
import os
import time
from types import SimpleNamespace

import pytest

from tests.kit.device_event import Event
from tests.kit.reported import assert_covered
from tests.kit.runner import until
from tests.kit.workload_process import TorchWorkload

torch = pytest.importorskip("torch")

from gpuval_workloads.common.device import CPU, TorchDevices  # noqa: E402
from gpuval_workloads.common.fio import FioDirection, FioMeasurement  # noqa: E402 - torch is asked for first
from gpuval_workloads.common.laps import REVISION, LapStatistics, median_of  # noqa: E402
from gpuval_workloads.common.ranks import Ranks  # noqa: E402
from gpuval_workloads.common.result import WorkloadCrash, WorkloadResult  # noqa: E402 - torch is asked for first
from gpuval_workloads.diagnostics import (  # noqa: E402
    collectives,
    host,
    matmul,
    measure,
    memory,
    nccl_log,
    overlap,
    p2p_off,
    run,
    transfers,
)
from gpuval_workloads.diagnostics.measure import LEAST_LAPS, Meter  # noqa: E402 - torch is asked for first

ARGUMENTS = ("--seconds", "2", "--processes", "3", "--p2p-off-seconds", "0.3")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    ended = TorchWorkload(tmp_path_factory.mktemp("diagnostics"), "gpuval_workloads.diagnostics", *ARGUMENTS).end()
    assert ended.code == 0, ended.err
    return ended


def test_every_rank_reports_every_figure(diagnosed):
    for rank in ("rank:0", "rank:1", "rank:2"):
        assert diagnosed.metric("diagnostics_matmul_fp32_tflops", rank) > 0.001
        assert 0 < diagnosed.metric("diagnostics_matmul_fp32_error_ratio", rank) < 1e-5
        assert 1e-4 < diagnosed.metric("diagnostics_matmul_bf16_error_ratio", rank) < 1e-2
        assert diagnosed.metric("diagnostics_memory_bytes_per_second", rank) > 1e8
        assert diagnosed.metric("diagnostics_memory_tested_bytes", rank) == memory.CPU_TESTED_BYTES
        assert 0 < diagnosed.metric("diagnostics_launch_seconds", rank) < 1e-3
        assert diagnosed.metric("diagnostics_overlap_ratio", rank) > 0.5
        for way, how in itertools.product(("host_to_device", "device_to_host"), ("", "_together")):
            assert diagnosed.metric(f"diagnostics_{way}{how}_bytes_per_second", rank) > 1e8
            assert diagnosed.metric(f"diagnostics_{way}{how}_spread_ratio", rank) >= 0


def test_all_that_is_reported_is_covered_by_the_criteria_and_passes(diagnosed):
    assert_covered("diagnostics", diagnosed)


def test_all_that_counts_wrong_data_is_zero(diagnosed):
    counted = {m["name"]: m["value"] for m in diagnosed.result["metrics"] if m["name"].endswith("_error_count")}
    assert counted == dict.fromkeys(
        (
            "diagnostics_memory_error_count",
            "diagnostics_memory_pattern_error_count",
            "diagnostics_transfer_error_count",
            "diagnostics_peer_error_count",
            "diagnostics_collective_error_count",
            "diagnostics_p2p_off_collective_error_count",
        ),
        0,
    )


def test_every_link_is_measured_in_both_directions(diagnosed):
    links = {
        m["scope"]: m["value"] for m in diagnosed.result["metrics"] if m["name"] == "diagnostics_peer_bytes_per_second"
    }
    assert set(links) == {f"link:rank{a}>rank{b}" for a, b in itertools.permutations(range(3), 2)}
    assert min(links.values()) > 1e7
    assert diagnosed.metric("diagnostics_links_count") == 6
    assert diagnosed.metric("diagnostics_processes_count") == 3


def test_collectives_have_latency_bandwidth_and_a_curve(diagnosed):
    series = {curve["name"]: curve for curve in diagnosed.result["series"]}
    for name in COLLECTIVES:
        seconds = series[f"diagnostics_{name}_seconds"]
        rates = series[f"diagnostics_{name}_bus_bytes_per_second"]
        assert seconds["x_unit"] == "bytes" and len(seconds["x"]) == len(collectives.CPU_SIZES)
        assert diagnosed.metric(f"diagnostics_{name}_latency_seconds") == seconds["y"][0]
        assert diagnosed.metric(f"diagnostics_{name}_bus_bytes_per_second") == rates["y"][-1]
        assert 0 <= diagnosed.metric(f"diagnostics_{name}_spread_ratio") < 1
    # nccl-tests, doc/PERFORMANCE.md: an all-reduce puts 2 (n-1)/n of its size on the bus, a gather (n-1)/n
    size, n = series["diagnostics_all_reduce_seconds"]["x"][-1], 3
    for name, factor in (("all_reduce", 2 * (n - 1) / n), ("all_gather", (n - 1) / n), ("broadcast", 1)):
        took = series[f"diagnostics_{name}_seconds"]["y"][-1]
        rate = diagnosed.metric(f"diagnostics_{name}_bus_median_bytes_per_second")
        assert rate == pytest.approx(size / took * factor, rel=1e-6)
    assert diagnosed.result["fingerprints"]["diagnostics_transport"] == "gloo"


def test_a_speed_is_of_a_later_revision_and_has_the_median_beside_it(diagnosed):
    metrics = {(one["name"], one["scope"]): one for one in diagnosed.result["metrics"]}
    speeds = [one for one in metrics.values() if one.get("revision") == REVISION]
    names = {one["name"] for one in speeds}
    assert {f"diagnostics_{name}_bytes_per_second" for name in ("memory", "peer", "both_ways", "host_memory")} <= names
    assert {"diagnostics_matmul_fp32_tflops", "diagnostics_overlap_ratio", "diagnostics_host_cpu_tflops"} <= names
    assert {f"diagnostics_{name}_bus_bytes_per_second" for name in COLLECTIVES} <= names
    assert "diagnostics_p2p_off_all_reduce_bus_bytes_per_second" in names
    for speed in speeds:
        median = metrics[median_of(speed["name"]), speed["scope"]]
        assert median["value"] > 0 and "revision" not in median
        # Half of the laps take the median's time or more.
        if speed["name"] != "diagnostics_overlap_ratio":
            assert speed["value"] <= 2.01 * median["value"]
    for what in ("lost", "busy", "hundredth"):
        assert all(0 <= one["value"] <= 1 for (name, _), one in metrics.items() if name.endswith(f"_{what}_ratio"))


def test_the_host_is_measured_as_a_whole(diagnosed):
    assert diagnosed.metric("diagnostics_host_memory_bytes_per_second") > 1e8
    assert diagnosed.metric("diagnostics_host_cpu_tflops") > 0.001
    assert diagnosed.metric("diagnostics_numa_memory_bytes_per_second") > 1e8
    assert 0.1 < diagnosed.metric("diagnostics_host_cpu_sustained_ratio") < 10
    assert diagnosed.metric("diagnostics_both_ways_bytes_per_second", "rank:1") > 1e8
    by_node = diagnosed.result["environment"]["numa_bytes_per_second"]
    assert min(by_node.values()) == pytest.approx(
        diagnosed.metric("diagnostics_numa_memory_bytes_per_second"), rel=1e-6
    )
    assert diagnosed.metric("diagnostics_disk_write_bytes_per_second") > 1e5
    assert diagnosed.metric("diagnostics_disk_read_bytes_per_second") > 1e5
    assert set(diagnosed.result["environment"]["seconds_by_part"]) == {part.name for part in run.PARTS}


def test_the_all_reduce_without_p2p_is_added_to_what_was_found_before(diagnosed):
    assert diagnosed.metric("diagnostics_p2p_off_all_reduce_bus_bytes_per_second") > 1e5
    assert diagnosed.metric("diagnostics_p2p_off_collective_error_count") == 0
    assert diagnosed.metric("diagnostics_processes_count") == 3
    assert "wrong words" in diagnosed.result["message"]
    assert "p2p_off" not in diagnosed.result["environment"]["left_out"]


def test_ranks_that_fail_without_p2p_cost_no_figure_and_leave_the_reason(monkeypatch):
    def fail(*_arguments):
        assert (os.environ["NCCL_P2P_DISABLE"], "GPUVAL_RESULT_FILE" in os.environ) == ("1", False)
        raise WorkloadCrash("rank 1 was killed")

    monkeypatch.setenv("GPUVAL_RESULT_FILE", "/tmp/result")
    monkeypatch.setattr(p2p_off, "run_ranks", fail)
    result = WorkloadResult()
    result.add_metric("diagnostics_processes_count", 2, "count")
    before = dict(os.environ)
    p2p_off.measure(result, [], CPU, 2)
    assert result.environment["left_out"] == {"p2p_off": "rank 1 was killed"}
    assert (len(result.metrics), dict(os.environ)) == (1, before)


@pytest.mark.parametrize(("devices", "over_network"), [(("uverbs0", "rdma_cm"), True), ((), False)])
def test_without_p2p_data_go_over_nics_where_there_are_any(tmp_path, devices, over_network):
    for name in devices:
        (tmp_path / name).touch()
    assert ("NCCL_SHM_DISABLE" in p2p_off.variables(tmp_path)) is over_network


def test_numa_nodes_are_those_with_processors_that_the_process_may_use(tmp_path):
    for node, cpus in (("node0", "0-2,8\n"), ("node1", "3-5\n"), ("node2", "\n"), ("node10", "6\n")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(cpus)
    assert host.numa_nodes(tmp_path, frozenset({1, 2, 3, 6, 8})) == {0: [1, 2, 8], 1: [3], 10: [6]}
    assert host.numa_nodes(tmp_path / "none", frozenset({1})) == {}


def test_a_slow_numa_node_and_threads_that_may_not_be_placed(alone, monkeypatch):
    monkeypatch.setattr(host, "numa_nodes", lambda: {0: [0], 1: [1]})
    monkeypatch.setattr(host, "triad", lambda cpus, seconds: 8e10 if cpus == [0] else 6e10)
    found = metered(host.numa_memory, alone, Clockless(alone), 0.1)
    assert {figure["name"]: figure["value"] for figure in found.figures} == {
        "diagnostics_numa_memory_bytes_per_second": 6e10, "diagnostics_numa_balance_ratio": 0.75
    }  # fmt: skip
    assert found.by_numa_node == {"0": 8e10, "1": 6e10}
    monkeypatch.setattr(host, "triad", lambda *_arguments: os.sched_setaffinity(0, [99_999]))
    assert metered(host.numa_memory, alone, Clockless(alone), 0.1).left_out["numa"]


def test_the_triad_uses_the_processors_that_it_is_given():
    threads = torch.get_num_threads()
    assert host.triad([sorted(os.sched_getaffinity(0))[0]], 0.05) > 1e8
    assert torch.get_num_threads() == threads


class Clockless(Meter):
    """Does the work three times; for arithmetic that is disturbed in this process, without peers."""

    def time(self, work, seconds, *, prepare=None, together=True):
        for _ in range(3):
            if prepare:
                prepare()
            work()
        return LapStatistics([1.0, 1.0, 1.0])


@pytest.fixture
def alone(monkeypatch):
    for name in ("barrier", "all_reduce", "broadcast"):
        monkeypatch.setattr(torch.distributed, name, lambda *_args, **_more: None)
    monkeypatch.setattr(torch.distributed, "all_gather_object", lambda items, item: items.__setitem__(0, item))
    monkeypatch.setattr(collectives, "_ALL_GATHER", lambda out, mine: out.copy_(mine))
    monkeypatch.setattr(collectives, "_REDUCE_SCATTER", lambda out, values: out.copy_(values))
    monkeypatch.setattr(torch.distributed, "all_to_all_single", lambda out, values: out.copy_(values))
    return Ranks(0, 1, CPU)


def metered(part, ranks: Ranks, meter: Meter, *arguments) -> Meter:
    part(ranks, meter, *arguments)
    return meter


def error_of(found: Meter, name: str = "diagnostics_matmul_fp32_error_ratio") -> float:
    return next(figure["value"] for figure in found.figures if figure["name"] == name)


def multiplied(ranks: Ranks, size: int = 256) -> float:
    return error_of(metered(matmul.matmul, ranks, Clockless(ranks), 0.1, size))


def test_a_wrong_element_in_a_product_is_seen(alone, monkeypatch):
    assert multiplied(alone) < 1e-5
    right = torch.matmul
    monkeypatch.setattr(matmul.torch, "matmul", lambda a, b, out: right(a, b, out=out).mul_(1.001))
    assert multiplied(alone) == pytest.approx(1e-3, rel=0.1)
    monkeypatch.setattr(matmul.torch, "matmul", lambda a, b, out: out.fill_(float("nan")))
    assert math.isnan(multiplied(alone))


@pytest.mark.parametrize("corner", [0, 192, 448])
def test_a_wrong_tile_in_a_product_is_seen(alone, monkeypatch, corner):
    right = torch.matmul

    def multiply(a, b, out):
        right(a, b, out=out)
        out[corner : corner + 64, corner : corner + 64] *= 1.01

    monkeypatch.setattr(matmul.torch, "matmul", multiply)
    assert multiplied(alone, 512) > matmul.ERROR_LIMITS["fp32"]


def test_a_matrix_that_reaches_the_device_damaged_is_seen(alone, monkeypatch):
    right = torch.Tensor.to

    def damaging(tensor, target, *rest):
        moved = right(tensor, target, *rest)
        return moved * 1.001 if isinstance(target, torch.device) and moved.is_floating_point() else moved

    monkeypatch.setattr(torch.Tensor, "to", damaging)
    assert multiplied(alone) == pytest.approx(2e-3, rel=0.1)


def test_only_the_last_product_wrong_is_seen(alone, monkeypatch):
    """A device that goes wrong when it gets warm."""
    right, calls = torch.matmul, itertools.count()

    def warming(a, b, out):
        right(a, b, out=out)
        if next(calls) == 3:
            out[0:64, 0:64] *= 1.5

    monkeypatch.setattr(matmul.torch, "matmul", warming)
    assert multiplied(alone, 512) > matmul.ERROR_LIMITS["fp32"]


@pytest.mark.parametrize("dtype", collectives.ELEMENT_TYPES)
@pytest.mark.parametrize("collective", collectives.COLLECTIVES, ids=lambda one: one.name)
def test_a_wrong_element_of_a_collective_is_counted(alone, collective, dtype):
    renew, execute, wrong = collective.set_up(alone, 4096, dtype)
    renew()
    execute()
    assert wrong() == 0
    for tensor in (cell.cell_contents for cell in execute.__closure__ or ()):
        if isinstance(tensor, torch.Tensor):
            tensor.view(torch.int32 if dtype.itemsize == 4 else torch.int16)[:3] ^= 1  # the lowest bit
    if collective.name in ("all_reduce", "broadcast"):
        assert wrong() == 3
    else:
        execute()
        assert wrong() == 3


@pytest.mark.parametrize("collective", collectives.COLLECTIVES, ids=lambda one: one.name)
def test_a_collective_that_writes_nothing_the_last_time_is_counted(monkeypatch, collective):
    ranks = Ranks(1, 2, CPU)  # rank 0 of a broadcast has nothing to receive
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_args, **_more: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_args, **_more: None)
    monkeypatch.setattr(torch.distributed, "all_to_all_single", lambda *_args: None)
    monkeypatch.setattr(collectives, "_ALL_GATHER", lambda *_args: None)
    monkeypatch.setattr(collectives, "_REDUCE_SCATTER", lambda *_args: None)
    renew, execute, wrong = collective.set_up(ranks, 4096, torch.float32)
    for tensor in (cell.cell_contents for cell in (execute.__closure__ or ())):
        if isinstance(tensor, torch.Tensor):
            for rank, part in enumerate(tensor.chunk(2)):  # a right result of an earlier run, as far as one can say
                part.copy_(collectives._carried(len(part), rank, tensor.dtype, tensor.device, slice(0, len(part))))
    renew()
    execute()
    assert wrong() >= 2000


def test_a_transfer_that_writes_nothing_the_last_time_is_counted(alone, monkeypatch):
    monkeypatch.setattr(transfers, "CPU_BYTES", 2**16)
    found = metered(transfers.transfers, alone, Clockless(alone), 0.1)
    assert error_of(found, "diagnostics_transfer_error_count") == 0
    right, calls = torch.Tensor.copy_, itertools.count()

    def ceasing(target, source, *rest, **more):
        return target if next(calls) >= 18 else right(target, source, *rest, **more)  # 6 times 3 are timed

    monkeypatch.setattr(torch.Tensor, "copy_", ceasing)
    found = metered(transfers.transfers, alone, Clockless(alone), 0.1)
    assert error_of(found, "diagnostics_transfer_error_count") == 2**14
    assert next(calls) == 20


def test_an_unsteady_transfer_is_reported_as_it_was(alone, monkeypatch):
    monkeypatch.setattr(transfers, "CPU_BYTES", 2**16)
    laps = iter([[1.0, 2.0, 5.0], *[[1.0, 1.0]] * 4])
    monkeypatch.setattr(Clockless, "time", lambda _self, _work, _seconds, **_more: LapStatistics(next(laps)))
    found = metered(transfers.transfers, alone, Clockless(alone), 0.1)
    figures = {figure["name"]: figure["value"] for figure in found.figures}
    assert figures["diagnostics_host_to_device_bytes_per_second"] == 2**16 / (8 / 3)
    assert figures["diagnostics_host_to_device_median_bytes_per_second"] == 2**16 / 2
    assert next(laps, None) is None


def test_a_copy_that_writes_nothing_the_last_time_is_counted(alone, monkeypatch):
    right, calls = torch.Tensor.copy_, itertools.count()

    def ceasing(target, source, *rest, **more):
        return target if next(calls) >= 3 else right(target, source, *rest, **more)

    monkeypatch.setattr(torch.Tensor, "copy_", ceasing)
    assert error_of(metered(memory.copy, alone, Clockless(alone), 0.1, 4096), "diagnostics_memory_error_count") == 1024


def test_one_wrong_element_in_a_product_is_seen(alone, monkeypatch):
    """The norm of its row hides it: 9 % of one of 512 elements is 0.4 % of bf16's row, below the limit of 1 %."""
    right = torch.matmul
    row = matmul.ROWS_PER_SAMPLE

    def multiply(a, b, out):
        right(a, b, out=out)
        out[: 2 * row, 5] += 2.0 if out.dtype == torch.bfloat16 else 0.014  # of about 23

    found = metered(matmul.matmul, alone, Clockless(alone), 0.1, 512)
    healthy = {name: error_of(found, f"diagnostics_matmul_{name}_error_ratio") for name in ("fp32", "bf16")}
    assert healthy["fp32"] < 0.01 * matmul.ERROR_LIMITS["fp32"]
    assert healthy["bf16"] < 0.2 * matmul.ERROR_LIMITS["bf16"]
    monkeypatch.setattr(matmul.torch, "matmul", multiply)
    found = metered(matmul.matmul, alone, Clockless(alone), 0.1, 512)
    for name in ("fp32", "bf16"):
        error = error_of(found, f"diagnostics_matmul_{name}_error_ratio")
        assert error > matmul.ERROR_LIMITS[name]


def test_elements_rounded_to_the_format_stay_clearly_below_the_limit():
    """Rounded to 8 and 11 bits an element is off by 2^-9 and 2^-12 at most; by tf32 by 5 sigma of 3.1e-4 at worst."""
    reference = torch.randn(16, 8192, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 90
    usual = (reference.norm(dim=1) / 8192**0.5).unsqueeze(1)
    for name, dtype in (("bf16", torch.bfloat16), ("fp8", torch.bfloat16), ("fp16", torch.float16)):
        error = matmul.error_ratio(reference.to(dtype).double(), reference)
        rows = (reference.to(dtype).double() - reference).norm(dim=1) / reference.norm(dim=1)
        assert error == float(rows.max()) < 0.2 * matmul.ERROR_LIMITS[name]  # what the norm says: floors stay
    off = reference.clone()
    off[3, 4] += 5 * 3.1e-4 * float(usual[3])
    assert matmul.error_ratio(off, reference) < 0.2 * matmul.ERROR_LIMITS["tf32"]
    off[3, 4] = float("nan")
    assert matmul.error_ratio(off, reference) != matmul.error_ratio(off, reference)  # NaN


def test_products_that_are_no_longer_written_are_seen(alone, monkeypatch):
    right, calls = torch.matmul, itertools.count()
    monkeypatch.setattr(matmul.torch, "matmul", lambda a, b, out: right(a, b, out=out) if next(calls) == 0 else out)
    assert multiplied(alone) == pytest.approx(1.0)


FP8 = matmul.Precision("fp8", torch.float8_e4m3fn)


@pytest.mark.parametrize("wrap", [lambda out: out, lambda out: (out, out.abs().max())])
def test_the_fp8_product_of_old_and_new_pytorch(alone, monkeypatch, wrap):
    def scaled(a, b, *, scale_a, scale_b, out_dtype, use_fast_accum):
        return wrap((a.float() @ b.float()).to(out_dtype))

    monkeypatch.setattr(matmul.torch, "_scaled_mm", scaled)
    monkeypatch.setattr(matmul, "precisions", lambda _: ([matmul.FP32, FP8], {}))
    found = metered(matmul.matmul, alone, Clockless(alone), 0.1, 256)
    assert 1e-3 < error_of(found, "diagnostics_matmul_fp8_error_ratio") < 2e-3
    assert not found.left_out


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError("'addmm_impl' not implemented for 'Float8_e4m3fn'"),
        TypeError("_scaled_mm() got an unexpected keyword argument 'out_dtype'\nmore"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic`"),
    ],
)
def test_a_precision_that_this_pytorch_lacks_is_left_out(alone, monkeypatch, error):
    def refuse(*_args, **_more):
        raise error

    monkeypatch.setattr(matmul.torch, "_scaled_mm", refuse)
    monkeypatch.setattr(matmul, "precisions", lambda _: ([matmul.FP32, FP8, matmul.BF16], {}))
    found = metered(matmul.matmul, alone, Clockless(alone), 0.1, 256)
    assert set(found.left_out) == {"fp8"}
    assert found.left_out["fp8"].startswith(f"not supported by this PyTorch: {type(error).__name__}: ")
    assert "\n" not in found.left_out["fp8"]
    names = {figure["name"] for figure in found.figures}
    assert "diagnostics_matmul_bf16_tflops" in names
    assert "diagnostics_matmul_fp8_tflops" not in names


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), 1),
        (RuntimeError("HIP error: unspecified launch failure"), 1),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), 1),
        (torch.OutOfMemoryError("Tried to allocate 1 GiB"), 1),
        (NotImplementedError("not implemented"), 0),
    ],
)
def test_a_device_that_fails_or_a_first_product_that_is_missing_is_no_omission(alone, monkeypatch, error, place):
    def refuse(*_args, **_more):
        raise error

    chosen = [matmul.FP32]
    chosen.insert(place, FP8)
    monkeypatch.setattr(matmul.torch, "_scaled_mm", refuse)
    monkeypatch.setattr(matmul, "precisions", lambda _: (chosen, {}))
    with pytest.raises(type(error)):
        metered(matmul.matmul, alone, Clockless(alone), 0.1, 256)


def test_sums_of_all_ranks_are_exact_in_every_type():
    for dtype in collectives.ELEMENT_TYPES:
        for world in (2, 8, 130, 300):
            ranks = Ranks(0, world, CPU)
            total = torch.zeros(1000, dtype=dtype)
            for rank in range(world):
                total += collectives._addends(1000, dtype, torch.device("cpu"), world, rank, slice(0, 1000))
            assert torch.equal(total, collectives._sums(1000, dtype, ranks, slice(0, 1000))), (dtype, world)


def test_a_bit_that_memory_loses_is_counted(alone, monkeypatch):
    found = metered(memory.pattern, alone, Meter(alone), 0.01)
    assert error_of(found, "diagnostics_memory_pattern_error_count") == 0
    assert error_of(found, "diagnostics_memory_tested_bytes") == memory.CPU_TESTED_BYTES
    write = memory._write

    def losing(chunk, seed, flip):
        write(chunk, seed, flip)
        chunk[12345] |= 1 << 40  # stuck at one

    monkeypatch.setattr(memory, "_write", losing)
    chunks = memory.CPU_TESTED_BYTES // memory.CPU_CHUNK_BYTES
    found = metered(memory.pattern, alone, Meter(alone), 0.0)
    assert error_of(found, "diagnostics_memory_pattern_error_count") == chunks  # once in pattern or complement


def test_gaudi_has_words_of_32_bits():
    assert memory._word(Ranks(0, 8, TorchDevices("hpu", 8, "hccl"))) is torch.int32
    assert memory._word(Ranks(0, 8, TorchDevices("cuda", 8, "nccl"))) is memory._word(Ranks(0, 1, CPU)) is torch.int64
    chunk = torch.empty(1 << 16, dtype=torch.int32)
    for flip in (0, -1):
        memory._write(chunk, 3, flip)
        assert memory._wrong(chunk, 3, flip) == 0
        assert len(chunk.unique()) == len(chunk)
        chunk[77] ^= 1 << 30
        assert memory._wrong(chunk, 3, flip) == 1
        assert memory._wrong(chunk, 4, flip) == len(chunk)


@pytest.mark.parametrize("has_call", [True, False])
def test_a_cache_is_emptied_where_pytorch_can(monkeypatch, has_call):
    called = []
    module = SimpleNamespace(**({"empty_cache": lambda: called.append(1)} if has_call else {}))
    monkeypatch.setattr(torch, "hpu", module, raising=False)
    Ranks(0, 8, TorchDevices("hpu", 8, "hccl")).empty_cache()
    Ranks(0, 1, CPU).empty_cache()
    assert called == [1] * has_call


class Counting:
    """Stands where the heartbeat does."""

    ticks = 0

    def __init__(self):
        self.followed = []

    def tick(self):
        self.ticks += 1

    def follow(self, events, _select):
        self.followed.append(events)


def test_ranks_with_less_memory_free_count_as_much(alone, monkeypatch):
    counts = []
    for most in (2, 5):
        progress = Counting()
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, most=most, **_more: tensor.fill_(most))
        memory.pattern(waiting := Ranks(0, 1, CPU, progress), Meter(waiting), 0.0)
        counts.append(progress.ticks)
    assert counts == [2 * 2 + 2, 2 * 5 + 2]  # pattern and complement, and two agreements; 2 chunks here


def test_an_address_line_that_is_broken_is_counted(alone, monkeypatch):
    """Two addresses that are one: the later write wins, the earlier place holds the wrong word."""
    write = memory._write

    def folding(chunk, seed, flip):
        write(chunk, seed, flip)
        chunk[: 1 << 10] = chunk[1 << 10 : 1 << 11].clone()

    monkeypatch.setattr(memory, "_write", folding)
    found = metered(memory.pattern, alone, Meter(alone), 0.0)
    assert error_of(found, "diagnostics_memory_pattern_error_count") > 1 << 10


def test_a_copy_that_differs_is_counted(alone, monkeypatch):
    right = torch.Tensor.copy_

    def copying(target, source, *rest, **more):
        right(target, source, *rest, **more)
        target.view(-1)[7] ^= 4
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", copying)
    assert error_of(metered(memory.copy, alone, Clockless(alone), 0.1, 4096), "diagnostics_memory_error_count") == 1


def test_work_is_repeated_for_the_whole_time_whatever_is_known_before(alone):
    for work, least in ((lambda: time.sleep(0.01), 8), (lambda: None, 300)):
        begun = time.perf_counter()
        laps = Meter(alone).time(work, 0.5, together=False)
        assert 0.5 <= laps.wall_seconds <= time.perf_counter() - begun
        assert laps.count >= least and laps.seconds <= laps.wall_seconds


def test_the_time_of_what_runs_before_each_repeat_bounds_their_number(alone):
    """An all-reduce of one rank takes no time: 20,000 refills of its buffer took 14 s on an H100."""
    laps = Meter(alone).time(lambda: None, 0.2, prepare=lambda: time.sleep(0.02), together=False)
    assert laps.count <= 0.2 / 0.02 + LEAST_LAPS


def test_a_block_counts_when_the_device_has_done_it_and_gives_its_events_meanwhile(monkeypatch):
    progress = Counting()
    ticks_at_synchronisation = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: ticks_at_synchronisation.append(progress.ticks))
    meter = Meter(Ranks(0, 2, TorchDevices("cuda", 2, "nccl"), progress))
    assert meter._block(lambda: None, None, 3, True) == [1.0] * 3
    assert (ticks_at_synchronisation, progress.ticks) == ([0], 1)
    assert [len(events) for events in progress.followed] == [6]
    numbers = [event.at for event in progress.followed[0]]
    assert numbers == sorted(numbers)
    meter._block(lambda: None, None, 3, False)  # the others wait: they would count less
    assert (progress.ticks, len(progress.followed)) == (1, 1)


def test_slow_work_is_repeated_one_by_one_and_less_often(alone, monkeypatch):
    monkeypatch.setattr(measure, "REPORT_SECONDS", 0.1)
    reports = []
    laps = Meter(alone, lambda: reports.append(1)).time(lambda: time.sleep(0.05), 0.01, together=False)
    assert laps.count == measure.LEAST_SLOW_LAPS
    assert len(reports) == 2 + laps.count


def test_what_goes_on_for_long_is_reported_by_the_first_rank(alone, monkeypatch, capsys):
    monkeypatch.setattr(measure, "REPORT_SECONDS", 0.05)
    for rank, least in ((0, 3), (1, 0)):
        reporter = measure.ProgressReporter(Ranks(rank, 2, CPU))
        reporter.begin("a part", 7.0)
        Meter(alone, reporter.report).time(lambda: time.sleep(0.01), 1.5, together=False)
        lines = capsys.readouterr().out.splitlines()
        assert least <= len(lines) <= 32
    reporter = measure.ProgressReporter(alone)
    for work in (
        lambda: memory.pattern(alone, Meter(alone, reporter.report), 0.4),
        lambda: host.memory_and_cores(alone, Meter(alone, reporter.report), 0.4),
        lambda: overlap.launch_latency(alone, Meter(alone, reporter.report), 0.4),
    ):
        reporter.begin("another", 0.4)
        work()
        first, *more = capsys.readouterr().out.splitlines()
        assert first == "another on 1 x cpu"
        assert more
        assert all(line.startswith("another: ") and line.endswith(" s of about 0 s") for line in more)


def test_beside_work_with_a_deadline_it_is_reported_no_longer_than_that(monkeypatch):
    monkeypatch.setattr(measure, "REPORT_SECONDS", 0.02)
    reports = []
    with measure.keep_reporting(lambda: reports.append(1), 0.5):
        time.sleep(1)
        count = len(reports)
        time.sleep(0.2)
    assert 2 <= count <= 26
    assert len(reports) == count


@pytest.mark.parametrize("is_there", [True, False])
def test_a_slow_disk_is_reported(alone, monkeypatch, tmp_path, is_there):
    reports = []

    def measured(directory, seconds, size):
        until(lambda: len(reports) >= 5)
        return FioMeasurement(FioDirection(1, 1e9, 1.0), FioDirection(1, 2e9, 1.0)) if is_there else None

    monkeypatch.setattr(measure, "REPORT_SECONDS", 0.02)
    monkeypatch.setattr(host.fio, "run", measured)
    monkeypatch.setattr(host, "DISK_BYTES", 2**24)
    monkeypatch.setenv("GPUVAL_WORK_DIR", str(tmp_path))
    found = metered(host.disk, alone, Meter(alone, lambda: reports.append(1)), 60.0)
    assert len(found.figures) == 2
    assert len(reports) >= 5


def test_the_result_is_written_after_each_part(alone, monkeypatch, tmp_path):
    seen = []

    def part(number):
        def go(ranks, meter, seconds):
            meter.add(f"diagnostics_part{number}_count", number, "count")
            seen.append(json.loads(path.read_text()) if path.exists() else None)

        return run.DiagnosticsPart(f"part {number}", 0.5, go)

    path = tmp_path / "result.json"
    monkeypatch.setenv("GPUVAL_RESULT_FILE", str(path))
    run.run_parts(alone, WorkloadResult(), 1.0, (part(1), part(2)))
    assert seen[0] is None
    assert seen[1]["state"] == "running"
    assert "diagnostics_part1_count" in {metric["name"] for metric in seen[1]["metrics"]}
    assert set(seen[1]["environment"]["seconds_by_part"]) == {"part 1"}
    last = json.loads(path.read_text())
    assert {"diagnostics_part1_count", "diagnostics_part2_count"} <= {metric["name"] for metric in last["metrics"]}


def test_spread_is_robust():
    assert LapStatistics([1.0] * 9 + [100.0]).summary().spread_ratio == 0
    assert LapStatistics([0.99, 1.0, 1.01]).summary().spread_ratio == pytest.approx(0.014826)


@pytest.mark.parametrize("count", range(2, 12))
def test_every_pair_meets_once_and_rounds_are_disjoint(count):
    made = transfers.rounds(count)
    assert sorted(pair for pairs in made for pair in pairs) == list(itertools.combinations(range(count), 2))
    for pairs in made:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))
    assert len(made) == (count - 1 if count % 2 == 0 else count)


def test_a_part_and_a_link_behind_the_others_are_named():
    result = WorkloadResult()
    meters = [Meter(Ranks(rank, 4, TorchDevices("cuda", 4, "nccl"))) for rank in range(4)]
    for meter, value in zip(meters, (700, 702, 560, 701)):
        meter.add("diagnostics_matmul_bf16_tflops", value, "TFLOP/s")
    for source, rate in ((0, 3.5e11), (2, 3.5e11), (3, 1.7e11)):
        meters[1].add("diagnostics_peer_bytes_per_second", rate, "bytes/s", f"link:gpu{source}>gpu1")
    meters[0].add("diagnostics_host_cpu_tflops", 2.0, "TFLOP/s", "node")
    meters[1].add("diagnostics_host_cpu_tflops", 1.0, "TFLOP/s", "node")
    run.put_together(Ranks(0, 4, TorchDevices("cuda", 4, "nccl")), result, [meter.figures for meter in meters])
    assert run.behind(result) == [
        "link:gpu3>gpu1 diagnostics_peer_bytes_per_second -51%",
        "gpu:2 diagnostics_matmul_bf16_tflops -20%",
    ]
    assert result.metric("diagnostics_host_cpu_tflops") == 3.0
    assert result.metric("diagnostics_links_count") == 3


def test_launches_are_timed_one_by_one(alone):
    found = metered(overlap.launch_latency, alone, Meter(alone), 0.05)
    assert 1e-8 < error_of(found, "diagnostics_launch_seconds") < 1e-3


# As NCCL 2.28.9 printed them on two H200 (fields of no interest are cut).
NCCL = """\
vm:758:758 [1] NCCL INFO NCCL version 2.28.9+cuda13.0
vm:758:758 [1] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
vm:758:770 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via {way}
vm:757:771 [0] NCCL INFO Channel 23/0 : 0[0] -> 1[1] via {way}
"""


@pytest.mark.parametrize(
    ("way", "transport"), [("P2P/CUMEM", "P2P"), ("P2P/direct pointer", "P2P"), ("SHM/direct/direct", "SHM")]
)
def test_the_way_between_gpus_is_read_from_the_log(way, transport):
    assert nccl_log.fingerprints(NCCL.format(way=way)) == {
        "diagnostics_transport": transport,
        "diagnostics_nvls": "off",
    }
    assert nccl_log.version(NCCL) == "2.28.9+cuda13.0"


def test_several_ways_and_multicast_are_reported():
    # NCCL 2.28 src/transport/net.cc and nvls.cc
    more = (
        "h:1:2 [0] NCCL INFO Channel 01/0 : 3[3] -> 0[0] [send] via NET/Socket/0\n"
        "h:1:2 [0] NCCL INFO NVLS comm 0x55 headRank 0\n"
    )
    found = nccl_log.fingerprints(NCCL.format(way="P2P/CUMEM") + more)
    assert found == {"diagnostics_transport": "NET+P2P", "diagnostics_nvls": "on"}
    assert nccl_log.transports(more.splitlines()) == {"NET": {(3, 0)}}
    assert nccl_log.fingerprints("nothing of the kind") == {}


def test_the_log_is_asked_for_whatever_the_site_says_of_it(tmp_path):
    environ = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "COLL", "NCCL_DEBUG_FILE": "/elsewhere"}
    assert nccl_log.read(environ) == ""
    nccl_log.ask(environ, tmp_path)
    (tmp_path / "nccl.host.1.log").write_text(NCCL.format(way="P2P/CUMEM"))
    assert nccl_log.fingerprints(nccl_log.read(environ))["diagnostics_transport"] == "P2P"
