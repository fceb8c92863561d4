"""Verify an evidence bundle: signatures, digests, and the judgement, made again from its files; add a signature."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import files, processes
from ..core.errors import SettingError
from ..core.escape import one_line
from ..core.paths import project_path
from ..core.text import first_lines
from ..evidence_bundle import replay, signing_keys, statement
from ..evidence_bundle.verify_bundle import VERIFIED
from ..runs.action import RunAction

#: Max lines for each kind of problem.
MAX_LINES = 40
#: Suffixes of a bundle's files: a page or a program in it could pass for a part of the evidence.
SUFFIXES = (".json", ".log", ".yml")


def verify_bundle(
    action: RunAction,
    *,
    state_dir: Path,
    folder: Path | None = None,
    keys: Sequence[str] = (),
    known_keys: Sequence[str] = (),
    sign: bool = False,
) -> dict[str, Any]:
    """`keys`: files with public keys that must have signed; `known_keys`: lists of keys that may have."""
    if folder is None:
        raise SettingError("verify_folder names no evidence bundle: run `make verify FOLDER=path`")
    known = signing_keys.read_known_keys(state_dir, map(project_path, known_keys), map(project_path, keys))
    with tempfile.TemporaryDirectory(prefix="gpuval-verify-") as temporary:

        def check() -> tuple[Path, statement.StatementCheck]:
            copy = Path(tempfile.mkdtemp(dir=temporary)) / "bundle"
            return copy, statement.check(folder, known, copy)

        with processes.beside(check, sys.maxsize) as checked_beside:  # a subprocess, whose memory is free afterwards
            copy, checked = checked_beside()
        differences, remarks = ["not judged again, since files differ"], list[str]()
        if not checked.problems:
            differences, remarks = _judge_again(copy, checked.predicate)
        envelope = files.read(copy / statement.STATEMENT)
    states = [f"signature of {keyid}: {state}" for keyid, state in sorted(checked.signatures.items())]
    problems = [f"{path}: {problem}" for path, problem in sorted(checked.problems.items())]
    for lines, holds in (
        (states, "not signed"), (problems, "all files have the digests in the statement"),
        (differences, "judged again: the same report, byte for byte"), (remarks, ""),
    ):  # fmt: skip
        action.display.display(*filter(None, first_lines(lines or [holds], MAX_LINES)))
    predicate = checked.predicate
    run = one_line(f"{predicate.get('verdict')} of run {predicate.get('run_id')}", 200)
    subject = f"{run}, root digest {checked.root_digest}"
    source = one_line(str(predicate.get("derived_from") or ""), 64)
    subject += f", derived from {source}" if source else ""
    subject += f"; judged by data files of its own: {len(remarks)}, see above" if remarks and not differences else ""
    result = {"changed": False, "root_digest": checked.root_digest, "signatures": dict(checked.signatures)}
    if sign and not differences and {*checked.signatures.values()} <= {VERIFIED}:
        key = signing_keys.read_private_key(state_dir)
        if key is None:
            raise SettingError("this site has no key to sign with: run `make keys SIGNING=1`")
        signed = statement.sign(envelope, key)
        result["changed"] = signed != envelope
        if result["changed"] and not action.check_mode:
            files.replace(folder / statement.STATEMENT, signed)
        action.display.display(f"verified, and signed by this site: {subject}")
    elif differences or not checked.is_verified:
        return {**result, "failed": True, "msg": f"NOT VERIFIED, for the reasons above: {subject}"}
    else:
        action.display.display(f"verified: {subject}")
    return result


def _judge_again(bundle: Path, predicate: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Judge a bundle's evidence again. Returns lines on differences from its report or statement, and lines on data
    files that are not those of the release that judged."""
    names = sorted(str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file())
    if foreign := [name for name in names if not name.endswith(SUFFIXES)]:
        return [f"{name}: no file of an evidence bundle; nothing proves what it says" for name in foreign], []
    try:
        judged = replay.replay(bundle)
    except replay.ReplayError as error:
        return [f"not judged again: {error}"], []
    data = [f"{name}: not as gpuval {judged.versions[1]} has it" for name in judged.foreign_data]
    if judged.differences:
        return [*judged.remarks, *(difference.text() for difference in judged.differences)], data
    reported = statement.predicate_of(bundle)
    differing = [name for name in reported if name != "versions" and predicate.get(name) != reported[name]]
    return [f"{statement.STATEMENT}: {name} is not that of the report" for name in differing], data
