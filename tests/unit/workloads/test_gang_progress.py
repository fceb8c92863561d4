"""Members are no hanging ones as long as their ranks move on: real ranks under the runner's supervision."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpuval_node.process_stat import snapshot
from gpuval_runner.descendants import MARKER_VARIABLE, belonging
from gpuval_runner.supervise import Hooks, ProcessSpec, supervise
from gpuval_workloads.common.stall import Beat
from gpuval_workloads.gang import threads

from tests.kit.fork_server import ROOT
from tests.kit.ports import free_port
from tests.kit.workload_process import NODE

QUIET_SECONDS = 12.0
#: The member's program; it prints every ``sys.argv[1]`` seconds.
MEMBER = """
import sys
from gpuval_workloads.common.result import run_workload
from gpuval_workloads.gang import __main__ as program, threads
from tests.kit.torch_server import fork_ranks
fork_ranks()
threads.PRINT_SECONDS = float(sys.argv.pop(1))
sys.exit(run_workload(program.main))
"""


def beats(*counts):
    return {place: (Beat(9, 1, ticks, 0, "", False, 0.0, done), "S") for place, (ticks, done) in enumerate(counts)}


def test_progress_is_that_of_the_slowest_rank():
    assert threads.progress({}, 2) == "0 of 2 ranks have begun"
    assert threads.progress(beats((5, 0)), 2) == "1 of 2 ranks have begun"
    before = threads.progress(beats((5, 0), (9, 0)), 2)
    assert before.endswith("the last one has counted 5 steps of progress")
    assert threads.progress(beats((5, 0), (70, 0)), 2) == before
    assert threads.progress(beats((5, 3), (9, 4)), 2) == f"{before}, its device 3"


def test_unchanged_progress_is_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(threads, "PRINT_SECONDS", 0.01)
    texts = iter(["one", "one", "two", "two", "one"])
    done = threading.Event()

    def tell():
        text = next(texts, "")
        return text if text else done.set() or "one"

    with threads.progress_printer(tell):
        assert done.wait(10)
    assert capsys.readouterr().out.split() == ["one", "two", "one"]


def members(folder, tell_seconds, seconds, meanwhile=lambda _members: None):
    """Two members at work for so long, each under the limit of silence; returns how each ended, and its output."""
    listed = [{"node": f"node-{i}", "address": f"127.0.0.{i}", "slots": 1} for i in (1, 2)]
    port, started = free_port(), []
    for index in (0, 1):
        own = folder / f"{index}"
        own.mkdir()
        marker = f"progress-{os.getpid()}-{time.monotonic_ns()}/n{index}/s/1"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GPUVAL_")},
            MARKER_VARIABLE: marker, "PYTHONPATH": f"{NODE}:{ROOT}", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
            "GPUVAL_GANG": json.dumps(
                {"name": "all", "members": listed, "index": index, "port": port, "ssh_port": port + 2}
            ),
            "GPUVAL_GANG_TOKEN": "t" * 32, "GPUVAL_WORK_DIR": str(own), "GPUVAL_RESULT_FILE": str(own / "result.json"),
            "GPUVAL_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "GPUVAL_STALL_SECONDS": "600",
        }  # fmt: skip
        command = [sys.executable, "-c", MEMBER, str(tell_seconds), "collectives", "--tool", "torch"]
        command += ["--only", "all_reduce", "--most-bytes", "4096", "--seconds", str(seconds)]
        started.append(Member(own, marker, command, environment))
    for one in started:
        one.start()
    try:
        meanwhile(started)
    finally:
        for one in started:
            one.join(150)
    return [(one.ended, b"".join(one.output).decode()) for one in started]


class Member(threading.Thread):
    def __init__(self, folder, marker, command, environment):
        super().__init__(daemon=True)
        self.folder, self.marker, self.output, self.ended = Path(folder), marker, [], None
        self.spec = ProcessSpec(
            argv=command, environment=environment, directory=folder, marker=marker,
            timeout_seconds=140, inactivity_seconds=QUIET_SECONDS, grace_seconds=3,
        )  # fmt: skip

    def run(self):
        result = self.folder / "result.json"
        activity = lambda: result.stat().st_mtime_ns if result.exists() else None  # noqa: E731
        hooks = Hooks(output=self.output.append, activity=activity, limited=self.is_at_work)
        self.ended = supervise(self.spec, hooks)

    def is_at_work(self):
        """Its ranks may take longer to start than the limit of silence."""
        return any(b"steps of progress" in part for part in self.output)


@pytest.mark.slow
def test_work_that_is_longer_than_the_limit_of_silence_goes_on(tmp_path):
    ended = members(tmp_path, 1, 1.5 * QUIET_SECONDS)
    for one, output in ended:
        assert (one.exit_code, one.stop) == (0, None), output
    assert "steps of progress" in ended[1][1]
    assert "collectives across the gang" not in ended[1][1]  # only the first one's rank prints


def test_a_member_whose_rank_stands_still_is_ended_for_its_silence(tmp_path):
    def stop_a_rank(started):
        deadline = time.monotonic() + 100
        while not started[1].is_at_work() and time.monotonic() < deadline:
            time.sleep(0.2)
        rank = json.loads(next(tmp_path.glob("1/gang-*/beat-1.json")).read_text())["pid"]
        assert rank in [process.pid for process in belonging(snapshot(), started[1].marker)]
        os.kill(rank, signal.SIGSTOP)

    (_, _), (second, output) = members(tmp_path, 1, 100, stop_a_rank)
    assert second.stop is not None and "no output and no result" in second.stop.reason, output
