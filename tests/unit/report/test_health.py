"""The last verdict on each node, and the gate that reads it on a node."""

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.entries import headline
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import health
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunError, now

from tests.kit.actions import run_action
from tests.kit.builders import make_run, write_report
from tests.kit.reports import FAILS, LACKS, PASSES, job_failed, report_of

ROOT = Path(__file__).resolve().parents[3]
GATE = ROOT / "collections/ansible_collections/gpuval/fleet/node/gpuval_health.py"
ENTRY = {"run_id": "run-10", "finished_at": "2026-11-10T10:00:00Z", "reason": ""}
SLOW = "training_tokens_per_second 1 tokens/s, under the limit of 1,000 tokens/s"


def after(*reports):
    found = {}
    for report in reports:
        found = health.merged(found, report)
        schemas.validate("health", {"schema": "gpuval.health/1", "updated_at": now(), "nodes": found}, what="it")
    return found


def implicated(report):
    report["nodes"][0]["class"] = "hung"
    return report


def test_an_entry_says_what_and_why():
    assert after(report_of(FAILS))["bad"] == {
        "verdict": "FAIL", "run_id": "run-10", "finished_at": "2026-11-10T10:00:00Z", "class": "speed",
        "action": "retest", "reason": SLOW, "open": ["training/speed"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reports", "verdict", "run_id"),
    [
        ((report_of(PASSES),), "PASS", "run-10"),
        ((report_of(PASSES), report_of(FAILS, 11)), "FAIL", "run-11"),
        ((report_of(FAILS), report_of(PASSES, 11)), "PASS", "run-11"),
        ((report_of(FAILS), report_of(PASSES, 11, narrowed_by=["limit"])), "PASS", "run-11"),
        ((report_of(FAILS), report_of(LACKS, 11)), "FAIL", "run-10"),
        ((report_of(PASSES), report_of(LACKS, 11)), "PASS", "run-10"),
        ((report_of(PASSES), implicated(report_of(LACKS, 11))), "INCOMPLETE", "run-11"),
        ((report_of(LACKS), report_of(LACKS, 11)), "INCOMPLETE", "run-11"),
        # a run of some stages: what had failed passed, the rest is unknown
        ((report_of(FAILS), report_of(PASSES, 11, narrowed_by=["tags"])), "INCOMPLETE", "run-11"),
        ((report_of(PASSES), report_of(PASSES, 11, narrowed_by=["tags"])), "PASS", "run-10"),
        (
            (report_of(FAILS), report_of(PASSES, 11, narrowed_by=["tags"], stages=["facts", "loading"])),
            "FAIL",
            "run-10",
        ),
        # judged again later
        ((report_of(FAILS, 11), report_of(PASSES, 10)), "FAIL", "run-11"),
    ],
)
def test_the_last_verdict_that_counts(reports, verdict, run_id):
    entry = after(*reports)["bad"]
    assert (entry["verdict"], entry["run_id"]) == (verdict, run_id)


def test_a_node_that_passed_what_it_failed_is_to_be_validated_whole():
    entry = after(report_of(FAILS), report_of(PASSES, 11, narrowed_by=["tags"]))["bad"]
    assert (entry["action"], entry["class"], entry["open"]) == ("retest", None, [])
    assert entry["reason"].endswith("in a run of some stages: validate all stages")


def test_a_job_of_ones_own_fails_no_node():
    """With a bug in a script of a user's, a gate or a mark would empty the fleet."""
    alone = {"narrowed_by": ["stages"], "profile": "custom"}
    assert after(report_of(PASSES), job_failed(11, **alone))["bad"]["verdict"] == "PASS"
    assert after(report_of(FAILS), job_failed(11, **alone))["bad"]["run_id"] == "run-10", "nor is it a pass"
    assert after(job_failed(**alone))["bad"]["verdict"] == "INCOMPLETE"
    assert after(report_of(PASSES), job_failed(11))["bad"]["verdict"] == "PASS"
    faulty = job_failed(11, **alone)
    faulty["nodes"][0]["verdict"] = "FAIL"
    faulty["nodes"][0]["checks"].append(
        {**faulty["nodes"][0]["checks"][-1], "kind": "max", "severity": "required", "verdict": "fail"}
    )
    assert after(report_of(PASSES), faulty)["bad"]["verdict"] == "FAIL", "a fault of a GPU while it ran"


def test_a_run_of_some_stages_is_no_first_verdict():
    assert after(report_of(PASSES, narrowed_by=["tags"])) == {}


def test_nodes_of_other_runs_stay(tmp_path):
    path = tmp_path / "shared/health.json"
    health.update(path, report_of({"one": "PASS"}))
    report = report_of(FAILS, 11)
    headline(report["nodes"][0])["reason"] = "slow\n\x1b[2J https://x/?X-Amz-Signature=planted01234"
    assert health.update(path, report) == health.read(path)
    written = path.read_text()
    health.update(path, report)
    assert path.read_text() == written
    nodes = json.loads(written)["nodes"]
    assert {name: entry["verdict"] for name, entry in nodes.items()} == {"one": "PASS", "bad": "FAIL"}
    assert nodes["bad"]["reason"] == "slow https://x/?***"


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "gpuval.health/1", "updated_at": "x", "nodes": {"a": 1}}'])
def test_a_damaged_file_is_kept_and_named(tmp_path, text):
    path = tmp_path / "health.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"is damaged .*: restore or remove it"):
        health.update(path, report_of(FAILS))
    assert path.read_text() == text


def written(tmp_path, health_file, **fields):
    report = report_of(FAILS)
    folder = tmp_path / "results/run-10"
    write_report(report, folder)
    end = report["run"]["finished_at"]
    run = make_run(["bad"], run_id="run-10", **{"finished_at": end, **fields})
    (folder / "run.json").write_text(json.dumps(run))
    options = {"run_id": "run-10", "results_dir": str(folder.parent), "health_file": str(health_file)}
    return run_action("report_run", options)


def test_writing_the_report_writes_it(tmp_path):
    path = tmp_path / "health.json"
    assert not written(tmp_path, path).failed
    entry = json.loads(path.read_text())["nodes"]["bad"]
    assert (entry["verdict"], entry["action"]) == ("FAIL", "retest")
    assert entry["reason"] == SLOW


def test_a_run_that_goes_on_is_not_in_it(tmp_path):
    assert not written(tmp_path, tmp_path / "health.json", finished_at=None).failed
    assert not (tmp_path / "health.json").exists()


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    outcome = written(tmp_path, tmp_path / "file/health.json")
    assert not outcome.failed
    assert "the verdicts are not in gpuval_health_file" in outcome.text


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "health.json"
    report = report_of({"good": "PASS", "bad": "FAIL", "late": "INCOMPLETE"})
    health.update(path, report)
    return path


def waiting(seconds):
    """The program with so much time for a file: in its own, a busy machine may not get to read it."""
    text = GATE.read_text()
    assert text.count("\nREAD_SECONDS = 0.7\n") == 1
    return ["-c", text.replace("\nREAD_SECONDS = 0.7\n", f"\nREAD_SECONDS = {seconds}\n")]


def gate(*options, program=None):
    """Exit code and output of the program, with nothing but the standard library, within 60 s."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", *(program or waiting(30)), *map(str, options)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("node", "strict", "code", "said"),
    [
        ("good", False, 0, "gpuval: PASS in run run-10\n"),
        ("bad", False, 1, f"gpuval: FAIL in run run-10 (speed): retest: {SLOW}\n"),
        ("late", False, 0, "gpuval: INCOMPLETE in run run-10 (training_missing): retest: "),
        ("late", True, 1, "gpuval: INCOMPLETE"),
        ("unknown", False, 0, "gpuval: no evidence: no verdict on unknown\n"),
        ("unknown", True, 1, "gpuval: no evidence"),
    ],
)
def test_the_gate(file, node, strict, code, said):
    ended, output = gate("--file", file, "--node", node, *(["--strict"] if strict else []))
    assert (ended, output.startswith(said)) == (code, True), output


def test_the_reason_is_one_word_for_slurm(file):
    assert gate("--file", file, "--node", "bad", "--reason") == (1, "gpuval:run-10:speed\n")


@pytest.mark.parametrize(("verdict", "state", "drained"), [
    ("FAIL", "IDLE", True), ("FAIL", "IDLE+DRAIN", False), ("PASS", "IDLE", False), (None, "IDLE", False),
])  # fmt: skip
def test_the_health_check_program_drains_a_failed_node_and_none_without_the_gate(tmp_path, verdict, state, drained):
    (script,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/gate.md").read_text(), re.DOTALL)
    host = subprocess.run(["hostname", "-s"], check=True, capture_output=True, text=True).stdout.strip()
    if verdict:
        health.update(tmp_path / "health.json", report_of({host: verdict}))
        (tmp_path / "gpuval-health").write_text(f'#!/bin/sh\nexec {sys.executable} -I {GATE} "$@"\n')
        (tmp_path / "gpuval-health").chmod(0o755)
    stub = tmp_path / "scontrol"
    stub.write_text(
        f'#!/bin/sh\n[ "$1" = update ] && echo "$@" >{tmp_path}/called\necho "NodeName=x State={state} A=1"\n'
    )
    stub.chmod(0o755)
    (tmp_path / "check").write_text(script.replace("/shared/gpuval", str(tmp_path)))
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", tmp_path / "check"], env={**os.environ, "PATH": path}, check=False, timeout=60)
    called = tmp_path / "called"
    told = f"update NodeName={host} State=DRAIN Reason=gpuval:run-10:speed\n"
    assert (called.read_text() if called.exists() else None) == (told if drained else None)


@pytest.mark.parametrize("output", [">/dev/full", ">&-", "2>&-", "| true"])
@pytest.mark.parametrize(("node", "code"), [("good", "0"), ("bad", "1")])
def test_an_output_that_nothing_takes_changes_no_exit_code(file, output, node, code):
    """Python itself would end with 1, which drains the node: a full disk of logs would drain a fleet."""
    command = f"{{ {sys.executable} -I {GATE} --file {file} --node {node}; echo $? >&3; }} {output}"
    done = subprocess.run(
        ["sh", "-c", f"exec 3>&1; {command}"], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == code


def test_by_default_it_is_the_host(file):
    document = json.loads(file.read_text())
    document["nodes"][socket.gethostname().partition(".")[0]] = document["nodes"]["bad"]
    file.write_text(json.dumps(document))
    assert gate("--file", file)[0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"schema": "gpuval.health/1", "nodes": {"bad": {"verdict": "FAIL"}}}',
        "[" * 100_000,
        json.dumps({"schema": "gpuval.health/1", "nodes": {"bad": {"verdict": "OK", **ENTRY}}}),
    ],
)
def test_a_damaged_file_is_no_evidence(file, text):
    file.write_text(text)
    assert gate("--file", file, "--node", "bad")[0] == 0
    assert gate("--file", file, "--node", "bad", "--strict")[0] == 1


def test_an_old_verdict_and_a_missing_file_are_no_evidence(file):
    options = ["--file", file, "--node", "bad", "--max-age-days", "0.001"]
    code, output = gate(*options)
    assert code == 0 and "days old (run run-10)" in output
    code, output = gate("--file", "/nowhere", "--node", "bad")
    assert (code, output) == (0, "gpuval: no evidence: /nowhere: No such file or directory\n")


def test_a_server_may_have_the_file(file):
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(file.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert gate("--file", f"{url}/health.json", "--node", "bad")[0] == 1
        signed = gate("--file", f"{url}/none.json?X-Amz-Signature=planted", "--node", "bad")
        named = gate("--file", f"{url.replace('//', '//user:planted@')}/none.json", "--node", "bad")
        server.shutdown()
    said = f"gpuval: no evidence: {url}/none.json: "
    assert [(code, output.startswith(said)) for code, output in (signed, named)] == [(0, True)] * 2
    assert "404" in signed[1] and "planted" not in signed[1] + named[1]


SLOW_IMPORT = """
import sys, time
class Finder:
    def find_spec(self, name, *_):
        if name == "urllib.request":
            time.sleep(4)
sys.meta_path.insert(0, Finder())
"""


def test_a_busy_node_that_imports_slowly_has_all_the_time_for_the_server(file):
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(file.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        option, text = waiting(3)
        url = f"http://127.0.0.1:{server.server_port}/health.json"
        found = gate("--file", url, "--node", "bad", program=[option, SLOW_IMPORT + text])
        server.shutdown()
    assert found[0] == 1, found


def test_a_broken_answer_is_no_evidence():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"no HTTP\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        code, output = gate("--file", f"http://127.0.0.1:{listener.getsockname()[1]}/", "--node", "bad")
    assert (code, output.count("\n")) == (0, 1)
    assert output.startswith("gpuval: no evidence: ") and "BadStatusLine" in output


@pytest.mark.parametrize(
    "options", [["--fil", "x", "--file", "y"], ["--file"], [], ["--max-age-days", "a week", "--file", "x"], ["-x"]]
)
def test_a_mistyped_option_drains_nothing(options):
    code, output = gate(*options)
    assert code == 0
    assert output.startswith("gpuval: ") and output.count("\n") == 1
    assert gate(*options, "--strict")[0] == 1


def test_a_server_that_hangs_holds_nothing_up(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it waits for a writer
    code, output = gate("--file", pipe, "--node", "bad", program=[GATE])
    assert code == 0 and "was not read within" in output
