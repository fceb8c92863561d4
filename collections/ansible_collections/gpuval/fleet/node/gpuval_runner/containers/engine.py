"""A container engine of the node: what it is, and its containers and images. Every call is bounded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from gpuval_node.hardware.engines import ENGINES
from gpuval_node.hardware.tools import Run, ToolResult, toolbox

from gpuval_runner.text import one_line

LABEL_RUN, LABEL_NODE, LABEL_STAGE = "gpuval.run", "gpuval.node", "gpuval.stage"
COMMAND_SECONDS = 60.0
PROBE_SECONDS = 30.0
#: Kills and removes containers with their anonymous volumes.
REMOVE = ("rm", "--force", "--volumes")
NEVER_STARTED = "0001-01-01"
#: Podman says Running only of the first.
UNDER_WAY = ("running", "paused", "stopping", "restarting")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64": "ppc64le"}

#: In a record's environment (`fault`): the image is not on the node.
NO_IMAGE = "no_image"


class EngineError(Exception):
    """The container engine did not do what it was asked to."""


class EngineMissingError(EngineError):
    """The engine is not installed on this node."""


class ImageMissingError(EngineError):
    """The image of a stage is not on this node."""


def labels(run_id: str, node: str, stage: str = "") -> dict[str, str]:
    """Return the labels of a run's containers on a node, or of one stage's."""
    pairs = {LABEL_RUN: run_id, LABEL_NODE: node}
    return {**pairs, LABEL_STAGE: stage} if stage else pairs


@dataclass(frozen=True)
class EngineFacts:
    """What an engine reports of itself. `kind` is docker or podman, whatever its command is called."""

    kind: str = "docker"
    version: str = ""
    rootless: bool = False
    runtimes: frozenset[str] = frozenset()
    cdi: bool = False
    architecture: str = ""
    storage: Optional[Path] = None
    containerd_images: bool = False


@dataclass(frozen=True)
class Ending:
    """How a container ended, as the engine reports it. `error` is what kept it from starting."""

    started: bool
    running: bool
    exit_code: Optional[int]
    oom_killed: bool
    error: str


@dataclass(frozen=True)
class LocalImage:
    """An image in the engine's storage."""

    id: str
    architecture: str
    bytes: Optional[int]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class ContainerEngine:
    """Docker or podman by its command."""

    command: str
    facts: EngineFacts = field(default_factory=EngineFacts)
    run: Run = field(default_factory=toolbox)

    def stop_argv(self, ids: Sequence[str], grace_seconds: float) -> list[str]:
        """Return the command that ends containers: TERM, a grace, KILL."""
        return [self.command, "stop", f"--time={max(0, round(grace_seconds))}", *ids]

    def stop(self, labels: Mapping[str, str]) -> list[str]:
        """End and remove all containers with these labels; returns their ids. Raises ``EngineError`` when some stay."""
        ids = self.find(labels)
        if ids:
            self.ask(*REMOVE, *ids)
            remaining = self.find(labels)
            if remaining:
                raise EngineError(f"{self.command} could not remove containers {', '.join(i[:12] for i in remaining)}")
        return ids

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """Return the ids of all containers with these labels. Raises ``EngineError``."""
        return self._list(*(f"--filter=label={name}={value}" for name, value in sorted(labels.items())))

    def create(self, argv: Sequence[str]) -> str:
        """Create a container by a whole command; returns its id. Raises ``EngineError`` with the engine's message."""
        creation = self.ask(*argv[1:], limit=2 * COMMAND_SECONDS)
        lines = creation.stdout.split()
        if creation.returncode != 0 or not lines:
            raise EngineError(creation.stderr.strip()[-2000:] or f"{self.command} create failed without output")
        return lines[-1]

    def ending(self, identifier: str) -> Ending:
        """Return how a container ended. Raises ``EngineError``."""
        inspection = self.ask("inspect", "--format={{json .State}}", identifier)
        state = _json(inspection.stdout) if inspection.returncode == 0 else None
        if not isinstance(state, dict):
            raise EngineError(f"{self.command} cannot inspect the container: {one_line(inspection.stderr, 300)}")
        return parse_ending(state)

    def remove(self, identifier: str) -> None:
        """Kill and remove a container. Raises ``EngineError`` when it stays."""
        removal = self.ask(*REMOVE, identifier)
        listed = self.ask("ps", "--all", "--quiet", f"--filter=id={identifier}")
        if listed.returncode != 0 or listed.stdout.split():  # without an answer it may still exist
            reason = one_line(removal.stderr or listed.stderr, 300)
            raise EngineError(f"{self.command} could not remove container {identifier[:12]}: {reason}")

    def image(self, reference: str) -> Optional[LocalImage]:
        """Return an image by reference or id, None when it is not here. Raises ``EngineError`` without an answer."""
        inspection = self.ask("image", "inspect", reference)
        if inspection.returncode != 0:
            if "no such image" in inspection.stderr.lower() or "image not known" in inspection.stderr.lower():
                return None
            raise EngineError(f"{self.command} image inspect failed: {one_line(inspection.stderr, 300)}")
        documents = _json(inspection.stdout)
        return (
            parse_image(documents[0])
            if isinstance(documents, list) and documents and isinstance(documents[0], dict)
            else None
        )

    def unfit(self, image: LocalImage, reference: str) -> str:
        """Return why this node cannot run an image: it is for another processor architecture; empty if it can."""
        node_architecture = self.facts.architecture
        if not node_architecture or image.architecture in ("", node_architecture):
            return ""
        return (
            f"image {reference} is for {image.architecture} and this node is {node_architecture}: "
            "give the image built for it"
        )

    def _list(self, *filters: str) -> list[str]:
        listing = self.ask("ps", "--all", "--quiet", "--no-trunc", *filters)
        if listing.returncode != 0:
            raise EngineError(f"{self.command} ps failed: {listing.stderr.strip()[-300:]}")
        return listing.stdout.split()

    def ask(self, *arguments: str, limit: float = COMMAND_SECONDS) -> ToolResult:
        """Run a command of the engine. Raises ``EngineError`` when there is none or it does not answer in time."""
        completed = self.run(self.command, *arguments, timeout=limit)
        if completed.missing:
            raise EngineMissingError(f"{self.command} is not installed on this node")
        if completed.returncode is None:
            raise EngineError(completed.complaint if completed.timed_out else f"{self.command} {completed.stderr}")
        return completed


def probe(command: str) -> ContainerEngine:
    """Return an engine that answers. Raises ``EngineError`` saying what to do."""
    answer = ContainerEngine(command).ask("info", "--format={{json .}}", limit=PROBE_SECONDS)
    info = _json(answer.stdout)
    facts = parse_info(info) if isinstance(info, dict) else None
    if facts is None:
        reason = one_line(answer.stderr or " ".join((info or {}).get("ServerErrors") or []), 300)
        raise EngineError(f"{command} does not answer: {reason or f'exit code {answer.returncode}'}{_remedy(reason)}")
    return ContainerEngine(command, facts)


def select(runtime: str) -> ContainerEngine:
    """Return the engine of a plan's runtime: the one it names, with ``auto`` the first that answers.

    Raises ``EngineError`` saying why there is none.
    """
    problems = []
    for command in ENGINES if runtime == "auto" else (runtime,):
        try:
            return probe(command)
        except EngineError as error:
            problems.append(str(error))
    raise EngineError(
        f"no container engine: {'; '.join(problems)}. Install docker or podman on the node and let this user use it, "
        "or run without images (gpuval_runtime: host)"
    )


def parse_info(info: Mapping[str, Any]) -> Optional[EngineFacts]:
    """Read ``docker info`` or ``podman info``; None when no engine answered."""
    host = info.get("host")
    if isinstance(host, dict):  # podman, also by the name of docker
        store, version, security = _part(info, "store"), _part(info, "version"), _part(host, "security")
        return EngineFacts(
            kind="podman",
            version=str(version.get("Version") or ""),
            rootless=bool(security.get("rootless")),
            cdi=True,
            architecture=_architecture(host.get("arch")),
            storage=Path(store["graphRoot"]) if store.get("graphRoot") else None,
        )
    if not info.get("ServerVersion"):
        return None
    status = {str(pair[0]): str(pair[1]) for pair in info.get("DriverStatus") or [] if len(pair) == 2}
    return EngineFacts(
        kind="docker",
        version=str(info["ServerVersion"]),
        rootless=any("rootless" in str(option) for option in info.get("SecurityOptions") or []),
        runtimes=frozenset(info.get("Runtimes") or {}),
        cdi=bool(info.get("CDISpecDirs")),
        architecture=_architecture(info.get("Architecture")),
        storage=Path(info["DockerRootDir"]) if info.get("DockerRootDir") else None,
        containerd_images="containerd" in status.get("driver-type", ""),
    )


def parse_ending(state: Mapping[str, Any]) -> Ending:
    """Read the state of an ``inspect``."""
    began = str(state.get("StartedAt") or NEVER_STARTED)
    started = not began.startswith(NEVER_STARTED)
    code = state.get("ExitCode")
    return Ending(
        started=started,
        running=bool(state.get("Running")) or str(state.get("Status") or "").lower() in UNDER_WAY,
        exit_code=code if isinstance(code, int) else None,
        oom_killed=state.get("OOMKilled") is True,
        error=str(state.get("Error") or ""),
    )


def parse_image(document: Mapping[str, Any]) -> LocalImage:
    """Read one entry of ``image inspect``; podman's ids lack the name of the digest."""
    identifier = str(document.get("Id") or "")
    pairs = (entry.partition("=") for entry in _part(document, "Config").get("Env") or [] if isinstance(entry, str))
    size = document.get("Size")
    return LocalImage(
        id=identifier if ":" in identifier or not identifier else f"sha256:{identifier}",
        architecture=_architecture(document.get("Architecture")),
        bytes=size if isinstance(size, int) else None,
        environment={name: value for name, _, value in pairs},
    )


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = document.get(name)
    return section if isinstance(section, dict) else {}


def _architecture(name: Any) -> str:
    text = str(name or "")
    return ARCHITECTURES.get(text, text)


def _remedy(reason: str) -> str:
    if "permission denied" in reason.lower():
        user = os.environ.get("USER") or f"user {os.geteuid()}"
        return f": let {user} use it (group docker and a new login, or become)"
    return ": start its service (systemctl start docker) and check its journal"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
