"""Collects the files that a controller running in the cluster needs: its inventory, and files that settings name."""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core import yaml_file
from ..core.errors import reason_of
from ..core.paths import project_path
from .controller import PROJECT
from .pod_settings import PodSettingsError

#: Settings that name a file or folder of this controller, or a list of such.
FILE_SETTINGS = (
    *("gpuval_baseline", "gpuval_cabling_plan", "gpuval_criteria", "gpuval_extensions", "gpuval_jobs"),
    *("gpuval_node_ids", "gpuval_s3_ca_file", "gpuval_signing_keys"),
)
#: Names of the folders of variables beside an inventory file.
VARIABLES = ("group_vars", "host_vars")
MAX_FILES = 5000
#: Minimum characters of a secret to search for in files: a shorter text occurs by chance.
SHORTEST_HIDDEN = 6
_KUBECONFIG = re.compile(rb"""^\s*["']?kind["']?\s*:\s*["']?Config\b""", re.MULTILINE)
_PLUGIN = re.compile(rb"gpuval\.fleet\.kubernetes_nodes\b")
_VAULT = b"$ANSIBLE_VAULT;"


@dataclass
class ControllerFiles:
    """Files for a controller in the cluster. `by_kind`: {"ConfigMap" or "Secret": {path below PROJECT: content}}.
    `hidden`: secrets that no ConfigMap may contain. `decrypt`: returns the text of an Ansible Vault file, by path."""

    hidden: Collection[str]
    decrypt: Callable[[str], str]
    by_kind: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"ConfigMap": {}, "Secret": {}}, repr=False)

    def add(self, path: str, content: bytes, *, is_secret: bool = False) -> None:
        """Add a file by its path below PROJECT: to the Secret if it contains a hidden text, else to the ConfigMap."""
        text = content.decode("utf-8", "replace")
        hidden = [text for text in self.hidden if len(text) >= SHORTEST_HIDDEN]
        is_secret |= any(form in text for secret in hidden for form in (secret, json.dumps(secret)[1:-1]))
        self.by_kind["Secret" if is_secret else "ConfigMap"][path] = content

    def add_inventory(self, sources: Iterable[str]) -> list[str]:
        """Add the files of these inventory sources, and return the paths of the sources in the pod."""
        return [self._add_source(source, f"inventory/{number}") for number, source in enumerate(sources, 1)]

    def _add_source(self, source: str, target_folder: str) -> str:
        """Add an inventory source below `target_folder`, a path below PROJECT. Returns the source's path in the pod."""
        path = Path(source).absolute()
        if "," in source and not path.exists():
            return source  # a comma-separated list of hosts, not a file
        # Keep the name of the inventory's folder: the folder of its runs is named after it.
        base = path.parent if path.is_dir() else path.parent.parent
        folders = [path] if path.is_dir() else [path.parent / name for name in VARIABLES]
        files = [*([] if path.is_dir() else [path]), *(file for folder in folders for file in _below(folder))]
        for file in files:
            content = self._content(file)
            if _KUBECONFIG.search(content):
                continue  # in the cluster, the controller uses its ServiceAccount
            if os.access(file, os.X_OK) and content.startswith(b"#!"):
                raise PodSettingsError(
                    f"{file} is a program, which the controller in the cluster cannot run: give its output, as "
                    "`ansible-inventory --list --export` prints it"
                )
            self._add_file(f"{target_folder}/{file.relative_to(base)}", file, content)
            if path.is_file() and file == path and _PLUGIN.search(content):
                self._add_listed(f"{target_folder}/{path.parent.name}", file, content)
        return f"{PROJECT}/{target_folder}/{path.relative_to(base)}"

    def _add_listed(self, target_folder: str, source: Path, content: bytes) -> None:
        """Add the node list that a cluster's inventory `source` names in its option `expected`. `content`: of `source`;
        `target_folder`: path below PROJECT."""
        document = yaml_file.parse(source, content.decode("utf-8", "replace"), yaml_file.AnyTagLoader)
        expected = document.get("expected") if isinstance(document, dict) else None
        if isinstance(expected, str) and (listed := source.parent / expected).is_file():
            relative = os.path.relpath(listed, source.parent)
            if relative.startswith(".."):
                raise PodSettingsError(f"{source}: expected: {expected} is outside of its folder: move it there")
            self._add_file(f"{target_folder}/{relative}", listed, self._content(listed))

    def add_settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Add the files that settings name. Returns those settings, with the files' paths in the pod."""
        changed: dict[str, Any] = {}
        for name in FILE_SETTINGS:
            value = values.get(name)
            if not value or isinstance(value, Mapping):
                continue
            paths = [value] if isinstance(value, str) else list(value)
            moved = [self._add_path(f"files/{name}/{number}", str(path)) for number, path in enumerate(paths, 1)]
            changed[name] = moved[0] if isinstance(value, str) else moved
        return changed

    def _add_path(self, target_folder: str, setting_path: str) -> str:
        path = project_path(setting_path)
        files = list(_below(path)) if path.is_dir() else [path]
        for file in files:
            self._add_file(f"{target_folder}/{file.relative_to(path.parent)}", file, self._content(file))
        return f"{PROJECT}/{target_folder}/{path.name}"

    def _content(self, file: Path) -> bytes:
        try:
            return file.read_bytes()
        except OSError as error:
            raise PodSettingsError(f"{file} cannot be read: {reason_of(error)}") from None

    def _add_file(self, path: str, file: Path, content: bytes) -> None:
        """Add a file. Files that other users may not read, and decrypted Ansible Vault files, go into the Secret."""
        is_vault = content.startswith(_VAULT)
        if is_vault:
            content = self.decrypt(str(file)).encode()
        self.add(path, content, is_secret=is_vault or not file.stat().st_mode & 0o044)
        if sum(map(len, self.by_kind.values())) > MAX_FILES:
            raise PodSettingsError(f"more than {MAX_FILES} files at {file.parent}: name the inventory itself")


def _below(folder: Path) -> Iterator[Path]:
    """The files below a folder, without hidden files, caches and backups."""
    for root, below, names in os.walk(folder, followlinks=True):
        below[:] = sorted(name for name in below if not name.startswith((".", "__pycache__")))
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(("~", ".pyc")):
                yield Path(root) / name
