"""The small parts: lock, boot, oom, environment, scratch, engine, detach, text."""

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpuval_node.engines._engine import ContainerEngine, EngineError, labels
from gpuval_node.hardware.tools import ToolResult
from gpuval_node.visible_text import one_line
from gpuval_runner import lock, oom, scratch, start
from gpuval_runner import plan as plans
from gpuval_runner import stage as stages
from gpuval_runner.clock import Instant, elapsed, now, parse
from gpuval_runner.containers.stage import Containers
from gpuval_runner.environment import StagePaths, build, detected, inherited
from gpuval_runner.errors import LockHeldError
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.outcome import StageStop
from gpuval_runner.plan import PlannedAccelerator
from gpuval_runner.record import ResultPublisher, StageRecord
from gpuval_runner.start import systemd_argv, systemd_scope

from tests.kit.runner import PACKAGES, SUCCEED, plan, stage


def test_one_lock_one_holder(tmp_path):
    path = tmp_path / "lock"
    assert lock.holder(path) is None
    with lock.take(path, unit="u"):
        assert lock.holder(path)["pid"] == os.getpid()
        assert lock.holder(path)["unit"] == "u"
        with pytest.raises(LockHeldError, match=f"held by runner pid {os.getpid()} since 20"):
            lock.take(path, wait_seconds=0.1)
    assert lock.holder(path) is None
    lock.take(path).close()


def test_a_lock_goes_with_its_holder_and_not_to_its_children(tmp_path):
    path = tmp_path / "lock"
    script = (
        "import subprocess, sys, pathlib; from gpuval_runner import lock;"
        "held = lock.take(pathlib.Path(sys.argv[1]));"
        "subprocess.Popen(['sleep', '20'], stdout=subprocess.DEVNULL); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert holder.stdout.readline() == b"held\n"
    assert lock.holder(path)["pid"] == holder.pid
    holder.kill()
    holder.wait()
    assert lock.holder(path) is None
    os.killpg(holder.pid, signal.SIGKILL)
    holder.stdin.close()
    holder.stdout.close()


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [
        (Instant(1000, "a", 50), Instant(9999, "a", 60), 10),  # somebody set the wall clock
        (Instant(1000, "a", 50), Instant(1100, "b", 5), 100),  # a reboot between
        (Instant(1000, "a", 50), Instant(900, "b", 5), 0),
        (Instant(1000, "", 50), Instant(1010, "", 55), 10),
    ],
)
def test_elapsed_time_survives_clock_changes_and_reboots(start, end, seconds):
    assert elapsed(start, end) == seconds


def test_times_are_utc_with_z():
    assert now().endswith("Z")
    assert parse(now()).tzinfo is not None
    with pytest.raises(ValueError, match="UTC"):
        parse("2026-01-01T00:00:00+01:00")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((3, 7), (3, 7), ""),
        ((3, 7), (4, 8), "out of memory: the kernel killed 1"),
        ((None, 7), (None, 9), "probably out of memory: the machine's oom_kill counter rose by 2"),
        ((None, None), (None, None), ""),
        ((5, 5), (0, 0), ""),
    ],
)
def test_oom_is_reported_only_with_evidence(before, after, said):
    found = oom.evidence(oom.OomCounters(*before), oom.OomCounters(*after), killed=True)
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("line", "place", "text"),
    [
        ("0::/job", "job/memory.events", "low 0\noom 2\noom_kill 2\n"),
        ("4:memory:/job", "memory/job/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("4:cpu,memory:/gone", "memory/memory.oom_control", "oom_kill 2\n"),
    ],
)
def test_oom_counters_of_both_cgroup_versions(tmp_path, line, place, text):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(f"9:name=systemd:/\n{line}\n")
    (proc / "vmstat").write_text("nr_free_pages 1\noom_kill 5\n")
    (groups / place).parent.mkdir(parents=True)
    (groups / place).write_text(text)
    assert oom.counters(proc, groups) == oom.OomCounters(2, 5)
    assert oom.counters(tmp_path / "none", groups) == oom.OomCounters(None, None)


PLACES = StagePaths(
    *(Path(f"/d/{name}") for name in ("work", "tmp", "models", "runner.pyz", "workloads.zip", "rclone.conf"))
)


def test_a_stage_sees_what_it_needs_and_none_of_the_starters_secrets():
    parsed = plans.parse(
        plan(stage("a", environment={"X": "{node}", "PYTHONPATH": "/mine", "GPUVAL_STAGE_ID": "no"}), attempt=2)
    )
    own = {
        "PATH": "/bin",
        "AWS_SECRET_ACCESS_KEY": "s",
        "HF_TOKEN": "t",
        "NCCL_DEBUG": "INFO",
        "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
        "https_proxy": "p",
        "PYTHONHOME": "h",
    }
    made = build(parsed, parsed.stages[0], PLACES, PlannedAccelerator("amd", 8, "gfx942", "MI300X", "6.4.1"), own)
    assert {"PATH", "NCCL_DEBUG", "https_proxy"} <= set(made)
    assert not {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PYTHONHOME"} & set(made)
    assert made["PYTHONPATH"] == "/d/workloads.zip:/mine"
    assert made["X"] == "n1"
    assert made["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "a GPU has one number in the facts and in every workload"
    assert made["GPUVAL_STAGE_ID"] == "r1/n1/a/2"
    assert (made["GPUVAL_ACCELERATOR"], made["GPUVAL_GPU_COUNT"], made["MAD_GPU_VENDOR"]) == ("amd", "8", "AMD")
    assert (made["MAD_SYSTEM_GPU_PRODUCT_NAME"], made["MAD_SYSTEM_HIP_VERSION"]) == ("MI300X", "6.4.1")
    assert made["GPUVAL_RESULT_FILE"] == "/d/work/result.json"
    assert all(made[name].startswith("/d/work") for name in ("HF_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR"))


def test_inherited_names_are_matched_whole():
    assert inherited({"CUDA_X": "1", "MY_CUDA": "2", "LC_ALL": "3", "OLD_PATH": "4"}) == {"CUDA_X": "1", "LC_ALL": "3"}


@pytest.mark.parametrize(
    ("vendor", "count", "facts", "expected"),
    [
        ("auto", None, {"accelerator": {"vendor": "nvidia", "count": 8}}, PlannedAccelerator("nvidia", 8)),
        ("auto", 4, {"accelerator": {"vendor": "nvidia", "count": 8}}, PlannedAccelerator("nvidia", 4)),
        ("nvidia", None, {"accelerator": {"vendor": "cpu", "count": 0}}, PlannedAccelerator("nvidia", None)),
        ("auto", None, {"accelerator": {"vendor": "quantum", "count": True}}, PlannedAccelerator("auto", None)),
        (
            "auto",
            None,
            {"accelerator": "x", "gpus": [{"architecture": "sm_90"}]},
            PlannedAccelerator("auto", None, "sm_90"),
        ),
        ("auto", None, None, PlannedAccelerator("auto", None)),
    ],
)
def test_what_the_facts_find_fills_what_is_not_declared(vendor, count, facts, expected):
    assert detected(PlannedAccelerator(vendor, count), facts) == expected


def test_scratch_is_made_anew_and_removed(tmp_path):
    work = tmp_path / "w"
    temporary = scratch.make(work)
    (temporary / "file").write_text("x")
    assert scratch.make(work) == temporary
    assert list(temporary.iterdir()) == []
    assert scratch.remove(work) == []
    assert not work.exists()
    assert not temporary.exists()


def test_folders_nested_deeper_than_python_recurses_stay_and_are_named(tmp_path):
    work = tmp_path / "w"
    for number in range(20):
        (work / f"file-{number}").parent.mkdir(exist_ok=True)
        (work / f"file-{number}").touch()
    folder = work / "d"
    for _ in range(300):
        folder.mkdir()
        folder /= "d"
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 200)
    try:
        problems = scratch.remove_tree(work)
    finally:
        sys.setrecursionlimit(usual)
    (problem,) = problems
    assert problem.startswith(f"{work}/d/d/d/") and problem.endswith(": nested too deeply: remove it with rm -rf")
    assert [path.name for path in work.iterdir()] == ["d"], "what is beside it is removed"
    assert scratch.remove_tree(work) == []


def test_a_long_place_gets_a_short_temporary_directory(tmp_path):
    work = tmp_path / ("x" * 100)
    temporary = scratch.make(work)
    assert len(str(temporary)) < 40
    assert temporary.stat().st_mode & 0o777 == 0o700
    scratch.remove(work)
    assert not temporary.exists()


def test_removal_does_not_follow_links_and_copes_with_closed_folders(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    inside = tmp_path / "inside"
    (inside / "closed").mkdir(parents=True)
    (inside / "closed" / "file").write_text("x")
    (inside / "closed").chmod(0)
    (inside / "link").symlink_to(outside)
    assert scratch.remove_tree(inside) == []
    assert (outside / "kept").exists()
    assert not inside.exists()


@pytest.mark.parametrize("moment", ["stat", "listdir", "open"])
def test_removal_does_not_follow_what_takes_the_place_of_a_folder_meanwhile(tmp_path, monkeypatch, moment):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for folder in (outside, inside / "sub"):
        folder.mkdir(parents=True)
        (folder / "kept").write_text("x")
    call, swaps = getattr(os, moment), []

    def swapped(*arguments, **options):
        answer = call(*arguments, **options)
        if not swaps and (moment == "listdir" or arguments[0] == "sub"):
            swaps.append(arguments)
            (inside / "sub").rename(tmp_path / "moved")
            (inside / "sub").symlink_to(outside)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(os, moment, swapped)
        scratch.remove_tree(inside)
    assert swaps and (outside / "kept").exists()
    assert scratch.remove_tree(inside) == []
    assert (outside / "kept").exists()
    assert not inside.exists()


class FakeEngine:
    """Answers as a container engine's command line does, for two containers of which one resists."""

    def __init__(self, resists=False):
        self.calls, self.ids, self.resists = [], ["a" * 64, "b" * 64], resists

    def __call__(self, *argv, timeout):
        self.calls.append(argv)
        if argv[1] == "rm":
            self.ids = self.ids[:1] if self.resists else []
        return ToolResult(argv[0], "\n".join(self.ids) if argv[1] == "ps" else "", returncode=0)


def test_containers_are_ended_by_label():
    fake = FakeEngine()
    assert len(ContainerEngine("docker", run=fake).stop(labels("r", "n", "training"))) == 2
    listing, remove, _ = fake.calls
    assert listing[:2] == ("docker", "ps")
    assert {
        "--filter=label=gpuval.run=r",
        "--filter=label=gpuval.node=n",
        "--filter=label=gpuval.stage=training",
    } <= set(listing)
    assert remove[1:3] == ("rm", "--force")


def test_a_container_that_stays_is_an_error():
    with pytest.raises(EngineError, match="could not remove containers aaaaaaaaaaaa"):
        ContainerEngine("podman", run=FakeEngine(resists=True)).stop(labels("r", "n"))


def test_a_missing_engine_is_named():
    with pytest.raises(EngineError, match="not installed"):
        ContainerEngine("no-such-engine").stop(labels("r", "n"))


@pytest.mark.parametrize(("script", "limit"), [("sleep 30 & echo found", 20), ("sleep 30", 0.3)])
def test_an_engine_whose_child_keeps_its_output_open_delays_nothing(tmp_path, script, limit):
    command = tmp_path / "engine"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    began = time.monotonic()
    if limit > 1:
        assert ContainerEngine(str(command)).ask("ps", limit=limit).stdout == "found\n"
    else:
        with pytest.raises(EngineError, match=r"did not answer within 0\.3 s"):
            ContainerEngine(str(command)).ask("ps", limit=limit)
    assert time.monotonic() - began < 10


def test_systemd_is_used_only_where_it_keeps_the_runner(tmp_path, monkeypatch):
    tool = tmp_path / "systemd-run"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "ann").touch()
    assert systemd_scope(0, "root", tmp_path, tmp_path) == "--system"
    assert systemd_scope(1000, "ann", tmp_path, tmp_path) == "--user"
    assert systemd_scope(1000, "bob", tmp_path, tmp_path) is None, "his services end when he logs out"
    assert systemd_scope(0, "root", tmp_path / "none", tmp_path) is None


def test_the_unit_outlives_oom_kills_of_stages(tmp_path):
    argv = systemd_argv("--system", "gpuval-r-n", ["python3", "runner.pyz"], tmp_path / "log")
    assert argv[:2] == ["systemd-run", "--system"]
    assert {"--unit=gpuval-r-n", "--property=OOMPolicy=continue", "--property=Restart=on-abnormal"} <= set(argv)
    assert argv[argv.index("--") + 1 :] == ["python3", "runner.pyz"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n b\t c", "a b c"),
        ("\x1b]0;title\x07x", "x"),
        ("\u202eabc", "abc"),
        ("abcdefgh", "ab..."),
        ("\x1b", ""),
        ("\x9b31mx", "31mx"),
    ],
)
def test_one_line(text, expected):
    assert one_line(text, 5) == expected


def test_facts_are_written_as_a_result(tmp_path):
    package = tmp_path / "gpuval_node" / "hardware"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    shutil.copy(PACKAGES / "gpuval_node" / "atomic_file.py", package.parent)
    (package / "collect.py").write_text(
        "def facts_result(root, accelerator, *, with_cabling):\n"
        "    message = f'{root} {accelerator} {with_cabling}'\n"
        "    return {'state': 'failure', 'message': message, 'metrics': [], 'environment': {}}\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{PACKAGES}",
        "GPUVAL_RESULT_FILE": str(tmp_path / "result.json"),
        "GPUVAL_ACCELERATOR": "amd",
    }
    done = subprocess.run(
        [sys.executable, "-m", "gpuval_runner", "facts", "--root", "/fake", "--cabling"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "failure: /fake amd True" in done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["message"] == "/fake amd True"


def test_a_unit_gets_its_environment_by_a_private_file(tmp_path, monkeypatch):
    said = tmp_path / "said"
    (tmp_path / "systemd-run").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}\n')
    (tmp_path / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(start, "systemd_scope", lambda *_: "--system")
    monkeypatch.setattr(start, "own_archive", lambda: tmp_path / "runner.pyz")
    directory = NodeDirectory(tmp_path)
    environment = {"PATH": "/bin", "https_proxy": "http://user:5ecret@proxy", "AWS_SECRET_ACCESS_KEY": "5ecret"}
    assert start.detach(directory, "gpuval-r-n", ["--instance", "x"], environment) == "gpuval-r-n"
    arguments = said.read_text()
    assert "5ecret" not in arguments
    assert f"--environment-file\n{directory.runner_environment}\n" in arguments
    assert directory.runner_environment.stat().st_mode & 0o777 == 0o600
    handed_on = json.loads(directory.runner_environment.read_text())
    assert handed_on == {"PATH": "/bin", "https_proxy": "http://user:5ecret@proxy"}


class Sent(ResultPublisher):
    """Counts what would be sent."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.logs, self.states = 0, []

    def log(self, stage):
        self.logs += 1

    def record(self, record):
        self.states.append(record.state)
        return super().record(record)


@pytest.mark.parametrize(
    ("script", "changes", "least"), [("while :; do echo x; sleep 0.1; done", True, 3), ("echo x; sleep 60", False, 1)]
)
def test_a_log_that_changes_is_sent_now_and_then(node, monkeypatch, script, changes, least):
    monkeypatch.setattr(stages, "LOG_UPLOAD_SECONDS", 0.3)

    def enough(publisher):
        is_enough = publisher.logs >= least and publisher.states.count("running") >= 6
        return StageStop("timeout", "all was sent") if is_enough else None

    begun = time.monotonic()
    finished, publisher = run_stage(node, stage("a", script), halt=enough)
    assert finished.state == publisher.states[-1] == "timeout" and "all was sent" in finished.message
    assert publisher.logs <= (1 + (time.monotonic() - begun) / 0.3 if changes else 2)
    assert publisher.logs > least, "in the end once more"


REFUSAL = """printf '{"state":"failure","message":"wrong result"}' > "$GPUVAL_RESULT_FILE"; exit 1"""
SIGNALLED = StageStop("interrupted", "the runner received SIGTERM")
GAVE_WAY = StageStop("cancelled", "gave way: others use this node's accelerators")


@pytest.mark.parametrize(
    ("script", "of_failures", "of_all", "state"),
    [
        ("kill -TERM $$", SIGNALLED, None, "running"),
        ("exit 1", SIGNALLED, None, "running"),  # a launcher that handles the signal
        (REFUSAL, SIGNALLED, None, "failure"),
        (SUCCEED, SIGNALLED, None, "success"),
        ("kill -TERM $$", None, None, "crash"),
        ("exit 1", GAVE_WAY, GAVE_WAY, "cancelled"),
        (SUCCEED, GAVE_WAY, GAVE_WAY, "cancelled"),
    ],
)
def test_an_end_that_something_else_explains_is_no_failure(node, script, of_failures, of_all, state):
    finished, _ = run_stage(node, stage("a", script), disturbed=lambda failed: of_failures if failed else of_all)
    assert finished.state == state


def run_stage(node, declared, halt=lambda _publisher: None, **hooks):
    """One stage without its runner: its record and what was sent. `halt` is asked meanwhile, given what was sent."""
    node.put_plan(declared)
    parsed = plans.load(node.files.plan)
    node.files.make()
    publisher = Sent(node.files, parsed, None)
    work = node.files.work("a")
    context = stages.StageContext(
        parsed,
        node.files,
        publisher,
        PlannedAccelerator("cpu", 0),
        StagePaths(work, work / "tmp", node.base / "models", work, work, work),
        halt=lambda: halt(publisher),
        containers=Containers(parsed),
        adopts=False,
        **hooks,
    )
    return stages.StageRun(parsed.stages[0], StageRecord.pending(parsed, parsed.stages[0]), context).run(), publisher
