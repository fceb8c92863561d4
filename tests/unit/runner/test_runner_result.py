import json
import os

import pytest
from gpuval_runner import result
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.runner import SERIES_SCHEMA


def test_a_result_is_read():
    document = {
        "state": "success",
        "message": "fine",
        "metrics": [{"name": "a_seconds", "value": 1.5, "unit": "seconds", "scope": "gpu:0"}],
        "series": [{"name": "loss", "unit": "loss", "scope": "node", "x_unit": "step", "x": [1, 2], "y": [0.5, None]}],
        "fingerprints": {"weights": "abc"},
        "environment": {"torch": "2.13"},
        "artifacts": ["profile.json"],
    }
    read = result.parse(json.dumps(document).encode())
    assert {name: getattr(read, name) for name in document} == document
    assert read.problems == []
    assert read.state != "running"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"[" * 200_000, b"\xff\xfe", b'{"state": "won"}'])
def test_garbage_is_a_problem_and_never_final(data):
    read = result.parse(data)
    assert read.state == "running"
    assert read.problems


def test_numbers_that_are_not_finite_become_null():
    values = ["NaN", "-Infinity", "1e999", "9" * 400, "2"]
    metrics = ",".join(f'{{"name":"m{i}","value":{v},"unit":"x","scope":"node"}}' for i, v in enumerate(values))
    text = f'{{"state":"success","metrics":[{metrics}],"environment":{{"a":NaN,"b":[Infinity,1e999]}}}}'
    read = result.parse(text.encode())
    assert [m["value"] for m in read.metrics] == [None, None, None, None, 2]
    assert read.environment == {"a": None, "b": [None, None]}


@pytest.mark.parametrize(
    "metric",
    [
        {"name": "Bad Name", "value": 1, "unit": "x", "scope": "node"},
        {"name": "a", "value": "1", "unit": "x", "scope": "node"},
        {"name": "a", "value": True, "unit": "x", "scope": "node"},
        {"name": "a", "value": 1, "unit": "x", "scope": "gpu:٣"},
        {"name": "a", "value": 1, "unit": "x", "scope": "../x"},
        {"name": "a\n", "value": 1, "unit": "x", "scope": "node"},
        ["a"],
        None,
    ],
)
def test_malformed_metrics_are_left_out_and_reported(metric):
    read = result.parse(json.dumps({"state": "success", "metrics": [metric]}).encode())
    assert read.metrics == []
    assert "1 of 1 metrics are malformed" in read.problems[0]


def test_messages_cannot_carry_escapes_or_fill_the_record():
    text = "\x1b[31mred\x1b[0m\nline\u202e<b>\ud800" + "x" * 10_000
    read = result.parse(json.dumps({"state": "failure", "message": text}).encode())
    assert read.message.startswith("red line <b>")
    assert len(read.message) <= 4096
    assert read.message.encode()


def test_series_need_equal_lengths_and_finite_x():
    curves = [
        {"name": "a", "unit": "", "x": [1, 2], "y": [1]},
        {"name": "a", "unit": "", "x": [None], "y": [1]},
        {"name": "a", "unit": "", "x": list(range(20_001)), "y": list(range(20_001))},
        {"name": "ok", "unit": "loss", "x": [1], "y": [float("nan")]},
    ]
    read = result.parse(json.dumps({"state": "running", "series": curves}).encode())
    assert [(c["name"], c["y"], c["scope"], c["x_unit"]) for c in read.series] == [("ok", [None], "node", "step")]


def test_no_file_is_none_and_a_huge_one_is_refused(tmp_path):
    assert result.read(tmp_path / "none") is None
    path = tmp_path / "huge"
    path.write_bytes(b" " * (result.MAX_RESULT_BYTES + 1))
    assert "refused" in result.read(path).problems[0]


def test_links_and_pipes_are_not_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"state":"success","message":"planted"}')
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        read = result.read(tmp_path / name)
        assert read.state == "running"
        assert read.problems


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(result.ResultFile.__dataclass_fields__, json_values)))
def test_whatever_a_file_holds_the_rest_is_valid(document):
    read = result.parse(json.dumps(document).encode())
    json.dumps(vars(read), allow_nan=False).encode()
    series = {
        "schema": "gpuval.series/1",
        "run_id": "r",
        "node": "n",
        "stage": "s",
        "attempt": 1,
        "series": read.series,
    }
    SERIES_SCHEMA.validate(series)


@pytest.mark.parametrize(("revision", "kept"), [(2, {"revision": 2}), (1, {}), (0, None), ("2", None), (True, None)])
def test_the_revision_of_a_figure_is_kept_and_one_that_is_none_is_refused(revision, kept):
    metric = {"name": "speed", "value": 1, "unit": "bytes/s", "scope": "node"}
    found = result.parse(json.dumps({"state": "success", "metrics": [{**metric, "revision": revision}]}).encode())
    assert found.metrics == ([] if kept is None else [{**metric, **kept}])
    assert bool(found.problems) == (kept is None)
