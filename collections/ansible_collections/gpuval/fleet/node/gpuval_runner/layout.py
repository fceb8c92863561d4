"""Paths in a node directory ``<base>/<run_id>/<node>/``, and of the running program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

STAGE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
KINDS = {"records": ".json", "logs": ".log", "series": ".json"}
#: Name of the file that marks a model cache as created by gpuval: clean removes only such a cache.
CACHE_MARK = ".gpuval-cache"
#: Prefix of a dataset's folder in the model cache; the dataset's name follows.
DATASET_FOLDER = "datasets--gpuval--"
#: Folder in containers and pods with the datasets of their stage, read-only.
DATASETS_INSIDE = Path("/opt/gpuval/datasets")


class NodeDirectory:
    """The files of one run on one node, below `root`; plan, store file and programs are in `source` if it is given."""

    def __init__(self, root: Path, source: Optional[Path] = None) -> None:
        self.root = root
        self.base = root.parent.parent  #: directory of all runs on this machine
        self.models = self.base / "models"  #: the model cache of all runs, unless a plan names another
        self.images = self.base / "images"  #: archives of container images, shared by all runs
        self.known_images = self.images / "known.json"  #: the engine's id of an image, by the image's id in the plan
        self.undo = root / "undo"  #: a file for each change outside this directory, which clean undoes
        self.source = source or root
        self.plan = self.source / "plan.json"
        self.store = self.source / "store.json"
        self.runner = self.source / "runner.pyz"
        self.workloads = self.source / "workloads.zip"
        self.lock = root / "lock"
        self.state = root / "state.json"
        self.cancel = root / "cancel"
        self.uploaded = root / "uploaded.json"  #: `{result key: SHA-256}` of the results that the store has
        self.runner_log = root / "runner.log"
        self.runner_environment = root / "environment.json"  #: variables of a runner under systemd

    def result(self, key: str) -> Path:
        """Return the result file of a key such as ``records/facts``."""
        kind, _, stage = key.partition("/")
        return self.root / kind / f"{stage}{KINDS[kind]}"

    def record(self, stage: str) -> Path:
        return self.result(f"records/{stage}")

    def secrets(self, stage: str) -> Path:
        """Return the path of the file with a stage's secrets, which is removed when the stage ends."""
        return self.root / "secrets" / f"{stage}.json"

    def work(self, stage: str) -> Path:
        return self.root / "work" / stage

    def result_keys(self, *kinds: str) -> list[str]:
        """Return the keys of all existing results of these kinds (none given: of all kinds), records first."""
        paths = (path for kind in kinds or KINDS for path in sorted((self.root / kind).glob(f"*{KINDS[kind]}")))
        return [f"{path.parent.name}/{path.stem}" for path in paths if STAGE_NAME.fullmatch(path.stem)]

    def make(self) -> None:
        """Create the folders for results."""
        for kind in (*KINDS, "work"):
            (self.root / kind).mkdir(mode=0o700, parents=True, exist_ok=True)


def own_archive() -> Optional[Path]:
    """Return the path of the zip application that this code runs from; None when it runs from plain files."""
    archive = getattr(globals()["__loader__"], "archive", "")  # set if this module comes from a zip
    return Path(archive).resolve() if archive else None
