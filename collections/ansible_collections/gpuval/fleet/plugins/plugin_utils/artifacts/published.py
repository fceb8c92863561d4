"""Images that the release of this collection published, by vendor."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ..core import yaml_file
from ..core.paths import COLLECTION

FILE = COLLECTION / "images/published.yml"


@functools.cache
def read(path: Path = FILE) -> dict[str, Any]:
    """Return gpuval.published/1; images of a checkout were not published."""
    return yaml_file.shipped(path, "published")


def images(vendor: str) -> dict[str, dict[str, str]]:
    """Return the entries of `gpuval_images` for nodes of a vendor; none where no image is known."""
    return {name: {"reference": reference} for name, reference in read()["vendors"].get(vendor, {}).items()}
