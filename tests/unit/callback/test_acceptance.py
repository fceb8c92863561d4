"""The callback: the block comes last, and a pipe gets every line when it is printed."""

import contextlib
import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.callback.acceptance import CallbackModule, console
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import state as run_state

from tests.kit.ansible_playbook import PROGRAM
from tests.kit.fleet import ROOT
from tests.kit.needs import tmpfs
from tests.kit.run_commands import lay_out, opened


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
            assert playing.wait(300) == 0
        finally:
            playing.kill()


def test_an_output_that_is_no_stream_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    CallbackModule()


def test_a_full_results_disk_at_the_end_is_a_warning(monkeypatch, tmp_path, small_disk):
    results = lay_out(small_disk)
    folder = opened(results, "r1")
    run = folder.read_run()
    folder.write_run({**run, "state": {**run["state"], "workers": [run_state.this_process(os.getpid(), "x")]}})
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as stream:
        while True:
            stream.write(bytes(4096))
            stream.flush()
    warned = []
    callback = CallbackModule()
    shown = []
    monkeypatch.setattr(callback, "_display", SimpleNamespace(warning=warned.append, display=shown.append))
    callback.v2_runner_on_ok(SimpleNamespace(result={"opened": str(folder.path)}))
    callback.v2_runner_on_failed(SimpleNamespace(result={"msg": "No space left on device"}))
    callback.v2_playbook_on_stats(None)
    assert len(shown) == 1 and "the same command, with RUN=r1, resumes it" in shown[0]
    (line,) = warned
    assert line.startswith("the end of run r1 is not recorded: ") and "No space left on device: free space, or" in line


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    with tmpfs(place, "size=256k"):
        yield place


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
