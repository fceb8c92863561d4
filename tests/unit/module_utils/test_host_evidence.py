"""What is gathered on a node: real commands, bounded in time and size, with and without a run."""

import io
import json
import os
import stat
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import host_evidence
from ansible_collections.gpuval.fleet.plugins.module_utils.host_evidence import (
    Part,
    gather,
    pack_parts,
    shown_container,
)
from ansible_collections.gpuval.fleet.plugins.module_utils.redaction import SecretRedactor
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

PLANTED = "planted+5ecret/of-the-run"


def unpacked(data):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive.getmembers()}


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Put a program on PATH that does as told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name, script):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


@pytest.fixture
def run(tmp_path):
    """A run's folder, with secrets where they belong, and in a log where they do not."""
    folder = tmp_path / "base/run-1/node-1"
    for name in ("records", "logs", "work/training"):
        (folder / name).mkdir(parents=True)
    url = f"https://192.0.2.1/b/records/x.json?X-Amz-Signature={PLANTED}"
    (folder / "store.json").write_text(json.dumps({"put": {"records/facts": url}}))
    (folder / "rclone.conf").write_text(f"[models]\nsecret_access_key = {PLANTED}2\n")
    (folder / "environment.json").write_text(json.dumps({"TOKEN": PLANTED}))
    (folder / "runner.log").write_text(f"started\nurl {url}\nkey {PLANTED}2\n")
    (folder / "records/facts.json").write_text('{"state": "success"}')
    (folder / "logs/facts.log").write_text(f"facts attempt 1 starts\n{PLANTED}\n")
    (folder / "work/training/dump").write_text("not ours to tell")
    (folder / "logs/link.log").symlink_to("/etc/passwd")
    return folder


def test_a_machine_without_a_run_tells_of_itself(tmp_path):
    data, _notes = gather(None, seconds=60)
    files = unpacked(data)
    assert b"Linux" in files["system/uname.txt"]
    assert files["system/os-release.txt"] == SecretRedactor()(Path("/etc/os-release").read_text()).encode()
    assert b"MemTotal" in files["system/meminfo.txt"]
    assert not [name for name in files if name.startswith("run/")]


def test_a_run_is_reported_without_its_secrets(run):
    data, notes = gather(run, seconds=60)
    files = unpacked(data)
    assert files["run/records/facts.json"] == b'{"state": "success"}'
    assert b"facts attempt 1 starts" in files["run/logs/facts.log"]
    assert b"started\nurl https://192.0.2.1/b/records/x.json" in files["run/runner.log"]
    assert b"store.json" in files["run/files.txt"], "that it is there is no secret"
    assert {"run/store.json", "run/rclone.conf", "run/environment.json", "run/logs/link.log"}.isdisjoint(files)
    assert "cannot be read" in notes["run/logs/link.log"]
    assert not [name for name in files if "dump" in name]
    assert PLANTED.encode() not in b"".join(files.values())


def test_the_environment_and_arguments_of_processes_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_VARIABLE", PLANTED)
    sleeper = subprocess.Popen(["sh", "-c", f"sleep 30; : {PLANTED}"])
    try:
        data, _notes = gather(None, seconds=60)
    finally:
        sleeper.kill()
        sleeper.wait(60)
    assert PLANTED.encode() not in b"".join(unpacked(data).values())


def test_vendor_tools_are_asked_in_full(tool):
    tool("nvidia-smi", 'echo "nvidia-smi $*"')
    tool("amd-smi", 'echo "amd-smi $*"; echo broken >&2; exit 3')
    files = unpacked(gather(None, seconds=60)[0])
    assert files["gpu/nvidia-smi-q.txt"] == b"nvidia-smi -q\n"
    assert files["gpu/nvidia-smi-topo.txt"] == b"nvidia-smi topo -m\n"
    assert files["gpu/amd-smi-static.txt"] == b"amd-smi static\nbroken\n"
    assert b"gpu/amd-smi-static.txt: amd-smi ended with status 3: broken" in files["NOTES.txt"]


def test_a_tool_that_hangs_costs_its_limit_and_nothing_else(tool, monkeypatch):
    tool("nvidia-smi", "sleep 60")
    tool("uptime", "echo alive")
    begun = time.monotonic()
    data, notes = gather(None, seconds=8)
    assert time.monotonic() - begun < 45
    assert "nvidia-smi did not answer within" in notes["gpu/nvidia-smi-q.txt"]
    assert unpacked(data)["system/uptime.txt"] == b"alive\n"


def test_a_deadline_that_is_over_still_gives_an_archive(run):
    data, notes = gather(run, seconds=0.0)
    assert "were not done in time" in notes["deadline"]
    assert "NOTES.txt" in unpacked(data)


def test_the_archive_stays_below_its_limit_and_keeps_the_ends():
    noise = os.urandom(3 << 20).hex().encode()
    parts = [Part("first.txt", b"small"), Part("large.log", noise + b"THE END"), Part("last.txt", noise)]
    data, notes = pack_parts(parts, SecretRedactor(), 200_000)
    assert len(data) <= 200_000
    files = unpacked(data)
    assert files["first.txt"] == b"small"
    assert files["large.log"].endswith(b"THE END")
    assert "left out: the archive is full" in notes["large.log"]
    assert notes["last.txt"].endswith("left out: the archive is full")


def test_a_bug_report_is_made_only_when_asked_for(tool):
    script = f'echo "driver log, password={PLANTED}" | gzip > "$4.gz"'
    tool("nvidia-bug-report.sh", script)
    assert "gpu/nvidia-bug-report.log" not in unpacked(gather(None, seconds=60)[0])
    files = unpacked(gather(None, seconds=60, bug_report=True)[0])
    assert files["gpu/nvidia-bug-report.log"] == b"driver log, password=***\n"


def test_a_container_is_described_without_its_environment():
    described = [
        {
            "Id": "abc",
            "State": {"ExitCode": 137, "OOMKilled": True},
            "Args": [PLANTED],
            "Config": {"Env": [f"TOKEN={PLANTED}"], "Image": "gpuval/training", "Labels": {"gpuval.run": "r"}},
            "HostConfig": {"ShmSize": 64, "Privileged": False, "LogConfig": {"Config": {"key": PLANTED}}},
        }
    ]
    shown = shown_container(json.dumps(described))
    assert PLANTED.encode() not in shown
    assert json.loads(shown)["State"]["OOMKilled"] is True
    assert json.loads(shown)["HostConfig"]["ShmSize"] == 64
    for damaged in ("", "[]", "{}", "[5]"):
        assert shown_container(damaged) == b""


def test_containers_of_the_run_are_reported(tool, run):
    tool(
        "docker",
        f"""case "$*" in
"ps --all --quiet --no-trunc --filter=label=gpuval.run=run-1") echo {"c" * 64};;
inspect*) echo '[{{"Id": "{"c" * 64}", "Config": {{"Env": ["A={PLANTED}"]}}}}]';;
logs*) echo "out of memory"; echo "err" >&2;;
*) exit 1;;
esac""",
    )
    files = unpacked(gather(run, seconds=60)[0])
    assert files["containers/docker-cccccccccccc.log"] == b"out of memory\nerr\n"
    assert json.loads(files["containers/docker-cccccccccccc.json"])["Id"] == "c" * 64
    assert host_evidence.LABEL_RUN == "gpuval.run"


def test_what_the_engine_keeps_of_a_job_stays_since_only_the_stages_log_is_without_its_secrets(tool, run):
    tool(
        "docker",
        f"""case "$*" in
ps*) echo {"c" * 64};;
inspect*) echo '[{{"Path": "python3", "Args": ["-m", "{host_evidence.JOB}"]}}]';;
logs*) echo "secret";;
esac""",
    )
    data, notes = gather(run, seconds=60)
    assert "containers/docker-cccccccccccc.log" not in unpacked(data)
    assert "see run/logs" in notes["containers/docker-cccccccccccc.log"]
    assert host_evidence.JOB == plans.JOB


def test_what_is_no_file_is_not_waited_for(run):
    os.mkfifo(run / "logs/pipe.log")
    data, notes = gather(run, seconds=30)
    assert notes["run/logs/pipe.log"] == "is no regular file"
    assert stat.S_ISFIFO((run / "logs/pipe.log").stat().st_mode)
    assert data
