"""Paths in a node directory ``<base>/<run_id>/<node>/``, and of the running program."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

STAGE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
KINDS = {"records": ".json", "logs": ".log", "series": ".json"}


#: In a model cache that was made here: only such a cache is removed.
CACHE_MARK = ".gpuval-cache"


@dataclass(frozen=True)
class NodeDirectory:
    """The files of one run on one node."""

    root: Path

    @property
    def base(self) -> Path:
        """Directory of all runs on this machine."""
        return self.root.parent.parent

    @property
    def models(self) -> Path:
        """The model cache of all runs, unless a plan names another."""
        return self.base / "models"

    @property
    def images(self) -> Path:
        """Archives of images, of all runs."""
        return self.base / "images"

    @property
    def known_images(self) -> Path:
        """Under which id the engine knows the images that were loaded here."""
        return self.images / "known.json"

    @property
    def undo(self) -> Path:
        """What was changed outside this directory and has to be put back, a file for each part."""
        return self.root / "undo"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def store(self) -> Path:
        return self.root / "store.json"

    @property
    def rclone_config(self) -> Path:
        return self.root / "rclone.conf"

    @property
    def runner(self) -> Path:
        return self.root / "runner.pyz"

    @property
    def workloads(self) -> Path:
        return self.root / "workloads.zip"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def cancel(self) -> Path:
        return self.root / "cancel"

    @property
    def uploaded(self) -> Path:
        """What of the results the store already has: key to digest."""
        return self.root / "uploaded.json"

    @property
    def runner_log(self) -> Path:
        return self.root / "runner.log"

    @property
    def runner_environment(self) -> Path:
        """Environment for a runner whose starter cannot hand its own on."""
        return self.root / "environment.json"

    def result(self, key: str) -> Path:
        """Return the file of a key such as ``records/facts``."""
        kind, _, stage = key.partition("/")
        return self.root / kind / f"{stage}{KINDS[kind]}"

    def record(self, stage: str) -> Path:
        return self.result(f"records/{stage}")

    def log(self, stage: str) -> Path:
        return self.result(f"logs/{stage}")

    def series(self, stage: str) -> Path:
        return self.result(f"series/{stage}")

    def work(self, stage: str) -> Path:
        return self.root / "work" / stage

    def result_keys(self) -> list[str]:
        """Return the keys of all results that exist, records first."""
        keys = []
        for kind, suffix in KINDS.items():
            folder = self.root / kind
            names = sorted(p.name[: -len(suffix)] for p in folder.glob(f"*{suffix}")) if folder.is_dir() else []
            keys += [f"{kind}/{name}" for name in names if STAGE_NAME.fullmatch(name)]
        return keys

    def make(self) -> None:
        """Create the folders that results go to."""
        for kind in (*KINDS, "work"):
            (self.root / kind).mkdir(mode=0o700, parents=True, exist_ok=True)


def own_archive() -> Optional[Path]:
    """Return the zip application that this code runs from; None when it runs from plain files."""
    for parent in Path(__file__).resolve().parents:
        if parent.is_file():
            return parent if zipfile.is_zipfile(parent) else None
    return None
