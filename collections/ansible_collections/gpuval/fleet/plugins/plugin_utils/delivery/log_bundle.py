"""The logs bundle of a run: evidence of each node and the controller's own files, in one archive."""

import hashlib
import io
import secrets
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...module_utils.redaction import SecretRedactor
from ..core.escape import one_line
from ..gang import keys
from ..runs import folder as runs_folder

#: Patterns of files in a run's results to bundle: reports, evidence, the controller's state of launches and watch.
RESULTS = (
    *("run.json", "report.json", "report.html", "report.md", "junit.xml", "ctrf-report.json", "gpuval.prom"),
    "cluster_test_report.json",
    "perf.csv",
    "perf.html",
    "failed_nodes.txt",
    "network/*",
    "nodes/*/*.json",
    "nodes/*/*.log",
    "nodes/*/*.csv",
    ".state/*.json",
    ".state/launches/*.json",
    ".state/plans/*.json",
    *("gangs/gangs.json", "gangs/*/run.json", "gangs/*/nodes/*/*.json", "gangs/*/nodes/*/*.log"),
    *("gangs/*/.state/*.json", "gangs/*/.state/launches/*.json", "gangs/*/.state/plans/*.json"),
)
#: Files with the token and private key of a multi-node test, never bundled. A killed controller leaves them behind.
SECRET_FILES = (keys.FILE,)
#: Logs of the embedded store's servers.
STORE_LOGS = ("writer.log", "reader.log")
MAX_FILE_BYTES = 64 << 20
MAX_STORE_LOG_BYTES = 4 << 20
GATHERED, NOT_ASKED = "gathered", {"state": "unknown", "message": "the node was not asked"}
#: Folder for logs that belong to no run: they matter most when a run could not start.
NO_RUN = "no-run"


def run_folder_of(results: Path, run_id: str, inventory: Sequence[str] = ()) -> Path:
    """The results folder of a run; the folder `NO_RUN` if the run has none, or the inventory has no run at all."""
    if run_id in ("", runs_folder.LATEST) and runs_folder.latest_run(results, inventory) is None:
        return results / NO_RUN
    folder = runs_folder.resolve(results, run_id, inventory).path
    return folder if _is_of_run(folder) else results / NO_RUN


def _is_of_run(folder: Path) -> bool:
    return folder.is_dir() and not runs_folder.is_place(folder)  # the name may be that of an inventory


def asked_run_id(folder: Path, run_id: str) -> str:
    """The id of the run whose logs to collect from nodes. ``folder``: of `run_folder_of`; ``run_id``: as the user named
    it, empty or `latest` for the last run."""
    return folder.name if run_id in ("", runs_folder.LATEST) else run_id


def unknown_run(results: Path, run_id: str) -> str:
    """The error message for a run that this controller does not have; empty if it has the run, or none is named."""
    if run_id in ("", runs_folder.LATEST):
        return ""
    folder = runs_folder.find(results, run_id)
    try:
        if not _is_of_run(folder.path):
            folder.read_run()
    except runs_folder.RunError as error:
        return str(error)
    return ""


def state_file(run_folder: Path, node: str) -> Path:
    """Path of the file that says whether a node's logs were gathered."""
    return run_folder / ".state" / "logs" / f"{node}.json"


def archive_file(run_folder: Path, node: str) -> Path:
    return run_folder / "logs" / f"{node}.tar.gz"


def write_state(
    run_folder: Path, node: str, state: str, message: str, notes: Mapping[Any, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """Write and return a document on whether a node's logs were gathered. `notes`: {file: text} from the node, which
    are shortened and cleaned."""
    texts = {one_line(str(name), 200): one_line(str(note), 300) for name, note in sorted((notes or {}).items())[:200]}
    document = {"state": state, "message": one_line(message, 600), "notes": texts, **fields}
    runs_folder.write_json(state_file(run_folder, node), document)
    return document


def write_archive(run_folder: Path, node: str, data: bytes, message: str, notes: Mapping[Any, Any]) -> dict[str, Any]:
    runs_folder.write_bytes(archive_file(run_folder, node), data)
    digest = hashlib.sha256(data).hexdigest()
    return write_state(run_folder, node, GATHERED, message, notes, bytes=len(data), sha256=digest)


def bundle(run_folder: Path, run_id: str, nodes: list[str], store: Path, hidden: set[str]) -> dict[str, Any]:
    """Write MANIFEST, nodes.json and logs-<run_id>.tar.gz into logs/. Returns path, counts and nodes without logs.
    `nodes`: those asked for logs now; a node that gave none keeps its earlier logs, and is named. `store`: folder of
    the embedded store; `hidden`: secrets to hide."""
    folder = run_folder / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    states = {node: runs_folder.read_object(state_file(run_folder, node)) or NOT_ASKED for node in sorted(nodes)}
    runs_folder.write_json(folder / "nodes.json", {"run_id": run_id, "at": runs_folder.now(), "nodes": states})
    target = folder / f"logs-{run_id}.tar.gz"
    manifest = _pack(target, f"logs-{run_id}", _files(run_folder, target, store, SecretRedactor(hidden)))
    runs_folder.write_bytes(folder / "MANIFEST", manifest)
    without = {node: entry["message"] for node, entry in states.items() if entry["state"] != GATHERED}
    return {"path": str(target), "bytes": target.stat().st_size, "nodes": len(states), "without": without}


def _files(run_folder: Path, target: Path, store: Path, redact: SecretRedactor) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each file for the logs bundle, one at a time: together they may exceed memory."""
    folder = run_folder / "logs"
    for path in sorted(folder.glob("*.tar.gz")):
        if path.name != target.name:
            yield f"logs/{path.name}", path.read_bytes()
    yield "nodes.json", (folder / "nodes.json").read_bytes()
    for path in dict.fromkeys(path for pattern in RESULTS for path in sorted(run_folder.glob(pattern))):
        is_plain = path.name not in SECRET_FILES and path.is_file() and not path.is_symlink()
        if is_plain and path.stat().st_size <= MAX_FILE_BYTES:
            yield f"results/{path.relative_to(run_folder).as_posix()}", redact.data(path.read_bytes())
    for name in STORE_LOGS:
        path = store / name
        if path.is_file():
            yield f"store/{name}", redact.data(path.read_bytes()[-MAX_STORE_LOG_BYTES:])


def _pack(target: Path, top: str, files: Iterator[tuple[str, bytes]]) -> bytes:
    """Write the archive with a manifest, the SHA-256 of each file, as its last file. Returns the manifest."""
    draft, sums = target.with_name(f".{target.name}.{secrets.token_hex(4)}"), []

    def add(name: str, data: bytes) -> None:
        entry = tarfile.TarInfo(f"{top}/{name}")
        entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o644
        archive.addfile(entry, io.BytesIO(data))

    try:
        with tarfile.open(draft, "w:gz", compresslevel=6) as archive:
            for name, data in files:
                sums.append((name, hashlib.sha256(data).hexdigest()))
                add(name, data)
            manifest = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums)).encode()
            add("MANIFEST", manifest)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return manifest
