import itertools
import time

import pytest
from workload_process import Workload

torch = pytest.importorskip("torch")

from gpuval_workloads.common.device import CPU, Accelerator  # noqa: E402
from gpuval_workloads.common.ranks import Ranks  # noqa: E402
from gpuval_workloads.common.result import Result  # noqa: E402
from gpuval_workloads.diagnostics import collectives, matmul, measure, memory, nccl_log, overlap, peers, run  # noqa: E402
from gpuval_workloads.diagnostics.figures import Figure, Findings, Timing  # noqa: E402
from gpuval_workloads.diagnostics.measure import Meter  # noqa: E402

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    ended = Workload(
        tmp_path_factory.mktemp("diagnostics"), "gpuval_workloads.diagnostics", "--seconds", "2", "--processes", "3"
    ).end()
    assert ended.code == 0, ended.err
    return ended


@pytest.mark.slow
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


@pytest.mark.slow
def test_all_that_counts_wrong_data_is_zero(diagnosed):
    counted = {m["name"]: m["value"] for m in diagnosed.result["metrics"] if m["name"].endswith("_error_count")}
    assert counted == dict.fromkeys(
        (
            "diagnostics_memory_error_count",
            "diagnostics_memory_pattern_error_count",
            "diagnostics_transfer_error_count",
            "diagnostics_peer_error_count",
            "diagnostics_collective_error_count",
        ),
        0,
    )


@pytest.mark.slow
def test_every_link_is_measured_in_both_directions(diagnosed):
    links = {
        m["scope"]: m["value"] for m in diagnosed.result["metrics"] if m["name"] == "diagnostics_peer_bytes_per_second"
    }
    assert set(links) == {f"link:rank{a}>rank{b}" for a, b in itertools.permutations(range(3), 2)}
    assert min(links.values()) > 1e7
    assert diagnosed.metric("diagnostics_links_count") == 6
    assert diagnosed.metric("diagnostics_processes_count") == 3


@pytest.mark.slow
def test_collectives_have_latency_bandwidth_and_a_curve(diagnosed):
    series = {curve["name"]: curve for curve in diagnosed.result["series"]}
    for name in COLLECTIVES:
        seconds = series[f"diagnostics_{name}_seconds"]
        rates = series[f"diagnostics_{name}_bus_bytes_per_second"]
        assert seconds["x_unit"] == "bytes" and len(seconds["x"]) == len(collectives.CPU_SIZES)
        assert diagnosed.metric(f"diagnostics_{name}_latency_seconds") == seconds["y"][0]
        assert diagnosed.metric(f"diagnostics_{name}_bus_bytes_per_second") == rates["y"][-1]
    # nccl-tests, doc/PERFORMANCE.md: an all-reduce puts 2 (n-1)/n of its size on the bus, a gather (n-1)/n
    size, n = series["diagnostics_all_reduce_seconds"]["x"][-1], 3
    for name, factor in (("all_reduce", 2 * (n - 1) / n), ("all_gather", (n - 1) / n), ("broadcast", 1)):
        took = series[f"diagnostics_{name}_seconds"]["y"][-1]
        rate = diagnosed.metric(f"diagnostics_{name}_bus_bytes_per_second")
        assert rate == pytest.approx(size / took * factor, rel=1e-6)
    assert diagnosed.result["fingerprints"]["diagnostics_transport"] == "gloo"


@pytest.mark.slow
def test_the_host_is_measured_as_a_whole(diagnosed):
    assert diagnosed.metric("diagnostics_host_memory_bytes_per_second") > 1e8
    assert diagnosed.metric("diagnostics_host_cpu_tflops") > 0.001
    assert diagnosed.metric("diagnostics_disk_write_bytes_per_second") > 1e5
    assert diagnosed.metric("diagnostics_disk_read_bytes_per_second") > 1e5
    assert set(diagnosed.result["environment"]["seconds_by_part"]) == {part.name for part in run.PARTS}


class Clockless(Meter):
    """Does the work three times; for arithmetic that is disturbed in this process, without peers."""

    def time(self, work, seconds, *, prepare=None, together=True, sustain=False):
        for _ in range(3):
            if prepare:
                prepare()
            work()
        return Timing([1.0, 1.0, 1.0])


@pytest.fixture
def alone(monkeypatch):
    for name in ("barrier", "all_reduce", "broadcast"):
        monkeypatch.setattr(torch.distributed, name, lambda *_args, **_more: None)
    monkeypatch.setattr(collectives, "_ALL_GATHER", lambda out, mine: out.copy_(mine))
    monkeypatch.setattr(collectives, "_REDUCE_SCATTER", lambda out, values: out.copy_(values))
    monkeypatch.setattr(torch.distributed, "all_to_all_single", lambda out, values: out.copy_(values))
    return Ranks(0, 1, CPU)


def error_of(found: Findings, name: str = "diagnostics_matmul_fp32_error_ratio") -> float:
    return next(figure.value for figure in found.figures if figure.name == name)


def multiplied(ranks: Ranks, size: int = 256) -> float:
    return error_of(matmul.matmul(ranks, Clockless(ranks), 0.1, size))


def test_a_wrong_element_in_a_product_is_seen(alone, monkeypatch):
    assert multiplied(alone) < 1e-5
    right = torch.matmul
    monkeypatch.setattr(matmul.torch, "matmul", lambda a, b, out: right(a, b, out=out).mul_(1.001))
    assert multiplied(alone) == pytest.approx(1e-3, rel=0.1)
    monkeypatch.setattr(matmul.torch, "matmul", lambda a, b, out: out.fill_(float("nan")))
    error = multiplied(alone)
    assert error != error  # noqa: PLR0124 - NaN


@pytest.mark.parametrize("corner", [0, 448, 960])
def test_a_wrong_tile_in_a_product_is_seen(alone, monkeypatch, corner):
    right = torch.matmul

    def multiply(a, b, out):
        right(a, b, out=out)
        out[corner : corner + 64, corner : corner + 64] *= 1.01

    monkeypatch.setattr(matmul.torch, "matmul", multiply)
    assert multiplied(alone, 1024) > matmul.ERROR_LIMITS["fp32"]


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
    assert multiplied(alone, 1024) > matmul.ERROR_LIMITS["fp32"]


@pytest.mark.parametrize("dtype", collectives.ELEMENT_TYPES)
@pytest.mark.parametrize("collective", collectives.COLLECTIVES, ids=lambda one: one.name)
def test_a_wrong_element_of_a_collective_is_counted(alone, collective, dtype):
    refill, execute, wrong = collective.set_up(alone, 4096, dtype)
    if refill:
        refill()
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


def test_sums_of_all_ranks_are_exact_in_every_type():
    for dtype in collectives.ELEMENT_TYPES:
        for world in (2, 8, 16):
            ranks = Ranks(0, world, CPU)
            total = torch.zeros(1000, dtype=dtype)
            for rank in range(world):
                total += collectives._addends(1000, dtype, torch.device("cpu"), rank, slice(0, 1000))
            assert torch.equal(total, collectives._sums(1000, dtype, ranks, slice(0, 1000))), (dtype, world)


def test_a_bit_that_memory_loses_is_counted(alone, monkeypatch):
    found = memory.pattern(alone, 0.01)
    assert error_of(found, "diagnostics_memory_pattern_error_count") == 0
    assert error_of(found, "diagnostics_memory_tested_bytes") == memory.CPU_TESTED_BYTES
    write = memory._write

    def losing(chunk, seed, flip):
        write(chunk, seed, flip)
        chunk[12345] |= 1 << 40  # stuck at one

    monkeypatch.setattr(memory, "_write", losing)
    chunks = memory.CPU_TESTED_BYTES // memory.CPU_CHUNK_BYTES
    found = memory.pattern(alone, 0.0)
    assert error_of(found, "diagnostics_memory_pattern_error_count") == chunks  # once in pattern or complement


def test_an_address_line_that_is_broken_is_counted(alone, monkeypatch):
    """Two addresses that are one: the later write wins, the earlier place holds the wrong word."""
    write = memory._write

    def folding(chunk, seed, flip):
        write(chunk, seed, flip)
        chunk[: 1 << 10] = chunk[1 << 10 : 1 << 11].clone()

    monkeypatch.setattr(memory, "_write", folding)
    assert error_of(memory.pattern(alone, 0.0), "diagnostics_memory_pattern_error_count") > 1 << 10


def test_a_copy_that_differs_is_counted(alone, monkeypatch):
    right = torch.Tensor.copy_

    def copying(target, source, *rest, **more):
        right(target, source, *rest, **more)
        target.view(-1)[7] ^= 4
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", copying)
    assert error_of(memory.copy(alone, Clockless(alone), 0.1, 4096), "diagnostics_memory_error_count") == 1


def test_repeats_go_on_until_the_median_is_known(alone, monkeypatch):
    meter = Meter(alone)
    monkeypatch.setattr(measure, "KNOWN", 1.0)
    begun = time.perf_counter()
    timing = meter.time(lambda: time.sleep(0.001), 5, together=False)
    assert time.perf_counter() - begun < 2 and len(timing.laps) >= measure.LEAST_LAPS
    monkeypatch.setattr(measure, "KNOWN", 0.0)
    begun = time.perf_counter()
    timing = meter.time(lambda: time.sleep(0.01), 0.5, together=False)
    assert 0.5 <= time.perf_counter() - begun < 3
    assert timing.seconds == pytest.approx(0.01, rel=0.5)
    begun = time.perf_counter()
    monkeypatch.setattr(measure, "KNOWN", 1.0)
    meter.time(lambda: time.sleep(0.01), 0.5, together=False, sustain=True)
    assert time.perf_counter() - begun >= 0.5


def test_spread_is_robust():
    assert Timing([1.0] * 9 + [100.0]).spread_ratio == 0
    assert Timing([0.99, 1.0, 1.01]).spread_ratio == pytest.approx(0.014826)
    assert Timing([0.9, 1.0, 1.1] * 100).error_ratio < Timing([0.9, 1.0, 1.1]).error_ratio


@pytest.mark.parametrize("count", range(2, 12))
def test_every_pair_meets_once_and_rounds_are_disjoint(count):
    made = peers.rounds(count)
    assert sorted(pair for pairs in made for pair in pairs) == list(itertools.combinations(range(count), 2))
    for pairs in made:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))
    assert len(made) == (count - 1 if count % 2 == 0 else count)


def test_a_part_and_a_link_behind_the_others_are_named():
    ranks, result = Ranks(0, 4, Accelerator("cuda", 4, "nccl")), Result()
    everyone = [[Figure("diagnostics_matmul_bf16_tflops", value, "TFLOP/s")] for value in (700, 702, 560, 701)]
    everyone[1] += [
        Figure("diagnostics_peer_bytes_per_second", rate, "bytes/s", f"link:gpu{source}>gpu1")
        for source, rate in ((0, 3.5e11), (2, 3.5e11), (3, 1.7e11))
    ]
    everyone[0].append(Figure("diagnostics_host_cpu_tflops", 2.0, "TFLOP/s", "node"))
    everyone[1].append(Figure("diagnostics_host_cpu_tflops", 1.0, "TFLOP/s", "node"))
    run.put_together(ranks, result, everyone)
    assert run.behind(result) == [
        "link:gpu3>gpu1 diagnostics_peer_bytes_per_second -51%",
        "gpu:2 diagnostics_matmul_bf16_tflops -20%",
    ]
    assert result.metric("diagnostics_host_cpu_tflops") == 3.0
    assert result.metric("diagnostics_links_count") == 3


def test_launches_are_timed_one_by_one(alone):
    found = overlap.launch_latency(alone, 0.05)
    assert 1e-8 < error_of(found, "diagnostics_launch_seconds") < 1e-3


# As NCCL 2.28.9 printed them on two H200 (fields of no interest are cut).
NCCL = """\
vm:758:758 [1] NCCL INFO NCCL version 2.28.9+cuda13.0
vm:758:758 [1] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
vm:758:770 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via {way}
vm:757:771 [0] NCCL INFO Channel 23/0 : 0[0] -> 1[1] via {way}
"""


@pytest.mark.parametrize(
    ("way", "told"), [("P2P/CUMEM", "P2P"), ("P2P/direct pointer", "P2P"), ("SHM/direct/direct", "SHM")]
)
def test_the_way_between_gpus_is_read_from_the_log(way, told):
    assert nccl_log.fingerprints(NCCL.format(way=way)) == {
        "diagnostics_transport": told,
        "diagnostics_nvls": "off",
    }
    assert nccl_log.version(NCCL) == "2.28.9+cuda13.0"


def test_several_ways_and_multicast_are_told():
    # NCCL 2.28 src/transport/net.cc and nvls.cc
    more = (
        "h:1:2 [0] NCCL INFO Channel 01/0 : 3[3] -> 0[0] [send] via NET/Socket/0\n"
        "h:1:2 [0] NCCL INFO NVLS comm 0x55 headRank 0\n"
    )
    told = nccl_log.fingerprints(NCCL.format(way="P2P/CUMEM") + more)
    assert told == {"diagnostics_transport": "NET+P2P", "diagnostics_nvls": "on"}
    assert nccl_log.transports(more.splitlines()) == {"NET": {(3, 0)}}
    assert nccl_log.fingerprints("nothing of the kind") == {}


def test_a_log_that_others_asked_for_is_left_alone(tmp_path):
    environ = {"NCCL_DEBUG": "WARN"}
    nccl_log.ask(environ, tmp_path)
    assert environ == {"NCCL_DEBUG": "WARN"}
    assert nccl_log.read(environ) == ""
    environ = {}
    nccl_log.ask(environ, tmp_path)
    (tmp_path / "nccl.host.1.log").write_text(NCCL.format(way="P2P/CUMEM"))
    assert nccl_log.fingerprints(nccl_log.read(environ))["diagnostics_transport"] == "P2P"
