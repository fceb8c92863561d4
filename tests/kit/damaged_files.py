"""Every file of a run's folder, damaged in every way, and what the commands make of it.

Each command runs in a process of its own, in which a read of a FIFO that hangs is ended, and rights count for root too.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.console import Console
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.step_options import StoreSettings, group_spec
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import find
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import open_store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.placement import Placement
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watch import RunWatch, WatchLimits

from tests.kit.actions import Outcome, run_action, vars_of

#: A command on a small run ends within two; another process may use the machine.
SECONDS = 30
OTHER_RUN = "20200101-000000-0000"
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
CAPABILITY_VERSION = 0x20080522


def empty(path: Path, _run_id: str) -> None:
    path.write_bytes(b"")


def tear(path: Path, _run_id: str) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path, _run_id: str) -> None:
    path.unlink()


def make_directory(path: Path, _run_id: str) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def make_fifo(path: Path, _run_id: str) -> None:
    path.unlink()
    os.mkfifo(path)


def make_dangling(path: Path, _run_id: str) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def of_another_run(path: Path, run_id: str) -> None:
    path.write_bytes(path.read_bytes().replace(run_id.encode(), OTHER_RUN.encode()))


def make_unreadable(path: Path, _run_id: str) -> None:
    path.chmod(0)


DAMAGES: dict[str, Callable[[Path, str], None]] = {
    "emptied": empty,
    "torn": tear,
    "removed": remove,
    "directory": make_directory,
    "fifo": make_fifo,
    "dangling": make_dangling,
    "another": of_another_run,
    "unreadable": make_unreadable,
}


def drop_rights() -> None:
    """From here on rights of files count, for root as well."""
    if os.geteuid() != 0:
        return

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    class Sets(ctypes.Structure):
        _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))

    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = Header(CAPABILITY_VERSION, 0), (Sets * 2)()
    assert libc.capget(ctypes.byref(header), sets) == 0
    for name in ("effective", "permitted", "inheritable"):
        kept = getattr(sets[0], name) & ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
        setattr(sets[0], name, kept)
    assert libc.capset(ctypes.byref(header), sets) == 0


#: What a node answers to a clean of a run that left nothing.
CLEANED = {"outcome": {"state": "clean", "message": "", "removed": [], "killed": [], "images": [], "restored": []}}


@dataclass
class Answer:
    """What a command said. `crash`: the traceback of what is no message; `hung`: it did not end."""

    failed: bool = False
    text: str = ""
    crash: str = ""
    hung: bool = False
    report: dict[str, str] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        return not self.crash and not self.hung


STORE = {name: option.get("default") for name, option in group_spec(StoreSettings).items()}


@dataclass(frozen=True)
class DamagedRun:
    """A copy of a run of a fleet: its results; the store stays where it is."""

    root: Path
    state_dir: Path
    run_id: str
    nodes: Mapping[str, Any]
    store: Mapping[str, Any]
    stages: tuple[str, ...]

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def folder(self) -> Path:
        return find(self.results, self.run_id).path

    def files(self) -> Iterator[str]:
        """The files of the run's folder, relative to it."""
        paths = sorted(self.folder.rglob("*"))
        yield from (str(path.relative_to(self.folder)) for path in paths if path.is_file() and not path.is_symlink())

    def command(self, name: str, run_id: str = "") -> Answer:
        """Run a command's actions in a process of its own."""
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=self._answer, args=(sender, name, run_id))
        process.start()
        sender.close()
        try:
            if not receiver.poll(SECONDS):
                return Answer(hung=True)
            return receiver.recv()
        except EOFError:
            return Answer(crash="the process ended without an answer")
        finally:
            process.kill()
            process.join()
            receiver.close()

    def _answer(self, sender: Any, name: str, run_id: str) -> None:
        drop_rights()
        answer = Answer()
        try:
            for outcome in {**COMMANDS, "collect": collect}[name](self, run_id):
                answer.text += outcome.text + "\n"
                answer.failed = outcome.failed
                if outcome.failed:
                    break
        except BaseException:
            answer.crash = traceback.format_exc()
        answer.report = self._verdicts()
        sender.send(answer)

    def _verdicts(self) -> dict[str, str]:
        """The verdict of each node by the report, if there is one."""
        try:
            report = json.loads((self.folder / "report.json").read_text()) if self.folder_file("report.json") else {}
        except (OSError, ValueError):
            return {}
        return {node["name"]: node["verdict"] for node in report.get("nodes", ())}

    def folder_file(self, name: str) -> bool:
        return (self.folder / name).is_file()

    @property
    def variables(self) -> dict[str, Any]:
        inventory = {"ansible_inventory_sources": [str(self.root / "hosts.json")], "groups": {"all": list(self.nodes)}}
        return {**vars_of({name: {"cleanup_node": CLEANED} for name in self.nodes}), **inventory}

    def act(self, action: str, **options: Any) -> Outcome:
        options = {"results_dir": str(self.results), **options}
        return run_action(action, options, task_vars=self.variables)


def _judged(run: DamagedRun, run_id: str, *, finish: bool) -> Iterator[Outcome]:
    yield run.act("collect_run", run_id=run_id, store=run.store)
    yield run.act("judge_run", run_id=run_id, finish=finish)
    yield run.act("report_run", run_id=run_id, store=run.store)


def clean(run: DamagedRun, run_id: str) -> Iterator[Outcome]:
    closed = run.act("clean_run", run_id=run_id, store=run.store)
    yield closed
    kept = {name: closed.result[name] for name in ("run_ids", "nodes")}
    yield run.act("clean_run", state="reported", store=run.store, **kept)


def status(run: DamagedRun, run_id: str) -> Iterator[Outcome]:
    yield run.act("show_status", run_id=run_id, store=run.store)


def report(run: DamagedRun, run_id: str) -> Iterator[Outcome]:
    yield run.act("find_run", run_id=run_id, store=run.store, folder="")
    yield from _judged(run, run.run_id, finish=False)


def runs(run: DamagedRun, run_id: str) -> Iterator[Outcome]:
    yield run.act("list_runs")


class NoPlacement(Placement):
    """Of nodes that are done: none can be asked, and none need be."""

    present, everyone, busy = frozenset(), frozenset(), False

    def launch(self, view: Any, attempt: Any, seconds: float) -> None:
        raise AssertionError(f"{view.name} is launched again")

    def fetch(self, view: Any, *, by_store: bool) -> None:
        raise AssertionError(f"{view.name} is asked again")

    def wait(self, seconds: float) -> list[Any]:
        time.sleep(max(0.0, seconds))
        return []

    def close(self) -> None:
        return


def watched(run: DamagedRun, run_id: str) -> Outcome:
    """The watch that resumes a run of which all nodes are done."""
    outcome = Outcome(result={})
    folder = find(run.results, run_id)
    folder.advance("working")
    limits = WatchLimits(0.1, 1, 60, 60, 1, 0, 0, 0)
    access = open_store({**STORE, **run.store})
    try:
        RunWatch(limits, folder, access, criteria.beside_shipped(()), NoPlacement(), Console(outcome)).run()
    except GpuvalError as error:
        outcome.result = None
        outcome.lines.append(str(error))
    return outcome


def validate(run: DamagedRun, run_id: str) -> Iterator[Outcome]:
    """Resume the run. Its nodes are done, so that no node is asked."""
    workloads = {stage: {"command": ["true"]} for stage in run.stages}
    opened = run.act(
        "open_run", run_id=run_id, store=run.store, profile="custom",
        profile_stages=list(run.stages), workloads=workloads, deadline_seconds=7200,
    )  # fmt: skip
    yield opened
    run_id = opened.result["run"]["run_id"]
    yield watched(run, run_id)
    yield from _judged(run, run_id, finish=True)


def collect(run: DamagedRun, run_id: str) -> Iterator[Outcome]:
    """What follows the watch, in the same command: no file is restored before it."""
    yield from _judged(run, run_id or run.run_id, finish=True)


COMMANDS = {"clean": clean, "status": status, "report": report, "runs": runs, "validate": validate}


def copied(source: DamagedRun, root: Path) -> DamagedRun:
    """A copy to damage."""
    root.mkdir()
    shutil.copytree(source.results, root / "results", symlinks=True)
    shutil.copy(source.root / "hosts.json", root)
    return DamagedRun(root, source.state_dir, source.run_id, source.nodes, source.store, source.stages)
