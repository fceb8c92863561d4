"""Paths of the collection and its data, its version, and the folder that relative paths of settings start at."""

import functools
import os
import re
from pathlib import Path

#: Root folder of the collection that this code belongs to.
INSTALLED = Path(__file__).resolve().parents[3]
#: Root folder of data files; another one in a process that judges with the data of an evidence bundle.
COLLECTION = INSTALLED
ROLES = COLLECTION / "roles"
#: The package of the collection's plugins.
PLUGINS = "ansible_collections.gpuval.fleet.plugins"
#: Configuration of Ansible for a whole machine. The container image `validate` has its own there.
SYSTEM_CONFIG = Path("/etc/ansible/ansible.cfg")


def use_data_of(folder: Path) -> None:
    """Read data files from another folder than the collection's, before modules with paths are imported."""
    global COLLECTION, ROLES
    COLLECTION, ROLES = folder, folder / "roles"


@functools.cache
def version() -> str:
    """The collection's version: from MANIFEST.json if it is installed, else from galaxy.yml."""
    file = next(path for name in ("MANIFEST.json", "galaxy.yml") if (path := COLLECTION / name).exists())
    text = re.search(r'^\s*"?version"?: "?([^\s",]+)', file.read_text(encoding="utf-8"), re.MULTILINE)
    return text[1] if text else "unknown"


def expand_user(path: str) -> Path:
    """The path with its leading ``~`` expanded, unless the user is unknown."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises RuntimeError for an unknown user


def project_path(path: str | Path) -> Path:
    """The path made absolute. A relative one starts at the folder of the ``ansible.cfg`` in use, or at the current
    folder if that is the system's. So ``results/`` is one folder, whichever directory a playbook is started from."""
    expanded = Path(path).expanduser()
    if expanded.is_absolute():
        return expanded
    from ansible import constants  # noqa: PLC0415 - commands without Ansible have absolute paths

    config = constants.CONFIG_FILE
    base = Path(config).resolve().parent if config and Path(config) != SYSTEM_CONFIG else Path.cwd()
    return base / expanded
