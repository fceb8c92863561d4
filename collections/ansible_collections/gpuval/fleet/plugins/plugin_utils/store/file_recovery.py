"""A run's own files that are damaged: each command restores them from the store before it reads them."""

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
#: Folders of launches, and all folders that are looked at for files in their place.
LAUNCH_FOLDERS = (".state", ".state/launches")
FOLDERS = ("nodes", "gangs", *LAUNCH_FOLDERS, ".state/plans")
#: How names of a report's files end.
REPORTS = (".json", ".html", ".md", ".xml", ".csv", ".prom", ".txt")
#: By the path in the folder of a run, or of a round: the key below it in the store, and the schema.
COPIES = {
    publishing.RUN_FILE: (publishing.RUN_FILE, "run"),
    STATE + publishing.WATCH_FILE: (publishing.WATCH_FILE, "watch"),
    STATE + applied_criteria.CRITERIA_FILE: (applied_criteria.CRITERIA_FILE, "judging"),
    STATE + publishing.VERDICT_FILE: (f"report/{publishing.VERDICT_FILE}", "verdict"),
    "gangs/gangs.json": ("gangs/gangs.json", "gangs"),
}


def recover(folder: run_folder.RunFolder, access: StoreBackend, warn: Callable[[str], None]) -> None:
    """Restore what is damaged of a run of this controller, and of its rounds, as far as the store has copies.

    What no command can make anew is named in one line; evidence is collected again. Raises RunError where the run
    itself is not known then, and OSError.
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
            with suppress(OSError):  # on a full disk the file stays as it is, and is named
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
    """Write the folder of a run from the store, if the store has it, for this controller to resume it: its own is gone.
    `base`: the run's folder in the bucket. Raises RunError, StoreError and OSError."""
    try:
        run = stored_runs.read_run(access.store(), base) if access.known() else None
    except StoreError as error:
        if "no such bucket" not in str(error):
            raise
        run = None  # the preparation of the run makes it, or says so
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
        # The file of the run itself comes last: without it the rest is written again.
        documents[publishing.RUN_FILE] = _copy(below, publishing.RUN_FILE, base, access)
        for name, document in documents.items():
            if document is not None:
                run_folder.write_json(folder.path / below / name, document)
    folder.write_run({**run, "state": {**run_state.of(run), "workers": []}})


def _damaged(path: Path, run_id: str) -> Iterator[str]:
    """Documents in the folder of a run that cannot be read, or are of another run than `run_id`, if that is given."""
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
    """The run's folder in the bucket, by the store where its run.json is damaged."""
    run, run_id = run_folder.read_object(folder.run_file), folder.path.name
    if run.get("run_id") == run_id and "folder" in run:
        return str(run["folder"])
    with suppress(StoreError, run_folder.RunError):  # then as of a run that has its id for a folder
        return str(stored_runs.find(access.store(), run_id)[0]["folder"])
    return run_id


def _copy(below: Path, name: str, base: str, access: StoreBackend) -> Any:
    """The content of a damaged file by the store; None where it has none that can be read."""
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
