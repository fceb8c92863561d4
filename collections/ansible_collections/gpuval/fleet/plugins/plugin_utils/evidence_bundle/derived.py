"""Derives a renamed bundle from an evidence bundle: other names in all documents, judged and sealed again."""

import dataclasses
import functools
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ..core import files
from ..core.paths import COLLECTION, version
from ..core.text import some_of
from ..gang import document as gang_document
from ..gang import judging
from ..internal_data.conversion import InternalDataConverter
from ..internal_data.scan import InternalDataScan, ScanTargets, own_words, problems
from ..internal_data.sensitive import Sensitive
from ..records import report_file
from ..records.evidence import MAX_LOG_BYTES, MAX_RECORD_BYTES, digest_of, read_object
from ..runs.folder import RunFolder
from . import DATA, EXTENSIONS, RUN, EvidenceBundleError, contents, replay, statement, verify_bundle
from .renaming import NameRenamer, keyed_name, rack_identities

FOLDER = f"{contents.FOLDER}_renamed"
#: File beside the renamed bundle with the original names. It stays at the site.
NAMES_FILE = f"{FOLDER}.names.json"


def make(bundle: Path, sensitive: Sensitive, key: bytes, say: Callable[[str], None], *, check_mode: bool) -> bool:
    """Make the renamed bundle and its table of names beside a sealed bundle, unless both exist for the same bundle,
    ``key`` and names. Returns whether that changes files; check mode changes none. Raises GpuvalError, OSError."""
    target, table, root_digest = bundle.with_name(FOLDER), bundle.with_name(NAMES_FILE), _root_digest(bundle)
    names = dataclasses.asdict(dataclasses.replace(sensitive, secrets=set()))  # secrets are in no record
    made_of = keyed_name(key, "sources", json.dumps([version(), root_digest, names], default=sorted, sort_keys=True))
    is_made = (read_object(table, MAX_LOG_BYTES) or {}).get("made_of") == made_of and _root_digest(target) != ""
    if is_made or check_mode:
        return not is_made
    if not root_digest:
        raise EvidenceBundleError(f"{bundle}: a file differs from the statement: remove it and run `make evidence`")
    say("evidence bundle: judging again under other names")
    with contents.replacing(target) as draft:
        draft.mkdir(mode=0o700)
        originals = derive(bundle, draft, renamer_of(bundle, sensitive, key))
        with suppress(OSError):  # keep signatures: they hold if nothing changed
            shutil.copyfile(target / statement.STATEMENT, draft / statement.STATEMENT)
        statement.seal(draft, {**statement.predicate_of(draft), "derived_from": root_digest})
    text = json.dumps({"made_of": made_of, **originals}, ensure_ascii=False, indent=1)
    files.replace(table, text.encode("utf-8", "surrogateescape"), files.PRIVATE)
    return True


def _root_digest(bundle: Path) -> str:
    """The SHA-256 of the statement of a bundle; empty without one, or if a file differs from the statement."""
    with suppress(OSError, ValueError):
        problems, _, payload, _ = verify_bundle.check_bundle(bundle, {})
        return "" if problems else hashlib.sha256(payload).hexdigest()
    return ""


def renamer_of(bundle: Path, sensitive: Sensitive, key: bytes) -> NameRenamer:
    """The renamer for the run in a bundle. ``sensitive``: names that the controller and the inventory know."""
    folder = RunFolder(bundle / RUN)
    run, words = folder.read_run(), own_words(COLLECTION)
    sensitive.add_plan(run)
    for name in run["nodes"]:
        facts = read_object(folder.evidence_file(name, "facts"), MAX_RECORD_BYTES)
        sensitive.add_facts(name, facts)
        sensitive.racks |= rack_identities((facts or {}).get("environment"))
    ids = {name: keyed_name(key, "node", name) for name in run["nodes"]}
    data = sensitive.of_run(ids, words, run["run_id"])
    data.ordinary = {name for name in ids if name.lower() in words and not re.search("[0-9]", name)}
    return NameRenamer(InternalDataConverter(data, functools.partial(keyed_name, key)), run)


def derive(bundle: Path, target: Path, renamer: NameRenamer) -> dict[str, Any]:
    """Make the renamed bundle in the new folder ``target``, without a statement. Returns {"nodes": {name: id},
    "placeholders": {placeholder: original}}, which stays at the site. Raises EvidenceBundleError if a name is left or a
    verdict differs, ReplayError, or OSError."""
    source, renamed = RunFolder(bundle / RUN), RunFolder(target / RUN)
    for part in (DATA, EXTENSIONS):
        if (bundle / part).is_dir():
            shutil.copytree(bundle / part, target / part)
    # last: these files contain digests of records, which change by renaming
    last = [judging.facts_file(source), source.verdict_file]
    made_anew = [source.path / "report.json"]
    for path in sorted(path for path in source.path.rglob("*") if path.is_file()):
        if path not in (*last, *made_anew):
            _rename(path, source, renamed, renamer)
    facts = judging.kept_facts(source)
    if facts is None:
        raise EvidenceBundleError(f"{bundle}: there is no judgement.json: run `make evidence`")
    before, after = (_digests(folder, dataclasses.replace(facts, verdict_before=None)) for folder in (source, renamed))
    renamer.digests = {digest: after[renamer.ids[node], stage] for (node, stage), digest in before.items()}
    for path in last:
        if path.is_file():
            _rename(path, source, renamed, renamer)
    with tempfile.TemporaryDirectory(prefix="gpuval-derive-") as name:
        replay.judge_into(target, Path(name))
        shutil.copyfile(Path(name) / "report.json", renamed.path / "report.json")
    _check(source, renamed, renamer)
    placeholders = {shown: original for (_, original), shown in renamer.converter.placeholders.items()}
    return {"nodes": dict(renamer.ids), "placeholders": placeholders}


def _rename(path: Path, source: RunFolder, target: RunFolder, renamer: NameRenamer) -> None:
    renamed = target.path / renamer.path(PurePosixPath(path.relative_to(source.path).as_posix()))
    renamed.parent.mkdir(parents=True, exist_ok=True)
    renamed.write_bytes(renamer.file(files.read(path), is_document=path.suffix == ".json"))


def _digests(folder: RunFolder, facts: judging.JudgementFacts) -> dict[tuple[str, str], str]:
    """{(node, stage): digest} of each record of a run, multi-node stages included, before a judgement withdraws any."""
    inputs = judging.read_inputs(folder, folder.read_run(), (), gangs=gang_document.read(folder), facts=facts)
    records = inputs.evidence.records.items()
    return {(node, stage): digest_of(record) for node, of_node in records for stage, record in of_node.items()}


def _check(source: RunFolder, renamed: RunFolder, renamer: NameRenamer) -> None:
    """Compare all verdicts of both reports, and search the renamed files for original names."""
    first, second = (_decisions(folder.path / "report.json", renamer.ids) for folder in (source, renamed))
    if odd := sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name)):
        raise EvidenceBundleError(f"verdicts differ under other names on {some_of(odd)}: this is a bug in gpuval")
    known, is_word = renamer.converter.known, renamer.converter.is_word
    names = {name for name in {*known.names, *known.hosts, *known.racks, *known.aliases} if not is_word(name)}
    scan = InternalDataScan(ScanTargets(names, set(known.secrets), set(known.addresses)), set(known.names.values()))
    paths = [path.relative_to(renamed.path).as_posix() for path in renamed.path.rglob("*") if path.is_file()]
    if findings := problems(scan, renamed.path, paths):
        raise EvidenceBundleError(f"names are left in the derived bundle: {some_of(findings)}: this is a bug in gpuval")


def _decisions(report: Path, ids: Mapping[str, str]) -> dict[str, Any]:
    """{id of a node: digest of its verdicts}, and the verdicts of the run under an empty id. ``ids``: {node: id}."""
    nodes = report_file.walk(report)
    head = next(nodes)
    racks = sorted((rack["verdict"], [check["verdict"] for check in rack["checks"]]) for rack in head.get("racks", ()))
    decided: dict[str, Any] = {"": (head["verdict"], head["counts"], racks)}
    for node in nodes:
        checks = report_file.unpack_node({**node, "metrics": {}}, head)["checks"]
        verdicts = sorted((one["name"], one["stage"] or "", one["part"], one["verdict"]) for one in checks)
        text = repr((node["verdict"], node["class"], verdicts))  # as a digest: 1000 nodes have 200,000 verdicts
        decided[ids.get(node["name"], node["name"])] = hashlib.sha256(text.encode()).digest()
    return decided
