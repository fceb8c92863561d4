"""``image``: brings the images of a plan to this node, from the store or a registry, and checks their ids.

One run at a time brings images to a node, so that an image of two runs is downloaded and loaded once.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuval_node.engines import engine_types, plain, select
from gpuval_node.engines._engine import NO_IMAGE, ContainerEngine, EngineError, LocalImage

from gpuval_runner import download
from gpuval_runner import plan as plans
from gpuval_runner.containers import brought
from gpuval_runner.containers.brought import engine_id, is_image, known_ids
from gpuval_runner.documents import RecordMetric
from gpuval_runner.errors import LockHeldError, RunnerError
from gpuval_runner.files import to_json, write_atomically, write_result
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.lock import Lock
from gpuval_runner.plan import Archive, Image, NodePlan
from gpuval_runner.store import load_store
from gpuval_runner.text import one_line

#: Bytes that an engine needs for each byte of an archive while it unpacks and stores it.
STORAGE_FACTOR = 2.2
LEAST_FREE_BYTES = 256 << 20
PROGRESS_SECONDS = 5.0
DEFAULT_SECONDS = 3600.0
SLACK_SECONDS = 5.0
KILLED_SECONDS = 1.0
STAGE = "image"


class ImageError(RunnerError):
    """An image is not on the node as planned; the message says what to do. ``fault``: the class of a cause outside the
    node."""

    fault = ""

    def __init__(self, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.fault = fault or self.fault


class ImageDeliveryError(ImageError):
    """The image cannot be fetched, or is not one for this node: no fault of the node."""

    fault = "delivery"


class ImageRefusedError(ImageDeliveryError):
    """There is no such image for this node: a retry is no use."""

    fault = NO_IMAGE


#: Messages of registries and engines by which there is no such image, or not for this node.
_NO_IMAGE = re.compile(
    r"manifest (?:for \S+ )?(?:unknown|not found)|name unknown|repository .*does not exist|unauthorized"
    r"|access (?:to the resource is )?denied|short-name|invalid reference",
    re.IGNORECASE,
)
#: Messages of engines for a fault of the registry, or of the path to it.
_REGISTRY = re.compile(
    r"not found|does not exist|authentication|(?<!permission )denied: |toomanyrequests|rate limit|no such host"
    r"|dial tcp|lookup |connection re(?:fused|set)|i/o timeout|timeout exceeded|pinging container registry"
    r"|TLS handshake|x509|5\d\d (?:bad|service|gateway|internal)|deadline exceeded|HTTPS client",
    re.IGNORECASE,
)
_OWN_FAULT = re.compile(r"no space left|docker daemon|podman socket|failed to register layer", re.IGNORECASE)
_LOADED = re.compile(r"^Loaded image(?:\(s\))?(?: ID)?: *(.+?)\s*$", re.MULTILINE)


@dataclass
class Brought:
    """Images brought so far, and the bytes and seconds it took."""

    downloaded_bytes: int = 0
    download_seconds: float = 0.0
    archive_bytes: int = 0
    load_seconds: float = 0.0
    loaded: list[str] = field(default_factory=list)
    pulled: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    def message(self) -> str:
        parts = [
            f"{len(names)} {word}"
            for names, word in (
                (self.present, "already here"),
                (self.loaded, "loaded from the archive"),
                (self.pulled, "pulled"),
            )
            if names
        ]
        return f"images: {', '.join(parts)}" if parts else "the plan has no images"


def bring_images(directory: NodeDirectory) -> int:
    """Bring all images of a plan and write the stage's result. Returns 0, or 1 when one is missing or another."""
    began = time.monotonic()
    brought_images = Brought()
    state, message = "success", ""
    environment: dict[str, Any] = {"images": brought_images.environment}
    try:
        plan = plans.load(directory.plan)
        if plan.images:
            _Bringer(directory, plan, began + _seconds(plan), brought_images).bring()
        message = brought_images.message()
    except (RunnerError, EngineError) as error:
        state, message = "running", str(error)  # not final: an image that is not there is no verdict on the node
        if isinstance(error, ImageError) and error.fault:
            environment["fault"] = error.fault
    except OSError as error:
        where = error.filename or directory.images
        state, message = "running", f"{where}: {error.strerror or error}: make room on the node"
    result = {
        "state": state,
        "message": message,
        "metrics": _metrics(brought_images, time.monotonic() - began),
        "environment": environment,
    }
    write_result(result)
    print(message, flush=True)
    return 0 if state == "success" else 1


def _seconds(plan: NodePlan) -> float:
    limits = [stage.timeout_seconds for stage in plan.stages if stage.name == STAGE and stage.timeout_seconds]
    return max(1.0, min([*limits, plan.deadline_seconds] if limits else [DEFAULT_SECONDS]) - SLACK_SECONDS)


def _metrics(brought_images: Brought, seconds: float) -> list[RecordMetric]:
    metrics = [
        ("image_duration_seconds", seconds, "seconds"),
        ("image_bytes", brought_images.downloaded_bytes, "bytes"),
        ("image_archive_bytes", brought_images.archive_bytes, "bytes"),
        ("image_load_duration_seconds", brought_images.load_seconds, "seconds"),
    ]
    if brought_images.downloaded_bytes and brought_images.download_seconds > 0:
        speed = brought_images.downloaded_bytes / brought_images.download_seconds
        metrics.append(("image_bytes_per_second", speed, "bytes/s"))
    return [{"name": name, "value": value, "unit": unit, "scope": "node"} for name, value, unit in metrics]


class _Bringer:
    def __init__(self, directory: NodeDirectory, plan: NodePlan, deadline: float, brought_images: Brought) -> None:
        self._directory, self._plan, self._deadline, self._done = directory, plan, deadline, brought_images
        self._reported = 0.0

    def bring(self) -> None:
        engine = select(self._plan.runtime if self._plan.runtime in engine_types() else "auto")
        self._done.environment["engine"] = f"{engine.name} {engine.facts.version}"
        if all(self._skip(engine, image) for image in self._plan.images.values()):
            return  # nothing to wait for
        self._done.present.clear()
        self._directory.images.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = Lock.take(self._directory.images / "lock", max(1.0, self._left()), run_id=self._plan.run_id)
        except LockHeldError as error:
            raise ImageError(f"another run brings images to this node and has not finished in time: {error}") from None
        with lock:
            for image in self._plan.images.values():
                if not self._skip(engine, image):
                    self._bring(engine, image)

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _skip(self, engine: ContainerEngine, image: Image) -> bool:
        present = engine.image(image.reference)
        if image.id and not is_image(present, image.id, self._directory):
            tagged, present = present, engine.image(engine_id(image.id, self._directory))
            if present is None or not is_image(present, image.id, self._directory):
                return False
            if tagged is not None:
                brought.note(self._directory, engine.command, image, tagged.id, named=True)
            self._name(engine, present, image)
        if present is None:
            return False
        if image.reference not in self._done.present:
            self._done.present.append(image.reference)
        self._check_architecture(engine, present, image)
        self._done.environment[image.reference] = present.id
        return True

    def _bring(self, engine: ContainerEngine, image: Image) -> None:
        if image.archive or image.pull:
            before = engine.image(image.reference)
            brought.note(self._directory, engine.command, image, before.id if before else None)
        if image.archive:
            self._from_archive(engine, image, image.archive)
            self._done.loaded.append(image.reference)
        elif not image.pull:
            raise ImageRefusedError(
                f"{image.reference} is not on this node, where it should have been built, and no registry has it: "
                "build it there (gpuval.fleet.build), or give nodes the image through the store"
            )
        else:
            self._pull(engine, image)
            self._done.pulled.append(image.reference)
        brought.note_id(self._directory, image.reference, self._done.environment[image.reference])

    def _from_archive(self, engine: ContainerEngine, image: Image, archive: Archive) -> None:
        path = self._directory.images / f"{archive.sha256}.tar"
        self._done.archive_bytes += archive.bytes
        self._check_room(engine, archive, path)
        if not self._is_whole(path, archive):
            self._download(path, image, archive)
        began = time.monotonic()
        loaded, output = self._watch([engine.command, "load", "--input", str(path)], f"loads {image.reference}")
        if not loaded:
            raise _unloadable(output, engine, path)
        self._done.load_seconds += time.monotonic() - began
        self._identify(engine, image, path, loaded_names(output))
        path.unlink(missing_ok=True)

    def _is_whole(self, path: Path, archive: Archive) -> bool:
        """Whether the archive is here and complete; a corrupted one is removed."""
        if path.is_symlink() or not path.is_file():
            return False
        if path.stat().st_size == archive.bytes:
            report(f"checks {path.name}, which is here already")
            if download.sha256_of(path, self._progress("checked", archive.bytes)) == archive.sha256:
                return True
        path.unlink()
        report(f"{path.name} was here but corrupted and was removed")
        return False

    def _download(self, path: Path, image: Image, archive: Archive) -> None:
        store = load_store(self._directory.store)
        url = store.downloads.get(archive.key) if store else None
        if not url or not store:
            raise ImageDeliveryError(
                f"the archive of {image.reference} is not on the node and no signed URL for it was given: "
                "put the image into the store (gpuval.fleet.load), or bring it over SSH"
            )
        if store.expired(url):
            raise ImageDeliveryError(f"the signed URL for {image.reference} has expired: launch the run again")
        report(f"downloads {image.reference}, {_size(archive.bytes)}")
        began = time.monotonic()
        part = path.with_name(f"{path.name}.part")
        try:
            self._done.downloaded_bytes += download.download(
                url,
                path,
                archive,
                self._deadline,
                ca_file=store.ca_file,
                progress=self._progress("downloaded", archive.bytes),
            )
        except download.DownloadError as error:
            raise ImageDeliveryError(f"image {image.reference}: {error}", "store_away") from None
        except OSError as error:
            raise ImageError(f"image {image.reference}: {part}: {error.strerror}: make room on the node") from None
        self._done.download_seconds += time.monotonic() - began

    def _check_room(self, engine: ContainerEngine, archive: Archive, path: Path) -> None:
        """Check before the download that the disks have room for it. Raises ``ImageError``."""
        present_bytes = sum(p.stat().st_size for p in (path, path.with_name(f"{path.name}.part")) if p.is_file())
        need: dict[int, tuple[Path, float]] = {}
        places = [(path.parent, float(max(0, archive.bytes - present_bytes)))]
        if engine.facts.storage:
            places.append((engine.facts.storage, archive.bytes * STORAGE_FACTOR))
        for folder, size in places:
            try:
                device = folder.stat().st_dev
            except OSError:
                continue  # this user may not read it
            need[device] = (folder, need.get(device, (folder, 0.0))[1] + size)
        for folder, size in need.values():
            free = shutil.disk_usage(folder).free
            if free < size + LEAST_FREE_BYTES:
                raise ImageError(
                    f"no room for an image of {_size(archive.bytes)}: {folder} has {_size(free)} free and "
                    f"{_size(size + LEAST_FREE_BYTES)} are needed: make room there",
                    "disk_full",
                )

    def _identify(self, engine: ContainerEngine, image: Image, path: Path, loaded: Sequence[str]) -> None:
        """Check that the loaded image is the planned one. Raises ``ImageError``."""
        local_image = (engine.image(image.id) if image.id else None) or self._loaded(engine, image, path, loaded)
        self._accept(
            engine,
            image,
            local_image,
            f"the archive {path.name} gave image {local_image.id[:19]} for {image.reference}, but the plan names "
            f"{(image.id or '')[:19]}: build and load the image anew",
        )

    def _accept(self, engine: ContainerEngine, image: Image, local_image: LocalImage, mismatch: str) -> None:
        """Check and name an image that was brought. Raises ``ImageDeliveryError``, with `mismatch` for another id."""
        if image.id and local_image.id != image.id:
            if not engine.facts.containerd_images:  # those have ids of their own; the digest of what was brought stands
                raise ImageDeliveryError(mismatch)
            self._directory.images.mkdir(mode=0o700, parents=True, exist_ok=True)
            ids = {**known_ids(self._directory), image.id: local_image.id}
            write_atomically(self._directory.known_images, to_json(ids))
        self._name(engine, local_image, image)
        self._check_architecture(engine, local_image, image)
        self._done.environment[image.reference] = local_image.id

    def _loaded(self, engine: ContainerEngine, image: Image, path: Path, loaded: Sequence[str]) -> LocalImage:
        """Return the image that came from the archive: what had its name before may be another one."""
        names = [name for name in loaded if plain(name) == plain(image.reference)] or loaded
        local_image = engine.image(names[0]) if len(names) == 1 else None
        if local_image is None and not loaded and not engine.facts.containerd_images:  # its id is checked below
            local_image = engine.image(image.reference)
        if local_image is None:
            raise ImageDeliveryError(
                f"the archive {path.name} was loaded but holds no image {image.reference} "
                f"(it has {', '.join(loaded[:4]) or 'none that the engine names'}): build and load it anew"
            )
        return local_image

    def _name(self, engine: ContainerEngine, local_image: LocalImage, image: Image) -> None:
        present = engine.image(image.reference)
        if "@" not in image.reference and (present is None or present.id != local_image.id):
            tagging = engine.ask("tag", local_image.id, image.reference)
            if tagging.returncode != 0:
                raise ImageError(f"{engine.command} cannot name the image {image.reference}: {_end(tagging.stderr)}")

    def _check_architecture(self, engine: ContainerEngine, local_image: LocalImage, image: Image) -> None:
        unfit = engine.unfit(local_image, image.reference)
        if unfit:
            raise ImageDeliveryError(unfit)

    def _pull(self, engine: ContainerEngine, image: Image) -> None:
        if image.id and "@" not in image.reference:
            raise ImageRefusedError(
                f"the plan names {image.id[:19]} as {image.reference}, which is not on the node, and a tag may "
                "move in its registry: name the image by digest (name@sha256:...), or put it into the store "
                "(gpuval.fleet.load)"
            )
        pulled, output = self._watch([engine.command, "pull", "--quiet", image.reference], f"pulls {image.reference}")
        if not pulled:
            remedy = (
                "check the reference, its registry and the way to it, or give it an archive in gpuval_images "
                "(copy, archive)"
            )
            if "no space left" in output.lower():
                remedy = "make room on the node"
            error_class: type[ImageError] = ImageDeliveryError if _REGISTRY.search(output) else ImageError
            error_class = ImageRefusedError if _NO_IMAGE.search(output) else error_class
            error_class = ImageError if _OWN_FAULT.search(output) else error_class
            raise error_class(f"{engine.command} cannot pull {image.reference}: {_end(output)}: {remedy}")
        local_image = engine.image(image.reference)
        if local_image is None:
            raise ImageError(f"{engine.command} pulled {image.reference}, but does not find it")
        self._accept(
            engine,
            image,
            local_image,
            f"{image.reference} came from its registry as {local_image.id[:19]}, "
            f"but the plan names {(image.id or '')[:19]}: correct one of the two",
        )

    def _watch(self, argv: Sequence[str], task: str) -> tuple[bool, str]:
        """Run a long command of the engine and report its progress; returns whether it succeeded, and its output."""
        began = time.monotonic()
        report(task)
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            return False, f"{argv[0]}: {error.strerror}"
        while True:
            try:
                output, _ = process.communicate(timeout=min(2 * PROGRESS_SECONDS, max(0.1, self._left())))
            except subprocess.TimeoutExpired:
                if self._left() <= 0:
                    process.kill()
                    with contextlib.suppress(subprocess.TimeoutExpired):  # a child may keep the output open
                        process.communicate(timeout=KILLED_SECONDS)
                    return False, f"not done after {time.monotonic() - began:.0f} s: give image_timeout_seconds more"
                report(f"{task}: {time.monotonic() - began:.0f} s so far")
                continue
            text = output.decode("utf-8", "replace")
            return process.returncode == 0, text or f"exit code {process.returncode}"

    def _progress(self, word: str, total: int) -> download.Progress:
        def show(count: int) -> None:
            present = time.monotonic()
            if present - self._reported >= PROGRESS_SECONDS:
                self._reported = present
                report(f"{word} {_size(count)} of {_size(total)}")

        return show


def _unloadable(output: str, engine: ContainerEngine, path: Path) -> ImageError:
    low = output.lower()
    if "no space left" in low or "disk quota" in low:
        text = f"{engine.command} has no room for the image: make room under {engine.facts.storage}"
        return ImageError(text, "disk_full")
    return ImageError(f"{engine.command} cannot load {path.name}: {_end(output)}")


def loaded_names(output: str) -> list[str]:
    """Return the references, and ids of what has none, that an engine reports as loaded."""
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
