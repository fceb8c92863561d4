"""Make a delivery from the results of a run: a folder or an archive, the same bytes for the same results. Files are
written one at a time into a draft next to the delivery and scanned for secrets and internal names. Only then does the
draft replace the delivery. Memory holds one stage of one node at a time."""

import base64
import csv
import hashlib
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...module_utils.image_archive import sha256_of
from ...module_utils.redaction import SHORTEST_SECRET
from ..core import files
from ..core.escape import clean_text, csv_cell
from ..core.paths import COLLECTION
from ..core.text import some_of
from ..internal_data.conversion import InternalDataConverter
from ..internal_data.ordinary_names import is_ordinary
from ..internal_data.scan import InternalDataScan, ScanTargets, own_terms, own_words, problems
from ..internal_data.sensitive import Sensitive
from ..records import report_file
from ..records.documents import Record
from ..records.evidence import MAX_RECORD_BYTES, MAX_SERIES_BYTES, EvidenceRefused, accept_record, read_object
from ..report import write_file
from ..report.html import html_report
from ..report.markdown import markdown_report
from ..report.page.results import DELIVERY
from ..report.perf import perf_csv
from ..runs import folder as run_folder
from ..runs.node_ids import MAX_SHOWN
from . import DeliveryError, log_bundle, pack, report_conversion, stage_file

#: Maximum bytes of a delivered log: only head and tail of a longer log, and less if a node has many long logs.
MAX_LOG_BYTES = 8 << 20
MAX_LOGS_BYTES_OF_A_NODE = 32 << 20
MIN_LOG_BYTES = 256 << 10
LOCK_SECONDS = 2.0
PROGRESS_SECONDS = 10.0
FOLDER = "delivery"
#: A row of index.csv: one stage of a node.
IndexRow = tuple[str, ...]
README = Path(__file__).with_name("README.md.txt")


@dataclass(frozen=True)
class Request:
    """A delivery to make. ``folder``: of the run; ``form``: folder, tar.gz or zip; ``ids``: {node name: unique id};
    ``targets``: what the final scan searches for."""

    folder: run_folder.RunFolder
    name: str
    form: str
    ids: Mapping[str, str]
    targets: ScanTargets = field(default_factory=ScanTargets)

    @property
    def directory(self) -> Path:
        return self.folder.path / FOLDER

    @property
    def target(self) -> Path:
        return self.directory / f"{self.name}{pack.SUFFIXES[self.form]}"


def check(request: Request, sensitive: Sensitive) -> None:
    """Check that the ids of a delivery are unambiguous, and its name reveals nothing. Raises DeliveryError."""
    has_secret = any(len(secret) >= SHORTEST_SECRET and secret in request.name for secret in sensitive.secrets)
    internal = {name.lower() for name in request.ids if not is_ordinary(name)}
    if has_secret or request.name.lower() in internal - {identity.lower() for identity in request.ids.values()}:
        problem = f"{'a secret is in' if has_secret else 'a worker has'} the name {request.name}"
        raise DeliveryError(f"{problem}: set another delivery_name (default: the run's id)")
    ordinary = {name.lower(): name for name in request.ids if is_ordinary(name)}
    ambiguous = [
        f"the id {identity} of {name} is the name of another worker, which is kept in running text"
        for name, identity in request.ids.items()
        if ordinary.get(identity.lower(), name) != name
    ]
    if ambiguous:
        raise DeliveryError(f"{some_of(ambiguous, MAX_SHOWN, '; ')}: choose other ids")


def build(request: Request, sensitive: Sensitive, say: Callable[[str], object] = lambda _line: None) -> "RunDelivery":
    """Make the delivery. ``say`` gets lines of progress. Raises DeliveryError, RunError, and OSError (disk full)."""
    check(request, sensitive)
    directory = request.directory
    directory.mkdir(parents=True, exist_ok=True)
    late = DeliveryError(f"another `make deliver` is running in {directory}: wait until it ends")
    with files.locked(directory / ".lock", LOCK_SECONDS, late):
        draft, scratch = directory / f".{request.name}.draft", directory / f".{request.name}.scratch"
        _remove(draft, scratch)
        draft.mkdir()
        scratch.mkdir()
        try:
            delivery = RunDelivery(request, sensitive, draft, scratch, say)
            delivery.make()
            return delivery
        finally:
            _remove(draft, scratch)


class RunDelivery:
    """Makes one delivery in the folder ``draft``, with temporary files in ``scratch``. Then ``files`` are those to
    send, in this order. ``within``, ``ordinary``, ``own_terms``: names and words that the final scan did not refuse."""

    def __init__(
        self, request: Request, sensitive: Sensitive, draft: Path, scratch: Path, say: Callable[[str], object]
    ) -> None:
        self.request, self.folder, self.ids = request, request.folder, request.ids
        self.sensitive, self.draft, self.scratch, self.say = sensitive, draft, scratch, say
        self.report = run_folder.read_report(request.folder)

    def make(self) -> None:
        request, report, ids, sensitive = self.request, self.report, self.ids, self.sensitive
        for node in self._with_progress([node["name"] for node in report["nodes"]], "read"):
            self._add_sensitive(node)
        words = own_words(COLLECTION) if sensitive.claimed else frozenset()
        self.converter = InternalDataConverter(sensitive.of_run(ids, words, self.folder.path.name))
        order = sorted(report["nodes"], key=lambda node: ids[node["name"]])
        rows = [row for node in self._with_progress(order, "written") for row in self._stages(node)]
        manifest = {
            "schema": "gpuval.delivery/1",
            "name": request.name,
            "run_id": self.converter.text(report["run"]["run_id"]),
            **{key: report[key] for key in ("verdict", "counts")},
            "judged_at": report["run"]["judged_at"],
            "nodes": [{"id": ids[node["name"]], "verdict": node["verdict"]} for node in order],
        }
        root_digest = _root_digest(self.folder, report["run"]["judged_at"])
        manifest |= {"evidence_root_digest": root_digest} if root_digest else {}
        self.say("delivery: writing the report")
        self._forms(root_digest, rows)
        manifest["replaced"] = dict(Counter(kind for kind, _original in self.converter.placeholders))
        sealed = pack.seal(self.draft, manifest)
        self.say(f"delivery: scanning {len(sealed)} files")
        targets = ScanTargets(
            request.targets.names | set(ids),
            request.targets.secrets | sensitive.secrets,
            request.targets.addresses | sensitive.addresses,
            sensitive.claimed,
        )
        common = own_terms(targets.secrets, COLLECTION)
        scan = InternalDataScan(targets, set(ids.values()), common)
        if findings := problems(scan, self.draft, [file.path for file in sealed]):
            problem = f"delivery stopped: internal data is left in it: {some_of(findings, MAX_SHOWN, '; ')}"
            raise DeliveryError(f"{problem}. This is a bug in gpuval: report it with the line in question")
        placeholders = {shown: original for (_kind, original), shown in self.converter.placeholders.items()}
        # only for the operator, when a customer asks about an id or placeholder
        originals = {"ids": dict(sorted(ids.items())), "placeholders": placeholders}
        names_file = request.directory / f"{request.name}.names.json"
        files.replace(names_file, (json.dumps(originals, indent=1) + "\n").encode(), files.PRIVATE)
        self.path, (self.changed, self.files) = request.target, _publish(request, self.draft, sealed)
        self.bytes = sum(file.bytes for file in self.files)
        self.within, self.own_terms = scan.within, len(common)
        self.ordinary = sorted(name for name in ids if is_ordinary(name) and ids[name] != name)

    def _with_progress(self, items: list[Any], done_to: str) -> Iterator[Any]:
        """Yield the items, and print a line of progress every PROGRESS_SECONDS. ``done_to``: its verb, as in "read"."""
        due = time.monotonic() + PROGRESS_SECONDS
        for count, item in enumerate(items):
            if time.monotonic() > due:
                self.say(f"delivery: {count} of {len(items)} nodes {done_to}")
                due = time.monotonic() + PROGRESS_SECONDS
            yield item

    def _add_sensitive(self, node: str) -> None:
        """Add a node's sensitive data from its facts and logs archive, before any text of the node is converted."""
        self.sensitive.add_facts(node, read_object(self.folder.evidence_file(node, "facts"), MAX_RECORD_BYTES))
        gathered = stage_file.GatheredOutput(log_bundle.archive_file(self.folder.path, node))
        self.sensitive.addresses |= gathered.addresses
        self.sensitive.macs |= gathered.macs
        if gathered.texts:
            (self.scratch / "tools").mkdir(exist_ok=True)
            (self.scratch / "tools" / f"{node}.json").write_text(json.dumps(gathered.texts), encoding="utf-8")

    def _stages(self, node: Mapping[str, Any]) -> Iterator[IndexRow]:
        """Write the file of each stage of a node, and the evidence behind report.html. Yields the rows of index.csv."""
        name, identity, run, converter = node["name"], self.ids[node["name"]], self.report["run"], self.converter
        tools = read_object(self.scratch / "tools" / f"{name}.json", 1 << 30) or {}
        facts = _record(self.folder, run, name, "facts")[0]
        evidence = self.scratch / "nodes" / identity
        evidence.mkdir(parents=True)
        logs_left = MAX_LOGS_BYTES_OF_A_NODE
        for stage in node["stages"]:
            record, refused = _record(self.folder, run, name, stage["name"])
            head = stage_file.header(run, node, stage, record, facts)
            if refused:
                head["message"] = f"the record is refused: {refused}"
            # only fields that nodes wrote can hold internal data; metrics are many and hold no text but their scope
            metrics = [{**metric, "scope": converter.short(metric["scope"])} for metric in head.pop("metrics")]
            own_fields = {key: head[key] for key in stage_file.OWN_FIELDS}
            converted = {key: converter.document(value) for key, value in head.items()}
            head = {**converted, **own_fields, "node": identity, "metrics": metrics}
            of_tools = stage_file.vendor_parts(tools, facts, stage["name"])
            parts = [(title, converter.text(clean_text(text))) for title, text in of_tools]
            limit = min(MAX_LOG_BYTES, max(MIN_LOG_BYTES, logs_left))
            log = _log(self.folder.evidence_file(name, stage["name"], "logs"), limit)
            logs_left -= len(log)
            path = DELIVERY.of(identity, stage["name"]) + ".log"
            (self.draft / path).parent.mkdir(parents=True, exist_ok=True)
            with (self.draft / path).open("wb") as stream:
                stream.writelines(stage_file.pieces(head, [*parts, ("log", converter.text(log))]))
            _curves(self.folder.evidence_file(name, stage["name"], "series"), name, identity, converter, evidence)
            (evidence / f"{stage['name']}.log").touch()
            seconds = "" if stage["duration_seconds"] is None else f"{stage['duration_seconds']:.3f}"
            yield identity, node["verdict"], str(head["sku"]), stage["name"], stage["state"], seconds, path

    def _forms(self, root_digest: str, rows: Iterable[IndexRow]) -> None:
        """Write README.md, index.csv with its ``rows``, and the report in all formats without internal data."""
        report = self.report
        readme = README.read_text(encoding="utf-8").format(
            run_id=self.converter.text(report["run"]["run_id"]),
            verdict=report["verdict"],
            counts=report["counts"],
            evidence=root_digest and f"\nThe evidence bundle behind this report has the root digest {root_digest}.",
        )
        (self.draft / "README.md").write_text(readme, encoding="utf-8")
        with (self.draft / "index.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(("uniqueid", "verdict", "sku", "stage", "state", "duration_seconds", "file"))
            writer.writerows([csv_cell(cell) for cell in row] for row in rows)
        converted = report_conversion.converted(report, self.converter, self.request.name)
        write_file(self.draft / "report.html", html_report(converted, self.scratch, DELIVERY))
        write_file(self.draft / "report.md", markdown_report(converted, DELIVERY))
        write_file(self.draft / "perf.csv", perf_csv(converted))
        write_file(self.draft / "report.json", report_file.lines(converted))


def _record(folder: run_folder.RunFolder, run: Mapping[str, Any], node: str, stage: str) -> tuple[Record | None, str]:
    """(record of a stage on a node, None if missing or invalid; why it is invalid, else empty)."""
    path = folder.evidence_file(node, stage)
    try:
        if path.is_symlink():
            return None, "the file is a link"
        with path.open("rb") as stream:
            raw = stream.read(MAX_RECORD_BYTES + 1)
        return accept_record(raw, run_id=run["run_id"], node=node, stage=stage), ""
    except FileNotFoundError:
        return None, ""
    except (EvidenceRefused, OSError) as error:
        return None, str(error)


def _log(path: Path, limit: int) -> str:
    """The text of a log without terminal escapes; only head and tail if the log exceeds ``limit`` bytes."""
    try:
        if path.is_symlink():
            return ""
        with path.open("rb") as stream:
            size = path.stat().st_size
            if size <= limit:
                data = stream.read(limit)
            else:
                head = stream.read(limit // 2)
                stream.seek(size - limit // 2)
                tail = stream.read(limit // 2)
                left_out = f"\n[gpuval] {size - limit} bytes and the lines they cut are left out here\n".encode()
                # Cut at line ends, also those of progress bars: half of a secret would not be recognised.
                data = head[: max(head.rfind(b"\n"), head.rfind(b"\r")) + 1] + left_out
                data += b"".join(re.split(rb"([\r\n])", tail, maxsplit=1)[2:])
    except OSError:
        return ""
    return clean_text(data.decode("utf-8", "replace"))


def _curves(path: Path, name: str, identity: str, converter: InternalDataConverter, evidence: Path) -> None:
    """Write a node's time series at ``path`` into the folder ``evidence``, under its unique id ``identity``."""
    document = read_object(path, MAX_SERIES_BYTES)
    if document is None or document.get("node") != name or not isinstance(document.get("series"), list):
        return
    texts = ("name", "unit", "scope", "x_unit")
    series = [
        {**curve, **{key: converter.short(curve[key]) for key in texts if isinstance(curve.get(key), str)}}
        for curve in document["series"]
        if isinstance(curve, dict)
    ]
    part = {"stage": document.get("stage"), "attempt": document.get("attempt"), "node": identity, "series": series}
    (evidence / path.name).write_text(json.dumps(part), encoding="utf-8")


def _root_digest(folder: run_folder.RunFolder, judged_at: str) -> str:
    """The SHA-256 of the signed statement of a run's evidence bundle; empty without a bundle of this judgement."""
    envelope = read_object(folder.path / "evidence_bundle/statement.dsse.json", MAX_LOG_BYTES) or {}
    try:
        payload = base64.b64decode(envelope["payload"])
        is_of_verdict = json.loads(payload)["predicate"]["judged_at"] == judged_at
    except (LookupError, TypeError, ValueError):
        return ""
    return hashlib.sha256(payload).hexdigest() if is_of_verdict else ""


def _publish(request: Request, draft: Path, sealed: list[pack.File]) -> tuple[bool, list[pack.File]]:
    """Replace the delivery by the draft if they differ. Returns whether it changed, and the files to send."""
    target = request.target
    if request.form == "folder":
        if pack.same(target, sealed):
            return False, sealed
        old = target.with_name(f".{target.name}.old")
        _remove(old)
        if target.is_dir() and not target.is_symlink():
            target.rename(old)
        draft.rename(target)
        _remove(old)
        return True, sealed
    packed = target.with_name(f".{target.name}.draft")
    try:
        pack.archive(draft, sealed, packed, request.name, request.form)
        file = pack.File(target.name, packed.stat().st_size, sha256_of(packed))
        sums = request.directory / f"{target.name}.sha256"
        text = pack.sums([file])
        if target.is_file() and sha256_of(target) == file.sha256 and sums.is_file() and sums.read_text() == text:
            return False, [file]
        packed.replace(target)
        files.replace(sums, text.encode(), 0o644)
        return True, [file]
    finally:
        packed.unlink(missing_ok=True)


def _remove(*folders: Path) -> None:
    for folder in folders:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
