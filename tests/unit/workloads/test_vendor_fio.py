"""fio: its JSON, and the real program where it is installed."""

import errno
import shutil
import subprocess
from pathlib import Path

import pytest
from gpuval_workloads.common import fio
from hypothesis import given, settings
from hypothesis import strategies as st

DATA = Path(__file__).resolve().parents[2] / "data" / "vendor_tools"
needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


def golden(name):
    return (DATA / name).read_text()


def test_rates_of_fio_3():
    found = fio.read_report(golden("fio3_write.json"))
    assert (found.write.bytes_per_second, found.read, found.problem) == (1458888347, None, "")


def test_a_measurement_reads_as_a_line_of_the_log():
    both = fio.FioMeasurement(fio.FioDirection(1, 1.5e9, 20.4), fio.FioDirection(1, 2e9, 30.0), "slow")
    assert both.figures() == "written 1.500 GB/s, 20 requests/s; read 2.000 GB/s, 30 requests/s; slow"


def test_jobs_are_summed():
    text = """{"jobs": [
        {"read": {"io_bytes": 10, "bw_bytes": 5}},
        {"read": {"io_bytes": 20, "bw_bytes": 7}},
        {"read": {"io_bytes": 0, "bw_bytes": 9}}]}"""
    assert fio.read_report(text).read.bytes_per_second == 12


def test_notes_around_the_json_are_passed_over():
    text = "note: both iodepth >= 1 and synchronous I/O engine are selected\n" + golden("fio3_write.json") + "\nbye\n"
    assert fio.read_report(text) == fio.read_report(golden("fio3_write.json"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "missing or cut short"),
        ('{"jobs": []}', "moved no data"),
        ('{"jobs": {"read": 1}}', "moved no data"),
        ('{"jobs": [{"error": 28, "write": {"io_bytes": 5, "bw_bytes": 5}}]}', "No space left on device"),
        ('{"jobs": [{"write": {"io_bytes": 5, "bw_bytes": "N/A"}}]}', "moved no data"),
    ],
)
def test_what_fio_did_not_measure_is_a_problem(text, problem):
    found = fio.read_report(text)
    assert problem in found.problem
    assert found.error or (found.read, found.write) == (None, None)


@settings(max_examples=80)
@given(data=st.data())
def test_damaged_json_never_raises_and_cut_off_json_measures_nothing(data):
    text = golden("fio3_write.json").rstrip()
    end = data.draw(st.integers(0, len(text) - 1))
    assert fio.read_report(text[:end]).write is None
    fio.read_report(text[:end] + data.draw(st.text(max_size=30)) + text[end + data.draw(st.integers(0, 30)) :])


def test_without_fio_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fio.run(tmp_path, 1, 1 << 20) is None


@needs_fio
def test_the_real_fio_measures_both_directions_and_cleans_up(tmp_path):
    disk = fio.run(tmp_path, 2, 32 << 20)
    assert disk.problem == ""
    assert min(disk.write.bytes_per_second, disk.read.bytes_per_second) > 1e6
    assert list(tmp_path.iterdir()) == []


@needs_fio
def test_the_rate_of_the_real_fio_is_read(tmp_path):
    arguments = ["fio", "--name=x", f"--directory={tmp_path}", "--rw=write", "--bs=1M", "--size=16M"]
    output = subprocess.run(
        [*arguments, "--ioengine=psync", "--output-format=json"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert fio.read_report(output).write.bytes_per_second > 0


@needs_fio
def test_a_folder_that_is_not_there_is_a_problem(tmp_path):
    assert "No such file" in fio.run(tmp_path / "missing", 1, 1 << 20).problem


def put_fio(folder, script):
    path = folder / "fio"
    path.write_text(f"#!/bin/sh\nDATA={DATA}\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "complaint",
    [
        "fio: first direct IO errored. File system may not support direct IO: Invalid argument",
        "fio: engine libaio not loadable",
    ],
)
def test_where_the_page_cache_cannot_be_passed_by_it_is_measured(tmp_path, monkeypatch, complaint):
    script = f"""case "$*" in *direct=1*) echo "{complaint}"; exit 1;; esac
case "$*" in *rw=read*) sed 's/"write" :/"x" :/; s/"read" :/"y" :/; s/"x" :/"read" :/' "$DATA/fio3_write.json";;
*) cat "$DATA/fio3_write.json";; esac"""
    put_fio(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    disk = fio.run(tmp_path, 1, 1 << 20)
    assert disk.problem == ""
    assert disk.write.bytes_per_second == disk.read.bytes_per_second == 1458888347


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (
            "echo '/usr/bin/fio: error while loading shared libraries: libaio.so.1: cannot open' >&2; exit 127",
            "fio ended with exit code 127: /usr/bin/fio: error while loading shared libraries: libaio.so.1",
        ),
        (
            "echo 'fio: pid=1, err=28/file:filesetup.c:240, func=write, error=No space left on device'; exit 1",
            "No space",
        ),
        ("kill -KILL $$", "killed by SIGKILL"),
        ('head -c 2000 "$DATA/fio3_write.json"', "missing or cut short"),
    ],
)
def test_a_fio_that_fails_is_a_problem(tmp_path, monkeypatch, script, problem):
    put_fio(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    disk = fio.run(tmp_path, 1, 1 << 20)
    assert (disk.write, disk.read) == (None, None)
    assert problem in disk.problem


def test_a_fio_that_hangs_is_stopped(tmp_path, monkeypatch):
    put_fio(tmp_path, "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(fio, "GRACE_SECONDS", 0.5)
    assert "had not ended" in fio.run(tmp_path, 1, 1 << 20).problem


@needs_fio
def test_where_a_file_cannot_be_opened_past_the_page_cache_it_is_written_through_it():
    """The kernel refuses O_DIRECT for /dev/full when it is opened; then a write finds no room."""
    engine, found = fio.choose_engine(shutil.which("fio"), Path("/dev/full"), 1 << 20)
    assert (engine.direct, found.error) == (False, errno.ENOSPC)
    assert "No space left on device" in found.problem


@needs_fio
def test_a_colon_is_part_of_the_name(tmp_path):
    """As in /dev/disk/by-path: fio must write to that, not to files named by its pieces."""
    folder = tmp_path / "of:a"
    folder.mkdir()
    _, found = fio.choose_engine(shutil.which("fio"), folder / "pci-0000:81:00.0-nvme-1", 1 << 20)
    assert not found.problem
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["pci-0000:81:00.0-nvme-1"]
