"""Runs one stage in a container: creates it, watches it through the engine's client, asks how it ended, removes it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable, Optional

from gpuval_node.engines import select
from gpuval_node.engines._engine import (
    NO_IMAGE,
    ContainerEngine,
    Ending,
    EngineError,
    ImageMissingError,
    LocalImage,
    labels,
)
from gpuval_node.process_stat import snapshot

from gpuval_runner import descendants, scratch
from gpuval_runner.containers import command
from gpuval_runner.containers.brought import find_image
from gpuval_runner.descendants import stage_marker
from gpuval_runner.environment import SSH_KEYS, StagePaths, build
from gpuval_runner.layout import DATASET_FOLDER, DATASETS_INSIDE, NodeDirectory
from gpuval_runner.outcome import StageStop
from gpuval_runner.plan import NodePlan, PlannedAccelerator, Stage
from gpuval_runner.state import ContainerMark
from gpuval_runner.supervise import Hooks, ProcessEnd, ProcessSpec, supervise, unusable_folder

TRIES = 8
OWN_SECONDS = 120.0
CHILDREN_SECONDS = 5.0
#: An engine that restarts answers again within these seconds; a short delay ends within SETTLE_SECONDS.
RELEASE_SECONDS = 120.0
SETTLE_SECONDS = 5.0
PAUSE_SECONDS = 1.0
TEXT_BYTES = 4096
OWN = """
import os
for at, folders, files in os.walk({work!r}, topdown=False):
    for name in files:
        os.lchown(os.path.join(at, name), {uid}, {gid})
    os.lchown(at, {uid}, {gid})
"""


class Containers:
    """The container engine of a run, found at its first use, and the options that it refused so far."""

    def __init__(self, plan: NodePlan, used: Callable[[ContainerMark], None] = lambda _mark: None) -> None:
        """`used` is called before a container is made: it saves a mark by which a later runner finds the container."""
        self._runtime = plan.runtime
        self._engine: Optional[ContainerEngine] = None
        self.refused: frozenset[str] = frozenset()
        #: Why no further stage may run: a container that could not be removed may hold the accelerators. Empty if none.
        self.stays = ""
        self.used = used

    def engine(self) -> ContainerEngine:
        """Return the engine. Raises ``EngineError`` when none answers."""
        if self._engine is None:
            self._engine = select(self._runtime)
        return self._engine


@dataclass(frozen=True)
class ContainerRun:
    """Runs one stage in a container. `say` writes a line of the runner into the stage's log."""

    plan: NodePlan
    stage: Stage
    directory: NodeDirectory
    places: StagePaths
    accelerator: PlannedAccelerator
    containers: Containers
    say: Callable[[str], None]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def run(self, argv: Sequence[str], hooks: Hooks) -> ProcessEnd:
        """Run the stage to its end; on return its container is removed, or a note names the container."""
        try:
            engine = self.containers.engine()
            image = self._image(engine)
            request = self._request(engine, image, argv)
            mark = ContainerMark(engine.command, image.id, self.stage.container.python)
            self.containers.used(mark)
            self._make_room(engine, mark)
            return self._run(engine, request, mark, hooks)
        except EngineError as error:
            fault = NO_IMAGE if isinstance(error, ImageMissingError) else ""
            return ProcessEnd(start_error=str(error), fault=fault)
        except OSError as error:
            return unusable_folder(error)

    def _image(self, engine: ContainerEngine) -> LocalImage:
        """Return the stage's image as planned. Raises ``EngineError`` if it is not on the node or has a wrong id."""
        reference = self.stage.image or ""
        planned = self.plan.images.get(reference)
        planned_id = (planned.id if planned else None) or ""
        present, tagged = find_image(engine, reference, planned_id, self.directory)
        if present is None and tagged is not None:
            raise ImageMissingError(
                f"{reference} on this node is image {tagged.id[:19]}, but the run is for {planned_id[:19]}: "
                "run the image stage (--tags image)"
            )
        if present is None:
            raise ImageMissingError(command.absent(reference, planned, engine.command))
        if unfit := engine.unfit(present, reference):
            raise EngineError(unfit)
        return present

    def _request(self, engine: ContainerEngine, image: LocalImage, argv: Sequence[str]) -> command.ContainerRequest:
        plan, stage, container = self.plan, self.stage, self.stage.container
        devices = engine.access(self.accelerator.vendor)
        if devices.problem and not container.devices:  # a plan that names devices needs no others
            raise EngineError(devices.problem)
        for source in (volume.partition(":")[0] for volume in container.volumes):
            if source.startswith("/") and _is_missing(source):  # docker would create an empty folder, as root
                raise EngineError(f"container.volumes: the node has no {source}: mount or create it")
        is_root = os.geteuid() == 0 or engine.facts.rootless  # the container's root writes files as the runner's user
        user = container.user or ("0:0" if is_root else f"{os.geteuid()}:{os.getegid()}")
        values = build(plan, stage, command.PLACES, self.accelerator, {}, container.python)
        if image_path := image.environment.get("PYTHONPATH"):
            values["PYTHONPATH"] += f":{image_path}"
        if not user.startswith("0"):  # the user may be unknown to the image, and then has no home
            values.setdefault("HOME", str(command.HOME))
            values.setdefault("USER", "gpuval")
        return command.ContainerRequest(
            name=container_name(plan, stage.name),
            reference=stage.image or "",
            image=image.id,
            argv=argv,
            labels=labels(plan.run_id, plan.node, stage.name),
            environment=values,
            inherited=command.inherited_names(os.environ),
            mounts=self._mounts(),
            user=user,
            container=container,
            access=devices,
            refused=self.containers.refused,
        )

    def _mounts(self) -> list[tuple[Path, Path, bool]]:
        """Return the mounts: path on the node, path inside, whether read-only. The store's signed URLs stay outside."""
        stage_paths = self.places
        mounts = [(stage_paths.work, command.PLACES.work, False), (stage_paths.models, command.PLACES.models, False)]
        for name in self.stage.datasets:  # the cache is writable: mount the dataset over it read-only
            inside = (DATASETS_INSIDE / name, command.PLACES.dataset(name))
            mounts += [(stage_paths.dataset(name), mount_point, True) for mount_point in inside]
        certificate = stage_paths.rclone_config.with_name("ca.pem")
        single = (
            (stage_paths.runner, command.PLACES.runner),
            (stage_paths.workloads, command.PLACES.workloads),
            (stage_paths.rclone_config, command.PLACES.rclone_config),
            (certificate, command.PLACES.rclone_config.with_name("ca.pem")),
        )
        keys = stage_paths.run / SSH_KEYS
        if self.stage.container.ssh_keys and keys.is_dir():
            mounts.append((keys, command.INSIDE / SSH_KEYS, True))
        return [*mounts, *((source, inside, True) for source, inside in single if source.is_file())]

    def _make_room(self, engine: ContainerEngine, mark: ContainerMark) -> None:
        """Create the stage's scratch directory and the model cache. Raises ``OSError``."""
        work = self.places.work
        if scratch.remove(work):  # files of another user, left by a container whose runner was killed
            chown_to_runner(engine, mark, work)
        scratch.prepare(self.places, self.plan.gang, self.secrets)
        inside = [work, work / "cache", *(work / name for name in (command.PLACES.temporary.name, command.HOME.name))]
        for path in inside:
            path.mkdir(mode=0o700, exist_ok=True)
        if self.stage.container.user:  # another user writes here; the node directory stays private
            for path in inside:
                path.chmod(0o777)
            if self.secrets:
                (work / scratch.SECRETS_FILE).chmod(0o644)
            for source, _inside, read_only in self._mounts():
                if read_only and DATASET_FOLDER not in source.name:  # datasets can be read by all users already
                    for path in (source, *source.iterdir()) if source.is_dir() else (source,):
                        path.chmod(0o755 if path.is_dir() else 0o644)

    def _run(
        self, engine: ContainerEngine, request: command.ContainerRequest, mark: ContainerMark, hooks: Hooks
    ) -> ProcessEnd:
        for _try in range(TRIES):
            ended, refusal = self._once(engine, request, hooks)
            without = command.dropped_option(refusal, request) if refusal else None
            if without is None:
                break
            self.containers.refused |= {without}
            request = replace(request, name=container_name(self.plan, self.stage.name), refused=self.containers.refused)
            option = "an init" if without == command.NO_INIT else f"the limit {without.rstrip('!')}"
            self.say(f"{engine.command} refuses {option}: continuing without")
        if command.VANISHED.search(refusal):
            raise ImageMissingError(
                command.absent(request.reference, self.plan.images.get(request.reference), engine.command)
            )
        if refusal:
            error = command.explain(refusal, request, engine)
            ended = ProcessEnd(start_error=error, memory=ended.memory, notes=ended.notes)
        problem = chown_to_runner(engine, mark, self.places.work) if foreign(self.places.work) else ""
        ended.notes += [problem] if problem else []
        return ended

    def _once(self, engine: ContainerEngine, request: command.ContainerRequest, hooks: Hooks) -> tuple[ProcessEnd, str]:
        """Run the container once; returns its end and, if it could not start, the engine's message."""
        try:
            identifier = engine.create(command.create_argv(engine, request, command.SELINUX.exists()))
        except EngineError as error:
            return ProcessEnd(), str(error)
        output_end = bytearray()

        def take(data: bytes) -> None:
            output_end.extend(data)
            del output_end[:-TEXT_BYTES]
            hooks.output(data)

        notes: list[str] = []
        endings: list[Optional[Ending]] = []

        def look(by_itself: bool = True) -> None:
            endings.append(self._ending(engine, identifier, by_itself=by_itself, notes=notes, hooks=hooks))

        ended = supervise(
            ProcessSpec(
                argv=[engine.command, "start", "--attach", identifier],
                environment=os.environ,
                directory=self.directory.root,
                marker=stage_marker(self.plan.run_id, self.plan.node, self.stage.name, self.plan.attempt),
                timeout_seconds=self.stage.timeout_seconds,
                inactivity_seconds=self.stage.inactivity_seconds,
                grace_seconds=self.stage.grace_seconds,
                stop=lambda grace: engine.stop_argv([identifier], grace),
            ),
            replace(hooks, output=take, ended=look),  # ask the engine before leftover processes are ended
        )
        if not endings:
            look(by_itself=False)
        ending, ended.notes = endings[0], notes
        stays = self._remove(engine, identifier, hooks)
        if stays and (ending is None or ending.started):
            self.containers.stays = stays
        text = bytes(output_end).decode("utf-8", "replace")
        if self.containers.stays:
            notes.append(stays)
            ended.stop = ended.stop or StageStop("crash", "its container could not be removed")
        if ending and not ending.started and not ended.stop:
            return ended, ending.error or text.strip() or "no reason given"
        last_line = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        by_init = command.explain_init(ending.exit_code if ending else None, last_line) if not ended.stop else ""
        ended.memory = out_of_memory(ending, self.stage.container.memory_bytes)
        if ending and not ending.started:
            notes.append("its container had not started")
            ended.exit_code = None  # the client's exit code is not the container's
        elif ending and ended.signal and not ended.stop:
            notes.append(f"{ended.signal} ended the engine's client; its container was stopped")
        elif ending and not ending.running:
            if ending.exit_code != 0 or (ended.exit_code or 0) <= 128:  # podman may report 0 for a killed container
                ended.exit_code = ending.exit_code
        elif not ended.signal:  # the client's own exit code is not the container's
            ended.exit_code = None
            doubt = "its container was still running" if ending else "how its container ended is unknown"
            ended.stop = ended.stop or StageStop(
                "crash",
                f"{engine.command} lost the container's output and {doubt}: check its journal for "
                f"a restart, then validate again",
            )
        return ended, by_init

    def _ending(
        self, engine: ContainerEngine, identifier: str, *, by_itself: bool, notes: list[str], hooks: Hooks
    ) -> Optional[Ending]:
        """Return how the container ended, as the engine reports it; None and a note without an answer in time. Waits
        for the end of a container that ended `by_itself`, not by a stop."""
        begun = time.monotonic()
        while True:
            ending, problem = None, ""
            try:
                ending = engine.ending(identifier)
            except EngineError as error:
                problem = str(error)
            over = ending is not None and not (ending.running and by_itself)
            if over or time.monotonic() - begun >= (RELEASE_SECONDS if problem else SETTLE_SECONDS):
                notes += [problem] if problem else []
                return ending
            hooks.tick()  # keeps the record's heartbeat; the work has ended, so a stop changes nothing
            time.sleep(PAUSE_SECONDS)

    def _remove(self, engine: ContainerEngine, identifier: str, hooks: Hooks) -> str:
        """Remove the container, with retries for a while; returns why it could not be removed, else an empty text."""
        deadline = time.monotonic() + RELEASE_SECONDS
        while True:
            try:
                engine.remove(identifier)
            except EngineError as error:
                problem = str(error)
            else:
                return ""
            if time.monotonic() >= deadline:
                return (
                    f"container {identifier[:12]} may still hold the accelerators: {problem}: remove it "
                    f"({engine.command} rm --force {identifier[:12]}) or reboot the node"
                )
            hooks.tick()
            time.sleep(PAUSE_SECONDS)


def container_name(plan: NodePlan, stage: str) -> str:
    """Return a unique name for a container, made of run, node and stage."""
    readable = re.sub(r"[^A-Za-z0-9_.-]", "-", f"gpuval-{plan.run_id}-{plan.node}"[:100])
    code = hashlib.sha256(f"{plan.run_id}/{plan.node}".encode()).hexdigest()[:6]
    return f"{readable}-{stage}-{code}{secrets.token_hex(3)}"


def out_of_memory(ending: Optional[Ending], limit_bytes: Optional[int]) -> str:
    """Return the message for a container that ran out of memory, by the engine's report; empty if it did not."""
    if not ending or not ending.oom_killed:
        return ""
    exhausted = f"its limit of {limit_bytes} bytes (container.memory_bytes)" if limit_bytes else "the node's memory"
    return f"out of memory: the kernel killed processes of the container, which exhausted {exhausted}"


def _is_missing(path: str) -> bool:
    """Whether a path surely does not exist; a path that this user may not see may exist."""
    try:
        Path(path).stat()
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))
    return False


def foreign(work: Path) -> bool:
    """Whether a scratch directory holds another user's files, or cannot be read."""
    own_uid = os.geteuid()
    if own_uid == 0:
        return False  # root can remove all files
    failed: list[OSError] = []
    for folder, folders, files in os.walk(work, onerror=failed.append):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                if (Path(folder) / name).lstat().st_uid != own_uid:
                    return True
    return bool(failed)


def chown_to_runner(engine: ContainerEngine, mark: ContainerMark, work: Path) -> str:
    """Give all files in a scratch directory to the runner's user, by a container; returns the problem, if any."""
    uid, gid = (0, 0) if engine.facts.rootless else (os.geteuid(), os.getegid())
    argv = ["run", "--rm", "--pull=never", "--network=none", "--user=0:0", "--log-driver=none"]
    argv += ["--security-opt=label=disable"] if command.SELINUX.exists() else []
    argv += [f"--volume={work}:{command.PLACES.work}", f"--entrypoint={mark.python}", mark.image]
    try:
        change = engine.ask(*argv, "-c", OWN.format(work=str(command.PLACES.work), uid=uid, gid=gid), limit=OWN_SECONDS)
    except EngineError as error:
        return f"files of another user stay in {work}: {error}"
    return "" if change.returncode == 0 else f"files of another user stay in {work}: {change.stderr.strip()[-300:]}"


def reap(limit: float) -> None:
    """Reap orphans of the engine's client that this process adopted, for at most `limit` seconds."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            children = (p for p in snapshot().values() if p.pid not in descendants.LASTING)
            if not any(process.parent == os.getpid() for process in children):
                return
            time.sleep(0.05)
