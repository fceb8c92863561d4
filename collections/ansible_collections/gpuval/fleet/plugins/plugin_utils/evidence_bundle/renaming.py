"""A run's documents with keyed hashes in place of names: the same judgement without the names of the site.

Nodes, other machines, addresses, labels (racks, groups), ClusterUUIDs and chassis serials of racks, buckets, stores,
inventories, machine ids and host keys are renamed. Serials and UUIDs of parts stay, because parts are delivered by
serial.
"""

import functools
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ...module_utils.redaction import any_of
from ..core import files
from ..core.errors import SettingError, reason_of
from ..internal_data.conversion import InternalDataConverter
from ..internal_data.ordinary_names import is_ordinary
from ..judge.identity import is_useless
from ..records import environment
from ..records.evidence import MAX_SERIES_BYTES
from ..runs.labels import CLIQUE_LABEL

#: File below gpuval_state_dir with the key for renaming, without which names cannot be guessed from their hashes.
KEY_FILE = "signing/renaming.key"
KEY_BYTES, HEX_DIGITS = 32, 12
#: Fields whose texts or keys are names of nodes, even if a name is a common word.
NODE_FIELDS = frozenset(
    {"node", "worker", "nodes", "names", "members", "alone", "twin", "gangs", "left_out", "bad_links", "suspect_links",
     "faults", "evidence", "earlier_gpus", "culprits"}
)  # fmt: skip
#: {JSON key, or (key of the object around it, key), whose whole text is replaced: kind of the placeholder}
REPLACED_FIELDS = {
    "machine_id": "machine", "boot_id": "boot", "host_key": "key", ("", "machine"): "machine", ("", "bucket"): "bucket",
    ("origin", "inventory"): "inventory", ("origin", "store"): "store", ("origin", "namespace"): "namespace",
    ("workers", "host"): "host", ("commands", "sources"): "inventory",
}  # fmt: skip
#: An identity of a machine as faults and actions name it.
_IDENTITY = re.compile(r"(name|machine_id) (.+)", re.DOTALL)
#: Paths in facts that identify an NVLink rack, and the form of an identity: other texts are common words or numbers.
_RACK_PATHS = ("gpus[].fabric_cluster_uuid", "gpus[].chassis_serial")
_RACK_IDENTITY = re.compile(r"(?=.*[0-9])[A-Za-z0-9-]{8,80}")


def rack_identities(facts: Any) -> set[str]:
    """ClusterUUIDs and chassis serials of NVLink racks in the environment of a node's facts."""
    texts = {text for path in _RACK_PATHS for text in environment.texts(facts, path)}
    return {text for text in texts if _RACK_IDENTITY.fullmatch(text) and not is_useless(text.lower())}


def read_key(state_dir: Path) -> bytes:
    """The site's key for renaming, made when it is first needed. Raises SettingError."""
    path = state_dir / KEY_FILE
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(path, secrets.token_bytes(KEY_BYTES), files.PRIVATE)
        key = files.read_private(path)
    except OSError as error:
        raise SettingError(f"{path}: the key for renaming cannot be read or made: {reason_of(error)}") from error
    if len(key) != KEY_BYTES:
        raise SettingError(f"{path}: not {KEY_BYTES} bytes: restore it, or remove {path}")
    return key


def keyed_name(key: bytes, kind: str, original: str) -> str:
    """The placeholder for an original name, such as ``node-4f2a...``: the same in all bundles made with this key."""
    digest = hmac.new(key, f"{kind} {original}".encode("utf-8", "surrogateescape"), hashlib.sha256)
    return f"{kind}-{digest.hexdigest()[:HEX_DIGITS]}"


class NameRenamer:
    """Renames a run's documents. ``converter``: has the names and makes placeholders by `keyed_name`. ``digests``: new
    digests of renamed files or records by the earlier ones, which documents may hold."""

    def __init__(self, converter: InternalDataConverter, run: Mapping[str, Any]) -> None:
        self.converter, self.ids, self.digests = converter, converter.known.names, dict[str, str]()
        labels = [label for node in run["nodes"].values() for label in node.get("labels", {}).items()]
        values = any_of({value for _, value in labels if value})
        named = any_of({name for name, _ in labels if not is_ordinary(name)})
        self._phrases = re.compile(rf"(?<![\w.-])({named}) ({values})(?: - ({values}))?(?![\w-])")
        self._short = functools.lru_cache(maxsize=1 << 16)(self.text)

    def text(self, text: str) -> str:
        """Rename a text of any length: names of nodes in it, and labels with their values (``rack r12``)."""
        return self._phrases.sub(self._phrase, self.converter.text(text))

    def document(self, value: Any, field: str = "", around: str = "") -> Any:
        """Rename a JSON value. ``field``: its key; ``around``: the key of the object that contains it."""
        if isinstance(value, str):
            return self._field(value, field, around)
        if isinstance(value, (list, tuple)):
            return [self.document(item, field, around) for item in value]
        if not isinstance(value, Mapping):
            return value
        if field == "labels":
            return {
                key: self.text(item) if key == CLIQUE_LABEL else self._label(key, item) for key, item in value.items()
            }
        if field == "topology":
            return {self._field(key, "nodes", ""): self.document(item, "labels") for key, item in value.items()}
        if field.endswith("boundaries") and isinstance(value.get("names"), list):
            names = [self._label(str(value.get("kind")), name) for name in value["names"]]
            return {**self.document({**value, "names": []}), "names": names}
        renamed = {
            self._field(key, "of" if field == "lacked_gpus" else field, around): self.document(
                item, field if field in NODE_FIELDS and isinstance(item, list) else key, field
            )
            for key, item in value.items()
        }
        # sorted, since the order of the inventory may reveal names
        return dict(sorted(renamed.items())) if field in NODE_FIELDS and renamed.keys() != value.keys() else renamed

    def file(self, raw: bytes, *, is_document: bool) -> bytes:
        """Rename the content of a file, as JSON if ``is_document``; as text, and unrepaired, if that is malformed."""
        text = raw.decode("utf-8", "surrogateescape")
        try:
            if is_document and len(raw) <= MAX_SERIES_BYTES:
                renamed = self.document(json.loads(text, object_pairs_hook=_object))
                return json.dumps(renamed, ensure_ascii=False).encode("utf-8", "surrogateescape")
        except (ValueError, RecursionError):
            pass
        return self.text(text).encode("utf-8", "surrogateescape")

    def path(self, path: PurePosixPath) -> PurePosixPath:
        """Rename the path of a file in a run's folder, such as nodes/NODE/... or .state/launches/NODE.json."""
        parts = [path.parts[0]]
        for folder, part in zip(path.parts, path.parts[1:]):
            name = part if folder == "nodes" else part.removesuffix(".json")
            is_node = folder in ("nodes", "launches", "plans", "digests") and name in self.ids
            parts.append(self.ids[name] + part.removeprefix(name) if is_node else part)
        return PurePosixPath(*parts)

    def _field(self, text: str, field: str, around: str) -> str:
        if field in NODE_FIELDS and text in self.ids:
            return self.ids[text]
        if text in self.digests:
            return self.digests[text]
        if field == "of" and (identity := _IDENTITY.fullmatch(text)):
            kind = "machine_id" if identity[1] == "machine_id" else "node"
            return f"{identity[1]} {self._replaced(identity[2], REPLACED_FIELDS.get(kind, kind))}"
        kind = REPLACED_FIELDS.get(field) or REPLACED_FIELDS.get((around, field)) or ""
        return self._replaced(text, kind) if kind else self._short(text)

    def _replaced(self, text: str, kind: str) -> str:
        if kind == "node" and text in self.ids:
            return self.ids[text]
        original = text.strip().lower() if kind == "machine" else text
        return text if is_useless(text.lower()) else self.converter.placeholder(kind, original)

    def _label(self, name: str, value: str) -> str:
        kind = re.sub("[^a-z0-9]+", "_", name.rpartition("/")[2].lower()).strip("_") or "label"
        return self.converter.placeholder(kind, value) if value else value

    def _phrase(self, match: re.Match[str]) -> str:
        values = [self._label(match[1], value) for value in match.groups()[1:] if value]
        return f"{match[1]} {' - '.join(values)}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(document := dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return document
