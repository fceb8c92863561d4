"""Restores damaged files of a run on the controller from the store, before a command reads them."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from ...module_utils.store import StoreError
from ..core import files
from ..core.text import some_of
from ..runs import applied_criteria, publishing
from ..runs import folder as run_folder
from ..runs import state as run_state
from . import stored_runs
from .backend import StoreBackend

STATE = ".state/"
PLANS, LAUNCHES, PROBLEMS = f"{STATE}plans/", f"{STATE}launches/", f"{STATE}problems.json"
#: Folders of a run that hold launch documents, and all its folders: a file by such a name is replaced by a folder.
LAUNCH_FOLDERS = (".state", ".state/launches")
FOLDERS = ("nodes", "gangs", *LAUNCH_FOLDERS, ".state/plans")
#: Suffixes of the files of a run's report.
REPORTS = (".json", ".html", ".md", ".xml", ".csv", ".prom", ".txt")
#: {path in a run's folder on the controller: (key below the run's folder in the store, schema)}; the same for rounds.
COPIES = {
    publishing.RUN_FILE: (publishing.RUN_FILE, "run"),
    STATE + publishing.WATCH_FILE: (publishing.WATCH_FILE, "watch"),
    STATE + applied_criteria.CRITERIA_FILE: (applied_criteria.CRITERIA_FILE, "judging"),
    STATE + publishing.VERDICT_FILE: (f"report/{publishing.VERDICT_FILE}", "verdict"),
    "gangs/gangs.json": ("gangs/gangs.json", "gangs"),
}


def recover(folder: run_folder.RunFolder, access: StoreBackend, warn: Callable[[str], None]) -> None:
    """Restore damaged files of this controller's run, and of its multi-node rounds, from copies in the store.

    `warn` gets a line on files that were restored, and on those that are lost. Evidence is not restored here, it is
    collected again. Raises OSError, and RunError if run.json is lost.
    """
    root, restored, lost = folder.path, [], []
    no_folders = [name for name in FOLDERS if os.path.lexists(root / name) and not (root / name).is_dir()]
    for name in no_folders:
        files.make_folder(root / name)
    nodes = run_folder.read_object(folder.run_file).get("nodes", ()) if {*no_folders} & {*LAUNCH_FOLDERS} else ()
    for path in root.glob("*.*"):
        if path.suffix in REPORTS:
            files.move_folder_aside(path)
    for path in (root, *(path for path in sorted((root / "gangs").glob("*/")) if path.is_dir())):
        damaged = set(_damaged(path, root.name if path == root else ""))
        damaged |= {f"{LAUNCHES}{node}.json" for node in nodes if path == root}
        for name in sorted(damaged, key=lambda name: name != publishing.RUN_FILE):
            document = _copy(path.relative_to(root), name, _base(folder, access), access)
            with suppress(OSError):  # on a full disk the file stays as it is, and the warning names it
                if document is not None:
                    run_folder.write_json(path / name, document)
                    restored.append(str((path / name).relative_to(root)))
                    continue
            if name in COPIES or name.startswith((PLANS, LAUNCHES, PROBLEMS)):
                lost.append(str((path / name).relative_to(root)))
    if restored:
        warn(f"damaged files in {root} are restored from the store: {some_of(restored)}")
    if publishing.RUN_FILE in lost:
        raise folder.damaged(folder.run_file, "it cannot be read or is of another run")
    if lost:
        advice = "`make validate RUN=new` checks again what cannot be judged"
        warn(f"damaged files in {root} that cannot be restored from the store: {some_of(lost)}. {advice}")


def bring_back(folder: run_folder.RunFolder, base: str, access: StoreBackend) -> None:
    """Write a run's lost folder on the controller anew from the store, so that this controller can resume the run.
    `base`: the run's folder in the bucket, which may have no run. Raises RunError, StoreError and OSError."""
    try:
        run = stored_runs.read_run(access.store(), base) if access.known() else None
    except StoreError as error:
        if "no such bucket" not in str(error):
            raise
        run = None  # preparing the run creates the bucket, or reports that it is missing
    if run is None or run["run_id"] != folder.path.name:
        return
    rounds = (_copy(Path(), "gangs/gangs.json", base, access) or {"rounds": ()})["rounds"]
    for below in (*(Path("gangs", item["name"]) for item in rounds), Path()):
        names = [name for name in COPIES if name != publishing.RUN_FILE]
        documents = {name: _copy(below, name, base, access) for name in names}
        watch = documents[STATE + publishing.WATCH_FILE] or {"problems": [], "nodes": {}}
        documents[PROBLEMS] = watch["problems"]
        for node, described in watch["nodes"].items():
            documents[f"{LAUNCHES}{node}.json"] = described["launch"]
            documents[f"{PLANS}{node}.json"] = _copy(below, f"{PLANS}{node}.json", base, access)
        # run.json is written last: as long as it is missing, the next command writes all files again.
        documents[publishing.RUN_FILE] = _copy(below, publishing.RUN_FILE, base, access)
        for name, document in documents.items():
            if document is not None:
                run_folder.write_json(folder.path / below / name, document)
    folder.write_run({**run, "state": {**run_state.of(run), "workers": []}})


def _damaged(path: Path, run_id: str) -> Iterator[str]:
    """Paths of JSON files in a run's folder that cannot be read or, unless `run_id` is empty, name another run."""
    listed = (file for place in ("", STATE, PLANS, LAUNCHES) for file in (path / place).glob("*.json"))
    for file in {path / publishing.RUN_FILE, path / "gangs/gangs.json", *listed}:
        try:
            document = orjson.loads(files.read(file))
            sound = not (run_id and isinstance(document, dict)) or document.get("run_id", run_id) == run_id
        except FileNotFoundError:
            sound = file.name != publishing.RUN_FILE and not file.is_symlink()
        except (OSError, ValueError):
            sound = False
        if not sound:
            yield str(file.relative_to(path))


def _base(folder: run_folder.RunFolder, access: StoreBackend) -> str:
    """The run's folder in the bucket, by its run.json; if that is damaged, by a search of the store."""
    run, run_id = run_folder.read_object(folder.run_file), folder.path.name
    if run.get("run_id") == run_id and "folder" in run:
        return str(run["folder"])
    with suppress(StoreError, run_folder.RunError):  # the folder is the run id unless gpuval_folder sets it
        return str(stored_runs.find(access.store(), run_id)[0]["folder"])
    return run_id


def _copy(below: Path, name: str, base: str, access: StoreBackend) -> Any:
    """Content of a damaged file by its copy in the store; None if no copy can be read. `name`: the file's path in the
    folder of a round, which is `below` the run's; `base`: the run's folder in the bucket."""
    node = Path(name).stem
    if name.startswith(LAUNCHES) or name == PROBLEMS:
        watch = _copy(below, STATE + publishing.WATCH_FILE, base, access) or {"problems": None, "nodes": {}}
        return watch["problems"] if name == PROBLEMS else (watch["nodes"].get(node) or {}).get("launch")
    of_plan = (f"plans/{node}.json", "plan") if name.startswith(PLANS) else None
    key, schema = of_plan or COPIES.get(name, ("", ""))
    if not schema:
        return None
    key = (Path(base) / below / key).as_posix()
    try:
        in_file = access.objects and files.read(access.objects / key)
        raw = in_file or access.store().get_if_there(key, max_bytes=stored_runs.MAX_DOCUMENT_BYTES)
        return stored_runs.read_document(raw or b"", schema, key)
    except (OSError, StoreError, run_folder.RunError):
        return None
