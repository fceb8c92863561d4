"""The callback: the block comes last, and a pipe gets every line when it is printed."""

import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.callback.acceptance import CallbackModule, console

from tests.kit.ansible_playbook import PROGRAM
from tests.kit.fleet import ROOT


def test_a_pipe_gets_each_line_at_once_and_its_reader_may_leave():
    """An error would end the thread by which Ansible's workers print, and the command would hang."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        output = console(pipe)
        output.write("node-1 training: running\n")
        assert os.read(reading, 100) == b"node-1 training: running\n"
        os.close(reading)
        output.write("node-1 training: success\n" * 10000)
        output.flush()
        output.close()
        os.fstat(writing)  # other parts of the program write to it


def test_a_command_whose_reader_has_left_ends(tmp_path):
    command = [*PROGRAM, "-i", ROOT / "inventories/local", "gpuval.fleet.runs"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as playing:
        playing.stdout.close()
        try:
            assert playing.wait(60) == 0
        finally:
            playing.kill()


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
