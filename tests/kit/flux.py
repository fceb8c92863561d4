"""A scheduler of an extension: the package that ships for Slurm, with name, title and classes of another."""

import re
import shutil
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils import slurm


def write_flux(folder):
    """Write ``schedulers/flux`` into the folder of an extension. Returns the folder."""
    copy = folder / "schedulers/flux"
    shutil.copytree(Path(slurm.__path__[0]), copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.iterdir():
        text = re.sub(r"(?<![\w.])slurm_(?!arguments|nodes)(?=[a-z])", "flux_", path.read_text())
        path.write_text(text)
    text = (copy / "scheduler.py").read_text().replace('name = "slurm"', 'name = "flux"').replace('"Slurm"', '"Flux"')
    (copy / "scheduler.py").write_text(text)
    (copy / "__init__.py").write_text("from .scheduler import SlurmScheduler\n")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder
