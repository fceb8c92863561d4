"""Each end that a job can have is a class with a remedy, and the placement acts on it."""

import base64
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import zlib
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.digests import NodeDigests
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import read
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.plans import PlanError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import jobs, placement, script
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.commands import Slurm, SlurmError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launch_inputs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import placement as watch_placement
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import NodeView
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.placement import PlannedAttempt

RUN = "20261123-1"
IDLE = {"name": "gpu-1", "state": ["IDLE"], "reason": "", "reason_by": "", "reason_at": ""}


def row(job, state, reason="None", node="gpu-1", attempt=1, said=""):
    return f"{job}|{state}|{reason}|gpuval:{RUN}:{node}:{attempt}{said}\n"


def one(*arguments, **others):
    (job,) = jobs.parse(row(7, *arguments, **others)).values()
    return job


def test_a_job_states_digests_in_its_comment_and_anything_else_states_none():
    stated = {"records/facts": ["a" * 64], "logs/facts": ["b" * 64, "c" * 64]}
    assert one("COMPLETED", said=f" {json.dumps({'digests': stated})}").stated == stated
    for said in ("", " text", " []", ' {"digests": {"../x": []}}', ' {"message": "no room"}', " " + "[" * 7000):
        assert one("COMPLETED", said=said).stated == {}


def test_the_digests_that_a_job_left_are_kept_at_the_end_of_the_watch(placed):
    """The job ends after its node's last record; Slurm forgets it later."""
    first = {"records/facts": ["a" * 64], "records/work": ["b" * 64]}
    placed.view.records["facts"] = {"state": "success", "attempt": 1, "started_at": ""}
    placed.slurm.shown = row(7, "RUNNING")
    follow = placed.placement._follow

    def follow_to_the_end(seconds):
        placed.slurm.shown = row(7, "COMPLETED", said=f" {note(first)}")
        follow(seconds)

    placed.placement._follow = follow_to_the_end
    placed.placement.finish()
    assert placed.folder.read_digests("gpu-1") == NodeDigests("slurm", first)

    placed.view.launch |= {"attempt": 2}
    again = {"records/work": ["c" * 64]}
    placed.slurm.shown = row(7, "COMPLETED", said=f" {note(first)}")
    placed.slurm.shown += row(8, "COMPLETED", attempt=2, said=f" {note(again)}")
    placed.placement.finish()
    assert placed.folder.read_digests("gpu-1").stated == {**first, **again}

    placed.view.launch |= {"attempt": 3}
    placed.slurm.shown = row(9, "TIMEOUT", attempt=3)
    placed.placement.finish()
    assert placed.folder.read_digests("gpu-1").stated == {}, "its uploads are unknown"


def note(stated):
    return json.dumps({"digests": stated})


def test_only_jobs_of_gpuval_count_and_the_newest_of_an_attempt():
    text = "5|RUNNING|None|(null)\n9|PENDING|(Priority)|mine|gpuval:x\n" + row(7, "TIMEOUT") + row(8, "RUNNING")
    found = jobs.of_run(jobs.parse(text), RUN)
    assert {key: job.id for key, job in found.items()} == {("gpu-1", 1): 8}
    assert jobs.of_run(jobs.parse(text), "other") == {}


@pytest.mark.parametrize(
    ("state", "reason", "expected", "again"),
    [
        ("PREEMPTED", "None", "slurm_preempted", True),
        ("NODE_FAIL", "None", "slurm_node_failed", True),
        ("BOOT_FAIL", "None", "slurm_node_failed", True),
        ("CANCELLED", "None", "slurm_cancelled", False),
        ("TIMEOUT", "TimeLimit", "slurm_time_limit", False),
        ("DEADLINE", "DeadLine", "slurm_pending", False),
        ("REQUEUE_HOLD", "JobHoldMaxRequeue", "slurm_requeued", False),
        ("OUT_OF_MEMORY", "OutOfMemory", "slurm_out_of_memory", False),
        ("FAILED", "NonZeroExitCode", "slurm_job_failed", False),
        ("COMPLETED", "None", "store_away", False),
        ("A_STATE_OF_TOMORROW", "None", "slurm_job_failed", False),
    ],
)
def test_ends(state, reason, expected, again):
    job = one(state, reason)
    end = jobs.end_of(job, 1)
    assert job.ended
    assert (end.name, end.retryable) == (expected, again)
    assert "job 7 ended" in end.message
    assert end.remedy
    assert "{node}" not in end.remedy


def test_a_refusal_of_the_node_has_the_class_that_it_has_over_ssh():
    job = one("FAILED", said=" run other is at work on this node, and two at once would measure each other")
    end = jobs.end_of(job, jobs.REFUSED)
    assert (end.name, end.refused) == ("other_run", True)
    assert jobs.end_of(one("FAILED"), jobs.NO_PYTHON).name == "no_python"


def test_waiting_jobs_say_slurms_reason():
    job = one("PENDING", "(ReqNodeNotAvail, UnavailableNodes:gpu-1)")
    assert job.waits
    assert not job.ended
    assert jobs.describe_pending(job) == "job 7 is pending (ReqNodeNotAvail, UnavailableNodes:gpu-1)"


def test_every_class_has_a_remedy():
    assert all(
        row.steps for rows in read(COLLECTION / "plugins/plugin_utils/slurm/failures.yml").values() for row in rows
    )


def settings(**changed):
    values = dict.fromkeys(script.VARIABLES, "")
    return script.JobSettings.of({**values, "gpuval_slurm_arguments": [], **changed})


def test_the_job_has_one_node_alone_and_ends_with_the_run():
    made = script.arguments(settings(gpuval_slurm_account="ops"), RUN, ["gpu-1"], 2, 90.5)
    assert {"--exclusive", "--nodelist=gpu-1", "--time=2", "--account=ops", "--export=NIL", "--no-requeue"} <= {*made}
    assert f"--comment=gpuval:{RUN}:gpu-1:2" in made
    assert "--deadline=now+210" in made  # it begins within 90 s or never, also without a controller
    assert "--nice=10000" not in made
    assert "--nice=10000" in script.arguments(settings(), RUN, ["gpu-1"], 2, 90.5, idle=True)
    with pytest.raises(SettingError, match="gpuval sets --time itself"):
        settings(gpuval_slurm_arguments=["--time=1"])
    with pytest.raises(SettingError, match="is a list of options"):
        settings(gpuval_slurm_arguments="--x")


def test_the_script_carries_all_and_is_refused_when_slurm_would_refuse_it(tmp_path):
    data = script.batch({"plan": {}}, b"RUNNER", b"WORK", "gpuval:a:b:1")
    (tmp_path / "script").write_bytes(data)
    assert subprocess.run(["sh", "-n", str(tmp_path / "script")], check=False, timeout=60).returncode == 0
    payload = zlib.decompress(base64.b64decode(data.rpartition(f"\n{script.MARK}\n".encode())[2]))
    assert payload == b'6\nRUNNER{"plan": {}}\nWORK'
    with pytest.raises(PlanError, match="choose fewer stages"):
        script.batch({}, os.urandom(script.MAX_BYTES), b"", "c")


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("members", [{}, {"members": {"gpu-1": {}, "gpu-2": {}}}])
def test_a_job_without_home_has_that_of_the_passwd_database(tmp_path, shell, members):
    """Slurm from 23.02 on gives it none. The program that the script starts prints what it has."""
    (tmp_path / "job").write_bytes(script.batch({"plan": {}, **members}, b"RUNNER", b"WORK", "gpuval:a:b:1"))
    (tmp_path / "python3").write_text('#!/bin/sh\necho "HOME=${HOME-unset}"\n')
    (tmp_path / "srun").write_text(f'#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done; shift; exec {shell} "$@"\n')
    for name in ("python3", "srun"):
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    own = pwd.getpwuid(os.getuid()).pw_dir
    for given, expected in (({}, own), ({"HOME": ""}, own), ({"HOME": "/given"}, "/given")):
        command = [shutil.which(shell), tmp_path / "job"]
        done = subprocess.run(command, env={**path, **given}, capture_output=True, text=True, timeout=60, check=True)
        assert {*done.stdout.split()} == {f"HOME={expected}"}, done


def test_a_gangs_job_finds_srun_where_the_controller_has_it_or_says_that_there_is_none(tmp_path, monkeypatch):
    """Slurm outside the node's default PATH."""
    commands, tools = tmp_path / "opt slurm/bin", tmp_path / "tools"
    commands.mkdir(parents=True)
    tools.mkdir()
    (tools / "hostname").symlink_to(shutil.which("hostname"))
    (commands / "srun").write_text('#!/bin/sh\necho "started $PATH"\n')
    (commands / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    (tmp_path / "job").write_bytes(script.batch({"members": {"gpu-1": {}, "gpu-2": {}}}, b"R", b"W", "gpuval:a:b:1"))
    command = [shutil.which("sh"), tmp_path / "job"]

    def run():
        return subprocess.run(
            command, env={"PATH": str(tools)}, capture_output=True, text=True, timeout=60, check=False
        )

    assert run().stdout == f"started {tools}:{commands}\n"
    (commands / "srun").unlink()
    assert run().returncode == jobs.NO_SRUN
    end = jobs.end_of(one("FAILED", "NonZeroExitCode"), jobs.NO_SRUN)
    assert end.message == "job 7 ended: FAILED (NonZeroExitCode): no srun in PATH, nor where this controller has it"


class FakeSlurm(Slurm):
    """`shown` is what squeue prints; None: slurmctld is away."""

    def __init__(self):
        super().__init__(self.answer)
        self.shown, self.nodes_shown, self.cancelled, self.called = "", "", [], []
        self.partitions = "PartitionName=gpu Default=YES QoS=N/A MaxTime=UNLIMITED"

    def answer(self, command, _data, _seconds):
        self.called.append(command[0])
        if self.shown is None:
            return 1, "", "slurm_load_jobs error: Unable to contact slurm controller"
        if command[0] == "scancel":
            self.cancelled += command[1:]
        if tuple(command[:3]) == ("scontrol", "show", "node"):
            return 0, self.nodes_shown, ""
        if tuple(command[:3]) == ("scontrol", "show", "partition"):
            return 0, self.partitions, ""
        return 0, self.shown if command[0] == "squeue" else "ExitCode=1:0", ""


@pytest.fixture
def placed(monkeypatch, tmp_path):
    """A placement whose node was launched as job 7, and its view; time is a number."""
    clock = SimpleNamespace(now=1000.0)
    # Of this module alone: a thread left by another test would move the clock of the whole process with its sleep.
    sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)  # noqa: E731
    for module in (placement, watch_placement):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    view = NodeView("gpu-1", {"stages": [{"name": "facts"}]}, {"node": "gpu-1", "state": "started", "attempt": 1})
    folder, warnings = SimpleNamespace(written={}), []
    folder.write_launch = folder.written.__setitem__
    folder.read_launch = lambda _name: {}
    folder.read_digests, folder.digests_file = RunFolder(tmp_path).read_digests, RunFolder(tmp_path).digests_file
    made = placement.SlurmPlacement(
        FakeSlurm(),
        {"run_id": RUN, "nodes": {"gpu-1": {}}},
        folder,
        None,
        lambda _name: SimpleNamespace(settings=settings()),
        ["gpu-1"],
        ["gpu-1"],
        warnings.append,
    )
    made._views = {"gpu-1": view}
    return SimpleNamespace(placement=made, slurm=made._slurm, view=view, clock=clock, folder=folder, warnings=warnings)


def news(placed, seconds=10.0):
    until = placed.clock.now + seconds
    while placed.clock.now < until:
        for event in placed.placement.wait(0.5):
            placed.view.launch = event.launch
            return event.launch
    return None


def test_a_pending_job_is_shown_and_cancelled_at_the_end(placed):
    placed.slurm.shown = row(7, "PENDING", "(Resources)")
    assert news(placed)["message"] == "job 7 is pending (Resources)"
    assert news(placed) is None
    placed.placement.finish()
    assert placed.slurm.cancelled == ["7"]
    written = placed.folder.written["gpu-1"]
    assert (written["state"], written["class"]) == ("failed", "slurm_pending")


@pytest.mark.parametrize("reason", ["AssocGrpNodeLimit", "JobHeldAdmin", "job requeued in held state", "Resources"])
def test_a_job_that_pends_until_the_deadline_has_slurms_reason(placed, reason):
    """Slurm ends it at the run's deadline, and its reason is DeadLine then."""
    placed.slurm.shown = row(7, "PENDING", f"({reason})")
    assert news(placed)["message"] == f"job 7 is pending ({reason})"
    placed.slurm.shown = row(7, "DEADLINE", "DeadLine")
    launch = news(placed, 30)
    assert (launch["state"], launch["class"]) == ("refused", "slurm_pending")
    assert launch["message"] == f"job 7 is pending ({reason}) until the deadline"
    assert placed.view.done


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("PartitionTimeLimit", "slurm_too_short"),
        ("QOSMaxWallDurationPerJobLimit", "slurm_too_short"),
        ("AssocMaxWallDurationPerJobLimit", "slurm_too_short"),
        ("QOSMaxNodePerJobLimit", "slurm_refused"),
        ("AssocMaxGRESPerJob", "slurm_refused"),
    ],
)
def test_a_job_that_slurm_never_starts_ends_at_once(placed, reason, name):
    """A limit on each job, which no end of other work changes."""
    placed.slurm.shown = row(7, "PENDING", f"({reason})")
    launch = news(placed)
    assert (launch["state"], launch["class"]) == ("refused", name)
    assert f"job 7 is pending ({reason}), which never ends: cancelled" in launch["message"]
    assert (placed.slurm.cancelled, placed.view.done) == (["7"], True)


def test_a_limit_of_one_of_several_partitions_ends_no_job(placed):
    """Slurm 22.05 shows PartitionTimeLimit of the second one for two seconds while the job waits in the first."""
    placed.placement._orders = lambda _name: SimpleNamespace(settings=settings(gpuval_slurm_partition="long,quick"))
    placed.slurm.shown = row(7, "PENDING", "(PartitionTimeLimit)")
    assert news(placed)["message"] == "job 7 is pending (PartitionTimeLimit)"
    assert (placed.slurm.cancelled, placed.view.done) == ([], False)


def test_a_job_whose_expedited_requeue_slurm_considers_waits():
    assert one("EXPEDITING").waits


def test_jobs_that_no_controller_waits_for_are_cancelled_at_the_end(placed):
    placed.slurm.shown = row(6, "RUNNING") + row(8, "PENDING", node="gpu-2") + row(9, "COMPLETED", node="gpu-3")
    placed.placement.finish()  # sbatch of gpu-2 had timed out
    assert placed.slurm.cancelled == ["6", "8"]
    placed.slurm.cancelled.clear()
    placed.view.records["facts"] = {"state": "success", "attempt": 1, "started_at": ""}
    placed.placement.finish()
    assert (placed.slurm.cancelled, placed.folder.written) == (["8"], {})


def test_a_suspended_job_is_cancelled_as_preempted(placed):
    placed.slurm.shown = row(7, "SUSPENDED")
    assert news(placed) is None
    assert placed.slurm.cancelled == ["7"]
    placed.slurm.shown = row(7, "CANCELLED")
    assert news(placed, 30)["contact"]["class"] == "slurm_preempted"
    assert placed.placement._ends["gpu-1", 1].retryable


def test_launches_wait_while_slurmctld_is_away_without_a_command_for_each(placed):
    placed.slurm.shown = None
    for _ in range(1000):
        placed.placement.launch(placed.view, PlannedAttempt(), 600)
    assert placed.placement.busy
    assert news(placed, 60) is None
    assert len(placed.slurm.called) < 10
    placed.view.launch = {}
    placed.placement.finish()
    written = placed.folder.written["gpu-1"]
    assert (written["state"], written["class"]) == ("failed", "slurm_away")


def test_a_launch_whose_sbatch_timed_out_is_found_and_not_repeated(placed, monkeypatch):
    """sbatch is asked once: the poll that follows shows the job."""
    submitted = []

    def submit(*_arguments):
        submitted.append(1)
        raise SlurmError("sbatch: Socket timed out", away=True)

    monkeypatch.setattr(placed.placement, "_submit", submit)
    monkeypatch.setattr(placed.placement, "_order", lambda _name: placement.JobOrder({}, settings(), "/d"))
    placed.placement._store = SimpleNamespace(reachable=True)
    placed.placement._nodes, placed.placement._listed_at = {"gpu-1": IDLE}, placed.clock.now
    placed.view.launch, placed.view.busy = {}, "launch"
    placed.placement.launch(placed.view, PlannedAttempt(), 600)
    assert placed.placement.wait(5) == []
    placed.slurm.shown = row(7, "PENDING")
    (ended,) = placed.placement.wait(20)
    assert (ended.started, submitted, placed.folder.written["gpu-1"]["job"]) == (True, [1], "7")


def submitting(placed, monkeypatch, answers):
    """Launch the node, with these answers of sbatch, one after the other; the last one stays."""

    def submit(*_):
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, str):
            return Slurm(lambda *_: (1, "", found)).submit([], b"")
        return found

    monkeypatch.setattr(placed.placement, "_submit", submit)
    monkeypatch.setattr(placed.placement, "_order", lambda _name: placement.JobOrder({}, settings(), "/d"))
    placed.placement._store = SimpleNamespace(reachable=True)
    placed.slurm.nodes = lambda: [IDLE]
    placed.view.launch, placed.view.busy = {}, "launch"
    placed.placement.launch(placed.view, PlannedAttempt(), 600)


@pytest.mark.parametrize("limit", ["QOSMaxSubmitJobPerUserLimit", "AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit"])
def test_a_launch_waits_for_a_limit_of_submitted_jobs(placed, monkeypatch, limit):
    refused = f"sbatch: error: {limit}\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
    answers = [refused, refused, 7]
    submitting(placed, monkeypatch, answers)
    began = placed.clock.now
    (ended,) = placed.placement.wait(600)
    assert (ended.started, placed.folder.written["gpu-1"]["job"]) == (True, "7")
    assert placed.clock.now - began >= 2 * placement.FULL_SECONDS
    placed.placement.finish()
    assert placed.folder.written["gpu-1"]["state"] == "started"


def test_a_limit_that_stays_is_named_at_the_end(placed, monkeypatch):
    submitting(placed, monkeypatch, ["sbatch: error: QOSMaxSubmitJobPerUserLimit"])
    assert placed.placement.wait(700) == []
    placed.placement.finish()
    written = placed.folder.written["gpu-1"]
    assert (written["state"], written["class"]) == ("failed", "slurm_refused")
    assert "QOSMaxSubmitJobPerUserLimit" in written["message"]


def test_habits_of_the_user_reach_no_command(monkeypatch):
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SCANCEL_STATE", "PENDING")
    monkeypatch.setenv("SBATCH_WAIT", "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "ops")
    seen = Slurm().run("env")
    assert "SBATCH_ACCOUNT=ops" in seen
    assert not re.search("SQUEUE_|SCANCEL_|SBATCH_WAIT", seen)


def test_an_end_without_records_is_a_contact_once_the_store_had_its_time(placed):
    placed.slurm.shown = row(7, "RUNNING")
    assert news(placed)["message"] == ""
    placed.slurm.shown = row(7, "TIMEOUT", "TimeLimit")
    began = placed.clock.now
    launch = news(placed, 30)
    assert placed.clock.now - began >= placement.SlurmPlacement.SETTLE_SECONDS
    assert (launch["state"], launch["contact"]["class"]) == ("started", "slurm_time_limit")
    assert placed.view.done


def test_while_slurmctld_is_away_nothing_is_concluded(placed):
    placed.slurm.shown = None
    assert news(placed, 120) is None
    (warning,) = placed.warnings
    assert warning.endswith("; jobs that run continue: check slurmctld (scontrol ping)")
    placed.slurm.shown = row(7, "RUNNING")
    assert news(placed, 60)["message"] == ""


def test_a_job_that_slurm_forgot(placed):
    assert news(placed, 20) is None
    assert news(placed, 60)["contact"]["class"] == "slurm_job_forgotten"


def test_sbatch_that_prints_no_id_is_an_error():
    with pytest.raises(SlurmError, match="no job id"):
        Slurm(lambda *_: (0, "hello", "")).submit([], b"")
    assert Slurm(lambda *_: (0, json.dumps(5) + ";cluster\n", "")).submit([], b"") == 5


GANG = {"gpu-1": 0, "gpu-2": 1}
ROUND = {
    "run_id": RUN,
    "folder": "f",
    "gangs": {"all": {"members": [{"node": name, "address": name, "slots": 1} for name in GANG], "port": 29500}},
    "nodes": {name: {"gang": {"name": "all", "index": index}} for name, index in GANG.items()},
}


@pytest.fixture
def gang(placed, tmp_path):
    """A placement of a gang's round, both nodes free and not launched; `sent` has what sbatch was given."""
    made, sent = placed.placement, []
    placed.folder.plan_file, placed.folder.state = (lambda name: tmp_path / name), tmp_path
    placed.folder.read_plan = lambda name: json.loads((tmp_path / name).read_text())
    made._run = ROUND
    made._views = {name: NodeView(name, {"stages": [{"name": "collective"}]}, {}) for name in GANG}
    given = SimpleNamespace(given=lambda *_: {"store": {}}, sizes=lambda _folders: {}, secrets=lambda _plan: {})
    given.reachable, given.client = True, SimpleNamespace(put=lambda *_: None)
    made._store = given
    plans = {name: {"node": name, "nonce": f"of {name}", "deadline_seconds": 600, "stages": []} for name in GANG}
    placed.orders = {name: placement.JobOrder(plan, settings(), "/d") for name, plan in plans.items()}
    made._orders = placed.orders.__getitem__
    made._nodes = {name: {**IDLE, "name": name, "gres": "gpu:h200:8"} for name in GANG}
    made._listed_at = placed.clock.now
    made._slurm.nodes = lambda: list(made._nodes.values())
    made._slurm.submit = lambda arguments, script: sent.append((arguments, script)) or 7
    placed.sent = sent
    return placed


def launched(gang, seconds=5):
    for view in gang.placement._views.values():
        gang.placement.launch(view, PlannedAttempt(), 600)
    events = []
    for _ in range(20):
        events += gang.placement.wait(seconds)
    assert not gang.placement.busy
    for name, launch in gang.folder.written.items():
        gang.placement._views[name].launch = launch
    return events


def test_a_gang_is_one_job_whose_members_srun_starts(gang, tmp_path):
    assert [(event.node, event.started) for event in launched(gang)] == [("gpu-1", True), ("gpu-2", True)]
    assert {launch["job"] for launch in gang.folder.written.values()} == {"7"}
    assert gang.folder.written["gpu-2"]["nonce"] == "of gpu-2"
    ((arguments, script_sent),) = gang.sent
    assert {"--nodes=2", "--ntasks=2", "--nodelist=gpu-1,gpu-2", "--exclusive", "--no-kill"} <= {*arguments}
    assert f"--comment=gpuval:{RUN}:gpu-1:1" in arguments
    (tmp_path / "script").write_bytes(script_sent)
    (tmp_path / "srun").write_text('#!/bin/sh\nfor word; do echo "$word"; done >"$0.words"; cat >"$0.input"\n')
    (tmp_path / "srun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert subprocess.run(["sh", str(tmp_path / "script")], env=environment, check=False, timeout=60).returncode == 0
    words = (tmp_path / "srun.words").read_text().splitlines()
    assert {"--nodes=2", "--ntasks=2", "--gres=gpu:8", "--no-kill", "--kill-on-bad-exit=0"} <= {*words}
    assert (tmp_path / "srun.input").read_bytes() == script_sent
    payload = zlib.decompress(base64.b64decode(script_sent.rpartition(f"\n{script.MARK}\n".encode())[2]))
    _runner, begin, rest = payload.partition(b'{"members": ')
    members = json.JSONDecoder().raw_decode((begin + rest).decode(errors="replace"))[0]["members"]
    assert {name: one["plan"]["gang"]["index"] for name, one in members.items()} == GANG
    assert members["gpu-2"]["plan"]["gang"]["members"] == ROUND["gangs"]["all"]["members"]


def test_a_gang_without_one_of_its_nodes_is_not_submitted(gang):
    gang.placement._nodes["gpu-2"] |= {"state": ["DOWN"], "reason": "no power"}
    assert not any(event.started for event in launched(gang))
    assert gang.sent == []
    written = gang.folder.written
    assert {launch["class"] for launch in written.values()} == {"slurm_node_down"}
    assert written["gpu-1"]["message"].startswith("gpu-2, a member of its gang: DOWN: no power")
    assert written["gpu-2"]["message"] == "DOWN: no power"


def with_stages(gang, *seconds):
    """Each member's plan has stages that take so long; the partition gives 5 minutes of the run's 10."""
    gang.slurm.partitions = "PartitionName=gpu Default=YES QoS=N/A MaxTime=00:05:00"
    for order in gang.orders.values():
        for number, each in enumerate(seconds):
            order.plan["stages"].append({"name": f"s{number}", "expected_seconds": each, "command": ["true"]})


@pytest.mark.parametrize("seconds", [(), (100, 150), (None, 299)])
def test_a_job_asks_for_no_more_time_than_slurm_gives_it(gang, seconds):
    with_stages(gang, *seconds)
    assert all(event.started for event in launched(gang))
    ((arguments, data),) = gang.sent
    assert "--time=5" in arguments
    assert f"--deadline=now+{600 + 300}" in arguments  # it may begin as long as the run goes on
    payload = zlib.decompress(base64.b64decode(data.rpartition(f"\n{script.MARK}\n".encode())[2]))
    assert payload.count(b'"deadline_seconds": 300') == len(GANG)
    (warning,) = gang.warnings
    assert warning == "MaxTime=00:05:00 of partition gpu: jobs get 5 min 00 s, less than the run has left"


def test_a_job_that_gets_too_little_time_is_refused_at_once(gang):
    with_stages(gang, 200, 101)
    assert not any(event.started for event in launched(gang))
    assert (gang.sent, gang.warnings) == ([], [])
    for written in gang.folder.written.values():
        assert (written["state"], written["class"]) == ("failed", "slurm_too_short")
        expected = "MaxTime=00:05:00 of partition gpu: jobs get 5 min 00 s, and the stages take about 5 min 01 s"
        assert written["message"] == expected
        assert "gpuval_slurm_partition" in written["remedy"]


def test_a_limit_that_may_not_hold_refuses_no_job(gang):
    with_stages(gang, 200, 101)
    for name, order in gang.orders.items():
        gang.orders[name] = placement.JobOrder(order.plan, settings(gpuval_slurm_qos="quick,long"), "/d")
    assert all(event.started for event in launched(gang))
    assert "--time=10" in gang.sent[0][0]
    (warning,) = gang.warnings
    assert warning.endswith("the stages take about 5 min 01 s: the job does not start unless its QOS exempts it")


def test_a_gang_has_one_setting_of_jobs(gang):
    gang.orders["gpu-2"] = placement.JobOrder(gang.orders["gpu-2"].plan, settings(gpuval_slurm_account="ops"), "/d")
    assert not any(event.started for event in launched(gang))
    assert "gpu-1 and gpu-2 are one gang" in gang.folder.written["gpu-1"]["message"]


@pytest.mark.parametrize(
    ("state", "down", "expected"),
    [
        ("CANCELLED", [], "slurm_cancelled"),
        ("TIMEOUT", [], "slurm_time_limit"),
        ("PREEMPTED", [], "slurm_preempted"),
        ("FAILED", [], "slurm_job_failed"),
        ("FAILED", ["gpu-2"], "slurm_node_failed"),
        ("NODE_FAIL", ["gpu-1"], "slurm_node_failed"),
    ],
)
def test_the_end_of_a_gangs_job_is_the_end_of_all_members_without_records(gang, state, down, expected):
    launched(gang)
    for name in down:
        gang.placement._nodes[name] |= {"state": ["DOWN", "NOT_RESPONDING"]}
    gang.slurm.shown = row(7, state)
    found, until = {}, gang.clock.now + 30
    while gang.clock.now < until:
        for event in gang.placement.wait(1):
            gang.placement._views[event.node].launch = event.launch
            found |= {event.node: event.launch["contact"]} if "contact" in event.launch else {}
    assert {name: contact["class"] for name, contact in found.items()} == dict.fromkeys(GANG, expected)
    assert len({contact["message"] for contact in found.values()}) == 1
    for name in down:
        assert f"job 7 lost {name}: DOWN+NOT_RESPONDING" in found["gpu-1"]["message"]
        assert f"scontrol show node {name}" in found["gpu-1"]["remedy"]
    assert [gang.placement.next_attempt(view) for view in gang.placement._views.values()] == [None, None]


@pytest.mark.parametrize("attempts", [["gpu-1"], ["gpu-1", "gpu-2"]])
def test_a_job_that_was_cancelled_with_a_drain_of_its_node_names_the_drain(gang, attempts):
    """A Prolog that fails drains the node, and cancels a job that is not to be requeued."""
    if len(attempts) == 1:
        gang.placement._run = {**ROUND, "nodes": {"gpu-1": {}}}
        gang.placement._views = {"gpu-1": NodeView("gpu-1", {"stages": [{"name": "facts"}]}, {})}
    launched(gang)
    gang.placement._nodes["gpu-1"] |= {"state": ["IDLE", "DRAIN"], "reason": "Prolog error"}
    gang.slurm.shown = row(7, "CANCELLED", "None")
    contact, until = None, gang.clock.now + 30
    while gang.clock.now < until and not contact:
        for event in gang.placement.wait(1):
            gang.placement._views[event.node].launch = event.launch
            contact = event.launch.get("contact")
    assert contact["class"] == "slurm_drained"
    assert contact["message"] == "job 7 was cancelled on gpu-1: IDLE+DRAIN: Prolog error"
    assert "scontrol update nodename=gpu-1 state=resume" in contact["remedy"]
    gang.placement._nodes["gpu-2"] |= {"state": ["DOWN"]}
    listed, shown = [], gang.slurm.nodes()
    gang.slurm.nodes = lambda: listed.append(gang.clock.now) or shown
    gang.placement.wait(60)
    assert len(listed) >= 5, "nodes are listed as before"


@pytest.mark.parametrize(
    ("before", "after", "withdrawn", "cancelled"),
    [
        ("PENDING", "CANCELLED", True, ["--state=PENDING", "7"]),
        ("PENDING", "RUNNING", False, ["--state=PENDING", "7"]),
        ("RUNNING", "RUNNING", False, []),
    ],
)
def test_a_job_that_begins_before_slurm_cancels_it_goes_on(placed, before, after, withdrawn, cancelled):
    placed.slurm.shown, answer = row(7, before), placed.slurm._call

    def call(command, data, seconds):
        if command[0] == "scancel":
            placed.slurm.shown = row(7, after)
        return answer(command, data, seconds)

    placed.slurm._call = call
    assert placed.placement.withdraw(placed.view) is withdrawn
    assert placed.slurm.cancelled == cancelled


def test_a_gangs_job_is_cancelled_while_one_member_is_incomplete(gang):
    launched(gang)
    gang.placement._views["gpu-1"].records["collective"] = {"state": "success", "attempt": 1, "started_at": ""}
    gang.slurm.shown = row(7, "RUNNING")
    gang.placement.finish()
    assert gang.slurm.cancelled == ["7"]


def test_a_job_notes_the_stages_that_its_node_refuses(tmp_path):
    """The program of a job, whose scontrol keeps the comment."""
    (tmp_path / "scontrol").write_text('#!/bin/sh\nprintf "7|FAILED|None|%s" "${3#Comment=}" >"$KEPT"\n')
    (tmp_path / "scontrol").chmod(0o755)
    trial = {"in_python": False, "environment": {}, "needs": [{"start": "no-tool", "stages": ["first", "second"]}]}
    plan = {"run_id": "r", "node": "n", "python": sys.executable, "runtime": "host", "attempt": 1}
    parameters = {"directory": str(tmp_path / "base"), "plan": plan, "requirements": [trial], "force": True}
    code, mark = launch_inputs.archives(), jobs.comment("r", "n", 1)
    (tmp_path / "job").write_bytes(script.batch(parameters, code["runner"], code["workloads"], mark))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "KEPT": str(tmp_path / "kept"), "SLURM_JOB_ID": "7"}
    command = [sys.executable, "-c", script._PROGRAM, tmp_path / "job", mark]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == jobs.REFUSED, done.stderr
    end = jobs.end_of(jobs.parse((tmp_path / "kept").read_text())[7], jobs.REFUSED)
    assert (end.name, end.refused) == ("no_package", True)
    assert "first, second need no-tool (not found, or not executable: install no-tool)" in end.message
    assert '(ARGS="--skip-tags first,second")' in end.remedy


def test_a_node_that_was_down_in_mid_run_is_noted_once_with_time_and_length(placed):
    """Its job survived, as one does until SlurmdTimeout."""
    text = "NodeName=gpu-1 State={} Gres=gpu:8 Reason=Not responding [root@2026-11-28T12:00:00]"
    placed.slurm.shown, placed.slurm.nodes_shown = row(7, "RUNNING"), text.format("ALLOCATED")
    assert news(placed, 30)["message"] == ""
    placed.slurm.nodes_shown = text.format("ALLOCATED*")
    assert news(placed, 20) is None
    placed.slurm.nodes_shown = text.format("ALLOCATED")
    (outage,) = news(placed, 30)["interruptions"]
    assert outage["class"] == "slurm_node_down"
    reason = r"ALLOCATED\+NOT_RESPONDING by root .*: Not responding"
    assert re.fullmatch(rf"no answer from 20\S+Z for [12]\d s \({reason}\); its work went on", outage["message"])
    assert news(placed, 60) is None
    placed.slurm.nodes_shown = text.format("DOWN*")
    assert news(placed, 20) is None
    placed.view.records["facts"] = {"state": "success", "attempt": 1, "started_at": ""}  # it ends while it is down
    assert len(news(placed, 30)["interruptions"]) == 2
    assert news(placed, 60) is None


def test_a_node_that_fails_once_its_work_is_done_is_noted(placed):
    placed.slurm.shown = row(7, "RUNNING")
    assert news(placed)["message"] == ""
    placed.view.records["facts"] = {"state": "success", "attempt": 1, "started_at": ""}
    placed.slurm.shown = row(7, "NODE_FAIL")
    (outage,) = news(placed)["interruptions"]
    assert outage["class"] == "slurm_node_down"
    assert "(job 7 ended: NODE_FAIL)" in outage["message"]
    assert news(placed, 30) is None
    assert placed.placement.next_attempt(placed.view) is None
