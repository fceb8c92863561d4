import os
import time
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import tools


def test_a_tool_is_run_in_the_c_locale_with_its_arguments(machine):
    machine.tool("probe", 'echo "$LC_ALL $1 $2"; echo oops >&2; exit 3')
    result = tools.toolbox(str(machine))("probe", "one", "two words")
    assert (result.stdout, result.stderr, result.returncode) == ("C one two words\n", "oops\n", 3)
    assert not result.ok
    assert result.complaint == "probe ended with status 3: oops"


def test_only_the_root_is_searched(machine):
    assert tools.toolbox(str(machine))("sh", "-c", "true").missing
    assert tools.toolbox("/")("sh", "-c", "true").ok


def test_a_hanging_tool_and_its_children_are_ended(machine):
    machine.tool("hang", f"sleep 600 & echo $! > '{machine}/child'; wait")
    started = time.monotonic()
    result = tools.toolbox(str(machine))("hang", timeout=3)
    assert time.monotonic() - started < 60
    assert result.timed_out
    assert result.returncode is None
    assert "did not answer within 3 s" in result.complaint
    child = int((machine.root / "child").read_text())
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _running(child):
        time.sleep(0.02)
    assert not _running(child)


def _running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_that_keeps_the_pipe_does_not_hold_us(machine):
    machine.tool("daemon", "sleep 60 & echo started")
    started = time.monotonic()
    result = tools.toolbox(str(machine))("daemon", timeout=120)
    assert time.monotonic() - started < 30
    assert (result.stdout, result.returncode) == ("started\n", 0)


def test_what_a_tool_writes_as_it_ends_is_read(machine, monkeypatch):
    """It ends between a look at its pipes and the question whether it still runs, as on a busy machine."""
    go, pid = machine.root / "go", machine.root / "pid"
    os.mkfifo(go)
    machine.tool("late", f"echo $$ > '{pid}'; read -r line < '{go}'; echo done")
    select, looks = tools.selectors.DefaultSelector.select, []

    def slow(self, timeout=None):
        looks.append(timeout)
        if len(looks) > 1:
            return select(self, timeout)
        go.write_text("\n")
        os.waitid(os.P_PID, int(pid.read_text()), os.WEXITED | os.WNOWAIT)
        return []

    monkeypatch.setattr(tools.selectors.DefaultSelector, "select", slow)
    assert tools.toolbox(str(machine))("late").stdout == "done\n"


def test_endless_output_is_cut(machine, monkeypatch):
    monkeypatch.setattr(tools, "OUTPUT_LIMIT_BYTES", 100_000)
    machine.tool("yes", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done")
    result = tools.toolbox(str(machine))("yes", timeout=20)
    assert result.truncated
    assert not result.ok
    assert not result.timed_out


def test_a_file_that_is_no_program(machine):
    machine.tool("broken", "")
    (machine.root / "usr/bin/broken").write_bytes(b"\x7fELF no program")
    result = tools.toolbox(str(machine))("broken")
    assert not result.ok
    assert not result.missing
    assert "broken" in result.complaint
