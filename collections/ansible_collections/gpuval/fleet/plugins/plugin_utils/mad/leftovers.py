"""The folders of jobs, build contexts and clones that ``make mad`` leaves below the state folder."""

from __future__ import annotations

import shutil
from pathlib import Path


def remove(state_dir: Path, before: float) -> int:
    """Remove those that were last written before a moment; returns how many. A command at work writes its own."""
    place = state_dir / "mad"
    old = [one for one in place.iterdir() if one.stat().st_mtime < before] if place.is_dir() else []
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
    return len(old)
