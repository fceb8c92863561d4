"""The callback: the block comes last, and a pipe gets every line when it is printed."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.callback.acceptance import CallbackModule


def test_a_pipe_gets_each_line_at_once(monkeypatch):
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, line_buffering=False))
    sys.stdout.write("before\n")
    assert pipe.getvalue() == b""
    CallbackModule()
    sys.stdout.write("node-1 training: running\n")
    assert pipe.getvalue() == b"before\nnode-1 training: running\n"


def test_an_output_that_is_no_stream_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    CallbackModule()


@pytest.mark.parametrize("judged", [True, False])
def test_the_block_is_printed_after_the_recap(monkeypatch, tmp_path, judged):
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"verdict": "PASS", "summary": ["Nodes: 1 expected"], "nodes": []}))
    shown = []
    callback = CallbackModule()
    monkeypatch.setattr(callback, "_display", SimpleNamespace(display=shown.append))
    callback.v2_runner_on_ok(SimpleNamespace(result={"acceptance_report": str(report)} if judged else {}))
    callback.v2_runner_on_ok(SimpleNamespace(result={"changed": False}))
    assert shown == []
    callback.v2_playbook_on_stats(None)
    assert ["FINAL ACCEPTANCE: PASS" in text for text in shown] == ([True] if judged else [])
    assert [f"- Report: {tmp_path / 'report.html'}\n" in text for text in shown] == ([True] if judged else [])
