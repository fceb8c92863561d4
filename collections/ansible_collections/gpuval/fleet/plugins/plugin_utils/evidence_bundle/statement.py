"""The statement of an evidence bundle: an in-toto Statement v1 on its files, in a DSSE envelope for several signatures.

`verify_bundle.py` has the format, because it also runs without gpuval.
"""

import hashlib
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.release import __version__ as ansible_version
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..core import files
from ..core.errors import reason_of
from ..core.paths import version
from ..core.text import some_of
from ..records import report_file
from . import RUN, EvidenceBundleError, verify_bundle
from .signing_keys import KnownKeys, keyid_of
from .verify_bundle import INVALID, LACKING, STATEMENT, VERIFIED

REVOKED, REPLACED = "signed by a revoked key", "signed by a key that was replaced before the judgement"


@dataclass(frozen=True)
class StatementCheck:
    """The result of checking a bundle. `problems`: {path: problem}; `signatures`: {keyid: state}; `root_digest`:
    SHA-256 of the signed bytes; `predicate`: that of the statement."""

    problems: Mapping[str, str]
    signatures: Mapping[str, str]
    root_digest: str
    predicate: Mapping[str, Any]

    @property
    def is_verified(self) -> bool:
        return not self.problems and {*self.signatures.values()} == {VERIFIED}


def predicate_of(bundle: Path) -> dict[str, Any]:
    """The predicate of the statement on a bundle: verdicts of the run and its nodes, from its report, and versions."""
    parts = report_file.walk(bundle / RUN / "report.json")
    head = next(parts)
    run = {name: head["run"].get(name) for name in ("run_id", "profile", "judged_at", "criteria")}
    nodes = {node["name"]: node["verdict"] for node in parts}
    versions = {"gpuval": version(), "ansible": ansible_version, "python": platform.python_version()}
    return {**run, "verdict": head["verdict"], "counts": head["counts"], "nodes": nodes, "versions": versions}


def seal(folder: Path, predicate: Mapping[str, Any]) -> str:
    """Write the statement on all other files of a folder, and return its root digest: the SHA-256 of the signed bytes.
    If nothing changed, the statement keeps its signatures. Raises EvidenceBundleError."""
    try:
        reader = verify_bundle.FolderReader(folder)
        digests = sorted((path, digest) for path, digest in reader.digests.items() if path != STATEMENT)
        subjects = [{"name": path, "digest": {"sha256": digest}} for path, digest in digests]
        payload = verify_bundle.encode({**verify_bundle.TYPES, "subject": subjects, "predicate": dict(predicate)})
    except (OSError, ValueError, TypeError) as error:
        raise EvidenceBundleError(f"{folder}: cannot be sealed: {reason_of(error)}") from error
    if reader.problems:
        problems = some_of(f"{path or '.'}: {problem}" for path, problem in sorted(reader.problems.items()))
        raise EvidenceBundleError(f"{folder}: cannot be sealed, verify would refuse it: {problems}")
    is_sealed = False
    with suppress(ValueError):
        is_sealed = verify_bundle.read_envelope(reader.statement)[0] == payload
    if not is_sealed:
        files.replace(folder / STATEMENT, verify_bundle.encode_envelope(payload, {}))
    return hashlib.sha256(payload).hexdigest()


def sign(envelope: bytes, key: Ed25519PrivateKey) -> bytes:
    """The envelope with the signature of this key beside those of others. Raises EvidenceBundleError."""
    try:
        payload, signatures, *_ = verify_bundle.read_envelope(envelope)
    except ValueError as error:
        raise EvidenceBundleError(str(error)) from error
    signature = key.sign(verify_bundle.signed_bytes(payload))  # Ed25519 is deterministic: signing again changes nothing
    return verify_bundle.encode_envelope(payload, {**signatures, keyid_of(key): signature})


def check(folder: Path, known: KnownKeys, copy: Path | None = None) -> StatementCheck:
    """Check files and signatures of an untrusted folder. The new folder `copy` gets the files as they were read. Raises
    EvidenceBundleError if `folder` is no bundle."""
    if not (folder / STATEMENT).is_file():
        raise EvidenceBundleError(f"{folder} is no evidence bundle: it has no {STATEMENT}")
    try:
        problems, states, payload, predicate = verify_bundle.check_bundle(folder, known.keys, copy)
    except (OSError, ValueError) as error:
        raise EvidenceBundleError(f"{folder}: {reason_of(error)}") from error
    signatures = {keyid: state for keyid, state in states.items() if state != LACKING or keyid in known.required}
    for keyid in {keyid for keyid, state in signatures.items() if state not in (INVALID, LACKING)}:
        judged_at = str(predicate.get("judged_at") or "unknown")  # "unknown" sorts after any time
        if keyid in known.revoked:
            signatures[keyid] = f"{REVOKED} ({known.revoked[keyid]})"
        elif judged_at > known.until.get(keyid, judged_at):
            signatures[keyid] = f"{REPLACED} ({known.until[keyid]})"
    return StatementCheck(problems, signatures, hashlib.sha256(payload).hexdigest(), predicate)
