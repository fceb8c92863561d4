"""Write the digests of pushed images into the variable files of an inventory."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..artifacts import registry_images
from ..core.errors import SettingError, reason_of
from ..core.files import replace
from ..runs.action import RunAction


def declare_images(action: RunAction, *, images: Mapping[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """`images`: {name: entry of gpuval_images}, as pushing returned them; `files`: variable files that name images."""
    references = {name: str(entry["reference"]) for name, entry in images.items()}
    changed = []
    for file in files:
        path = Path(file).resolve()  # resolved, so that a symbolic link stays one
        try:
            before = path.read_bytes().decode("utf-8") if path.exists() else "---\n"
            after = registry_images.with_references(path, before, references)
            if after != before:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace(path, after.encode(), path.stat().st_mode & 0o777 if path.exists() else None)
                changed.append(file)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{file} cannot be changed: {reason_of(error)}") from None
        shown = os.path.relpath(path) if Path.cwd() in path.parents else file
        action.display.display(f"{shown}: gpuval_images {'now names' if after != before else 'names'} them by digest")
    return {"changed": bool(changed), "files": changed}
