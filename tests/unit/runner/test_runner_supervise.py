"""Real processes under supervision."""

import os
import signal
import subprocess
import sys
import time

import pytest
from gpuval_runner.descendants import MARKER_VARIABLE
from gpuval_runner.outcome import StageStop
from gpuval_runner.supervise import Hooks, ProcessSpec, supervise

from tests.kit.processes import read
from tests.kit.runner import PACKAGES, alive, until

#: Leaves by two forks and a session of its own, keeps no stream, and writes its pid.
DAEMON = """
import os, sys, time, signal
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
null = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2): os.dup2(null, stream)
for number in sys.argv[2:]: signal.signal(int(number), signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(60)
"""


@pytest.fixture
def go(tmp_path):
    marker = f"test-{os.getpid()}-{time.monotonic_ns()}/n/s/1"

    def go(*argv, tick=lambda: None, activity=lambda: None, **limits):
        output = []
        limits = {"grace_seconds": 0.5, **limits}
        spec = ProcessSpec(
            argv=argv, environment={**os.environ, MARKER_VARIABLE: marker}, directory=tmp_path, marker=marker, **limits
        )
        begun = time.monotonic()
        ended = supervise(spec, Hooks(output=output.append, tick=tick, activity=activity))
        ended.duration_seconds = time.monotonic() - begun
        return ended, b"".join(output)

    return go


def once_written(path):
    """A tick that stops a process once it has written a file, however long it took to start."""
    return lambda: StageStop("timeout", "it is ready") if path.exists() and path.stat().st_size else None


def test_output_of_both_streams_and_the_exit_code(go):
    ended, output = go("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (ended.exit_code, ended.signal, ended.stop) == (3, None, None)
    assert sorted(output.split()) == [b"err", b"out"]


def test_death_by_a_signal_is_named(go):
    ended, _ = go("sh", "-c", "kill -SEGV $$")
    assert (ended.exit_code, ended.signal) == (None, "SIGSEGV")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/nonexistent/tool", "command not found: /nonexistent/tool"),
        (__file__, "not executable"),
        ("/", "not executable"),
    ],
)
def test_what_cannot_be_started_is_explained(go, command, said):
    ended, _ = go(command)
    assert said in ended.start_error


def test_standard_input_is_empty(go):
    assert go("cat")[0].exit_code == 0


def test_total_limit(go):
    ended, _ = go("sh", "-c", "while :; do echo x; sleep 0.05; done", timeout_seconds=2, inactivity_seconds=30)
    assert ended.stop == StageStop("timeout", "still running after its limit of 2 s (timeout_seconds)")
    assert ended.duration_seconds >= 2


def test_inactivity_limit(go):
    ended, output = go("sh", "-c", "echo begun; sleep 30", inactivity_seconds=2)
    assert ended.stop.state == "timeout"
    assert "inactivity_seconds" in ended.stop.reason
    assert output == b"begun\n"
    assert ended.duration_seconds < 20


def test_a_changing_result_is_activity(go):
    ended, _ = go("sleep", "1", inactivity_seconds=0.5, activity=time.monotonic)
    assert ended.stop is None
    assert ended.exit_code == 0


def test_zero_is_no_limit(go):
    ended, _ = go("sleep", "0.5", inactivity_seconds=0, timeout_seconds=0)
    assert ended.exit_code == 0


def test_term_gives_a_chance_to_end_well(go, tmp_path):
    # The shell names the signal of a program that it waits for in the foreground.
    script = "trap 'echo bye; exit 0' TERM; sleep 600 & echo up > up; wait"
    ended, output = go("sh", "-c", script, tick=once_written(tmp_path / "up"), grace_seconds=30)
    assert output == b"bye\n"
    assert ended.exit_code == 0
    assert ended.stop.state == "timeout"


def test_a_process_deaf_to_term_is_killed(go, tmp_path):
    script = "trap '' TERM; echo up > up; while :; do sleep 0.05; done"
    ended, _ = go("sh", "-c", script, tick=once_written(tmp_path / "up"))
    assert ended.signal == "SIGKILL"
    assert ended.unkillable == []


def test_output_without_end_of_what_cannot_be_killed_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("gpuval_runner.descendants.belonging", lambda *_, **__: [])  # as one of another user
    taken = []

    def take(data):  # slower than it writes
        taken.append(len(data))
        time.sleep(0.01)
        assert len(taken) < 1000

    spec = ProcessSpec(argv=["sh", "-c", "yes & exit 0"], environment=os.environ, directory=tmp_path, marker="r/n/s/1")
    begun = time.monotonic()
    assert supervise(spec, Hooks(output=take)).exit_code == 0
    assert time.monotonic() - begun < 30


def test_a_tool_that_another_thread_runs_is_none_of_the_work(tmp_path):
    program = """
import os, pathlib, sys, threading
from gpuval_node.hardware import tools
from gpuval_node.process_stat import adopt_orphans
from gpuval_runner.supervise import Hooks, ProcessSpec, supervise
adopt_orphans()
answers = []
tool = ["sh", "-c", "echo > up; while [ ! -e end ]; do sleep 0.05; done; exit 3"]
looking = threading.Thread(target=lambda: answers.append(tools.run_bounded("tool", tool, 60)))
looking.start()
argv = ["sh", "-c", "while [ ! -e up ]; do sleep 0.05; done"]
spec = ProcessSpec(argv, {"PATH": os.defpath}, pathlib.Path(), "r/n/s/1", grace_seconds=0.5, adopts=True)
ended = supervise(spec, Hooks(output=lambda _data: None))
spec = ProcessSpec(["sh", "-c", "echo > end; sleep 1"], spec.environment, pathlib.Path(), "r/n/s/1", adopts=True)
supervise(spec, Hooks(output=lambda _data: None))  # reaps meanwhile
looking.join()
print(ended.exit_code, ended.left_behind, ended.unkillable, answers[0].returncode, tools.RUNNING)
"""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    command = [sys.executable, "-c", program]
    answer = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (answer.stdout, answer.stderr) == ("0 0 [] 3 set()\n", "")


def test_a_stopped_process_is_ended(go):
    ended, _ = go("sh", "-c", "kill -STOP $$", inactivity_seconds=0.4)
    assert ended.stop.state == "timeout"
    assert ended.signal == "SIGTERM"


def test_a_stopped_process_deaf_to_term_is_killed(go, tmp_path):
    pid_file = tmp_path / "pid"

    def once_stopped():
        is_stopped = pid_file.exists() and read(int(pid_file.read_text() or 0), "stat").rpartition(b") ")[2][:1] == b"T"
        return StageStop("timeout", "it is stopped") if is_stopped else None

    script = f"trap '' TERM; echo $$ > {pid_file}; kill -STOP $$; while :; do sleep 1; done"
    ended, _ = go("sh", "-c", script, tick=once_stopped)
    assert ended.signal == "SIGKILL"


@pytest.mark.parametrize("deaf", [[], [str(int(signal.SIGTERM)), str(int(signal.SIGHUP))]])
def test_a_daemon_that_left_the_session_is_ended_with_its_stage(go, tmp_path, deaf):
    pid_file = tmp_path / "pid"
    script = f"'{sys.executable}' -c '{DAEMON}' '{pid_file}' {' '.join(deaf)}; sleep 60"
    ended, _ = go("sh", "-c", script, tick=once_written(pid_file))
    pid = int(pid_file.read_text())
    assert ended.stop.state == "timeout"
    until(lambda: not alive(pid))


def test_what_outlives_the_main_process_is_ended_and_counted(go, tmp_path):
    pid_file = tmp_path / "pid"
    daemon = f"'{sys.executable}' -c '{DAEMON}' '{pid_file}'; while [ ! -s '{pid_file}' ]; do sleep 0.02; done"
    ended, _ = go("sh", "-c", f"{daemon}; sleep 60 & exit 0")
    assert ended.exit_code == 0
    assert ended.left_behind == 2
    until(lambda: not alive(int(pid_file.read_text())))
    assert ended.duration_seconds < 30


def test_a_flood_of_output_is_accepted_without_growing(go, tmp_path):
    seen = 0

    def tick():
        return StageStop("cancelled", "enough") if seen > 20_000_000 else None

    def count(data):
        nonlocal seen
        seen += len(data)

    spec = ProcessSpec(["yes"], dict(os.environ), tmp_path, "none/n/s/1", timeout_seconds=20, grace_seconds=0)
    ended = supervise(spec, Hooks(output=count, tick=tick))
    assert ended.stop.state == "cancelled"
    assert seen > 20_000_000


def test_a_tick_can_stop_it(go):
    begun = time.monotonic()
    ended, _ = go("sleep", "60", tick=lambda: StageStop("cancelled", "now") if time.monotonic() - begun > 0.3 else None)
    assert ended.stop == StageStop("cancelled", "now")
    assert ended.signal == "SIGTERM"


#: Mounts a file system of a FUSE program that never answers, in a mount namespace of its own, and reads there.
HUNG_VOLUME = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x00020000) == 0 and libc.mount(None, b"/", None, 1 << 18 | 1 << 14, None) == 0  # private mounts
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
assert libc.mount(b"models", sys.argv[1].encode(), b"fuse.gcsfuse", 0, options) == 0, os.strerror(ctypes.get_errno())
print("mounted", flush=True)
os.listdir(sys.argv[1])
"""


def test_a_timeout_while_a_volume_of_the_site_hangs_is_classed_and_named(go, tmp_path):
    volume = tmp_path / "models"
    volume.mkdir()
    ended, output = go(sys.executable, "-c", HUNG_VOLUME, volume, inactivity_seconds=2)
    if output != b"mounted\n":
        pytest.skip(f"this machine mounts no FUSE file system: {output.decode()}")
    assert (ended.stop.state, ended.fault) == ("timeout", "volume_fault")
    assert ended.stop.reason.endswith("(inactivity_seconds); fuse.gcsfuse models does not answer")


def test_a_timeout_without_such_a_volume_stays_the_nodes(go):
    ended, _ = go("sleep", "60", inactivity_seconds=1)
    assert (ended.stop.state, ended.fault) == ("timeout", "")
