"""The stage ``image``: brings the container images of a plan to this node, from the store or a registry, and checks
their ids. One run at a time does so: an image of two runs is downloaded and loaded once."""

from __future__ import annotations

import math
import re
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuval_node.engines import engine_types, plain, select
from gpuval_node.engines._engine import NO_IMAGE, ContainerEngine, EngineError, LocalImage
from gpuval_node.hardware.tools import run_bounded

from gpuval_runner import download, lock
from gpuval_runner import plan as plans
from gpuval_runner.containers import brought
from gpuval_runner.containers.brought import find_image, is_image, known_ids
from gpuval_runner.errors import LockHeldError, RunnerError
from gpuval_runner.files import to_json, write_atomically, write_result
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import Archive, Image
from gpuval_runner.result import RecordMetric
from gpuval_runner.store import load_store
from gpuval_runner.text import one_line

#: Bytes that an engine needs for each byte of an archive while it unpacks and stores it.
STORAGE_FACTOR = 2.2
LEAST_FREE_BYTES = 256 << 20
PROGRESS_SECONDS = 5.0
DEFAULT_SECONDS = 3600.0
SLACK_SECONDS = 5.0
STAGE = "image"
HERE, LOADED, PULLED = "already here", "loaded from the archive", "pulled"


class ImageError(RunnerError):
    """An image is not on the node as planned; the message says what to do. `fault` is the class of the failure if
    the node is not to blame, else empty."""

    def __init__(self, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.fault = fault


#: The fault of an image that cannot be fetched or does not fit this node. With `NO_IMAGE` a retry is no use.
DELIVERY = "delivery"
#: Messages of registries and engines: the image does not exist, or not for this node's architecture.
_NO_IMAGE = re.compile(
    r"manifest (?:for \S+ )?(?:unknown|not found)|name unknown|repository .*does not exist|unauthorized"
    r"|access (?:to the resource is )?denied|short-name|invalid reference",
    re.IGNORECASE,
)
#: Messages of engines for a fault of the registry, or of the network path to the registry.
_REGISTRY = re.compile(
    r"not found|does not exist|authentication|(?<!permission )denied: |toomanyrequests|rate limit|no such host"
    r"|dial tcp|lookup |connection re(?:fused|set)|i/o timeout|timeout exceeded|pinging container registry"
    r"|TLS handshake|x509|5\d\d (?:bad|service|gateway|internal)|deadline exceeded|HTTPS client",
    re.IGNORECASE,
)
#: Messages of engines for a fault of the node.
_NODE = re.compile(r"no space left|docker daemon|podman socket|failed to register layer", re.IGNORECASE)
_PULL_FAULTS = ((_NODE, ""), (_NO_IMAGE, NO_IMAGE), (_REGISTRY, DELIVERY))
_LOADED = re.compile(r"^Loaded image(?:\(s\))?(?: ID)?: *(.+?)\s*$", re.MULTILINE)


def bring_images(directory: NodeDirectory) -> int:
    """Bring all images of a plan and write the stage's result. Returns 0, or 1 if an image is missing or wrong."""
    bringer = ImageBringer(directory)
    state, fault = "success", {}
    try:
        message = bringer.bring()
    except (RunnerError, EngineError) as error:
        state, message = "running", str(error)  # not final: a missing image proves nothing about the node
        fault = {"fault": error.fault} if isinstance(error, ImageError) and error.fault else {}
    except OSError as error:
        where = error.filename or directory.images
        state, message = "running", f"{where}: {error.strerror or error}: make room on the node"
    environment = {"images": bringer.environment, **fault}
    write_result({"state": state, "message": message, "metrics": bringer.metrics(), "environment": environment})
    print(message, flush=True)
    return 0 if state == "success" else 1


class ImageBringer:
    """Brings the images of a plan to the node; counts bytes and seconds of downloads and loads."""

    def __init__(self, directory: NodeDirectory) -> None:
        self._directory = directory
        self._began = time.monotonic()
        self._deadline = math.inf
        self._reported = 0.0
        self._downloaded_bytes = self._archive_bytes = 0
        self._download_seconds = self._load_seconds = 0.0
        #: Origin of each image (already here, loaded or pulled), by its reference.
        self._origins: dict[str, str] = {}
        #: For the stage's record: the container engine, and the id of each image by its reference.
        self.environment: dict[str, Any] = {}

    def metrics(self) -> list[RecordMetric]:
        metrics = [
            ("image_duration_seconds", time.monotonic() - self._began, "seconds"),
            ("image_bytes", self._downloaded_bytes, "bytes"),
            ("image_archive_bytes", self._archive_bytes, "bytes"),
            ("image_load_duration_seconds", self._load_seconds, "seconds"),
        ]
        if self._downloaded_bytes and self._download_seconds > 0:
            metrics.append(("image_bytes_per_second", self._downloaded_bytes / self._download_seconds, "bytes/s"))
        return [{"name": name, "value": value, "unit": unit, "scope": "node"} for name, value, unit in metrics]

    def bring(self) -> str:
        """Bring all images; returns what was done, in words. Raises ``RunnerError``, ``EngineError`` or ``OSError``."""
        plan = plans.load(self._directory.plan)
        if not plan.images:
            return "the plan has no images"
        limits = [stage.timeout_seconds for stage in plan.stages if stage.name == STAGE and stage.timeout_seconds]
        seconds = min([*limits, plan.deadline_seconds]) if limits else DEFAULT_SECONDS
        self._deadline = self._began + max(1.0, seconds - SLACK_SECONDS)
        engine = select(plan.runtime if plan.runtime in engine_types() else "auto")
        self.environment["engine"] = f"{engine.name} {engine.facts.version}"
        images = plan.images.values()
        if not all(self._skip(engine, image) for image in images):
            self._directory.images.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                wait = max(1.0, self._seconds_left())
                images_lock = lock.take(self._directory.images / "lock", wait, run_id=plan.run_id)
            except LockHeldError as error:
                raise ImageError(f"another run still brings images to this node: {error}") from None
            with images_lock:
                for image in images:
                    if not self._skip(engine, image):
                        self._bring(engine, image)
        numbers = Counter(self._origins.values())
        counted = (f"{numbers[origin]} {origin}" for origin in (HERE, LOADED, PULLED) if numbers[origin])
        return f"images: {', '.join(counted)}"

    def _seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def _skip(self, engine: ContainerEngine, image: Image) -> bool:
        """Whether the image is on the node already; if so, gives it its reference and records its id."""
        present, tagged = find_image(engine, image.reference, image.id or "", self._directory)
        if present is None or (image.id and not is_image(present, image.id, self._directory)):
            return False
        if present is not tagged:
            if tagged is not None:
                brought.note(self._directory, engine.command, image, tagged.id, named=True)
            self._name(engine, present, image)
        self._origins[image.reference] = HERE
        self._record(engine, present, image)
        return True

    def _record(self, engine: ContainerEngine, local_image: LocalImage, image: Image) -> None:
        """Record an image's id for the stage's result. Raises ``ImageError`` if the image does not fit this node."""
        if unfit := engine.unfit(local_image, image.reference):
            raise ImageError(unfit, DELIVERY)
        self.environment[image.reference] = local_image.id

    def _bring(self, engine: ContainerEngine, image: Image) -> None:
        if image.archive or image.pull:
            before = engine.image(image.reference)
            brought.note(self._directory, engine.command, image, before.id if before else None)
        if image.archive:
            self._from_archive(engine, image, image.archive)
            self._origins[image.reference] = LOADED
        elif not image.pull:
            raise ImageError(
                f"{image.reference} is not on this node, where it should have been built, and no registry has it: "
                "build it there (gpuval.fleet.build), or give nodes the image through the store",
                NO_IMAGE,
            )
        else:
            self._pull(engine, image)
            self._origins[image.reference] = PULLED
        brought.note_id(self._directory, image.reference, self.environment[image.reference])

    def _from_archive(self, engine: ContainerEngine, image: Image, archive: Archive) -> None:
        path = self._directory.images / f"{archive.sha256}.tar"
        self._archive_bytes += archive.bytes
        self._check_room(engine, archive, path)
        if not self._is_whole(path, archive):
            self._download(path, image, archive)
        began = time.monotonic()
        loaded, output = self._watch([engine.command, "load", "--input", str(path)], f"loads {image.reference}")
        if not loaded:
            if re.search("no space left|disk quota", output, re.IGNORECASE):
                text = f"{engine.command} has no room for the image: make room under {engine.facts.storage}"
                raise ImageError(text, "disk_full")
            raise ImageError(f"{engine.command} cannot load {path.name}: {_end(output)}")
        self._load_seconds += time.monotonic() - began
        local_image = engine.image(image.id) if image.id else None
        local_image = local_image or self._image_of_archive(engine, image, path, loaded_names(output))
        mismatch = f"the archive {path.name} gave image {local_image.id[:19]} for {image.reference}, but the plan names"
        self._accept(engine, image, local_image, f"{mismatch} {(image.id or '')[:19]}: build and load the image anew")
        path.unlink(missing_ok=True)

    def _is_whole(self, path: Path, archive: Archive) -> bool:
        """Whether the archive is on the node and complete; a corrupted archive is removed."""
        if path.is_symlink() or not path.is_file():
            return False
        if path.stat().st_size == archive.bytes:
            report(f"checks {path.name}, which is here already")
            if download.hash_of(path, self._progress("checked", archive.bytes)).hexdigest() == archive.sha256:
                return True
        path.unlink()
        report(f"{path.name} was here but corrupted and was removed")
        return False

    def _download(self, path: Path, image: Image, archive: Archive) -> None:
        store = load_store(self._directory.store)
        url = store.downloads.get(archive.key) if store else None
        if not url or not store:
            raise ImageError(
                f"the archive of {image.reference} is not on the node and no signed URL for it was given: "
                "put the image into the store (gpuval.fleet.load), or bring it over SSH",
                DELIVERY,
            )
        if store.expired(url):
            raise ImageError(f"the signed URL for {image.reference} has expired: launch the run again", DELIVERY)
        report(f"downloads {image.reference}, {_size(archive.bytes)}")
        began = time.monotonic()
        part, progress = path.with_name(f"{path.name}.part"), self._progress("downloaded", archive.bytes)
        try:
            self._downloaded_bytes += download.download(
                url, path, archive, self._deadline, ca_file=store.ca_file, progress=progress
            )
        except download.DownloadError as error:
            raise ImageError(f"image {image.reference}: {error}", "store_away") from None
        except OSError as error:
            raise ImageError(f"image {image.reference}: {part}: {error.strerror}: make room on the node") from None
        self._download_seconds += time.monotonic() - began

    def _check_room(self, engine: ContainerEngine, archive: Archive, path: Path) -> None:
        """Check that the disks have room for the archive to download and load. Raises ``ImageError``."""
        present_bytes = sum(p.stat().st_size for p in (path, path.with_name(f"{path.name}.part")) if p.is_file())
        need: dict[int, tuple[Path, float]] = {}
        places = [(path.parent, float(max(0, archive.bytes - present_bytes)))]
        if engine.facts.storage:
            places.append((engine.facts.storage, archive.bytes * STORAGE_FACTOR))
        for folder, size in places:
            try:
                device = folder.stat().st_dev
            except OSError:
                continue  # this user may not read the folder
            need[device] = (folder, need.get(device, (folder, 0.0))[1] + size)
        for folder, size in need.values():
            free = shutil.disk_usage(folder).free
            if free < size + LEAST_FREE_BYTES:
                raise ImageError(
                    f"no room for an image of {_size(archive.bytes)}: {folder} has {_size(free)} free and "
                    f"{_size(size + LEAST_FREE_BYTES)} are needed: make room there",
                    "disk_full",
                )

    def _accept(self, engine: ContainerEngine, image: Image, local_image: LocalImage, mismatch: str) -> None:
        """Check the id of a new image, and tag it. Raises ``ImageError``, with the text `mismatch` for a wrong id."""
        if image.id and local_image.id != image.id:
            if not engine.facts.containerd_images:  # containerd gives images ids of its own
                raise ImageError(mismatch, DELIVERY)
            self._directory.images.mkdir(mode=0o700, parents=True, exist_ok=True)
            ids = {**known_ids(self._directory), image.id: local_image.id}
            write_atomically(self._directory.known_images, to_json(ids))
        self._name(engine, local_image, image)
        self._record(engine, local_image, image)

    def _image_of_archive(self, engine: ContainerEngine, image: Image, path: Path, loaded: Sequence[str]) -> LocalImage:
        """Return the image that the engine loaded from an archive: its reference may still name an older image."""
        names = [name for name in loaded if plain(name) == plain(image.reference)] or loaded
        local_image = engine.image(names[0]) if len(names) == 1 else None
        if local_image is None and not loaded and not engine.facts.containerd_images:  # the caller checks the id
            local_image = engine.image(image.reference)
        if local_image is None:
            raise ImageError(
                f"the archive {path.name} was loaded but holds no image {image.reference} "
                f"(it has {', '.join(loaded[:4]) or 'none that the engine names'}): build and load it anew",
                DELIVERY,
            )
        return local_image

    def _name(self, engine: ContainerEngine, local_image: LocalImage, image: Image) -> None:
        present = engine.image(image.reference)
        if "@" not in image.reference and (present is None or present.id != local_image.id):
            tagging = engine.ask("tag", local_image.id, image.reference)
            if tagging.returncode != 0:
                raise ImageError(f"{engine.command} cannot name the image {image.reference}: {_end(tagging.stderr)}")

    def _pull(self, engine: ContainerEngine, image: Image) -> None:
        if image.id and "@" not in image.reference:
            raise ImageError(
                f"the plan names {image.id[:19]} as {image.reference}, which is not on the node, and a tag may "
                "move in its registry: name the image by digest (name@sha256:...), or put it into the store "
                "(gpuval.fleet.load)",
                NO_IMAGE,
            )
        pulled, output = self._watch([engine.command, "pull", "--quiet", image.reference], f"pulls {image.reference}")
        if not pulled:
            remedy = "check the reference, its registry and the way to it, or give it an archive in gpuval_images"
            remedy = "make room on the node" if "no space left" in output.lower() else f"{remedy} (copy, archive)"
            fault = next((fault for pattern, fault in _PULL_FAULTS if pattern.search(output)), "")
            raise ImageError(f"{engine.command} cannot pull {image.reference}: {_end(output)}: {remedy}", fault)
        local_image = engine.image(image.reference)
        if local_image is None:
            raise ImageError(f"{engine.command} pulled {image.reference}, but does not find it")
        mismatch = f"{image.reference} came from its registry as {local_image.id[:19]}, but the plan names"
        self._accept(engine, image, local_image, f"{mismatch} {(image.id or '')[:19]}: correct one of the two")

    def _watch(self, argv: Sequence[str], task: str) -> tuple[bool, str]:
        """Run a long command of the engine, printing progress about `task`; returns its success and its output."""
        began, ended = time.monotonic(), threading.Event()

        def show_progress() -> None:
            while not ended.wait(2 * PROGRESS_SECONDS):
                report(f"{task}: {time.monotonic() - began:.0f} s so far")

        report(task)
        threading.Thread(target=show_progress, daemon=True).start()
        result = run_bounded(argv[0], list(argv), max(0.1, self._seconds_left()))
        ended.set()
        if result.timed_out:
            return False, f"not done after {time.monotonic() - began:.0f} s: give image_timeout_seconds more"
        output = "\n".join(filter(None, (result.stdout, result.stderr)))
        return result.ok, output or f"exit code {result.returncode}"

    def _progress(self, word: str, total: int) -> download.Progress:
        def show(count: int) -> None:
            present = time.monotonic()
            if present - self._reported >= PROGRESS_SECONDS:
                self._reported = present
                report(f"{word} {_size(count)} of {_size(total)}")

        return show


def loaded_names(output: str) -> list[str]:
    """Return the references that an engine reports as loaded, and the ids of images without a reference."""
    return [name.strip() for line in _LOADED.findall(output) for name in line.split(",") if name.strip()]


def report(text: str) -> None:
    """Print progress: without output the stage counts as stalled."""
    print(text, file=sys.stderr, flush=True)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _end(text: str) -> str:
    return one_line(text.strip()[-400:], 400)
