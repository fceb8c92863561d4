"""Judges again from an evidence bundle, and compares the report with the kept one.

A child process judges, with the bundle's data files in place of the collection's. It runs none of the bundle's code,
and writes into a temporary folder only.
"""

import filecmp
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import GpuvalError
from ..core.escape import one_line
from ..core.paths import COLLECTION, PLUGINS, version
from ..report.differences import ReportDifference, differences
from . import DATA, EXTENSIONS, RUN
from .contents import DATA_FILES, EXTENSION_FILES

#: Time limit of a judgement: for a thousand nodes it takes two minutes of a processor, which may be shared.
MAX_SECONDS = 1800.0
MAX_DIFFERENCES = 1000
_PROGRAM = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from pathlib import Path
from {PLUGINS}.plugin_utils.core import paths
paths.use_data_of(Path(sys.argv[2]) / "{DATA}")
from {PLUGINS}.plugin_utils.evidence_bundle import judge_again
judge_again.main(Path(sys.argv[2]), Path(sys.argv[3]))
"""


class ReplayError(GpuvalError):
    """An evidence bundle cannot be judged again; the message has the reason."""


@dataclass(frozen=True)
class ReplayResult:
    """How the report that was judged again differs: at most MAX_DIFFERENCES. ``versions``: of gpuval, at the judgement
    and here; if they differ, only differences ``of_verdicts``, or all if no verdict differs. ``foreign_data``: data
    files of the bundle that differ from those of the same release; empty for another release."""

    differences: list[ReportDifference]
    versions: tuple[str, str]
    foreign_data: list[str]
    of_verdicts: bool

    def problem(self) -> str:
        """The first difference of the report that was judged again, as text; empty if there is none."""
        if not self.differences:
            return ""
        more = f", and {len(self.differences) - 1} more" if len(self.differences) > 1 else ""
        return one_line("; ".join([f"{self.differences[0].text()}{more}", *self.remarks]), 1000)

    @property
    def remarks(self) -> list[str]:
        """Lines that may explain the differences: another release of gpuval judged."""
        kept, here = self.versions
        if kept == here or not self.differences:
            return []
        nodes = {difference.node for difference in self.differences} - {""}
        changed = f"verdicts differ on {len(nodes)} nodes" if self.of_verdicts else "every check has the same verdict"
        return [f"judged by gpuval {kept} before, by {here} here: {changed}; gpuval {kept} compares byte by byte"]


def replay(bundle: Path, seconds: float = MAX_SECONDS) -> ReplayResult:
    """Judge the run in a bundle again within ``seconds``, and compare the reports. The folder has no links: it was made
    here, or is the copy that `statement.check` made. Raises ReplayError."""
    with tempfile.TemporaryDirectory(prefix="gpuval-replay-") as name:
        folder = Path(name)
        kept_version = judge_into(bundle, folder, seconds)
        kept, judged = bundle / RUN / "report.json", folder / "report.json"
        is_same = kept.is_file() and filecmp.cmp(kept, judged, shallow=False)
        is_here = kept_version == version()

        def listed(*, only_verdicts: bool) -> list[ReportDifference]:
            found = () if is_same else differences(kept, judged, only_verdicts=only_verdicts)
            return [replace(one, file=f"{RUN}/{one.file}") for one in itertools.islice(found, MAX_DIFFERENCES)]

        of_verdicts = [] if is_here else listed(only_verdicts=True)
        shown = of_verdicts or listed(only_verdicts=False)
    foreign = foreign_data(bundle) if is_here else []
    return ReplayResult(shown, (kept_version, version()), foreign, bool(of_verdicts))


def foreign_data(bundle: Path) -> list[str]:
    """The data files of a bundle that differ from those of this release, with those that only one of them has."""
    names = (
        {path.relative_to(folder).as_posix() for pattern in DATA_FILES for path in folder.glob(pattern)}
        for folder in (bundle / DATA, COLLECTION)
    )
    there, here = names
    same = (name for name in there & here if filecmp.cmp(bundle / DATA / name, COLLECTION / name, shallow=False))
    return sorted(f"{DATA}/{name}" for name in (there | here) - {*same})


def judge_into(bundle: Path, folder: Path, seconds: float = MAX_SECONDS) -> str:
    """Judge the run in a bundle with the bundle's data, in a child process that writes report.json into ``folder``.
    Returns the version of gpuval that judged before. Raises ReplayError, also after ``seconds``."""
    lay_out_data(bundle, folder)
    command = [sys.executable, *arguments(bundle / RUN, folder)]
    child = subprocess.Popen(
        command, env=environment(folder), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        answer, error = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ReplayError(f"the judgement did not end within {seconds:.0f} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode:
        raise ReplayError(f"the bundle cannot be judged: {one_line(error.decode(errors='replace')[-400:])}")
    return one_line(answer.decode(errors="replace"), 64)


def lay_out_data(bundle: Path, folder: Path) -> None:
    """Make a copy of the collection in ``folder``, with the bundle's data files, and links to the collection in use for
    all that is no data, such as schemas. Other files of the bundle are left out."""
    data = folder / DATA
    data.mkdir()
    replaced = {pattern.partition("/")[0] for pattern in DATA_FILES}
    for path in COLLECTION.iterdir():
        if path.name not in replaced:
            (data / path.name).symlink_to(path)
    for path in COLLECTION.glob("plugins/plugin_utils/*/*scheduler.py"):  # each declares the name of a scheduler
        target = data / path.relative_to(COLLECTION)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    places: list[tuple[Path, Path, tuple[str, ...]]] = [(bundle / DATA, data, DATA_FILES)]
    places += [(path, folder / EXTENSIONS / path.name, EXTENSION_FILES) for path in (bundle / EXTENSIONS).glob("*")]
    for source, target, patterns in places:
        for path in itertools.chain(*(source.glob(pattern) for pattern in patterns)):
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.relative_to(source))


def arguments(run: Path, folder: Path) -> list[str]:
    """Arguments for Python to judge the run in ``run`` with the data in ``folder``, and to write report.json there."""
    search_path = [str(COLLECTION.parents[2]), *(place for place in sys.path if place)]
    return ["-I", "-c", _PROGRAM, json.dumps(search_path), str(folder), str(run)]


def environment(folder: Path) -> dict[str, str]:
    """Environment variables of the process that judges again: it writes into ``folder`` only."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "HOME": str(folder), "ANSIBLE_LOCAL_TEMP": str(folder)}
