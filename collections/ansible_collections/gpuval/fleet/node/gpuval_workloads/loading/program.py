"""Loads one model or dataset: lists files, checks disk space, copies (timed), verifies."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuval_node.volumes import volume_of

from ..common.arguments import model_path, positive_int, required_variable, workload_parser
from ..common.result import WorkloadCrash, WorkloadFailure, WorkloadResult, run_workload
from ..common.units import human_bytes, human_rate, human_seconds
from . import manifest
from .rclone import CHUNK_SIZE, REMOTE, FullDiskError, Rclone, TransportError, find_rclone

EXIT_TRANSPORT = 3
#: Value of `fault` in a record's environment: the store is unreachable, which is no evidence about the node.
STORE_AWAY = "store_away"
NAMED_FILES = 5
PRELOAD = "run gpuval.fleet.validate again, which preloads it, or the role model_preload"

_PARTIAL = re.compile(r"\.[0-9a-f]{8}\.partial")


class IncompleteStoreError(WorkloadFailure):
    """The model is missing or incomplete in the store, which is no fault of the node."""

    fault = "store_incomplete"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return run_workload(lambda result: load_or_exit(options, os.environ, result))


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = workload_parser("loading", __doc__)
    loaded = parser.add_mutually_exclusive_group(required=True)
    loaded.add_argument("--model-folder", help="folder name below models, like models--org--name")
    loaded.add_argument("--dataset", default="", help="name of a dataset, which is made read-only")
    parser.add_argument("--overwrite", action="store_true", help="transfer what is already there, too")
    parser.add_argument("--transfers", type=positive_int, default=8, help="files at the same time (default 8)")
    streams = "streams of a large file"
    parser.add_argument("--multi-thread-streams", type=positive_int, default=4, dest="streams", help=streams)
    options = parser.parse_args(arguments)
    if options.dataset:
        options.model_folder = f"{manifest.DATASET_FOLDER}{options.dataset}"
    return options


def load_or_exit(options: argparse.Namespace, environ: Mapping[str, str], result: WorkloadResult) -> None:
    """Load the model or dataset. A store that cannot be read ends the program with code 3 and no verdict."""
    try:
        load(options, environ, result)
    except TransportError as error:
        result.environment["fault"] = STORE_AWAY
        result.report(str(error))
        raise SystemExit(EXIT_TRANSPORT) from error


def load(options: argparse.Namespace, environ: Mapping[str, str], result: WorkloadResult) -> None:
    """Load the model or dataset and fill `result`. Raises ``WorkloadFailure`` for an empty or incomplete source, for
    wrong checksums and for faults of a volume of the site, ``WorkloadCrash`` for a full disk, ``TransportError`` when
    the store cannot be read."""
    folder = model_path(environ, options.model_folder)
    source = f"{REMOTE}:{required_variable(environ, 'GPUVAL_MODELS_PREFIX').strip('/')}/{options.model_folder}"
    rclone = Rclone(find_rclone(environ), Path(required_variable(environ, "GPUVAL_RCLONE_CONFIG")))
    result.environment = {
        "model_folder": options.model_folder,
        "transfers": options.transfers,
        "multi_thread_streams": options.streams,
        "chunk_size": CHUNK_SIZE,
    }
    try:
        ModelLoad(options, rclone, source, folder, result).run()
    except (OSError, WorkloadFailure, WorkloadCrash) as error:
        volume = volume_of(folder)
        fault = volume.fault_in(str(error)) if getattr(error, "fault", "") in ("", "environment") else ""
        if not fault:
            raise
        raise WorkloadFailure(f"{volume.name}: {error}", fault=fault) from error


@dataclass
class ModelLoad:
    """One loading of a model: from ``source`` (rclone's notation) to the local ``folder``."""

    options: argparse.Namespace
    rclone: Rclone
    source: str
    folder: Path
    result: WorkloadResult

    @property
    def what(self) -> str:
        return f"dataset {self.options.dataset}" if self.options.dataset else "model"

    def run(self) -> None:
        options, folder, result = self.options, self.folder, self.result
        result.report(f"looking for {options.model_folder} in the store")
        listing = self.rclone.list_files(self.source)
        digests = self._manifest(listing)
        if not options.dataset:  # bucket writers are not trusted to run code on nodes
            running = [path for path in digests if path.lower().endswith(manifest.RUNS_CODE)]
            _warn("can run code when they are read, not loaded", running)
            if len(running) == len(digests):
                only = f"only files that can run code ({_named(running)})"
                raise IncompleteStoreError(f"the {self.what} has {only}: {PRELOAD}")
            digests = {path: digest for path, digest in digests.items() if path not in running}
        result.add_metric("loading_files_count", len(digests), "count")

        if options.dataset and folder.is_symlink():  # other files behind the link would be deleted
            raise WorkloadFailure(f"{self.what}: {folder} is a link: remove it from the node")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise WorkloadFailure(
                f"the model cache {folder} cannot be made ({error.strerror}): set gpuval_models_dir to a folder that "
                "the node's user may write",
                fault="" if error.errno in (errno.EIO, errno.EROFS) else "environment",
            ) from error
        if options.dataset:
            _allow_writing(folder, allowed=True)
        _remove_partials(folder, digests)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        local = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
        unlisted = local.keys() - digests.keys() - {manifest.NAME}
        if options.dataset:  # programs may read the whole folder
            self._unlink(unlisted)
        else:
            _warn("on the node but not in SHA256SUMS, left alone", unlisted)

        sizes = {path: listing[path] for path in sorted(digests)}
        candidates = [] if options.overwrite else [path for path, size in sizes.items() if local.get(path) == size]
        verify_seconds, actual = self._hash(candidates)
        present = {path: sizes[path] for path in candidates if actual.get(path) == digests[path]}
        todo = {path: size for path, size in sizes.items() if path not in present}
        self._unlink(todo)

        seconds = 0.0
        if todo:
            seconds = self._transfer(todo)
            more_seconds, actual = self._hash(list(todo))
            verify_seconds += more_seconds
        else:
            result.add_metric("loading_bytes", sum(present.values()), "bytes")
        result.add_metric("loading_verify_seconds", verify_seconds, "seconds")
        wrong = {path: actual.get(path) for path in todo if actual.get(path) != digests[path]}
        healed = self._load_again(wrong, digests, todo) if wrong else []
        result.add_metric("loading_checksum_errors_count", 0, "count")
        result.add_metric("loading_transfer_errors_count", len(healed), "count")
        if options.dataset:
            _allow_writing(folder, allowed=False)
        result.message = _summary(todo, present, seconds, result.environment.get("transfer_retries", 0))
        if healed:
            result.message += f"; arrived damaged and was loaded again: {_named(healed)}"
        print(result.message, flush=True)

    def _manifest(self, listing: Mapping[str, int]) -> Mapping[str, str]:
        """Return the model's manifest. Raises ``IncompleteStoreError`` if the store lacks the model or a part."""
        name, sums = self.options.model_folder, manifest.NAME
        if not listing:
            raise IncompleteStoreError(f"the store has no {self.what} under {self.source}: {PRELOAD}")
        if sums not in listing:
            files = f"{len(listing)} files but no {sums}"
            raise IncompleteStoreError(f"{name} in the store has {files}, so its upload never ended: {PRELOAD}")
        if listing[sums] > manifest.MAX_BYTES:
            raise IncompleteStoreError(f"{sums} of {name} is {human_bytes(listing[sums])} long: {PRELOAD}")
        try:
            digests = manifest.parse(self.rclone.read_text(self.source, sums))
        except manifest.ModelManifestError as error:
            raise IncompleteStoreError(f"{sums} of {name} in the store cannot be used: {error}; {PRELOAD}") from error
        missing = digests.keys() - listing.keys()
        if missing:
            raise IncompleteStoreError(f"{name} in the store lacks {_named(missing)}: {PRELOAD}")
        _warn("in the store but not in SHA256SUMS, not loaded", listing.keys() - digests.keys() - {sums})
        return digests

    def _transfer(self, todo: Mapping[str, int]) -> float:
        """Copy the files in `todo` (bytes by path); return the seconds."""
        result, needed, free = self.result, sum(todo.values()), shutil.disk_usage(self.folder).free
        if needed > free:
            raise self._full_disk(needed, free)
        result.report(f"transferring {len(todo)} files, {human_bytes(needed)}")

        def report(statistics: Mapping[str, Any]) -> None:
            count = min(statistics["bytes"], needed)  # rclone counts a restarted file again
            result.add_metric("loading_bytes", count, "bytes")
            rate = human_rate(statistics["speed"])
            amount = f"{human_bytes(count)} of {human_bytes(needed)}"
            result.report(f"transferred {amount}, {statistics['transfers']} of {len(todo)} files, {rate}")

        started = time.monotonic()
        retries = self._copy(todo, report)
        seconds = time.monotonic() - started
        result.environment["transfer_retries"] = retries
        result.add_metric("loading_bytes", needed, "bytes")
        result.add_metric("loading_duration_seconds", seconds, "seconds")
        result.add_metric("loading_bytes_per_second", needed / seconds, "bytes/s")
        return seconds

    def _copy(self, sizes: Mapping[str, int], report: Callable[[Any], None] = lambda _statistics: None) -> int:
        """Copy files and return the number of interruptions. Raises ``WorkloadCrash`` for a full disk."""
        self.result.environment["fault"] = STORE_AWAY  # stays if the runner ends the stage at its limit
        try:
            options = {"transfers": self.options.transfers, "streams": self.options.streams}
            return self.rclone.copy(self.source, self.folder, sizes, **options, report=report)
        except FullDiskError as error:
            _remove_partials(self.folder, sizes)
            raise self._full_disk(sum(sizes.values()), shutil.disk_usage(self.folder).free) from error
        finally:
            del self.result.environment["fault"]

    def _hash(self, paths: Sequence[str]) -> tuple[float, dict[str, str]]:
        """Return the seconds that hashing took, and the SHA-256 of the files that exist, by path."""
        if not paths:
            return 0.0, {}
        self.result.report(f"verifying {len(paths)} files in {self.folder}")
        started = time.monotonic()
        try:
            digests = manifest.hash_files(
                self.folder, paths, lambda count: self.result.report(f"verified {human_bytes(count)}")
            )
        except OSError as error:
            raise WorkloadFailure(
                f"a file of the {self.what} cannot be read back from {self.folder} ({error.strerror or error}): look "
                "at the node's disk and its kernel log, then validate it again"
            ) from error
        return time.monotonic() - started, digests

    def _load_again(
        self, wrong: Mapping[str, str | None], digests: Mapping[str, str], sizes: Mapping[str, int]
    ) -> list[str]:
        """Copy files with a wrong digest again, to find what damaged them; return those that are right now. Raises
        ``WorkloadFailure`` for files that the node damaged, ``IncompleteStoreError`` for files that are wrong in the
        store, ``TransportError`` if each try brings other bytes."""
        self.result.report(f"loading again what does not match {manifest.NAME}: {_named(wrong)}")
        _, second_digests = self._hash([path for path, digest in wrong.items() if digest])
        sent = {path: self.rclone.digest(self.source, path) for path, digest in wrong.items() if digest}
        self._unlink(wrong)
        right = [path for path, digest in sent.items() if digest == digests[path]]
        if right:
            self._copy({path: sizes[path] for path in right})
        _, second = self._hash(right)
        origins: dict[str, list[str]] = defaultdict(list)
        for path, digest in wrong.items():
            later = (second_digests.get(path), sent.get(path), second.get(path))
            origins[manifest.origin_of(digests[path], digest, *later)].append(path)
        self._unlink({*wrong} - {*origins[manifest.HEALED]})
        if origins[manifest.NODE]:
            self.result.add_metric("loading_checksum_errors_count", len(origins[manifest.NODE]), "count")
            raise WorkloadFailure(
                f"{self.what}: wrong checksum: {_named(origins[manifest.NODE])} arrived right and was read back wrong, "
                "and was deleted from the node: check the node's memory (ECC counters) and its disk"
            )
        if origins[manifest.STORE]:
            raise IncompleteStoreError(
                f"{self.what}: the store sends {_named(origins[manifest.STORE])} with other bytes than {manifest.NAME} "
                "has: upload it again (-e model_preload_force=true)"
            )
        if origins[manifest.NETWORK]:
            raise TransportError(
                f"the store cannot be read: {_named(origins[manifest.NETWORK])} came with other bytes each time: check "
                "proxies and network cards between the node and the store"
            )
        return origins[manifest.HEALED]

    def _unlink(self, paths: Collection[str]) -> None:
        for path in paths:
            (self.folder / path).unlink(missing_ok=True)

    def _full_disk(self, needed_bytes: int, free_bytes: int) -> WorkloadCrash:
        needed, free = human_bytes(needed_bytes), human_bytes(free_bytes)
        what = f"the {self.what} needs {needed} in {self.folder} and {free} is free"
        return WorkloadCrash(f"disk full: {what}: make room, or set gpuval_models_dir")


def _summary(todo: Mapping[str, int], present: Mapping[str, int], seconds: float, retries: int) -> str:
    verified = f"{len(present)} files, {human_bytes(sum(present.values()))}, already present and verified"
    if not todo:
        return verified
    size = sum(todo.values())
    loaded = f"{human_bytes(size)} in {human_seconds(seconds)}: {human_rate(size / seconds)}"
    if retries:
        loaded += f", {retries} interruptions of the store included"
    return f"{loaded}; {verified}" if present else loaded


def _allow_writing(folder: Path, *, allowed: bool) -> None:
    """Make a dataset read-only for all users except root, or writable for its owner, and remove links. Files of another
    user, or on a file system without modes, stay as they are."""
    for where, folders, names in os.walk(folder):
        with contextlib.suppress(OSError):
            Path(where).chmod(0o755 if allowed else 0o555)
        for path in (Path(where, name) for name in (*folders, *names)):
            with contextlib.suppress(OSError):
                if path.is_symlink():
                    path.unlink()
                elif not path.is_dir():
                    path.chmod(0o644 if allowed else 0o444)


def _remove_partials(folder: Path, expected: Mapping[str, object]) -> None:
    """Remove partial files of an interrupted rclone, `<file>.<8 hex digits>.partial`, for the expected files."""
    for path in folder.rglob("*.partial"):
        relative = path.relative_to(folder).as_posix()
        match = _PARTIAL.search(relative)
        if match and match.end() == len(relative) and relative[: match.start()] in expected:
            path.unlink()


def _warn(warning: str, paths: Collection[str]) -> None:
    if paths:
        print(f"warning: {warning}: {_named(paths)}", flush=True)


def _named(paths: Collection[str]) -> str:
    more = len(paths) - NAMED_FILES
    return ", ".join(sorted(paths)[:NAMED_FILES]) + (f" and {more} more" if more > 0 else "")
