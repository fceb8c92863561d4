"""The folder of the collection, and where relative paths of a project stand."""

from __future__ import annotations

from pathlib import Path

from ansible import constants

COLLECTION = Path(__file__).resolve().parents[3]
ROLES = COLLECTION / "roles"


def project_path(path: str) -> Path:
    """An absolute path; a relative one starts at the folder of the ``ansible.cfg`` in use, else at the current one.

    So ``results/`` is one folder, whichever directory a playbook is started from.
    """
    expanded = Path(path).expanduser()
    if expanded.is_absolute():
        return expanded
    config = constants.CONFIG_FILE
    base = Path(config).resolve().parent if config else Path.cwd()
    return base / expanded
