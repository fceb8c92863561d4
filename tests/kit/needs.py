"""What tests need of the machine: without it they are skipped, and fail where all is said to be there (CI)."""

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lacking(what: str) -> None:
    if os.environ.get("GPUVAL_TESTS_NEED_DOCKER"):
        pytest.fail(f"{what}, and GPUVAL_TESTS_NEED_DOCKER says that nothing may be missing")
    pytest.skip(what)


def needs_deepspeed() -> None:
    if not [*ROOT.glob(".venv-node/lib/python3*/site-packages/deepspeed")]:
        lacking("needs DeepSpeed in .venv-node (make .venv-node/.gangs)")


def needs_programs(packages: Mapping[str, str]) -> None:
    """``packages``: the program, and Debian's package of it."""
    places = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [program for program in packages if not shutil.which(program, path=places)]
    if missing:
        names = " ".join(sorted({packages[program] for program in missing}))
        lacking(f"needs {', '.join(missing)} (apt-get install {names})")


def needs_root(to: str) -> None:
    if os.geteuid() != 0:
        lacking(f"the right {to} is missing: run the tests as root")


#: What root in a container without --privileged lacks as well.
SYS_ADMIN = "the right {to} is missing (CAP_SYS_ADMIN): run the tests as root, in a container with --privileged"


def needs_namespaces() -> None:
    """Skip without the right to make network namespaces, or without iproute2."""
    name = f"gpuval-{uuid.uuid4().hex[:8]}"
    may = os.geteuid() == 0 and shutil.which("ip") is not None
    if not may or any(
        subprocess.run(["ip", "netns", verb, name], capture_output=True, check=False).returncode
        for verb in ("add", "del")
    ):
        lacking(f"{SYS_ADMIN.format(to='to make network namespaces')}, with iproute2")


@contextlib.contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory at a folder; it is removed though processes work there."""
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        lacking(SYS_ADMIN.format(to="to mount a file system"))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
