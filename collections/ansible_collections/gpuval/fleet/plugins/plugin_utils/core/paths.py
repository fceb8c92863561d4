"""The folder of the collection and its version, and where relative paths of a project stand."""

import functools
import os
import re
from pathlib import Path

#: The folder of this code.
INSTALLED = Path(__file__).resolve().parents[3]
#: The folder of the data files, which is another one where a process judges with the data of another release.
COLLECTION = INSTALLED
ROLES = COLLECTION / "roles"
#: The package of the collection's plugins.
PLUGINS = "ansible_collections.gpuval.fleet.plugins"
#: Of all projects of a machine; that of the image `validate` is there.
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
    """A path with its ``~`` expanded; that of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises RuntimeError for an unknown user


def project_path(path: str | Path) -> Path:
    """An absolute path; a relative one starts at the folder of the ``ansible.cfg`` in use, unless that is the system's,
    else at the current one. So ``results/`` is one folder, whichever directory a playbook is started from."""
    expanded = Path(path).expanduser()
    if expanded.is_absolute():
        return expanded
    from ansible import constants  # noqa: PLC0415 - a look at a run has absolute paths, and does without

    config = constants.CONFIG_FILE
    base = Path(config).resolve().parent if config and Path(config) != SYSTEM_CONFIG else Path.cwd()
    return base / expanded
