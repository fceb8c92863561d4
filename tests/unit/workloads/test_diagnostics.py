import json

import pytest
from workload_process import COLLECTION, Workload

jsonschema = pytest.importorskip("jsonschema")
yaml = pytest.importorskip("yaml")
torch = pytest.importorskip("torch")

from gpuval_workloads.common.device import CPU  # noqa: E402
from gpuval_workloads.common.ranks import Ranks  # noqa: E402
from gpuval_workloads.diagnostics import checks  # noqa: E402

JUDGED_METRICS = {
    "training": {
        "loss_first",
        "loss_last",
        "nonfinite_count",
        "processes_count",
        "model_tflops",
        "peak_memory_bytes",
        "gradient_mismatch_count",
    },
    "diagnostics": {
        "processes_count",
        "matmul_error_ratio",
        "memory_error_count",
        "collective_error_count",
        "matmul_tflops",
        "memory_bytes_per_second",
    },
}


@pytest.mark.parametrize("stage", ["training", "diagnostics"])
def test_criteria_follow_their_schema(stage):
    schema = json.loads((COLLECTION / "schemas" / "criteria.schema.json").read_text())
    criteria = yaml.safe_load((COLLECTION / "roles" / stage / "files" / "criteria.yml").read_text())
    jsonschema.Draft202012Validator(schema).validate(criteria)
    names = [check["name"] for check in criteria["checks"]]
    assert len(names) == len(set(names))
    assert {check["stage"] for check in criteria["checks"]} == {stage}
    used = {check[key] for check in criteria["checks"] for key in ("metric", "baseline_metric") if key in check}
    assert used == {f"{stage}_{name}" for name in JUDGED_METRICS[stage]}


@pytest.mark.slow
def test_diagnostics_of_two_processes(tmp_path):
    ended = Workload(tmp_path, "gpuval_workloads.diagnostics", "--seconds", "1", "--processes", "2").end()
    assert ended.code == 0, ended.err
    for rank in ("rank:0", "rank:1"):
        assert ended.metric("diagnostics_matmul_tflops", rank) > 0.001
        assert 0 < ended.metric("diagnostics_matmul_error_ratio", rank) < 1e-5
        assert ended.metric("diagnostics_memory_bytes_per_second", rank) > 1e8
        assert ended.metric("diagnostics_memory_error_count", rank) == 0
    assert ended.metric("diagnostics_processes_count") == 2
    assert ended.metric("diagnostics_collective_error_count") == 0
    assert 0 < ended.metric("diagnostics_all_reduce_seconds") < 1


@pytest.fixture
def alone(monkeypatch):
    """A rank without peers, so that the checks' arithmetic can be disturbed in this process."""
    monkeypatch.setattr(checks, "_repeat", lambda _ranks, _seconds, work: [work() is None or 1.0, 1.0])
    monkeypatch.setattr(checks.dist, "all_reduce", lambda tensor: None)
    return Ranks(0, 1, CPU)


def test_a_wrong_element_in_a_product_is_seen(alone, monkeypatch):
    assert checks.matmul(alone, 256, 0.1)[1] < 1e-5
    right = torch.matmul
    monkeypatch.setattr(checks.torch, "matmul", lambda a, b, out: right(a, b, out=out).mul_(1.001))
    assert checks.matmul(alone, 256, 0.1)[1] == pytest.approx(1e-3, rel=0.1)
    monkeypatch.setattr(checks.torch, "matmul", lambda a, b, out: out.fill_(float("nan")))
    error = checks.matmul(alone, 256, 0.1)[1]
    assert error != error  # noqa: PLR0124 - NaN


@pytest.mark.parametrize("corner", [0, 448, 960])
def test_a_wrong_tile_in_a_product_is_seen(alone, monkeypatch, corner):
    right = torch.matmul

    def matmul(a, b, out):
        right(a, b, out=out)
        out[corner : corner + 64, corner : corner + 64] *= 1.01

    monkeypatch.setattr(checks.torch, "matmul", matmul)
    assert checks.matmul(alone, 1024, 0.1)[1] > checks.ERROR_LIMITS["fp32"]


def test_a_matrix_that_reaches_the_device_damaged_is_seen(alone, monkeypatch):
    right = torch.Tensor.to

    def damaging(tensor, target, *rest):
        moved = right(tensor, target, *rest)
        return moved * 1.001 if isinstance(target, torch.device) else moved

    monkeypatch.setattr(torch.Tensor, "to", damaging)
    assert checks.matmul(alone, 256, 0.1)[1] == pytest.approx(2e-3, rel=0.1)


def test_a_wrong_sum_is_counted(alone, monkeypatch):
    assert checks.all_reduce(alone, 4096, 0.1)[1] == 0
    monkeypatch.setattr(checks.dist, "all_reduce", lambda tensor: tensor[:3].add_(1))
    assert checks.all_reduce(alone, 4096, 0.1)[1] == 3


def test_a_wrong_gather_is_counted(alone, monkeypatch):
    def gather(into, mine):
        into[0].copy_(mine)
        into[0][7] += 1

    monkeypatch.setattr(checks.dist, "all_gather", gather)
    assert checks.all_gather(alone, 4096, 0.1)[1] == 1
