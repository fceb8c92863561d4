"""docker/common/install-vendor with real git and make, on a repository in place of NVIDIA's."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "docker/common/install-vendor"
MAKEFILE = r"""
all:
	mkdir -p build
	printf '#!/bin/sh\necho %s' '$(MPI)$(MPI_HOME)' > build/all_reduce_perf
	chmod +x build/all_reduce_perf
"""


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "nccl-tests"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "Makefile").write_text(MAKEFILE)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def build(tmp_path, vendor, address):
    (tmp_path / "mpi/include").mkdir(parents=True, exist_ok=True)
    (tmp_path / "mpi/include/mpi.h").touch()
    environment = {**os.environ, "NCCL_TESTS": address, "MPI_HOME": str(tmp_path / "mpi")}
    command = ["sh", str(SCRIPT), "build", vendor, str(tmp_path / "tools")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_tests_of_the_pinned_commit_are_built_with_mpi_and_noted(tmp_path, repository):
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "Makefile").write_text("all:\n\tfalse\n")
    git(repository, "commit", "-q", "-a", "-m", "later, and broken")
    done = build(tmp_path, "nvidia", f"file://{repository}@{commit}")
    assert done.returncode == 0, done.stderr
    program = tmp_path / "tools/bin/all_reduce_perf"
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip() == f"1{tmp_path}/mpi"
    assert (tmp_path / "tools/sources.tsv").read_text() == f"git\tnccl-tests\tfile://{repository}\t{commit}\n"
    assert not (tmp_path / "tools/src").exists()


def test_a_commit_that_is_not_there_fails_and_says_how_to_build_without(tmp_path, repository):
    done = build(tmp_path, "nvidia", f"file://{repository}@{'0' * 40}")
    assert done.returncode != 0
    assert "leave them out with the build argument VENDOR_TOOLS=" in done.stderr


@pytest.mark.parametrize("vendor", ["", "gaudi"])
def test_other_vendors_get_an_empty_folder(tmp_path, vendor):
    assert build(tmp_path, vendor, "none@none").returncode == 0
    assert [*(tmp_path / "tools").rglob("*")] == [tmp_path / "tools/bin"]
