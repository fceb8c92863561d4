"""What a stage needs is not there, or may not be used: the record names it as the site's, not the node's."""

import json
import subprocess

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import NODE, named_cause, subject_of
from gpuval_node import volumes

from tests.kit.needs import tmpfs
from tests.kit.runner import stage


def script(path, text, mode=0o755):
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


COMMANDS = {
    "missing command": (lambda _: ["/no/such/program"], "command not found: /no/such/program: install it"),
    "missing interpreter": (lambda path: [script(path, b"#!/no/python\n")], "command not found: "),
    "not executable": (lambda path: [script(path, b"#!/bin/sh\n", 0o644)], "not executable: "),
    "a folder": (lambda path: [str(path.parent)], "not executable: "),
    "of another machine": (lambda path: [script(path, b"\x7fELF\x02\x01")], "Exec format error"),
    "missing module": (lambda _: ["{python}", "-c", "import no_such_module"], "No module named 'no_such_module'"),
    "other version": (
        lambda _: ["{python}", "-c", "raise ImportError('hub>=1.0 is required, but found hub==0.3')"],
        "hub>=1.0 is required",
    ),
    "missing library": (
        lambda _: ["{python}", "-c", "import ctypes; ctypes.CDLL('libno_such.so.1')"],
        "libno_such.so.1: cannot open shared object file",
    ),
    "command in a shell": (lambda _: ["bash", "-c", "no-such-program"], "no-such-program: command not found"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_that_cannot_start_is_of_the_environment(node, tmp_path, case):
    command, words = COMMANDS[case]
    node.put_plan(stage("work", command(tmp_path / "program")))
    node.call("run")
    record = node.record("work")
    assert record["state"] == "crash"
    assert words in record["message"]
    assert named_cause(record) == "environment"
    assert subject_of("environment") != NODE


def test_a_cause_that_the_message_has_is_not_repeated(node):
    text = "no_such_module cannot be imported: pip install it"
    result = json.dumps({"state": "failure", "message": text, "metrics": []})
    program = f"echo 'failure: {text}'; echo '{result}' > $GPUVAL_RESULT_FILE; exit 1"
    node.put_plan(stage("work", ["sh", "-c", program]))
    node.call("run")
    record = node.record("work")
    assert (record["state"], record["message"].count(text)) == ("failure", 1)


def test_a_dataset_that_is_not_there_is_no_fault_of_the_node(node):
    node.put_plan(stage("work", datasets=["c4"]))
    node.call("run")
    record = node.record("work")
    assert "dataset c4 is not on this node: run the stage dataset_c4" in record["message"]
    assert named_cause(record) == "environment"


def test_a_folder_that_cannot_be_made_is_no_fault_of_the_node(node, tmp_path):
    (tmp_path / "file").write_text("")
    node.put_plan(stage("work"), models_dir=str(tmp_path / "file" / "models"))
    node.call("run")
    record = node.record("work")
    assert "Not a directory: make room or correct the path" in record["message"]
    assert named_cause(record) == "environment"


def test_a_file_system_that_became_read_only_may_be_a_broken_disk(node, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    with tmpfs(folder, "ro"):
        node.put_plan(stage("work"), models_dir=str(folder / "cache"))
        node.call("run")
    record = node.record("work")
    assert "Read-only file system" in record["message"]
    assert "fault" not in record["environment"]


def test_a_volume_that_is_mounted_read_only_is_no_fault_of_the_node(node, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    with tmpfs(folder, "size=1m"):
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        node.put_plan(stage("work"), models_dir=str(folder / "cache"))
        node.call("run")
    assert named_cause(node.record("work")) == "volume_read_only"


def write_in_python(folder):
    return ["{python}", "-c", f"open('{folder}/checkpoint', 'w').write('x' * 2_000_000)"]


def write_in_shell(folder):
    return ["sh", "-c", f"cp /etc/hostname {folder}/checkpoint"]


def rank_writes(folder):
    return ["sh", "-c", f"echo \"[rank1]: OSError: [Errno 116] Stale file handle: '{folder}/step-7'\"; exit 1"]


@pytest.mark.parametrize(
    ("write", "options", "fault"),
    [
        (write_in_python, "ro", "volume_read_only"),
        (write_in_shell, "ro", "volume_read_only"),
        (write_in_shell, "size=1m", "volume_full"),
        (rank_writes, "size=1m", "volume_fault"),
    ],
)
@pytest.mark.parametrize("is_claim", [True, False], ids=["claim", "own"])
def test_an_error_of_a_file_on_a_volume_of_the_site_is_the_volumes(node, tmp_path, write, options, fault, is_claim):
    """Through a link, as a site's folders are; the same error on a file system of the node is not excused."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder)
    with tmpfs(folder, options):
        if fault == "volume_full":
            (folder / "filler").write_bytes(bytes((1 << 20) - 4096))
            (folder / "rest").write_bytes(bytes(4096))
        claims = {"GPUVAL_VOLUMES": json.dumps({str(folder): "claim lustre"})} if is_claim else {}
        node.put_plan(stage("work", write(link)))
        node.call("run", environment=claims)
    record = node.record("work")
    assert record["state"] == "crash"
    assert (record["environment"]["cause"]["class"] == fault) == is_claim, record["environment"]


@pytest.mark.parametrize(
    ("line", "binds", "fault"),
    [
        ("OSError: [Errno 5] Input/output error: '/data/a b/x'", None, "volume_fault"),
        ("cat: /data/x: Stale file handle", None, "volume_fault"),
        ("cp: cannot create regular file '/data/x': No space left on device", None, "volume_full"),
        ("cp: cannot create regular file '/data/x': No space left on device", ("/data:/data",), "volume_full"),
        ("PermissionError: [Errno 13] Permission denied: '/work/x'", ("/data/user:/work:ro",), "volume_denied"),
        ("cat: /data/x: Stale file handle", ("/data:/work",), ""),
        ("cat: /data/x: Stale file handle", (), ""),
        ("cat: /work/tmp/x: Input/output error", ("/data:/work", "/scratch:/work/tmp"), ""),
        ("cat: /work/tmp/x: Input/output error", ("/scratch:/work", "/data:/work/tmp"), "volume_fault"),
        ("OSError: [Errno 5] Input/output error: '/data/a\0b'", None, "volume_fault"),
        ("cat: /data/a\0b: Stale file handle", None, ""),
        ("OSError: [Errno 5] Input/output error: '/other/x'", None, ""),
        ("OSError: [Errno 5] Input/output error", None, ""),
        ("NCCL timed out, its log is /data/nccl.log", None, ""),
        ("/data/train.py: ValueError: bad batch", None, ""),
        ("RuntimeError: CUDA error: an illegal memory access; see /data/x: Nothing", None, ""),
    ],
)
def test_only_an_error_of_a_file_on_a_volume_is_ascribed_to_it(monkeypatch, line, binds, fault):
    monkeypatch.setenv("GPUVAL_VOLUMES", json.dumps({"/data": "claim lustre"}))
    assert volumes.fault_in_error(line, binds) == fault


@pytest.mark.parametrize(
    ("end", "fault"), [("kill -SEGV $$", None), ("exit 3", "store_away"), ("sleep 60", "store_away")]
)
def test_a_signal_is_not_the_fault_of_what_the_work_waited_for(node, end, fault):
    running = """printf '{"state":"running","environment":{"fault":"store_away"}}' > "$GPUVAL_RESULT_FILE" """
    limit = {"timeout_seconds": 3} if end == "sleep 60" else {}
    node.put_plan(stage("loading", f"{running}; {end}", **limit))
    node.call("run")
    record = node.record("loading")
    assert record["environment"].get("fault") == fault
    assert record["state"] == ("timeout" if end == "sleep 60" else "crash")
