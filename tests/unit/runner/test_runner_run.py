"""Whole runs with real processes and a real HTTP store."""

import json
import os
import re
import resource
import signal
import time
from pathlib import Path

import pytest
from gpuval_runner import lock
from gpuval_runner import state as states

from tests.kit.needs import tmpfs
from tests.kit.runner import SERIES_SCHEMA, SUCCEED, StoreServer, alive, stage, until, until_written

RESULT = """{"state":"success","message":"m",
"metrics":[{"name":"a_seconds","value":1.5,"unit":"seconds","scope":"node"}],
"series":[{"name":"loss","unit":"loss","scope":"node","x_unit":"step","x":[1],"y":[2]}],"environment":{"torch":"x"}}"""


def test_every_record_echoes_the_nonce_of_its_launch(node):
    first, second = "0" * 32, "f" * 32
    node.put_plan(stage("a"), stage("b", "exit 1"), nonce=first)
    assert node.call("run").returncode == 1
    assert [node.record(name)["nonce"] for name in "ab"] == [first, first]
    node.put_plan(stage("b"), attempt=2, nonce=second)
    assert node.call("run").returncode == 0
    assert node.record("a")["nonce"] == first
    assert node.record("b")["nonce"] == second
    assert [earlier["nonce"] for earlier in node.record("b")["attempts"]] == [first]


def test_every_way_to_end(node):
    node.put_plan(
        stage("good", f"echo '{RESULT}' > $GPUVAL_RESULT_FILE"),
        stage("fails", """echo '{"state":"failure","message":"loss is NaN"}' > $GPUVAL_RESULT_FILE; exit 1"""),
        stage("crashes", "echo out of ideas; exit 4"),
        stage("killed", "kill -KILL $$"),
        stage("silent", "sleep 20", inactivity_seconds=0.4),
        stage("long", "while :; do echo x; sleep 0.1; done", timeout_seconds=2),
        stage("missing", ["/no/such/tool"]),
        stage("empty", "true"),
        stage(
            "printed",
            "echo 'performance: 12.5 examples/sec'",
            patterns=[{"pattern": r"performance: (?P<value>\S+)", "name": "p"}],
        ),
        stage("needing", needs=["good", "crashes"]),
    )
    done = node.call("run")
    assert done.returncode == 1, done.stderr
    records = node.records()
    states = {name: record["state"] for name, record in records.items()}
    assert states == {
        "good": "success",
        "fails": "failure",
        "crashes": "crash",
        "killed": "crash",
        "silent": "timeout",
        "long": "timeout",
        "missing": "crash",
        "empty": "crash",
        "printed": "success",
        "needing": "skipped",
    }
    good = records["good"]
    assert (good["message"], good["exit_code"], good["environment"]) == ("m", 0, {"torch": "x"})
    assert good["metrics"] == [{"name": "a_seconds", "value": 1.5, "unit": "seconds", "scope": "node"}]
    assert records["fails"]["message"] == "loss is NaN"
    assert records["crashes"]["message"] == "exit code 4 without a result; last output: out of ideas"
    assert records["killed"]["signal"] == "SIGKILL"
    assert "memory" not in records["killed"]["message"]
    assert "inactivity_seconds" in records["silent"]["message"]
    assert "timeout_seconds" in records["long"]["message"]
    assert "last output: x" in records["long"]["message"]
    assert "command not found: /no/such/tool" in records["missing"]["message"]
    assert records["printed"]["metrics"][0]["value"] == 12.5
    assert records["needing"]["message"] == "needs crashes, which ended in crash"
    SERIES_SCHEMA.validate(json.loads(node.files.result("series/good").read_text()))
    assert list((node.files.root / "work").iterdir()) == []
    assert "out of ideas" in node.log("crashes")


@pytest.mark.parametrize(("runtime", "named"), [("docker", ["docker"]), ("auto", ["docker", "podman"])])
def test_an_image_needs_its_engine(node, runtime, named):
    node.put_plan(stage("boxed", image="vllm:1"), runtime=runtime)
    assert node.call("run", environment={"PATH": "/nowhere"}).returncode == 1
    record = node.record("boxed")
    assert (record["state"], record["image"]) == ("crash", "vllm:1")
    for said in (*named, "not installed", "gpuval_runtime: host"):
        assert said in record["message"]


def test_the_host_runtime_and_the_nodes_own_stages_use_no_image(node):
    node.put_plan(stage("a", image="vllm:1"), runtime="host")
    assert node.call("run").returncode == 0
    assert node.record("a")["image"] is None
    node.put_plan(stage("facts", image="vllm:1"), stage("image", image="vllm:1"), runtime="docker", attempt=2)
    assert node.call("run", environment={"PATH": "/usr/bin:/bin"}).returncode == 0
    assert node.record("facts")["image"] is None


def test_partial_figures_show_while_it_runs(node, store):
    node.put_store(store.url, ["a"])
    partial = (
        '{"state":"running","message":"step 5","metrics":[{"name":"x_count","value":5,"unit":"count","scope":"node"}]}'
    )
    node.put_plan(stage("a", f"echo '{partial}' > $GPUVAL_RESULT_FILE; {node.until_released}; {SUCCEED}"))
    process = node.begin("run")

    def beats() -> list[dict]:
        sent = [json.loads(data) for key, data in list(store.history) if key == "records/a"]
        return [record for record in sent if record["state"] == "running" and record["message"] == "step 5"]

    until(lambda: len({record["updated_at"] for record in beats()}) >= 3, what="three heartbeats of step 5")
    node.release()
    assert process.wait(30) == 0
    assert store.states("a") == ["pending", "running", "success"]
    assert {record["metrics"][0]["value"] for record in beats()} == {5}
    assert json.loads(store.objects["records/a"]) == node.record("a")
    assert store.objects["logs/a"].decode() == node.log("a")


def test_the_store_away_in_the_middle_loses_nothing(node, store):
    names = ["a", "b", "c"]
    node.put_store(store.url, names)
    node.put_plan(stage("a"), stage("b", f"{node.until_released}; {SUCCEED}"), stage("c"))
    process = node.begin("run")
    node.wait_for("b", "running")
    store.close()
    node.release()
    node.wait_for("c", "success")
    time.sleep(0.5)
    store.open()
    assert process.wait(30) == 0
    for name in names:
        assert json.loads(store.objects[f"records/{name}"]) == node.record(name)
        assert store.objects[f"logs/{name}"].decode() == node.log(name)
    assert node.ask("status")["not_uploaded"] == []


@pytest.mark.parametrize("answer", [403, 500])
def test_a_store_that_refuses_does_not_change_the_outcome(node, store, answer):
    store.answer = answer
    node.put_store(store.url, ["a"])
    node.put_plan(stage("a"))
    begun = time.monotonic()
    assert node.call("run").returncode == 0
    assert time.monotonic() - begun < 60
    assert sorted(node.ask("status")["not_uploaded"]) == ["logs/a", "records/a"]
    assert node.ask("status")["store_reachable"] is False


def test_signed_urls_show_nowhere(node, store):
    store.answer = 403
    node.put_store(store.url, ["a"])
    node.put_plan(stage("a", "env; cat /proc/$PPID/cmdline | tr '\\0' ' '; " + SUCCEED))
    done = node.call("run")
    everything = done.stdout + done.stderr
    for path in node.files.root.rglob("*"):
        if path.is_file() and path != node.files.store:
            everything += path.read_text(errors="replace")
    assert "5ecret" not in everything
    assert "Signature" not in everything
    assert "403" in done.stderr


LOOKS_SECRET = {
    "AKIA" + "ABCDEFGH12345678": "key {}",
    "hf_" + "abcdefghijklmnopqrstuvwxyz": "no model for {}",
    "abcdef0123456789": "Authorization: Bearer {}",
    "correcthorse": "login failed, password={}",
}


@pytest.mark.parametrize("secret", LOOKS_SECRET)
def test_what_looks_like_a_secret_is_in_no_message(node, secret):
    """No file names it: the log shows it until it is collected, but records and the runner's log go further."""
    words = LOOKS_SECRET[secret].format(secret)
    partial, failure = (json.dumps({"state": state, "message": words}) for state in ("running", "failure"))
    figure = {"pattern": r"speed: (?P<value>\S+).*", "name": "speed"}
    node.put_plan(
        stage("printed", f"echo '{words}'; exit 3"),
        stage("traced", f"echo 'Traceback (most recent call last):'; echo 'RuntimeError: {words}'; exit 1"),
        stage("partial", f"echo '{partial}' > $GPUVAL_RESULT_FILE; exit 1"),
        stage("reported", f"echo '{failure}' > $GPUVAL_RESULT_FILE; exit 1"),
        stage("absent", [f"/nowhere/{words}"]),
        stage("matched", f"echo 'speed: fast {words}'; {SUCCEED}", patterns=[figure]),
    )
    done = node.call("run")
    assert done.returncode == 1
    assert secret not in done.stderr
    for name, record in node.records().items():
        shown = json.dumps([record["message"], record["environment"].get("cause")])
        assert secret not in shown and "***" in shown, (name, shown)
    message = node.record("printed")["message"]
    assert message.count("***") == 1, f"told once: {message}"


def test_a_second_runner_is_refused_by_name(node):
    node.put_plan(stage("a", "sleep 20"))
    first = node.begin("run")
    node.wait_for("a", "running")
    second = node.call("run")
    assert second.returncode == 3
    assert f"pid {first.pid}" in second.stderr
    assert node.states() == {"a": "running"}


def test_the_flood_is_capped_in_the_log(node):
    node.put_plan(stage("a", "echo first; yes | head -c 30000000; echo last; " + SUCCEED, log_max_bytes=50_000))
    assert node.call("run").returncode == 0
    text = node.log("a")
    assert len(text) <= 50_000
    assert "first" in text
    assert "last\n" in text
    assert "bytes of output cut here" in text


def counting(node, name):
    return f"echo x >> {node.base}/{name}.count"


def count(node, name):
    return len((node.base / f"{name}.count").read_text().splitlines())


def test_a_runner_that_was_killed_is_resumed_and_finished_stages_stay(node):
    pid_file = node.base / "pid"
    first_time = f"echo $$ > {pid_file}; sleep 30"
    slow = f"{counting(node, 'b')}; [ $(wc -l < {node.base}/b.count) -gt 1 ] || {{ {first_time}; }}; {SUCCEED}"
    node.put_plan(stage("a", f"{counting(node, 'a')}; {SUCCEED}"), stage("b", slow), stage("c"))
    process = node.begin("run")
    until(lambda: pid_file.exists() and pid_file.read_text().strip())
    finished = node.record("a")
    process.kill()
    process.wait()
    stage_pid = int(pid_file.read_text())
    assert alive(stage_pid), "the stage outlives its runner until the next one"
    assert node.call("run").returncode == 0
    assert not alive(stage_pid)
    assert (count(node, "a"), count(node, "b")) == (1, 2)
    assert node.record("a") == finished
    record = node.record("b")
    assert record["attempt"] == 1
    assert "interrupted by the end of its runner (last seen " in record["message"]
    (cut_off,) = record["attempts"]
    assert (cut_off["attempt"], cut_off["state"]) == (1, "crash"), "what was cut off is evidence too"
    assert cut_off["message"].startswith("cut off (last seen ")


def test_a_stage_interrupted_twice_is_a_crash(node):
    node.put_plan(stage("a", "sleep 30"), stage("b"))
    for _ in range(2):
        process = node.begin("run")
        until(lambda pid=process.pid: (state := states.load(node.files.state)).current and state.pid == pid)
        process.kill()
        process.wait()
    assert node.call("run").returncode == 1
    assert node.states() == {"a": "crash", "b": "success"}
    assert "for the second time" in node.record("a")["message"]


def test_a_reboot_is_recognised(node, tmp_path):
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    once = f"{counting(node, 'a')}; [ $(wc -l < {node.base}/a.count) -gt 1 ] || sleep 30; {SUCCEED}"
    node.put_plan(stage("a", once))
    process = node.begin("run", "--boot-id-file", str(boot))
    until((node.base / "a.count").exists)
    process.kill()
    process.wait()
    boot.write_text("two\n")
    assert node.call("run", "--boot-id-file", str(boot)).returncode == 0
    assert "interrupted by a reboot of the node (last seen" in node.record("a")["message"]


def test_asked_to_end_the_runner_leaves_the_stage_to_its_successor(node):
    node.put_plan(stage("a", f"{counting(node, 'a')}; [ $(wc -l < {node.base}/a.count) -gt 1 ] || sleep 30; {SUCCEED}"))
    process = node.begin("run")
    until((node.base / "a.count").exists)
    process.terminate()
    assert process.wait(30) == 143
    assert node.record("a")["state"] == "running"
    assert node.call("run").returncode == 0


def test_a_second_attempt_keeps_the_first_whole(node):
    node.put_plan(stage("a"), stage("b", "exit 1"))
    assert node.call("run").returncode == 1
    first, kept = node.record("b"), node.record("a")
    node.put_plan(stage("b", needs=["a"]), attempt=2)
    assert node.call("run").returncode == 0
    second = node.record("b")
    assert (second["state"], second["attempt"]) == ("success", 2)
    assert second["attempts"] == [first]
    assert node.record("a") == kept
    node.put_plan(stage("b"), attempt=3)
    assert node.call("run").returncode == 0
    assert [a["attempt"] for a in node.record("b")["attempts"]] == [1, 2]
    assert [a["attempts"] for a in node.record("b")["attempts"]] == [[], []]
    node.put_plan(stage("b"), attempt=1)
    refused = node.call("run")
    assert refused.returncode == 2
    assert "put the latest plan in place" in refused.stderr


def test_a_plan_put_while_the_runner_works_is_resumed(node):
    node.put_plan(stage("a", f"{node.until_released}; exit 1"))
    process = node.begin("run")
    node.wait_for("a", "running")
    node.put_plan(stage("a"), attempt=2)
    node.release()
    assert process.wait(30) == 0
    assert node.record("a")["attempt"] == 2


def test_a_stage_gets_the_seconds_until_the_deadline(node):
    node.put_plan(stage("a", "echo left: $GPUVAL_SECONDS_LEFT"), deadline_seconds=500)
    node.call("run")
    (left,) = re.findall(r"left: (\d+)", node.log("a"))
    assert 400 < int(left) <= 500


def test_the_deadline_ends_the_plan(node):
    node.put_plan(stage("a", "sleep 30"), stage("b"), deadline_seconds=4)
    assert node.call("run").returncode == 1
    assert node.states() == {"a": "timeout", "b": "cancelled"}
    assert "deadline of 4 s" in node.record("a")["message"]
    assert "deadline" in node.record("b")["message"]
    node.put_plan(stage("a"), deadline_seconds=4, attempt=2)
    assert node.call("run").returncode == 1, "the same plan's time is not counted anew"
    node.put_plan(stage("a"), deadline_seconds=30, attempt=3, created_at="2026-02-01T00:00:00Z")
    assert node.call("run").returncode == 0


def test_cancel_stops_the_stage_and_all_that_it_started(node):
    node.put_plan(stage("a", f"setsid sleep 40 & echo $! > {node.base}/pid; sleep 30"), stage("b"))
    process = node.begin("run")
    node.wait_for("a", "running")
    pid = int(until(lambda: (node.base / "pid").exists() and (node.base / "pid").read_text()))
    assert node.ask("cancel", "--wait", "10") == {"cancelled": True, "running": False, "message": "cancelled"}
    assert process.wait(30) == 1
    assert node.states() == {"a": "cancelled", "b": "cancelled"}
    assert not alive(pid)
    assert node.ask("cancel")["cancelled"] is False
    node.put_plan(stage("a"), attempt=2)
    assert node.call("run").returncode == 0, "a cancel holds for its attempt only"


def test_cancel_without_a_runner_closes_the_records(node):
    node.put_plan(stage("a", "sleep 30"), stage("b"))
    process = node.begin("run")
    node.wait_for("a", "running")
    process.kill()
    process.wait()
    assert node.ask("cancel")["cancelled"] is True
    assert node.states() == {"a": "cancelled", "b": "cancelled"}


def test_start_detaches_and_says_how_it_began(node, store):
    node.put_store(store.url, ["a"])
    node.put_plan(stage("a", f"{node.until_released}; {SUCCEED}"))
    answer = node.ask("start")
    assert answer.pop("pid") > 0
    assert answer == {
        "started": True,
        "already_running": False,
        "finished": False,
        "store_reachable": True,
        "message": "started",
    }
    again = node.ask("start")
    assert (again["started"], again["already_running"], again["store_reachable"]) == (False, True, True)
    status = node.ask("status")
    assert (status["running"], status["outcome"], status["stages"]["a"]) == (True, None, "running")
    assert os.getsid(status["pid"]) != os.getsid(0)
    node.release()
    until(lambda: not node.ask("status")["running"])
    status = node.ask("status")
    assert (status["outcome"], status["attempt"], status["not_uploaded"]) == ("success", 1, [])
    finished = node.ask("start")
    assert (finished["started"], finished["finished"]) == (False, True)


def test_start_says_that_the_store_cannot_be_reached(node):
    away = StoreServer()
    away.close()
    node.put_store(away.url, ["a"])
    node.put_plan(stage("a", f"sleep 0.5; {SUCCEED}"))
    answer = node.ask("start")
    assert answer["started"] is True
    assert answer["store_reachable"] is False
    assert "refused" in answer["message"]


def test_start_without_a_store(node):
    node.put_plan(stage("a"))
    answer = node.ask("start")
    assert (answer["started"], answer["store_reachable"]) == (True, None)
    until(lambda: node.ask("status")["outcome"] == "success")


@pytest.mark.parametrize("command", ["start", "run", "cancel"])
def test_without_a_plan_nothing_is_done(node, command):
    done = node.call(command)
    assert done.returncode == 2
    assert "launch the run on this node first" in done.stderr
    assert list(node.files.root.iterdir()) == []


def test_a_store_file_open_to_others_stops_the_start(node, store):
    node.put_store(store.url, ["a"])
    node.files.store.chmod(0o644)
    node.put_plan(stage("a"))
    for command in ("start", "run"):
        done = node.call(command)
        assert done.returncode == 2
        assert "chmod 600" in done.stderr


def test_facts_decide_what_later_stages_run_on(node):
    facts = '{"state":"success","environment":{"accelerator":{"vendor":"nvidia","count":8}}}'
    node.put_plan(
        stage("facts", f"echo '{facts}' > $GPUVAL_RESULT_FILE"),
        stage("b", "echo $GPUVAL_ACCELERATOR/$GPUVAL_GPU_COUNT/$MAD_GPU_VENDOR; " + SUCCEED),
        accelerator={"vendor": "auto", "count": None},
    )
    assert node.call("run").returncode == 0
    assert "nvidia/8/NVIDIA\n" in node.log("b")


def test_garbage_in_a_result_file_harms_nothing(node):
    node.put_plan(
        stage("huge", "head -c 5000000 /dev/zero > $GPUVAL_RESULT_FILE"),
        stage("link", "ln -s /etc/passwd $GPUVAL_RESULT_FILE"),
        stage(
            "evil",
            """printf '{"state":"failure","message":"<b>\\\\u001b[31mred\\\\u0000"}' > $GPUVAL_RESULT_FILE; exit 1""",
        ),
        stage("pipe", "mkfifo $GPUVAL_RESULT_FILE", timeout_seconds=60),
        stage("last"),
    )
    assert node.call("run").returncode == 1
    assert node.states() == {"huge": "crash", "link": "crash", "evil": "failure", "pipe": "crash", "last": "success"}
    assert node.record("evil")["message"] == "<b>red"
    assert "4 MiB" in node.record("huge")["message"]


def test_a_corrupt_record_is_run_again_not_trusted(node):
    node.put_plan(stage("a", f"{counting(node, 'a')}; {SUCCEED}"))
    assert node.call("run").returncode == 0
    node.files.record("a").write_text('{"state":"success"}')
    assert node.call("run").returncode == 0
    assert count(node, "a") == 2


def test_oddly_named_files_among_the_records_are_left_alone(node):
    node.put_plan(stage("a"))
    (node.files.root / "records").mkdir()
    (node.files.root / "records" / "..x.json").write_text("{")
    (node.files.root / "records" / "b.json").symlink_to("/etc/passwd")
    assert node.call("run").returncode == 0
    assert set(node.ask("fetch")["files"]) == {"records/a", "logs/a"}


def test_files_that_cannot_grow_do_not_end_the_run(node):
    """RLIMIT_FSIZE makes every write beyond 3000 bytes fail, for the runner and its stages."""
    node.put_plan(stage("a", f"yes 0123456789 | head -c 100000; {SUCCEED}"), stage("b"))
    done = node.call("run", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)))
    assert done.returncode == 0, done.stderr
    assert "its log lacks" in node.record("a")["message"]
    assert node.states() == {"a": "success", "b": "success"}


@pytest.fixture
def small_disk(node):
    with tmpfs(node.files.root, "size=256k"):
        yield node.files.root


def test_a_full_disk_costs_evidence_on_the_node_not_in_the_store(node, store, small_disk):
    node.put_store(store.url, ["a", "b"])
    fill = f"head -c 10000000 /dev/zero > {small_disk}/fill 2>/dev/null; sleep 1; echo more; {SUCCEED}"
    node.put_plan(stage("a", fill), stage("b", f"rm -f {small_disk}/fill; {SUCCEED}"))
    done = node.call("run")
    assert "No space left on device" in done.stderr
    arrived = json.loads(store.objects["records/a"])
    assert arrived["state"] in ("success", "crash")
    assert "No space left on device" in arrived["message"]
    assert json.loads(store.objects["records/b"])["state"] in ("success", "crash")
    assert lock.holder(node.files.lock) is None


def test_interrupt_from_the_terminal_ends_the_stage_too(node):
    node.put_plan(stage("a", f"echo $$ > {node.base}/pid; sleep 30"))
    process = node.begin("run", start_new_session=True)
    node.wait_for("a", "running")
    pid = int(until(lambda: (node.base / "pid").exists() and (node.base / "pid").read_text().strip()))
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 143
    assert not alive(pid)


def test_an_orphan_without_marker_or_session_is_found_by_adoption(node):
    pid = node.base / "pid"
    script = f"env -i setsid sh -c 'echo $$ > {pid}; exec sleep 44' & {until_written(pid)}; {SUCCEED}"
    node.put_plan(stage("a", script))
    assert node.call("run").returncode == 0
    assert not alive(int(pid.read_text()))
    assert "1 process outlived it" in node.record("a")["message"]


def test_a_lost_terminal_ends_neither_runner_nor_stage_and_stages_keep_its_meaning(node):
    node.put_plan(stage("a", f"grep SigIgn /proc/self/status; {node.until_released}; {SUCCEED}"))
    process = node.begin("run")
    node.wait_for("a", "running")
    process.send_signal(signal.SIGHUP)
    node.release()
    assert process.wait(30) == 0
    ignored = next(line for line in node.log("a").splitlines() if line.startswith("SigIgn"))
    assert int(ignored.split()[1], 16) & 1 == 0


@pytest.fixture
def small_memory():
    """A control group (version 1) with 64 MiB, for the runner and its stages."""
    group = Path("/sys/fs/cgroup/memory") / f"gpuval-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError:  # no `lacking`: a machine whose control groups are of version 2 has none, whoever asks
        pytest.skip("the right to make a control group of version 1 is missing: run the tests as root")
    yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_an_oom_kill_is_reported(node, small_memory):
    node.put_plan(stage("a", ["{python}", "-c", "held = bytearray(200 << 20)"]), stage("b", "kill -KILL $$"))
    assert node.call("run", preexec_fn=small_memory).returncode == 1
    assert node.record("a")["signal"] == "SIGKILL"
    assert "killed by SIGKILL; out of memory" in node.record("a")["message"]
    assert "memory" not in node.record("b")["message"]


@pytest.mark.parametrize("by_kernel", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_why_a_runner_is_gone_is_known_at_once(node, tmp_path, by_kernel):
    node.put_plan(stage("a", f"{node.until_released}; {SUCCEED}"))
    runner = node.begin("run")
    node.wait_for("a", "running")
    runner.kill()
    runner.wait()
    tool = tmp_path / "tools" / "dmesg"
    tool.parent.mkdir()
    word = f"[1.2] Out of memory: Killed process {runner.pid} (python3) total-vm:1kB" if by_kernel else ""
    tool.write_text(f"#!/bin/sh\necho '{word}'\n")
    tool.chmod(0o755)
    environment = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}

    def ended():
        return json.loads(node.call("fetch", environment=environment).stdout)["ended"]

    killed = f"out of memory: the kernel killed the runner (pid {runner.pid})"
    assert (killed in ended()) is by_kernel
    assert "its log" in ended()
    node.release()
    assert node.call("run", environment=environment).returncode == 0
    assert (f"interrupted by the end of its runner ({killed})" in node.record("a")["message"]) is by_kernel
    assert ended() == ""


def test_the_log_of_a_known_program_becomes_metrics_and_curves(node):
    reader = {
        "name": "megatron",
        "step": {"labels": ["iteration"]},
        "values": [
            {"labels": ["time (ms)"], "unit": "ms", "figures": {"step_seconds": "median"}},
            {"labels": ["lm loss"], "unit": "loss", "curve": "loss", "figures": {"loss_last": "last"}},
        ],
    }
    lines = 'for n in 1 2 3 4; do echo " iteration $n/ 4 | time (ms): 50$n | lm loss: $((9 - n)).5E+00 |"; done; '
    own = '{"state":"success","series":[{"name":"own_loss","unit":"loss","x":[1],"y":[7]}]}'
    node.put_plan(
        stage("pretrain", lines, output=[reader]),
        stage("died", lines + "exit 3", output=[reader]),
        stage("own", lines + f"echo '{own}' > $GPUVAL_RESULT_FILE", output=[reader]),
        stage("other", "echo iteration done", output=[reader]),
    )
    node.call("run")
    assert node.states() == {"pretrain": "success", "died": "crash", "own": "success", "other": "crash"}
    metrics = {m["name"]: (m["value"], m["unit"]) for m in node.record("pretrain")["metrics"]}
    assert metrics == {
        "pretrain_step_seconds": (0.503, "seconds"),
        "pretrain_loss_last": (5.5, "loss"),
        "pretrain_steps_count": (4, "count"),
    }
    series = json.loads(node.files.result("series/pretrain").read_text())
    SERIES_SCHEMA.validate(series)
    assert [(c["name"], c["x"], c["y"]) for c in series["series"]] == [
        ("pretrain_loss", [1, 2, 3, 4], [8.5, 7.5, 6.5, 5.5])
    ]
    assert {m["name"] for m in node.record("died")["metrics"]} >= {"died_step_seconds", "died_loss_last"}
    # Its own curve of the name counts, and no second one is there.
    curves = json.loads(node.files.result("series/own").read_text())["series"]
    assert [(c["name"], c["y"]) for c in curves] == [("own_loss", [7])]
    assert "its output has no declared figure" in node.record("other")["message"]
