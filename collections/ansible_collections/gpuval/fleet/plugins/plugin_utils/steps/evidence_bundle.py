"""Make the evidence bundle of a judged run, in its folder of the results, and seal it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..core import files
from ..core.paths import project_path
from ..evidence_bundle import contents, replay, signing_keys, statement, verify_bundle
from ..records import report_file
from ..runs.action import RunAction, RunOptions


def evidence_bundle(action: RunAction, options: RunOptions, *, state_dir: Path) -> dict[str, Any]:
    """`state_dir`: has the site's key, without which the bundle is not signed."""
    folder = action.folder(options)
    key = signing_keys.read_private_key(project_path(state_dir))
    sources = contents.sources_of(folder)
    result = {"path": str(sources.target), "files": len(sources.paths)}
    is_made = sources.is_made()
    if action.check_mode:
        message = f"{len(sources.paths):,} files would go into {sources.target}"
        message = f"check mode: nothing is written; {'no files' if is_made else message}"
        return {**result, "changed": not is_made, "msg": message}

    def complete(draft: Path) -> str:
        try:
            problem = replay.replay(draft).problem()
        except replay.ReplayError as error:
            return str(error)
        if not problem:
            statement.seal(draft, statement.predicate_of(_brief_report(draft)))
        return problem

    if not is_made:
        contents.make(sources, complete, action.display.display)
    script = Path(verify_bundle.__file__)
    files.replace(folder.path / script.name, script.read_bytes())
    changed = _sign(sources.target / statement.STATEMENT, key) or not is_made
    signer = f"signed by {signing_keys.keyid_of(key)}" if key else "not signed: `make keys SIGNING=1` makes a key"
    return {**result, "changed": changed, "msg": f"evidence bundle in {sources.target}, confidential, {signer}"}


def _brief_report(bundle: Path) -> dict[str, Any]:
    """The report of a bundle with names and verdicts of its nodes only."""
    head, *nodes = (
        {"name": part["name"], "verdict": part["verdict"]} if "name" in part else part
        for part in report_file.walk(bundle / contents.RUN / "report.json")
    )
    return {**head, "nodes": nodes}


def _sign(path: Path, key: Ed25519PrivateKey | None) -> bool:
    """Add the site's signature to a statement. Returns whether that changed it."""
    envelope = files.read(path)
    signed = statement.sign(envelope, key) if key else envelope
    if signed != envelope:
        files.replace(path, signed)
    return signed != envelope
