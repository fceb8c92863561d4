"""The folders of jobs, build contexts and clones that ``make mad`` leaves below the state folder."""

from __future__ import annotations

import shutil
from pathlib import Path


def remove(state_dir: Path, before: float) -> int:
    """Remove those that were last written before a moment; returns how many. A command at work writes its own."""
    root = state_dir / "mad"
    old = [path for path in root.iterdir() if path.stat().st_mtime < before] if root.is_dir() else []
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
    return len(old)
