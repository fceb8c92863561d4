"""What travels to a node: the runner and the workloads, each as one reproducible zip file."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[2]
RUNNER = COLLECTION / "node" / "gpuval_runner"
WORKLOADS = COLLECTION / "node" / "gpuval_workloads"
HARDWARE = COLLECTION / "plugins" / "module_utils" / "hardware"

SHEBANG = b"#!/usr/bin/env python3\n"
ENTRY_POINT = b"import sys\n\nfrom gpuval_runner.cli import main\n\nsys.exit(main())\n"
EARLIEST = (1980, 1, 1, 0, 0, 0)  # the zip format knows no earlier date
LEFT_OUT = {"__pycache__", "tests"}

Entry = tuple[str, bytes]


def runner_pyz() -> bytes:
    """Return the runner with the hardware package as a zip application.

    Raises ``FileNotFoundError`` when either is missing.
    """
    entries = [*_package(RUNNER, "gpuval_runner"), *_package(HARDWARE, "gpuval_hardware"), ("__main__.py", ENTRY_POINT)]
    return SHEBANG + _zip(entries)


def workloads_zip() -> bytes:
    """Return the workloads as a zip for ``PYTHONPATH``. Raises ``FileNotFoundError`` when the package is missing."""
    return _zip(_package(WORKLOADS, "gpuval_workloads"))


def sha256(data: bytes) -> str:
    """Return the SHA-256 of data in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _package(folder: Path, name: str) -> list[Entry]:
    if not (folder / "__init__.py").is_file():
        raise FileNotFoundError(f"{folder} is not a Python package: the collection is incomplete, install it again")
    files = (path for path in folder.rglob("*") if path.is_file())
    wanted = (path for path in files if not LEFT_OUT & set(path.relative_to(folder).parts) and path.suffix != ".pyc")
    return [(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes()) for path in wanted]


def _zip(entries: Iterable[Entry]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(entries):
            entry = zipfile.ZipInfo(name, EARLIEST)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return target.getvalue()
