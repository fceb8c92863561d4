"""The programs for a node: the runner and the workloads, each as one reproducible zip file."""

import importlib.util
import io
import marshal
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...module_utils.engines._engine import ContainerEngine
from ..core import extensions
from ..core.paths import COLLECTION

RUNNER = COLLECTION / "node" / "gpuval_runner"
WORKLOADS = COLLECTION / "node" / "gpuval_workloads"
MODULE_UTILS = COLLECTION / "plugins" / "module_utils"
#: Files of module_utils that become the package `gpuval_node` in the workloads' zip file, and in the runner's.
OF_WORKLOADS = (
    *("atomic_file.py", "clock_skew.py", "process_stat.py", "volumes.py"),
    *(f"network/{name}.py" for name in ("__init__", "greeting", "packets", "parallel", "routes", "tcp")),
    *(f"hardware/{name}.py" for name in ("__init__", "acs", "cpu", "disks", "link_counters", "nics", "pci")),
    *("hardware/tools.py", "hardware/tree.py"),
)
SHARED = (
    *("atomic_file.py", "clock_skew.py"),
    *("engines", "hardware", "node_directory.py", "node_launch.py", "requirement_trial.py"),
    "process_stat.py",
    "root_cause.py",
    "root_causes.json",
    "redaction.py",
    "visible_text.py",
    "volumes.py",
    *(f"network/{name}.py" for name in ("__init__", "endpoints", "parallel", "tcp")),
)

#: Name of the Python package that holds the program of a stage of an extension.
PROGRAM = "program"
SHEBANG = b"#!/usr/bin/env python3\n"
#: Start of the runner. Without gc.freeze Python would search for garbage at its end, a 20th of a short command's time.
ENTRY_POINT = b"""\
import gc
import sys
from gpuval_runner.cli import main
code = main()
gc.freeze()
sys.exit(code)
"""
EARLIEST = (1980, 1, 1, 0, 0, 0)  # the earliest date of the zip format
LEFT_OUT = {"__pycache__", "tests"}
#: Flag (PEP 552) of bytecode that Python does not compare with its source, whose date depends on the time zone.
UNCHECKED_HASH = (1).to_bytes(4, "little")
#: The last version of marshal without back references, which differ from process to process.
REPRODUCIBLE_MARSHAL = 2

Entry = tuple[str, bytes]


def runner_pyz(bytecode: bool = True) -> bytes:
    """Return the runner with its shared code as a zip application, by default with bytecode for this version of Python.
    Raises ``FileNotFoundError`` when either is missing, SettingError for an extension's file without an engine."""
    engines = extensions.own("engines")
    for name in engines:
        extensions.load_class("engines", name, ContainerEngine)
    entries = [*_package(RUNNER, "gpuval_runner"), *_shared(SHARED), ("__main__.py", ENTRY_POINT)]
    entries += [(f"gpuval_node/engines/{name}.py", path.read_bytes()) for name, path in engines.items()]
    return SHEBANG + _zip([*entries, *(_bytecode(entries) if bytecode else ())])


def workloads_zip(programs: Sequence[Path] = ()) -> bytes:
    """Return the workloads as a zip for ``PYTHONPATH``. ``programs``, the folders ``NAME/program`` of extensions,
    are its packages ``gpuval_stages.NAME``. Raises ``FileNotFoundError`` when a package is missing."""
    entries = [*_package(WORKLOADS, "gpuval_workloads"), *_shared(OF_WORKLOADS)]
    entries += [("gpuval_stages/__init__.py", b"")] if programs else []
    for folder in programs:
        entries += _package(folder, f"gpuval_stages/{folder.parent.name}")
    return _zip(entries)


def _package(folder: Path, name: str) -> list[Entry]:
    if not (folder / "__init__.py").is_file():
        remedy = "add __init__.py" if folder.name == PROGRAM else "the collection is incomplete, install it again"
        raise FileNotFoundError(f"{folder} is not a Python package: {remedy}")
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    # Leave out hidden files, whose owner is not checked (core/extensions.py).
    wanted = (p for p in files if not any(part in LEFT_OUT or part[0] == "." for part in p.relative_to(folder).parts))
    return [(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes()) for path in wanted]


def _shared(names: Iterable[str]) -> list[Entry]:
    entries = [("gpuval_node/__init__.py", b"")]
    for path, name in ((MODULE_UTILS / name, f"gpuval_node/{name}") for name in names):
        entries += _package(path, name) if path.is_dir() else [(name, path.read_bytes())]
    return entries


def _bytecode(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries with the bytecode of sources: Python caches none for a zip, and compiling takes half of a start's
    CPU time. A node with another Python sees a foreign magic number, and compiles the source."""
    compiled = []
    for name, source in entries:
        if not name.endswith(".py") or name == "__main__.py":
            continue
        code = compile(source, name, "exec", dont_inherit=True, optimize=0)
        try:
            data = marshal.dumps(code, REPRODUCIBLE_MARSHAL)
        except ValueError:  # a constant that this marshal version cannot write
            continue
        header = importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + importlib.util.source_hash(source)
        compiled.append((f"{name}c", header + data))
    return compiled


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
