"""Make and sign the evidence bundle of a judged run in its results folder, and a copy with replaced names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..core import files
from ..core.paths import project_path
from ..core.step_options import StoreOptions
from ..evidence_bundle import contents, derived, renaming, replay, signing_keys, statement, verify_bundle
from ..runs import site_names
from ..runs.action import RunAction, RunOptions
from ..runs.folder import RunFolder


def evidence_bundle(
    action: RunAction, options: RunOptions, *, store: StoreOptions, renamed: bool = False
) -> dict[str, Any]:
    """`store`: its state_dir has the site's signing key, without which nothing is signed; `renamed`: make also a copy
    with keyed hashes in place of names."""
    folder, state_dir = action.folder(options), project_path(store["state_dir"])
    key = signing_keys.read_private_key(state_dir)
    sources = contents.BundleSources(folder)
    result = {"path": str(sources.target), "files": len(sources.paths)}
    is_made, target = sources.is_made(), folder.path / derived.FOLDER
    if action.check_mode:
        lines = [] if is_made else [f"{len(sources.paths):,} files would go into {sources.target}"]
        lines += [f"renamed ones would go into {target}"] if renamed and _make_renamed(action, folder, store) else []
        bundles = [bundle for bundle in (sources.target, target) if (bundle / statement.STATEMENT).exists()]
        lines += [
            f"{bundle} would be signed"
            for bundle in bundles[: 1 + renamed]
            if is_made and _sign(bundle, key, write=False)
        ]
        message = f"check mode: nothing is written; {', '.join(lines) or 'no files'}"
        return {**result, "changed": bool(lines), "msg": message}

    def complete(draft: Path) -> str:
        try:
            problem = replay.replay(draft).problem()
        except replay.ReplayError as error:
            return str(error)
        if not problem:
            statement.seal(draft, statement.predicate_of(draft))
        return problem

    if not is_made:
        contents.make(sources, complete, action.display.display)
    script = Path(verify_bundle.__file__)
    files.replace(folder.path / script.name, script.read_bytes())
    changed = _sign(sources.target, key) or not is_made
    signer = f"signed by {signing_keys.keyid_of(key)}" if key else "not signed: `make keys SIGNING=1` makes a key"
    message = f"evidence bundle in {sources.target}, confidential, {signer}"
    if renamed:
        changed |= _make_renamed(action, folder, store)
        changed |= _sign(target, key)
        message += f"; renamed in {target}; {derived.NAMES_FILE} has the original names: keep it at the site"
    return {**result, "changed": changed, "msg": message}


def _make_renamed(action: RunAction, folder: RunFolder, store: Mapping[str, Any]) -> bool:
    """Copy the evidence bundle with keyed hashes for the site's names. Returns whether no current copy was there."""
    hosts = site_names.hosts_of(folder.read_run()["nodes"], action.task_vars)
    sensitive = site_names.sensitive_of(site_names.variables_of(hosts), store)
    state_dir, checks = project_path(store["state_dir"]), action.check_mode
    key = b"" if checks and not (state_dir / renaming.KEY_FILE).exists() else renaming.read_key(state_dir)
    return derived.make(folder.path / contents.FOLDER, sensitive, key, action.display.display, check_mode=checks)


def _sign(bundle: Path, key: Ed25519PrivateKey | None, *, write: bool = True) -> bool:
    """Add the site's signature to a bundle's statement. Returns whether that changes it."""
    path = bundle / statement.STATEMENT
    envelope = files.read(path)
    signed = statement.sign(envelope, key) if key else envelope
    if signed != envelope and write:
        files.replace(path, signed)
    return signed != envelope
