"""The folder of the collection, and where relative paths of a project stand."""

from __future__ import annotations

import os
from pathlib import Path

from ansible import constants

COLLECTION = Path(__file__).resolve().parents[3]
ROLES = COLLECTION / "roles"


def expand_user(path: str) -> Path:
    """A path with its ``~`` expanded; that of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises RuntimeError for an unknown user


def project_path(path: str | Path) -> Path:
    """An absolute path; a relative one starts at the folder of the ``ansible.cfg`` in use, else at the current one.

    So ``results/`` is one folder, whichever directory a playbook is started from.
    """
    expanded = Path(path).expanduser()
    if expanded.is_absolute():
        return expanded
    config = constants.CONFIG_FILE
    base = Path(config).resolve().parent if config else Path.cwd()
    return base / expanded
