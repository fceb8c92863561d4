"""Name pushed images by digest in the files of variables of an inventory."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..artifacts import registry_images
from ..core import files as core_files
from ..core.errors import SettingError, reason_of
from ..core.step_options import StepOptions
from ..runs.action import RunAction


class DeclareImagesOptions(StepOptions):
    #: Entries of `gpuval_images` by name, as pushing returns them.
    images: Mapping[str, Any]
    #: Paths of the files of variables that name them.
    files: Sequence[str]


def declare_images(action: RunAction, options: DeclareImagesOptions) -> dict[str, Any]:
    references = {name: str(entry["reference"]) for name, entry in options.images.items()}
    changed = []
    for file in options.files:
        path = Path(file).resolve()  # a link stays one
        try:
            before = path.read_bytes().decode("utf-8") if path.exists() else "---\n"
            after = registry_images.with_references(path, before, references)
            if after != before:
                path.parent.mkdir(parents=True, exist_ok=True)
                core_files.replace(path, after.encode(), path.stat().st_mode & 0o777 if path.exists() else None)
                changed.append(file)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{file} cannot be changed: {reason_of(error)}") from None
        shown = os.path.relpath(path) if Path.cwd() in path.parents else file
        action.display.display(f"{shown}: gpuval_images {'now names' if after != before else 'names'} them by digest")
    return {"changed": bool(changed), "files": changed}
