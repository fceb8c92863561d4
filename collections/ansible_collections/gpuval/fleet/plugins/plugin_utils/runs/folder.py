"""Finds, reads and writes the folders of runs below results/ on the controller."""

import hashlib
import json
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...module_utils.redaction import SecretRedactor
from ..core import files, schemas
from ..core.errors import GpuvalError
from ..core.grouping import values_by_key
from ..core.text import meant, some_of
from ..records import launch_errors, report_file
from ..records.digests import NodeDigests
from ..records.documents import EvidenceProblem
from . import origin
from . import state as run_state

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")

#: Default limit of the search for the bad node of a multi-node test: seconds, and further ones for each node.
SEARCH_SECONDS, SEARCH_SECONDS_EACH = 3060.0, 5.0
#: Rounds of that search which its default limit allows at full length, as when a node hangs: four of pairs, and two
#: that confirm. At least half must fit: a round begins only if its full time is left, and usually takes a third of it.
SEARCH_ROUNDS, LEAST_SEARCH_ROUNDS = 6, 3

#: Seconds after its deadline at which a run counts as over, since the nodes' last records may still be in transit.
DEADLINE_SLACK_SECONDS = 120.0

#: File in the folder of an inventory's runs: the inventory's sources, relative to the results folder.
INVENTORY_FILE = ".inventory.json"
#: Lock file in the results folder, held while a command opens a run or changes its state.
TURN_FILE = ".opening.lock"
#: Seconds to wait for another command that opens a run: restoring files from a store that hangs takes half a minute.
TURN_SECONDS = 120.0
#: Seconds to wait for that lock to change a run's state. Then it changes without: a stopped command may hold the lock.
ADVANCE_SECONDS = 10.0

LATEST = "latest"
NEW = "new"
#: Names of folders beside those of runs, in the bucket or on nodes: no run may have such an id.
SHARED_FOLDERS = ("models", "images", "network")
#: Names of folders in a run's folder of the bucket, which other runs may not use for theirs.
OWN_FOLDERS = ("records", "logs", "series", "plans", "gangs", "report", "images", "evidence")


_hidden = SecretRedactor()


class RunError(GpuvalError):
    """The run cannot be opened or found; the message says what to do."""


def now() -> str:
    """The current time in RFC 3339, UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(time: str) -> float:
    return (datetime.now(timezone.utc) - datetime.fromisoformat(time)).total_seconds()


class FileOfRun:
    """Attribute of `RunFolder` that holds the path of a file or folder in the run's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", _class: Any = None) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run on the controller, `results/<inventory>/<run_id>/`, or of a multi-node round below it.

    nodes/<node>/<stage>.json, .log, .series.json   evidence
    report.*, junit.xml, gpuval.prom, ...            reports on the evidence
    .state/                                          plans, launches, state of the watch
    """

    path: Path

    run_file, state = FileOfRun("run.json"), FileOfRun(".state")
    #: Last state that the controller's watch loop wrote for the run (gpuval.watch/1).
    watch_file = FileOfRun(".state/run_watch.json")
    problems_file, cleaned_file = FileOfRun(".state/problems.json"), FileOfRun(".state/cleaned.json")
    #: Criteria and baseline by which the run is judged; and the verdicts of its last report, without details.
    criteria_file, verdict_file = FileOfRun(".state/run_criteria.json"), FileOfRun(".state/verdict.json")
    #: Where in the store a run of another controller was imported from; only imported runs have the file.
    import_file = FileOfRun(".state/from_store.json")
    #: Version of each object that `collect` has read from the store.
    collected_file = FileOfRun(".state/collected.json")
    #: Progress and results of the run's multi-node tests. The file exists once their groups of nodes are formed.
    gangs_file = FileOfRun("gangs/gangs.json")
    #: Time limits of the multi-node tests, while this controller runs them.
    gang_limits_file = FileOfRun(".state/gang_limits.json")

    @property
    def results(self) -> Path:
        """The results folder: two levels above the run, or one for a run of release 1.0 that could not be moved."""
        parent = self.path.parent
        return parent.parent if is_place(parent) else parent

    @property
    def inventory(self) -> list[str]:
        """Absolute sources of the run's inventory, from its run.json; empty if unknown. For an imported or damaged run,
        those of the inventory to whose folder the run belongs."""
        run_origin = {} if self.is_imported else read_object(self.run_file).get("origin") or {}
        sources = run_origin.get("inventory") or read_json_or([], self.path.parent / INVENTORY_FILE)
        return origin.restored(sources, self.results)

    @property
    def is_known(self) -> bool:
        """Whether a run was opened in this folder, even if its run.json is damaged or gone."""
        return os.path.lexists(self.run_file) or any((self.state / name).is_dir() for name in ("plans", "launches"))

    @property
    def is_imported(self) -> bool:
        """Whether the run is another controller's, imported to be judged here. Only its own controller may start, end
        and clean it, or write into its folder in the store."""
        return self.import_file.exists()

    def plan_file(self, node: str) -> Path:
        return self.state / "plans" / f"{node}.json"

    def launch_file(self, node: str) -> Path:
        return self.state / "launches" / f"{node}.json"

    def digests_file(self, node: str) -> Path:
        return self.state / "digests" / f"{node}.json"

    def read_digests(self, node: str) -> NodeDigests:
        """Digests of a node's evidence, from the store and as the node states them over another channel."""
        return NodeDigests.of(read_object(self.digests_file(node)))

    def evidence_file(self, node: str, stage: str, kind: str = "records") -> Path:
        suffix = {"records": ".json", "logs": ".log", "series": ".series.json"}[kind]
        return self.path / "nodes" / node / f"{stage}{suffix}"

    def read_run(self) -> dict[str, Any]:
        run = read_kept(self.run_file, self._remedy, "run")
        if run is not None:
            return run
        if self.is_known:
            raise self.damaged(self.run_file, "it is missing")
        opened_runs = runs_of(self.results, opened=True)
        advice = "run `make validate` first, or give -e gpuval_run_id="
        if opened_runs:
            advice = f"{hint(self.path.name, [run.path.name for run in opened_runs])}; `make runs` lists them"
        raise RunError(f"no run in {self.path}: {advice}")

    def damaged(self, path: Path, error: object) -> RunError:
        """The error to raise for a file of the run that cannot be read."""
        return RunError(f"{path} is damaged ({error}): {self._remedy}")

    @property
    def _remedy(self) -> str:
        return (
            f"`make report RUN={self.path.name}` restores it where the store has a copy; otherwise "
            f"`make clean RUN={self.path.name}` ends the run, and `make validate RUN=new` starts another"
        )

    def write_run(self, run: Mapping[str, Any]) -> None:
        schemas.validate("run", run, what="run.json")
        write_json(self.run_file, run)

    def advance(self, name: str, reason: str = "", pid: int | None = None) -> dict[str, Any] | None:
        """Set the run's state to `name`, as the controller with process id `pid`, by default this process's parent.
        Returns the run; None if the state may not follow, or this controller does not work on the run."""
        if not self.run_file.exists():
            return None
        with files.locked(self.results / TURN_FILE, ADVANCE_SECONDS, None):
            run = self.read_run()
            new = run_state.advanced(run, name, now(), os.getppid() if pid is None else pid, _hidden(reason))
            if new is None:
                return None
            run = {**run, "state": new}
            self.write_run(run)
        return run

    def conclude(self) -> dict[str, Any]:
        """Set the state `judged` after a report, by the run's controller or, once that is gone, by another command.
        Returns the run."""
        run = self.advance(run_state.JUDGED) or self.read_run()
        if is_unreported(run) and self.seen().attended is False:
            run = {**run, "state": {**run["state"], "name": run_state.JUDGED, "since": now()}}
            self.write_run(run)
        return run

    def mark_cleaned(self) -> None:
        """Record in run.json that nothing of the run is left on nodes or a cluster."""
        try:
            run = self.read_run()
        except RunError:  # a damaged run is cleaned again
            return
        self.write_run({**run, "state": {**run_state.of(run), "cleaned_at": now()}})

    def seen(self) -> run_state.Seen:
        """The run's current state. The time of the controller's last write to the folder counts as its heartbeat."""
        run, age = self.read_run(), self.sign_age()
        present_state = run_state.seen(run, age)
        if present_state.attended is not False or not is_open(run):
            return present_state
        with suppress(RunError, ValueError):  # a damaged plan is reported where it is needed
            if not is_in_time(self, run):
                return run_state.seen(run, age, in_time=False)
        # Name the run id unless it is the latest run: without an id the command resumes the newest run of these nodes.
        by_id, resume = latest_run(self.results, self.inventory, opened=True) != self, run_state.RESUME
        if run["narrowed_by"]:
            resume = "its command" + (f" with RUN={run['run_id']}" if by_id else "") + " resumes it"
        elif by_id:
            inventory = shlex.quote(origin.shown(self.inventory))
            chosen = f" INVENTORY={inventory}" if self.inventory else ""
            resume = f"`make validate{chosen} RUN={run['run_id']}` resumes it"
        return run_state.seen(run, age, resume=resume)

    def sign_age(self) -> float | None:
        """Seconds since the run's controller wrote its state or its watch."""
        times = [path.stat().st_mtime for path in (self.run_file, self.watch_file) if path.is_file()]
        return max(0.0, time.time() - max(times)) if times else None

    def read_plan(self, node: str) -> dict[str, Any]:
        try:
            plan: dict[str, Any] = read_json(self.plan_file(node))
        except (OSError, ValueError) as error:
            raise RunError(
                f"the plan of {node} is missing or damaged ({error}): validate again under a new run id"
            ) from error
        return plan

    def read_plans(self) -> dict[str, dict[str, Any]]:
        """All plans by node, without damaged ones, for which `read_plan` raises an error."""
        plans = {path.stem: read_object(path) for path in sorted((self.state / "plans").glob("*.json"))}
        return {node: plan for node, plan in plans.items() if plan}

    def planned_stage(self, node: str, stage: str) -> dict[str, Any] | None:
        """A stage of the node's plan, with the plan's runtime; None without a plan, or if it lacks the stage."""
        plan = read_object(self.plan_file(node))
        stages = (planned for planned in plan.get("stages", ()) if planned["name"] == stage)
        return next(({**planned, "runtime": plan["runtime"]} for planned in stages), None)

    def begun_at(self, run: Mapping[str, Any]) -> str:
        """Time (RFC 3339) from which the run's deadline counts: when its last plan was made or its last node joined."""
        joined = (node["joined_at"] for node in run["nodes"].values() if node.get("joined_at"))
        times: list[str] = [run["created_at"], *joined, *(plan["created_at"] for plan in self.read_plans().values())]
        return max(times)

    def read_launch(self, node: str) -> dict[str, Any]:
        """The document of the node's last launch; empty before the first launch."""
        path = self.launch_file(node)
        return _launch(path) if os.path.lexists(path) else {}

    def read_launches(self) -> dict[str, dict[str, Any]]:
        return {path.stem: _launch(path) for path in sorted((self.state / "launches").glob("*.json"))}

    def write_launch(self, node: str, launch: Mapping[str, Any]) -> None:
        """Write the document of the node's last launch, keeping the causes that interrupted earlier attempts."""
        launch = launch_errors.with_interruptions(launch, self.read_launch(node))
        schemas.validate("launch", launch, what=f"launch of {node}")
        write_json(self.launch_file(node), launch)

    def read_problems(self) -> list[EvidenceProblem]:
        """The reasons why documents, or whole stages, do not count as evidence."""
        return list(read_json_or([], self.problems_file))

    def add_problems(self, new: Sequence[EvidenceProblem]) -> None:
        earlier_problems = [problem for problem in self.read_problems() if problem not in new]
        write_json(self.problems_file, [*earlier_problems, *new])

    def read_cleaned(self) -> dict[str, str]:
        """{node: time (RFC 3339) when it was last cleaned of this run}, without nodes that never were."""
        return read_object(self.cleaned_file)


def _launch(path: Path) -> dict[str, Any]:
    """Read a launch file; a damaged file affects only its node."""
    try:
        launch: dict[str, Any] = read_json(path)
        schemas.validate("launch", launch, what="it")
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path} is damaged: {error}"
        return {"node": path.stem, "state": "failed", "class": "damaged_state", "message": message}
    return launch


def read_report(folder: RunFolder) -> dict[str, Any]:
    path = folder.path / "report.json"
    try:
        document: dict[str, Any] = report_file.read(path)
        schemas.validate("report", document, what=str(path))
        return report_file.unpacked(document)
    except FileNotFoundError:
        raise RunError(f"{path} is missing: the run was not judged yet, `make report` does it") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): `make report` writes it again") from error


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises OSError, and ValueError if the content is no JSON."""
    return json.loads(files.read(path))


def read_json_or(otherwise: Any, path: Path) -> Any:
    """The JSON content of a file if it has the type of `otherwise`; else, and if unreadable, `otherwise`."""
    try:
        content = read_json(path)
    except (OSError, ValueError, RecursionError):
        return otherwise
    return content if isinstance(content, type(otherwise)) else otherwise


def read_kept(path: Path, remedy: str, schema: str = "") -> dict[str, Any] | None:
    """Read a JSON document, and check its `schema` if one is named; None if the file does not exist. Raises RunError
    for a damaged one, with `remedy`."""
    try:
        document: dict[str, Any] = read_json(path)
        if schema:
            schemas.validate(schema, document, what="it")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}): {remedy}") from error
    return document


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or unreadable."""
    content: dict[str, Any] = read_json_or({}, path)
    return content


def turn(results: Path) -> AbstractContextManager[None]:
    """Lock the results while a run is opened: simultaneous commands would open two runs, or overwrite each other."""
    results.mkdir(parents=True, exist_ok=True)
    late = RunError(f"another command holds {results}/{TURN_FILE} for {TURN_SECONDS:.0f} s: end it, then try again")
    return files.locked(results / TURN_FILE, TURN_SECONDS, late)


def write_json(path: Path, value: Any) -> None:
    """Write a file atomically: readers see the complete old or new file."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=False) + "\n").encode()


def write_bytes(path: Path, data: bytes) -> None:
    files.make_folder(path.parent)
    files.move_folder_aside(path)
    files.replace(path, data)


def is_place(path: Path) -> bool:
    """Whether a folder holds the runs of one inventory: it has the file with the inventory's sources."""
    return (path / INVENTORY_FILE).exists()


def _place_for(results: Path, inventory: Sequence[str]) -> Path:
    """Folder for the inventory's runs, existing or not: its name, with a digest if another inventory has the name."""
    portable = origin.kept(inventory, results)
    folder = results / origin.folder_name(inventory)
    with_digest = folder.with_name(f"{folder.name}-{hashlib.sha256(json.dumps(portable).encode()).hexdigest()[:8]}")
    for candidate in (with_digest, folder):
        sources = read_json_or([], candidate / INVENTORY_FILE) if is_place(candidate) else None
        if sources == portable or (sources and origin.is_same(origin.restored(sources, results), inventory)):
            return candidate
    is_free = not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))
    return folder if is_free and folder.name not in (LATEST, NEW, *SHARED_FOLDERS) else with_digest


def _places(results: Path) -> list[Path]:
    """Folders with runs: one for each inventory, and the results folder itself for runs of release 1.0."""
    return [results, *sorted(path.parent for path in results.glob(f"*/{INVENTORY_FILE}"))]


def _runs_in(parent: Path) -> list[RunFolder]:
    """Runs whose folders are directly in `parent`."""
    folders = (RunFolder(path) for path in parent.glob("*/") if not path.is_symlink())
    return [folder for folder in folders if folder.is_known]


def known_runs(results: Path, inventory: Sequence[str] = (), *, imported: bool = False) -> list[RunFolder]:
    """Runs of `inventory`, or of all, by id. With `imported` also runs imported from other controllers."""
    runs = (run for place in _places(results) for run in _runs_in(place) if imported or not run.is_imported)
    of_inventory = (run for run in runs if not inventory or origin.is_same(run.inventory, inventory))
    return sorted(of_inventory, key=lambda run: run.path.name)


def find(results: Path, run_id: str) -> RunFolder:
    """The folder of the run with this id, of any inventory; if there is none, its path directly in `results`."""
    folders = (RunFolder(place / run_id) for place in _places(results))
    return next((folder for folder in folders if folder.is_known), RunFolder(results / run_id))


def find_or_place(results: Path, run_id: str, inventory: Sequence[str]) -> RunFolder:
    """The folder of the run with this id, or the one where a new run of the inventory belongs."""
    folder = find(results, run_id)
    return folder if folder.is_known else RunFolder(_place_for(results, inventory) / run_id)


def keep_inventory(folder: RunFolder, results: Path, inventory: Sequence[str]) -> None:
    """Create the folder of an inventory's runs, with the file that names the inventory, before its first run."""
    inventory_folder = folder.path.parent
    if inventory_folder != results and not is_place(inventory_folder):
        write_json(inventory_folder / INVENTORY_FILE, origin.kept(inventory, results))


def adopt(results: Path) -> list[RunFolder]:
    """Move runs of release 1.0, `results/<run_id>`, to the folders of their inventories. Returns the moved runs. Runs
    on which a controller works, and those that cannot be moved, stay and remain readable."""
    moved: list[RunFolder] = []
    if is_place(results) or (results.parent / "run.json").exists() or not _runs_in(results):  # a run's rounds stay
        return moved
    with suppress(OSError), files.locked(results / TURN_FILE, ADVANCE_SECONDS, None):
        for run in sorted(_runs_in(results), key=_opened_at):
            with suppress(RunError, ValueError, OSError):  # damaged, moved by another command, or it cannot be moved
                document = run.read_run()
                # a silent controller on another host may live
                present_state = run_state.seen(document, 0.0) if is_open(document) else run.seen()
                if present_state.attended or (present_state.attended is None and is_open(document)):
                    continue
                inventory = run.inventory
                folder = RunFolder(_place_for(results, inventory) / run.path.name)
                keep_inventory(folder, results, inventory)
                was_latest = _linked(results) == run
                run.path.rename(folder.path)
                moved.append(folder)
                if present_state.started:
                    _link(folder.path.parent / LATEST, run.path.name)
                if was_latest:
                    remember(folder)
    return moved


def _linked(results: Path) -> RunFolder | None:
    """The run that the link `results/latest` names, even if its folder is gone; None without the link."""
    link = results / LATEST
    return find(results, link.readlink().name) if link.is_symlink() else None


def latest_run(results: Path, inventory: Sequence[str] = (), *, opened: bool = False) -> RunFolder | None:
    """The latest run of the inventory that started; with `opened` also runs that did not start. None without one."""
    linked = _linked(results)
    if linked and not origin.is_same(linked.inventory, inventory):
        linked = None
    if linked and not opened:
        return linked
    return next(iter(runs_of(results, inventory, opened=opened)), linked)


def runs_of(results: Path, inventory: Sequence[str] = (), *, opened: bool = False) -> list[RunFolder]:
    """This controller's runs of the inventory that started, the newest first; with `opened` also those that did not."""
    linked, times = _linked(results), []
    for folder in known_runs(results, inventory):
        run = read_object(folder.run_file)
        kept_state = run.get("state") or {}
        if opened or not kept_state or kept_state.get("started_at"):
            times.append((run_state.opened_at(run), folder != linked, folder.path.name, folder))
    return [folder for *_, folder in sorted(times, key=lambda sort_key: sort_key[:3], reverse=True)]


def of_others(results: Path, inventory: Sequence[str], since: str = "") -> dict[str, list[str]]:
    """{inventory: run ids} of runs of other inventories opened at or after the time `since` (RFC 3339). The inventory
    is written as the value of INVENTORY=."""
    return values_by_key(
        (origin.shown(run_inventory), folder.path.name)
        for folder in known_runs(results)
        if not origin.is_same(run_inventory := folder.inventory, inventory) and _opened_at(folder) >= since
    )


def ensure_of(folder: RunFolder, inventory: Sequence[str]) -> None:
    """Raise RunError for a run of another inventory, if that one's files still exist."""
    run_inventory = folder.inventory
    if not origin.is_same(run_inventory, inventory) and all(Path(source).exists() for source in run_inventory):
        raise RunError(
            f"run {folder.path.name} is one of the inventory {origin.shown(run_inventory)}, not of "
            f"{origin.shown(inventory)}: give that one"
        )


def _opened_at(folder: RunFolder) -> str:
    return run_state.opened_at(read_object(folder.run_file))


def hint(name: str, run_ids: Sequence[str]) -> str:
    """Text that suggests ids in place of the unknown id `name`: the most similar one, else the first of `run_ids`."""
    return meant(name, run_ids).removeprefix("; ") or f"the latest are {some_of(run_ids, 5)}"


def mark_cleaned(results: Path, run_ids: Iterable[str]) -> None:
    """Record that nothing is left of these runs on nodes or a cluster. Ignores runs that this controller lacks."""
    cleaned_ids = {*run_ids}
    for folder in known_runs(results):
        if folder.path.name in cleaned_ids:
            folder.mark_cleaned()


def goes_on(folder: RunFolder, run: Mapping[str, Any]) -> bool:
    """Whether a run is neither finished nor past its deadline. Raises RunError or ValueError for damaged files."""
    return run["finished_at"] is None and is_in_time(folder, run)


def is_abandoned(folder: RunFolder, run: Mapping[str, Any]) -> bool:
    """Whether only a report ends the run: no controller works on it or would resume it, and the nodes' last records
    have arrived. Raises RunError or ValueError for damaged files."""
    return run["finished_at"] is None and folder.seen().overdue and not is_in_time(folder, run, DEADLINE_SLACK_SECONDS)


def is_in_time(folder: RunFolder, run: Mapping[str, Any], slack: float = 0.0) -> bool:
    """Whether a run is within its deadline plus `slack` seconds. Multi-node tests, which follow the single-node stages,
    extend it by their last round and a search for a bad node. Raises RunError or ValueError for damaged files."""
    seconds_left: float = run["deadline_seconds"] + slack - seconds_since(folder.begun_at(run))
    if seconds_left > 0 or not any(node.get("gang_stages") for node in run["nodes"].values()):
        return seconds_left > 0
    for path in folder.gangs_file.parent.glob("*/run.json"):
        round_run = RunFolder(path.parent).read_run()  # instead of plans, which are many
        seconds_left = max(seconds_left, round_run["deadline_seconds"] - seconds_since(round_run["created_at"]))
    try:
        search_seconds = float(read_json(folder.gang_limits_file)["search_seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        search_seconds = usual_search_seconds(len(run["nodes"]))
    return seconds_left + search_seconds > 0


def usual_search_seconds(nodes: int, round_seconds: float | str = 0.0) -> float:
    """Default seconds for the search for a bad node among `nodes`. `round_seconds`: max time of a round."""
    return max(SEARCH_SECONDS + SEARCH_SECONDS_EACH * nodes, SEARCH_ROUNDS * float(round_seconds))


def search_too_short(search_seconds: float, round_seconds: float) -> str:
    """Why that limit of the search is too short for rounds of `round_seconds`; empty if it suffices."""
    least = LEAST_SEARCH_ROUNDS * round_seconds
    if search_seconds >= least:
        return ""
    return (
        f"gpuval_gang_search_seconds {search_seconds:g}: a search needs {least:g} at least, {LEAST_SEARCH_ROUNDS} times"
        f" what a round of it may take (run_gang_search_round_seconds {round_seconds:g}, more with fabric_seconds)"
    )


def remember(folder: RunFolder) -> None:
    """Link the run as `latest` in the results folder and in the folder of its inventory."""
    results, inventory_folder = folder.results, folder.path.parent
    results.mkdir(parents=True, exist_ok=True)
    _link(results / LATEST, str(folder.path.relative_to(results)))
    if inventory_folder != results:
        _link(inventory_folder / LATEST, folder.path.name)


def _link(link: Path, target: str) -> None:
    draft = link.with_name(f".{LATEST}.{secrets.token_hex(4)}")
    draft.symlink_to(target)
    draft.replace(link)


def resolve(results: Path, run_id: str, inventory: Sequence[str] = (), *, opened: bool = False) -> RunFolder:
    """The folder of the run with this id. For an empty id or `latest`: the inventory's latest run that started, with
    `opened` also one that did not. Raises RunError if there is none."""
    is_latest = run_id in ("", LATEST)
    chosen = latest_run(results, inventory, opened=opened) if is_latest else find(results, run_id)
    if chosen:
        check_run_id(chosen.path.name)
        return chosen
    if tried := latest_run(results, inventory, opened=True):
        raise RunError(f"no run started yet: run {tried.path.name} is {tried.seen().line()}")
    other_runs = origin.others_line(of_others(results, inventory))
    raise RunError(
        f"there is no run of {origin.shown(inventory)} in {results}; those of others need their inventory: {other_runs}"
        if other_runs
        else f"there is no run in {results} yet: run `make validate` first, or give -e gpuval_run_id="
    )


def own(
    results: Path, run_id: str, in_bucket: str = "", inventory: Sequence[str] = (), *, opened: bool = False
) -> RunFolder | None:
    """The folder of a run of this controller, chosen as `resolve` does; None if there is none, or if its folder in the
    bucket is not `in_bucket`. Raises RunError for a run of another inventory, or a wrong id."""
    is_latest = run_id in ("", LATEST)
    if not is_latest:
        check_run_id(run_id)
    folder = latest_run(results, inventory, opened=opened) if is_latest else find(results, run_id)
    if not folder or not folder.is_known or folder.is_imported:
        return None
    ensure_of(folder, inventory)
    lies_in = read_object(folder.run_file).get("folder")  # None if run.json is damaged
    return folder if not in_bucket or lies_in in (None, check_folder(in_bucket)) else None


def check_run_id(run_id: str) -> None:
    if not RUN_ID.fullmatch(run_id):
        raise RunError(f"gpuval_run_id {run_id!r}: letters, digits, '.', '_' and '-' only, at most 63, no leading sign")
    if run_id in (LATEST, NEW, *SHARED_FOLDERS):
        raise RunError(f"gpuval_run_id {run_id!r} is a word with another meaning: give another one")


def check_folder(folder: str, setting: str = "gpuval_folder") -> str:
    """Check a run's folder in the bucket, which `clean` deletes. Returns it without outer slashes. Raises RunError."""
    folder = folder.strip("/")
    first, *subfolders = folder.split("/")
    if not FOLDER.fullmatch(folder) or first in SHARED_FOLDERS or not {*subfolders}.isdisjoint(OWN_FOLDERS):
        raise RunError(
            f"{setting} {folder!r}: names of letters, digits, '.', '_' and '-', joined by '/', and not below "
            + " or ".join(SHARED_FOLDERS)
            + "; behind a '/' none of "
            + ", ".join(OWN_FOLDERS)
        )
    return folder


def is_open(run: Mapping[str, Any]) -> bool:
    """Whether a run has not ended, or was not reported."""
    return run["finished_at"] is None or is_unreported(run)


def is_unreported(run: Mapping[str, Any]) -> bool:
    """Whether a run has ended without a report by its controller."""
    return run["finished_at"] is not None and run_state.of(run)["name"] == run_state.COLLECTING
