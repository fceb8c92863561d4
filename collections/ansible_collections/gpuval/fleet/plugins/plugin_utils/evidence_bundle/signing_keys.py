"""The site's Ed25519 key that signs evidence bundles, and the lists of keys that `verify` knows.

The private key stays in a file of the controller, or in the environment. It never enters a store, a run or a bundle.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from ..core import files, yaml_file
from ..core.errors import SettingError, reason_of
from ..core.paths import expand_user
from ..runs import folder as run_folder
from .verify_bundle import read_public_key

VARIABLE = "GPUVAL_SIGNING_KEY"
#: Files below gpuval_state_dir: the private key, and the list of public keys of this site, which may be given away.
PRIVATE_FILE, PUBLIC_FILE = "signing/private.pem", "signing/keys.json"
EMPTY_LIST = {"schema": "gpuval.signing_keys/1", "keys": [], "revoked": []}


@dataclass(frozen=True)
class KnownKeys:
    """Public keys to verify with, all by keyid: `keys`; `until`: when a key was replaced (RFC 3339, UTC); `revoked`:
    why a key was revoked. `required`: keyids that must have signed."""

    keys: Mapping[str, Ed25519PublicKey]
    until: Mapping[str, str]
    revoked: Mapping[str, str]
    required: Collection[str] = ()


def read_known_keys(state_dir: Path, lists: Iterable[Path] = (), required_files: Iterable[Path] = ()) -> KnownKeys:
    """Read the public keys in the site's own list, in `lists` of others (gpuval.signing_keys/1), and in
    `required_files`, whose keys must have signed. A restriction in any list counts. Raises SettingError, YamlError or
    schemas.Invalid."""
    documents = [_read_own_list(state_dir), *(yaml_file.shipped(path, "signing_keys") for path in lists)]
    keys = [entry for document in documents for entry in document["keys"]]
    parsed = [_parse_public(entry["public_key"].encode(), f"key {entry['keyid']}") for entry in keys]
    if mistyped := [
        entry["keyid"] for entry, (keyid, _key) in zip(keys, parsed, strict=True) if entry["keyid"] != keyid
    ]:
        raise SettingError(f"a list of keys has the keyid {mistyped[0]} for a key with another keyid")
    required = dict(_parse_public(_read(path), str(path)) for path in required_files)
    revoked = [entry for document in documents for entry in document["revoked"]]
    reasons = {entry["keyid"]: f"{entry['at']}: {entry['reason']}" for entry in revoked}
    times = sorted(((entry["until"], entry["keyid"]) for entry in keys if "until" in entry), reverse=True)
    return KnownKeys(dict(parsed) | required, {keyid: time for time, keyid in times}, reasons, required)


def read_private_key(state_dir: Path, environment: Mapping[str, str] = os.environ) -> Ed25519PrivateKey | None:
    """The key to sign with: from GPUVAL_SIGNING_KEY, which is PEM or a path, else the site's file; None without one.
    Raises SettingError, also for a key that was replaced or revoked."""
    key, known = _load_private_key(state_dir, environment), read_known_keys(state_dir)
    if key and (keyid := keyid_of(key)) in {**known.revoked, **known.until}:
        raise SettingError(f"signing key {keyid} was replaced or revoked: run `make keys SIGNING=1 ROTATE=1`")
    return key


def ensure_key(
    state_dir: Path, rotate: bool, environment: Mapping[str, str] = os.environ
) -> tuple[dict[str, str], bool]:
    """Make the site's key unless it or GPUVAL_SIGNING_KEY exists, and list its public key; with `rotate` a new key
    replaces all listed ones. Returns its entry in the list, and whether that is new. Raises SettingError."""
    path, document, is_external = state_dir / PUBLIC_FILE, _read_own_list(state_dir), bool(environment.get(VARIABLE))
    present_key = None if rotate and not is_external else _load_private_key(state_dir, environment)
    key = present_key or Ed25519PrivateKey.generate()
    keyid = keyid_of(key)
    for entry in (entry for entry in document["keys"] if entry["keyid"] == keyid):
        if rotate:
            raise SettingError(f"{path} lists the key in {VARIABLE} already: set it to the new key")
        return entry, False
    now = run_folder.now()
    earlier = [{"until": now, **entry} if rotate else entry for entry in document["keys"]]
    listed_key = {"keyid": keyid, "public_key": public_pem(key).decode(), "made_at": now}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    run_folder.write_json(path, {**document, "keys": [*earlier, listed_key]})
    if not present_key:  # after the list: no bundle is signed with a key that is not listed
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        files.replace(state_dir / PRIVATE_FILE, pem, files.PRIVATE)
    return listed_key, True


def public_pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def keyid_of(key: Ed25519PrivateKey) -> str:
    return read_public_key(public_pem(key))[0]


def _load_private_key(state_dir: Path, environment: Mapping[str, str]) -> Ed25519PrivateKey | None:
    text = environment.get(VARIABLE, "").strip()
    path = expand_user(text) if text else state_dir / PRIVATE_FILE
    if not text and not path.exists():
        return None
    is_pem = text.startswith("-----BEGIN")
    try:
        pem = text.encode() if is_pem else files.read_private(path)
    except OSError as error:
        source = f"{VARIABLE} is neither PEM nor a file that can be read" if text else f"{path}: the private key"
        raise SettingError(f"{source}: {reason_of(error)}") from None
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):  # the error may quote the key
        key = load_pem_private_key(pem, None)
        if isinstance(key, Ed25519PrivateKey):
            return key
    raise SettingError(f"{VARIABLE if is_pem else path}: no Ed25519 private key in PEM without a password")


def _read(path: Path) -> bytes:
    try:
        return files.read(path)
    except OSError as error:
        raise SettingError(f"{path}: the key cannot be read: {reason_of(error)}") from error


def _parse_public(pem: bytes, source: str) -> tuple[str, Ed25519PublicKey]:
    try:
        keyid, public_key = read_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SettingError(f"{source}: no Ed25519 public key in PEM") from error
    return keyid, public_key


def _read_own_list(state_dir: Path) -> dict[str, Any]:
    path = state_dir / PUBLIC_FILE
    return yaml_file.shipped(path, "signing_keys") if path.exists() else EMPTY_LIST
