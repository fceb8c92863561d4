"""Judge again from an evidence bundle, and compare the report with the kept one.

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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import GpuvalError
from ..core.escape import one_line
from ..core.paths import COLLECTION, PLUGINS, version
from ..records import report_file
from .contents import DATA, DATA_FILES, EXTENSION_FILES, EXTENSIONS, RUN

#: The report of a thousand nodes takes a minute.
MAX_SECONDS = 900.0
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
    """A bundle that cannot be judged again; the message has the reason."""


@dataclass(frozen=True)
class ReplayDifference:
    """What the kept report has otherwise than the new one: ``file`` of the bundle, ``node`` and ``check`` where it
    belongs to some, and both texts."""

    file: str
    node: str
    check: str
    kept: str
    judged: str

    def text(self) -> str:
        where = " ".join(filter(None, (self.node, self.check)))
        return f"{self.file}: {where}: kept {self.kept}; judged again {self.judged}"


@dataclass(frozen=True)
class ReplayResult:
    """The differences, at most MAX_DIFFERENCES; ``versions``: of gpuval, at the judgement and here."""

    differences: list[ReplayDifference]
    versions: tuple[str, str]

    def problem(self) -> str:
        """The first difference as text; empty if there is none."""
        if not self.differences:
            return ""
        more = f", and {len(self.differences) - 1} more" if len(self.differences) > 1 else ""
        return one_line("; ".join([f"{self.differences[0].text()}{more}", *self.remarks]), 1000)

    @property
    def remarks(self) -> list[str]:
        """What may explain differences."""
        kept, here = self.versions
        return [f"judged by gpuval {kept} before, by {here} here"] if kept != here else []


def replay(bundle: Path, seconds: float = MAX_SECONDS) -> ReplayResult:
    """Judge the run in a bundle again, and compare. The folder has no links: it was made here, or is the copy that
    `statement.check` made. Raises ReplayError."""
    with tempfile.TemporaryDirectory(prefix="gpuval-replay-") as name:
        folder = Path(name)
        kept_version = judge_into(bundle, folder, seconds)
        kept, judged = bundle / RUN / "report.json", folder / "report.json"
        is_same = kept.is_file() and filecmp.cmp(kept, judged, shallow=False)
        differences = [] if is_same else list(_differences(kept, judged))
    return ReplayResult(differences[:MAX_DIFFERENCES], (kept_version, version()))


def judge_into(bundle: Path, folder: Path, seconds: float = MAX_SECONDS) -> str:
    """Judge the run in a bundle with the bundle's data: ``folder`` gets report.json. Returns the version of gpuval that
    judged before. Raises ReplayError."""
    lay_out_data(bundle, folder)
    return _judge(bundle / RUN, folder, seconds)


def lay_out_data(bundle: Path, folder: Path) -> None:
    """Make a collection of the bundle's data, with schemas and what else is no data from the one in use. Files of the
    bundle other than data are left out."""
    data = folder / DATA
    data.mkdir()
    replaced = {pattern.partition("/")[0] for pattern in DATA_FILES}
    for path in COLLECTION.iterdir():
        if path.name not in replaced:
            (data / path.name).symlink_to(path)
    for path in COLLECTION.glob("plugins/plugin_utils/*/*scheduler.py"):  # which names the scheduler
        target = data / path.relative_to(COLLECTION)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    places: list[tuple[Path, Path, tuple[str, ...]]] = [(bundle / DATA, data, DATA_FILES)]
    if (bundle / EXTENSIONS).is_dir():
        places += [
            (place, folder / EXTENSIONS / place.name, EXTENSION_FILES) for place in (bundle / EXTENSIONS).iterdir()
        ]
    for source, target, patterns in places:
        for path in itertools.chain(*(source.glob(pattern) for pattern in patterns)):
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.relative_to(source))


def arguments(run: Path, folder: Path) -> list[str]:
    """The arguments of Python that judge the run again. ``folder``: with its data; it gets report.json."""
    search_path = [str(COLLECTION.parents[2]), *(place for place in sys.path if place)]
    return ["-I", "-c", _PROGRAM, json.dumps(search_path), str(folder), str(run)]


def environment(folder: Path) -> dict[str, str]:
    """The environment of that process, which writes into the folder only."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "HOME": str(folder), "ANSIBLE_LOCAL_TEMP": str(folder)}


def _judge(run: Path, folder: Path, seconds: float) -> str:
    """Judge in a child process: ``folder`` gets report.json. Returns the version of gpuval that judged before."""
    command = [sys.executable, *arguments(run, folder)]
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


def _differences(kept: Path, judged: Path) -> Iterator[ReplayDifference]:
    file = f"{RUN}/report.json"
    try:
        yield from _compared(report_file.walk(kept), report_file.walk(judged), file)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        yield ReplayDifference(file, "", "", f"no report: {one_line(str(error), 200)}", "a report")


def _compared(
    kept: Iterator[dict[str, Any]], judged: Iterator[dict[str, Any]], file: str
) -> Iterator[ReplayDifference]:
    heads, is_found = (next(kept), next(judged)), False
    for key in ("verdict", "counts", "run", "summary", "fleet"):
        if heads[0].get(key) != heads[1].get(key):
            is_found = True
            yield ReplayDifference(file, "", key, *_first_texts(heads[0].get(key), heads[1].get(key)))
    for before, after in itertools.zip_longest(kept, judged):
        if before is None or after is None or before["name"] != after["name"]:
            names = [one_line(str(node["name"]), 300) if node else "no further node" for node in (before, after)]
            yield ReplayDifference(file, names[1] if after else names[0], "", *names)
            return
        nodes = [report_file.unpack_node(node, head) for node, head in zip((before, after), heads, strict=True)]
        for difference in _of_node(*nodes):
            is_found = True
            yield difference
    if not is_found:
        yield ReplayDifference(file, "", "", "other bytes with the same content", "the usual form")


def _of_node(kept: Mapping[str, Any], judged: Mapping[str, Any]) -> Iterator[ReplayDifference]:
    """The checks of a node that differ; other fields only if no check does."""
    name, is_found = str(judged["name"]), False
    checks = [{(one["stage"], one["name"], one["part"]): one for one in node["checks"]} for node in (kept, judged)]
    for key in dict.fromkeys(itertools.chain(*checks)):
        before, after = (of_node.get(key) for of_node in checks)
        if before != after:
            texts = [f"{one['verdict']} ({one['reason']})" if one else "no such check" for one in (before, after)]
            if texts[0] == texts[1]:
                texts = list(_first_texts(before, after))
            is_found = True
            file = f"{RUN}/nodes/{name}/{key[0]}.json" if key[0] else f"{RUN}/report.json"
            yield ReplayDifference(file, name, key[1], *(one_line(text, 300) for text in texts))
    fields = dict.fromkeys(itertools.chain(kept, judged)) if not is_found else ()
    for field in (field for field in fields if kept.get(field) != judged.get(field)):
        yield ReplayDifference(f"{RUN}/report.json", name, field, *_first_texts(kept.get(field), judged.get(field)))


def _first_texts(kept: Any, judged: Any) -> tuple[str, str]:
    """Short texts on two values from the first place in which they differ."""
    while isinstance(kept, dict) and isinstance(judged, dict):
        key = next(key for key in dict.fromkeys([*kept, *judged]) if kept.get(key, ...) != judged.get(key, ...))
        kept, judged = kept.get(key, "nothing"), judged.get(key, "nothing")
    if isinstance(kept, list) and isinstance(judged, list):
        pairs = itertools.zip_longest(kept, judged, fillvalue="nothing")
        kept, judged = next(pair for pair in pairs if pair[0] != pair[1])
    return one_line(str(kept), 300), one_line(str(judged), 300)
