"""Check signatures and digests of an evidence bundle, with Python and `cryptography` alone.

    python3 verify_bundle.py FOLDER PUBLIC_KEY.pem [PUBLIC_KEY.pem ...]

Each key must have signed, and each signature must be of one of these keys. Exit status: 0 if all holds. FOLDER is
untrusted: nothing but its plain files is read. `make verify` knows revoked keys, too, and judges the evidence again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

STATEMENT, PAYLOAD_TYPE = "statement.dsse.json", "application/vnd.in-toto+json"
TYPES = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://github.com/gpuval/gpuval/evidence/v1"}
MAX_ENTRIES, MAX_DEPTH, MAX_STATEMENT_BYTES, MAX_FILE_BYTES, MAX_BUNDLE_BYTES = 200_000, 16, 48 << 20, 1 << 30, 16 << 30
OPENING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
VERIFIED, INVALID, UNKNOWN, LACKING = "verified", "invalid signature", "signed by an unknown key", "not signed"


class FolderReader:
    """Reads each file once, and copies it to the new folder `copy` if one is named. `digests`: SHA-256 by relative
    path; `problems`: what is refused, by path. Raises ValueError above a limit, OSError for what cannot be read."""

    def __init__(self, folder, copy=None):
        self.copy, self.digests, self.problems, self.statement = copy, {}, {}, b""
        self._entries, self._bytes, self._folded_paths = 0, 0, set()
        self._read_folder(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), "")

    def _read_folder(self, descriptor, prefix):
        self.problems[prefix] = "an empty folder"
        if self.copy:
            (self.copy / prefix).mkdir(0o700)
        try:
            for entry in os.scandir(descriptor):
                self.problems.pop(prefix, None)
                self._entries += 1
                if self._entries > MAX_ENTRIES:
                    raise ValueError(f"more than {MAX_ENTRIES} files and folders")
                self._read_entry(descriptor, entry, prefix + entry.name)
        finally:
            os.close(descriptor)

    def _read_entry(self, folder_descriptor, entry, path):
        status = entry.stat(follow_symlinks=False)
        if not path.isprintable() or "\\" in path or path.casefold() in self._folded_paths:
            self.problems[path] = "a name that is not printable, or that differs from another one only in case"
        elif stat.S_ISDIR(status.st_mode) and path.count("/") < MAX_DEPTH:
            self._read_folder(os.open(entry.name, OPENING | os.O_DIRECTORY, dir_fd=folder_descriptor), f"{path}/")
        elif not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            self.problems[path] = "a link, a device, or a folder too deep"
        elif status.st_size > min(MAX_FILE_BYTES, MAX_BUNDLE_BYTES - self._bytes):
            self.problems[path] = "larger than the limit for a file or a bundle"
        else:
            self._read_file(os.open(entry.name, OPENING, dir_fd=folder_descriptor), path, status)
        self._folded_paths.add(path.casefold())

    def _read_file(self, descriptor, path, status):
        self._bytes += status.st_size
        digest, size, target = hashlib.sha256(), 0, self.copy / path if self.copy else Path(os.devnull)
        with os.fdopen(descriptor, "rb", 0) as source, target.open("wb") as copied:
            while size <= status.st_size and (chunk := source.read(1 << 20)):
                digest.update(chunk)
                size += copied.write(chunk)
                self.statement += chunk if path == STATEMENT and size <= MAX_STATEMENT_BYTES else b""
            after = os.fstat(descriptor)
        if (size, after.st_ino, after.st_ctime_ns) != (status.st_size, status.st_ino, status.st_ctime_ns):
            self.problems[path] = "changed while it was read"
        self.digests[path] = digest.hexdigest()


def encode(document):
    """Canonical JSON: UTF-8, keys sorted by code point, no spaces."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def encode_envelope(payload, signatures):
    entries = [{"keyid": keyid, "sig": base64.b64encode(signatures[keyid]).decode()} for keyid in sorted(signatures)]
    return encode({"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD_TYPE, "signatures": entries})


def signed_bytes(payload):
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def read_envelope(text):
    """Payload, signatures by keyid, digests by path and predicate of an envelope. Raises ValueError if any byte differs
    from what this program writes: a key or a subject twice, another spelling."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        envelope = json.loads(text)
        payload = base64.b64decode(envelope["payload"])
        signatures = {str(entry["keyid"]): base64.b64decode(entry["sig"]) for entry in envelope["signatures"]}
        statement = json.loads(payload)
        digests = {str(subject["name"]): subject["digest"]["sha256"] for subject in statement["subject"]}
        written = encode(statement | TYPES), encode_envelope(payload, signatures), len(digests)
        if written == (payload, text, len(statement["subject"])):
            return payload, signatures, digests, dict(statement["predicate"])
    raise ValueError(f"{STATEMENT} is missing, damaged, or of another version")


def read_public_key(text):
    """The keyid, which is the SHA-256 of the DER SubjectPublicKeyInfo, and the key in PEM. Raises ValueError."""
    key = load_pem_public_key(text)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")  # noqa: TRY004 - as for a text that is no key
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest(), key


def check_bundle(folder, keys, copy=None):
    """Problems by path, states by keyid, payload and predicate. `keys`: by keyid. Raises ValueError, OSError."""
    reader = FolderReader(folder, copy)
    payload, signatures, declared, predicate = read_envelope(reader.statement)
    present, declared[STATEMENT] = reader.digests, reader.digests[STATEMENT]
    problems = {path: "missing" if path in declared else "added" for path in declared.keys() ^ present.keys()}
    problems |= {path: "changed" for path in declared.keys() & present.keys() if declared[path] != present[path]}
    states = dict.fromkeys(keys, LACKING) | dict.fromkeys(signatures, UNKNOWN)
    for keyid in keys.keys() & signatures.keys():
        states[keyid] = INVALID
        with suppress(InvalidSignature):
            keys[keyid].verify(signatures[keyid], signed_bytes(payload))
            states[keyid] = VERIFIED
    return problems | reader.problems, states, payload, predicate


def main(arguments):
    try:
        keys = dict(read_public_key(Path(path).read_bytes()) for path in arguments[1:])
        problems, states, payload, _predicate = check_bundle(arguments[0], keys)
    except (OSError, ValueError, IndexError, UnsupportedAlgorithm) as error:
        print(f"NOT VERIFIED: {error}\n\n{__doc__}", file=sys.stderr)
        return 2
    for subject, finding in [*sorted(problems.items()), *sorted(states.items())]:
        print(f"{subject if subject.isprintable() else ascii(subject)}: {finding}")
    holds = not problems and {*states.values()} == {VERIFIED}
    print(f"{'verified' if holds else 'NOT VERIFIED'}: root digest {hashlib.sha256(payload).hexdigest()}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
