import json

import pytest
from gpuval_runner import plan as plans
from gpuval_runner import record
from gpuval_runner.record import MAX_RECORD_BYTES, StageRecord, encode_series
from gpuval_runner.result import ResultFile

from tests.kit.runner import RECORD_SCHEMA, SERIES_SCHEMA, plan, stage

PLAN = plans.parse(plan(stage("a"), attempt=2))


def as_dict(made):
    return {"schema": record.SCHEMA, **vars(made)}


RECORD = {**as_dict(StageRecord.pending(PLAN, PLAN.stages[0])), "updated_at": "2026-01-01T00:00:00Z"}


def metric(name="a_seconds", value=1.0, scope="node"):
    return {"name": name, "value": value, "unit": "seconds", "scope": scope}


def decode(made: StageRecord) -> dict:
    data = made.encode()
    assert len(data) <= MAX_RECORD_BYTES
    document = json.loads(data)
    RECORD_SCHEMA.validate(document)
    return document


def test_a_pending_record_has_every_field():
    document = decode(StageRecord.pending(PLAN, PLAN.stages[0]))
    assert (document["state"], document["attempt"], document["started_at"], document["attempts"]) == (
        "pending",
        2,
        None,
        [],
    )


def test_the_workloads_own_metrics_win_over_the_outputs():
    made = StageRecord.pending(PLAN, PLAN.stages[0])
    made.merge(ResultFile(metrics=[metric(value=1)]), [metric(value=2), metric("b_seconds", 3)])
    assert {m["name"]: m["value"] for m in made.metrics} == {"a_seconds": 1, "b_seconds": 3}


def test_what_does_not_fit_is_left_out_and_reported():
    made = StageRecord.pending(PLAN, PLAN.stages[0])
    made.message = "fine"
    made.metrics = [metric(f"m{i}_{'x' * 60}", i, f"gpu:{i % 8}") for i in range(20_000)] + [metric("kept_seconds", 7)]
    made.metrics = made.metrics[-20_000:]
    document = decode(made)
    assert "metrics" in document["message"]
    assert document["message"].startswith("fine; left out")
    assert "kept_seconds" in {m["name"] for m in document["metrics"]}
    assert len(document["metrics"]) > 1000


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"dump": "x" * 2_000_000, "torch": "2.13"}},
        {"environment": {str(i): "y" * 20_000 for i in range(256)}},
        {
            "fingerprints": {str(i) * 40: "z" * 256 for i in range(1024)},
            "environment": {str(i): "y" * 9_000 for i in range(256)},
        },
        {"command": ["w" * 8192] * 256},
        {"message": "\U0001f600" * 10_000},
        {"attempts": [{**RECORD, "metrics": [metric("a" * 96, 1.0, "link:b")] * 9_000, "command": ["w" * 8192] * 99}]},
        {"metrics": [metric("a" * 96, 1.0, "link:" + "b" * 64)] * 20_000, "environment": {"x": "y" * 900_000}},
    ],
)
def test_no_record_is_too_large(changes):
    made = StageRecord.pending(PLAN, PLAN.stages[0])
    for name, value in changes.items():
        setattr(made, name, value)
    decode(made)


def test_a_fault_of_an_earlier_attempt_outlives_the_figures_of_the_last_one():
    made = StageRecord.pending(PLAN, PLAN.stages[0])
    fault = {"name": "gpu_xid_critical_count", "value": 1.0, "unit": "count", "scope": "gpu:0"}
    made.attempts = [{**as_dict(made), "updated_at": "2026-01-01T00:00:00Z", "metrics": [fault], "attempt": 1}]
    made.metrics = [metric(f"m{i}_{'x' * 60}", i, f"gpu:{i % 8}") for i in range(20_000)]
    document = decode(made)
    assert document["attempts"][0]["metrics"] == [fault]
    assert 1000 < len(document["metrics"]) < 20_000


def test_earlier_attempts_give_way_first():
    made = StageRecord.pending(PLAN, PLAN.stages[0])
    made.metrics = [metric()]
    made.attempts = [{**as_dict(made), "updated_at": "2026-01-01T00:00:00Z", "environment": {"x": "y" * 2_000_000}}]
    document = decode(made)
    assert document["metrics"] == [metric()]
    assert document["attempts"][0]["metrics"] == [metric()]
    assert document["attempts"][0]["environment"] == {}


def test_attempts_are_kept_flat_and_whole():
    first = decode(StageRecord.pending(PLAN, PLAN.stages[0]))
    second = {**first, "attempts": record.archived(first)}
    third = record.archived(second)
    assert [a["attempts"] for a in third] == [[], []]
    assert len(record.archived({**first, "attempts": [first] * 9})) == 9


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "other"},
        {"node": "other"},
        {"stage": "b"},
        {"state": "won"},
        {"attempt": "1"},
        {"more": 1},
        {"schema": "x"},
    ],
)
def test_a_record_of_something_else_is_not_resumed(tmp_path, changes):
    path = tmp_path / "a.json"
    document = decode(StageRecord.pending(PLAN, PLAN.stages[0]))
    path.write_text(json.dumps(document))
    assert as_dict(record.restore(record.load(path, PLAN))) == document
    path.write_text(json.dumps({**document, **changes}))
    assert record.load(path, PLAN) is None


def test_series_beyond_their_limit_lose_the_longest(monkeypatch):
    monkeypatch.setattr(record, "MAX_SERIES_BYTES", 100_000)
    curve = {
        "name": "loss",
        "unit": "loss",
        "scope": "node",
        "x_unit": "step",
        "x": [1] * 2000,
        "y": [0.123456789] * 2000,
    }
    short = {**curve, "name": "short", "x": [1], "y": [2]}
    data = encode_series(PLAN, PLAN.stages[0], [curve] * 9 + [short])
    assert len(data) <= 100_000
    document = json.loads(data)
    SERIES_SCHEMA.validate(document)
    assert [c["name"] for c in document["series"]] == ["short", "loss", "loss", "loss"]
