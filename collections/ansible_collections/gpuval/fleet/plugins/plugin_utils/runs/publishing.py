"""Publishes in the store what only a run's controller knows, so that others can judge the run from the store alone:
`run_watch.json` with unreachable, refused and waiting nodes and with refused evidence; and the verdict."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...module_utils.redaction import SecretRedactor
from ..core import schemas
from ..core.escape import one_line
from ..records import brief
from ..records.documents import FINAL_STATES
from ..records.evidence import parse_key
from . import folder as run_folder

if TYPE_CHECKING:  # not imported at runtime: `make runs` needs no store, whose library takes a tenth of a second
    from ...module_utils.store import Store

RUN_FILE, WATCH_FILE = "run.json", "run_watch.json"
VERDICT_FILE = "verdict.json"
PROGRESS_FILE = "run_progress.json"

#: Max seconds between two heartbeats that a controller uploads while it watches a run.
SIGN_SECONDS = 60.0

_LAUNCH = (
    *("node", "state", "class", "message", "remedy", "at", "attempt", "stages"),
    *("store_reachable", "twin", "host_key", "machine", "nonce"),
)
_CONTACT = ("class", "message", "remedy")
_MESSAGE_CHARACTERS = 4000

_hidden = SecretRedactor()


@dataclass(frozen=True)
class NodeUpdate:
    """A node's part of run_watch.json. `plan`, `launch`: None until made; `waits`: its turn has not come yet."""

    plan: Mapping[str, Any] | None
    launch: Mapping[str, Any] | None
    waits: bool = False


def watch_document(
    run: Mapping[str, Any],
    nodes: Mapping[str, NodeUpdate],
    problems: Sequence[Mapping[str, Any]],
    *,
    run_seconds: float,
    begun_seconds: float,
    window: tuple[int, int],
    silence_seconds: float,
    ended: bool,
) -> dict[str, Any]:
    """Make run_watch.json (gpuval.watch/1). `run_seconds`: since the run was opened; `begun_seconds`: since its
    deadline counts; `window`: (max nodes at work, max nodes that transfer images); `silence_seconds`: no heartbeat."""
    plans: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    described = {}
    for name, node in nodes.items():
        index = None
        if node.plan is not None and "heartbeat_seconds" in node.plan:
            stages = {stage["name"]: stage["expected_seconds"] for stage in node.plan["stages"]}
            expects = {"heartbeat_seconds": node.plan["heartbeat_seconds"], "stages": stages}
            index = places.setdefault(json.dumps(expects), len(plans))
            if index == len(plans):
                plans.append(expects)
        described[name] = {"plan": index, "waits": node.waits, "launch": published_launch(node.launch)}
    return {
        "schema": "gpuval.watch/1",
        "run_id": run["run_id"],
        "state": "ended" if ended else "watching",
        "updated_at": run_folder.now(),
        "run_seconds": round(max(0.0, run_seconds), 1),
        "begun_seconds": round(max(0.0, begun_seconds), 1),
        "silence_seconds": silence_seconds,
        "window": {"nodes": window[0], "transfers": window[1]},
        "plans": plans,
        "nodes": described,
        "problems": _problems(problems),
    }


def published_launch(launch: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The fields of a launch that verdicts and people need: no paths, commands, store addresses or secrets."""
    if not launch or "state" not in launch:
        return None
    published = {key: _plain(launch[key]) for key in _LAUNCH if key in launch}
    if contact := launch.get("contact"):
        published["contact"] = {key: _plain(contact[key]) for key in _CONTACT if key in contact}
    return published


def _plain(value: Any) -> Any:
    return _plain_text(value) if isinstance(value, str) else value


@lru_cache(maxsize=1 << 14)  # each document of a watch repeats most texts of the one before
def _plain_text(text: str) -> str:
    return one_line(_hidden(text), _MESSAGE_CHARACTERS)


def _problems(problems: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**problem, "reason": _hidden(problem["reason"])} for problem in problems]


@dataclass
class DocumentPublisher:
    """Uploads run_watch.json to the store when it changed, and as a heartbeat. Keeps the last one in the run's folder,
    for commands after the watch."""

    folder: run_folder.RunFolder
    _published: dict[str, Any] = field(default_factory=dict)
    _at: float = float("-inf")

    def publish(self, store: "Store", run: Mapping[str, Any], document: Mapping[str, Any], now: float) -> bool:
        """Upload the document if it is due. Returns whether it was. `now`: monotonic seconds. Raises StoreError."""
        content = {key: document[key] for key in ("state", "window", "plans", "nodes", "problems")}
        if content == self._published and now - self._at < SIGN_SECONDS:
            return False
        schemas.validate("watch", document, what=WATCH_FILE)
        run_folder.write_json(self.folder.watch_file, document)
        put(store, run, WATCH_FILE, document)
        self._published, self._at = content, now
        return True


@dataclass
class WatchProgress:
    """Publishes a summary of the records that the watch has read as one object, so that readers need not read
    thousands. It has only final records, since others change with every heartbeat."""

    _records: dict[str, dict[str, Any]] = field(default_factory=dict)
    _new: bool = False

    def note(self, run: Mapping[str, Any], key: str, stamp: str | None, record: Mapping[str, Any] | None) -> None:
        """Remember a record that was read from the store. `record`: None if refused; `stamp`: version of the store's
        object, None if that object may differ from the record."""
        parts = parse_key(run["folder"], key)
        if parts is None:
            return
        name = f"{parts[1]}/{parts[2]}"
        if record is None or stamp is None or record["state"] not in FINAL_STATES:
            self._new |= self._records.pop(name, None) is not None
            return
        fields = brief.fields(record)
        self._records[name] = {"stamp": stamp, **fields, "message": _hidden(fields["message"])}
        self._new = True

    def publish(self, store: "Store", run: Mapping[str, Any]) -> None:
        """Upload the summary if it changed. Raises StoreError."""
        if not self._new:
            return
        document = {"schema": "gpuval.progress/1", "run_id": run["run_id"], "records": self._records}
        put(store, run, PROGRESS_FILE, document)
        self._new = False


def judged(folder: run_folder.RunFolder) -> dict[str, Any] | None:
    """The run's verdict.json, with digests of its evidence; None before the first one. Raises RunError if damaged."""
    document = run_folder.read_kept(folder.verdict_file, "restore it, or validate under a new id", "verdict")
    return document if document and "evidence" in document else None


def is_final(run: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> bool:
    """Whether the verdict was made after the end of the run. Evidence that arrives later no longer counts."""
    return bool(verdict and run["finished_at"] and verdict["judged_at"] >= run["finished_at"])


def renewed(
    document: Mapping[str, Any], launches: Mapping[str, Mapping[str, Any]], problems: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Update run_watch.json after the watch with launches and problems that collecting evidence found."""
    passed = max(0.0, run_folder.seconds_since(document["updated_at"]))
    nodes = {
        name: {**node, "launch": published_launch(launches.get(name)) or node["launch"]}
        for name, node in document["nodes"].items()
    }
    return {
        **document,
        "updated_at": run_folder.now(),
        "run_seconds": round(document["run_seconds"] + passed, 1),
        "begun_seconds": round(document["begun_seconds"] + passed, 1),
        "nodes": nodes,
        "problems": _problems(problems),
    }


def put(store: "Store", run: Mapping[str, Any], name: str, document: Mapping[str, Any]) -> None:
    """Upload one of the run's own objects to the store."""
    store.put(f"{run['folder']}/{name}", json.dumps(document).encode(), "application/json")


def keep_verdict(
    folder: run_folder.RunFolder, report: Mapping[str, Any], excused: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write verdict.json: verdicts, faults and digests of evidence of a report. ``excused``: {node: its
    faults, and changes of speed that its peers excuse}, which later runs count."""
    nodes = {node["name"]: node for node in report["nodes"]}
    document = {
        "schema": "gpuval.verdict/1",
        **{key: report["run"][key] for key in ("run_id", "created_at", "finished_at", "judged_at")},
        **{key: report[key] for key in ("verdict", "counts")},
        "nodes": {name: node["verdict"] for name, node in nodes.items()},
        "faults": {name: node["action"]["faults"] for name, node in nodes.items() if "action" in node} | {**excused},
        "evidence": {name: node.get("evidence", {}) for name, node in (nodes | report["run"].get("busy", {})).items()},
    }
    schemas.validate("verdict", document, what=VERDICT_FILE)
    run_folder.write_json(folder.verdict_file, document)
