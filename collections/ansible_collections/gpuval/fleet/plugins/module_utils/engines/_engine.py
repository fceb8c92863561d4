"""The base class of container engines: a command line like docker's, with time limits. Also in the runner."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Optional

from ..hardware.tools import Run, ToolResult, toolbox
from ..hardware.tree import read_text
from ..visible_text import one_line

LABEL_RUN, LABEL_NODE, LABEL_STAGE = "gpuval.run", "gpuval.node", "gpuval.stage"
COMMAND_SECONDS = 60.0
PROBE_SECONDS = 30.0
#: Arguments that kill and remove containers with their anonymous volumes.
REMOVE = ("rm", "--force", "--volumes")
NEVER_STARTED = "0001-01-01"
#: States of a container that has not ended. Podman sets `Running` only in the state `running`.
UNDER_WAY = ("running", "paused", "stopping", "restarting")
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?[\w.+~-]*)")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64": "ppc64le"}

CDI_DIRECTORIES = ("etc/cdi", "var/run/cdi", "run/cdi")
PRESENT = {
    "nvidia": ("dev/nvidiactl", "dev/nvidia[0-9]*", "dev/dxg"),
    "gaudi": ("dev/accel/accel[0-9]*", "dev/hl[0-9]*"),
    "amd": ("dev/kfd",),
}
#: Devices for RDMA, and the IMEX channels without which a GPU cannot share memory over NVLink between nodes: container
#: toolkits do not add these to the GPUs. An engine refuses a folder without devices.
BETWEEN_NODES = {
    "infiniband": "dev/infiniband",
    "gdrdrv": "dev/gdrdrv",
    "nvidia-caps-imex-channels": "dev/nvidia-caps-imex-channels/channel*",
}
GAUDI_VARIABLES = (("HABANA_VISIBLE_DEVICES", "all"), ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"))

#: Value of `fault` in a record's environment: the image is not on the node.
NO_IMAGE = "no_image"


class EngineError(Exception):
    """A command of the container engine failed, or the engine did not answer."""


class EngineMissingError(EngineError):
    """The container engine is not installed on this node."""


class ImageMissingError(EngineError):
    """The image of a stage is not on this node."""


def labels(run_id: str, node: str, stage: str = "") -> dict[str, str]:
    """Return the labels of all containers of a run on a node, or of one stage's container."""
    return {LABEL_RUN: run_id, LABEL_NODE: node, **({LABEL_STAGE: stage} if stage else {})}


@dataclass(frozen=True)
class DeviceAccess:
    """How a container gets accelerators: the engine's arguments, environment variables. `problem`: why it gets none."""

    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class EngineFacts:
    """What a container engine reports about itself (`docker info`). `storage`: its folder on the node."""

    version: str = ""
    rootless: bool = False
    runtimes: frozenset[str] = frozenset()
    cdi: bool = False
    architecture: str = ""
    storage: Optional[Path] = None
    containerd_images: bool = False


@dataclass(frozen=True)
class Ending:
    """How a container ended, as the engine reports it. `error` says why it could not start."""

    started: bool
    running: bool
    exit_code: Optional[int]
    oom_killed: bool
    error: str


@dataclass(frozen=True)
class LocalImage:
    """A container image in the local storage of an engine."""

    id: str
    architecture: str
    bytes: Optional[int]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class ContainerEngine:
    """A container engine, run by its command. A subclass with a `name`, in a file of its own, is an engine that
    gpuval_runtime accepts; it overrides what differs from docker's command line. The base class offers devices by
    CDI."""

    #: Name of a container engine, which is its command, too; and its position for the runtime ``auto``: lowest first.
    name: ClassVar[str] = ""
    order: ClassVar[int] = 100
    #: Remedy, for messages, if the engine cannot give NVIDIA GPUs to containers.
    nvidia_remedy: ClassVar[str] = "write CDI specifications with nvidia-ctk to /etc/cdi"
    #: Arguments of a command that proves that an engine can build images, and options of its builds.
    answer_words: ClassVar[tuple[str, ...]] = ("info",)
    build_options: ClassVar[tuple[str, ...]] = ()

    command: str
    facts: EngineFacts = field(default_factory=EngineFacts)
    run: Run = field(default_factory=toolbox)

    @classmethod
    def parse_info(cls, info: Mapping[str, Any]) -> Optional[EngineFacts]:
        """Return the facts in the JSON of the engine's command ``info``; None if another engine printed it, or none."""
        return None

    def installed(self) -> Any:
        """Return a container engine's entry in a node's facts: its version; None if it is not installed."""
        return version_of(self.run, self.command, "--version")

    def access(self, vendor: str, root: Path = Path("/")) -> DeviceAccess:
        """Return how a container gets a vendor's accelerators; ``auto`` finds the vendor by device files in `root`."""
        present = [name for name, patterns in PRESENT.items() if any(any(root.glob(pattern)) for pattern in patterns)]
        vendor = present[0] if vendor == "auto" and present else vendor
        if vendor not in present:
            return DeviceAccess()
        device_access = {"nvidia": self.nvidia, "amd": self.amd, "gaudi": self.gaudi}[vendor](root)
        if device_access.problem:
            return device_access
        devices = (f"--device=/dev/{name}" for name, pattern in BETWEEN_NODES.items() if any(root.glob(pattern)))
        return replace(device_access, arguments=(*device_access.arguments, *devices))

    def nvidia(self, root: Path) -> DeviceAccess:
        if self.facts.cdi and has_cdi("nvidia.com/gpu", root):
            return DeviceAccess(("--device=nvidia.com/gpu=all",))
        return DeviceAccess(problem=f"{self.name} cannot hand NVIDIA GPUs to containers: {self.nvidia_remedy}")

    def amd(self, root: Path) -> DeviceAccess:
        nodes = [f"--device=/dev/{name}" for name in ("kfd", "dri") if (root / "dev" / name).exists()]
        return DeviceAccess((*nodes, *self.groups(root), "--security-opt=seccomp=unconfined"))

    def groups(self, root: Path) -> list[str]:
        """Return engine options for the groups of AMD's device files, as numbers: in an image, names have others."""
        nodes = [root / "dev/kfd", *(root / "dev/dri").glob("renderD*"), *(root / "dev/dri").glob("card*")]
        entries = [line.split(":") for line in (read_text(root / "etc/group") or "").splitlines()]
        named = {int(e[2]) for e in entries if e[0] in ("video", "render") and len(e) >= 3 and e[2].isdigit()}
        return [f"--group-add={number}" for number in sorted({*map(_group, nodes), *named} - {0})]

    def gaudi(self, root: Path) -> DeviceAccess:
        nodes = ["/dev/accel"] if (root / "dev/accel").is_dir() else []
        nodes += [f"/dev/{node.name}" for node in sorted((root / "dev").glob("hl*[0-9]"))]
        nodes = ["habana.ai/gaudi=all"] if self.facts.cdi and has_cdi("habana.ai/gaudi", root) else nodes
        return DeviceAccess((*(f"--device={node}" for node in nodes), "--cap-add=sys_nice"), GAUDI_VARIABLES)

    def push_options(self, digest_file: str) -> list[str]:
        """Return options of a push that write an image's digest to a file; none if the engine prints the digest."""
        return []

    def save_argv(self, reference: str) -> list[str]:
        """Return the command that prints an image as an archive that all container engines load."""
        return [self.command, "save", reference]

    def build_environment(self) -> dict[str, str]:
        """Return the environment variables for building an image."""
        return {}

    def stop_argv(self, ids: Sequence[str], grace_seconds: float) -> list[str]:
        """Return the command that ends containers with these ids: SIGTERM, a grace period, SIGKILL."""
        return [self.command, "stop", f"--time={max(0, round(grace_seconds))}", *ids]

    def stop(self, labels: Mapping[str, str]) -> list[str]:
        """End and remove all containers with these labels; returns their ids. Raises ``EngineError`` when some stay."""
        ids = self.find(labels)
        if ids:
            self.ask(*REMOVE, *ids)
            if remaining := self.find(labels):
                raise EngineError(f"{self.command} could not remove containers {', '.join(i[:12] for i in remaining)}")
        return ids

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """Return the ids of all containers with these labels. Raises ``EngineError``."""
        filters = (f"--filter=label={name}={value}" for name, value in sorted(labels.items()))
        listing = self.ask("ps", "--all", "--quiet", "--no-trunc", *filters)
        if listing.returncode != 0:
            raise EngineError(f"{self.command} ps failed: {listing.stderr.strip()[-300:]}")
        return listing.stdout.split()

    def create(self, argv: Sequence[str]) -> str:
        """Create a container by a complete command; return its id. Raises ``EngineError`` with the engine's text."""
        creation = self.ask(*argv[1:], limit=2 * COMMAND_SECONDS)
        lines = creation.stdout.split()
        if creation.returncode != 0 or not lines:
            raise EngineError(creation.stderr.strip()[-2000:] or f"{self.command} create failed without output")
        return lines[-1]

    def ending(self, identifier: str) -> Ending:
        """Return how a container ended, by ``inspect``. Raises ``EngineError``."""
        inspection = self.ask("inspect", "--format={{json .State}}", identifier)
        state = parse_json(inspection.stdout) if inspection.returncode == 0 else None
        if not isinstance(state, dict):
            raise EngineError(f"{self.command} cannot inspect the container: {one_line(inspection.stderr, 300)}")
        return parse_ending(state)

    def remove(self, identifier: str) -> None:
        """Kill and remove a container. Raises ``EngineError`` when the container still exists."""
        removal = self.ask(*REMOVE, identifier)
        listed = self.ask("ps", "--all", "--quiet", f"--filter=id={identifier}")
        if listed.returncode != 0 or listed.stdout.split():  # without an answer the container may exist
            reason = one_line(removal.stderr or listed.stderr, 300)
            raise EngineError(f"{self.command} could not remove container {identifier[:12]}: {reason}")

    def image(self, reference: str) -> Optional[LocalImage]:
        """Return an image by reference or id, None when the engine does not have it. Raises ``EngineError``."""
        inspection = self.ask("image", "inspect", reference)
        if inspection.returncode != 0:
            if "no such image" in inspection.stderr.lower() or "image not known" in inspection.stderr.lower():
                return None
            raise EngineError(f"{self.command} image inspect failed: {one_line(inspection.stderr, 300)}")
        documents = parse_json(inspection.stdout)
        has_image = isinstance(documents, list) and documents and isinstance(documents[0], dict)
        return parse_image(documents[0]) if has_image else None

    def unfit(self, image: LocalImage, reference: str) -> str:
        """Return why this node cannot run an image (made for another processor architecture); empty if it can."""
        architecture, remedy = self.facts.architecture, "give the image built for it"
        if not architecture or image.architecture in ("", architecture):
            return ""
        return f"image {reference} is for {image.architecture} and this node is {architecture}: {remedy}"

    def ask(self, *arguments: str, limit: float = COMMAND_SECONDS) -> ToolResult:
        """Run a command of the engine. Raises ``EngineError`` without an engine, or after `limit` seconds."""
        completed = self.run(self.command, *arguments, timeout=limit)
        if completed.missing:
            raise EngineMissingError(f"{self.command} is not installed on this node")
        if completed.returncode is None:
            raise EngineError(completed.complaint if completed.timed_out else f"{self.command} {completed.stderr}")
        return completed


def version_of(run: Run, tool: str, argument: str) -> Optional[str]:
    result = run(tool, argument)
    match = _VERSION.search(result.stdout) if result.ok else None
    return match.group(1) if match else None


def parse_ending(state: Mapping[str, Any]) -> Ending:
    """Return how a container ended, from the object `State` that the engine's ``inspect`` prints."""
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
    """Return the image in an entry of ``image inspect``; podman's ids lack the prefix ``sha256:``."""
    identifier = str(document.get("Id") or "")
    pairs = (entry.partition("=") for entry in part(document, "Config").get("Env") or [] if isinstance(entry, str))
    size = document.get("Size")
    return LocalImage(
        id=identifier if ":" in identifier or not identifier else f"sha256:{identifier}",
        architecture=architecture_of(document.get("Architecture")),
        bytes=size if isinstance(size, int) else None,
        environment={name: value for name, _, value in pairs},
    )


def part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = document.get(name)
    return section if isinstance(section, dict) else {}


def architecture_of(name: Any) -> str:
    text = str(name or "")
    return ARCHITECTURES.get(text, text)


def remedy_of(reason: str) -> str:
    if "permission denied" in reason.lower():
        user = os.environ.get("USER") or f"user {os.geteuid()}"
        return f": let {user} use it (group docker and a new login, or become)"
    return ": start its service (systemctl start docker) and check its journal"


def parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def has_cdi(kind: str, root: Path) -> bool:
    specs = (spec for directory in CDI_DIRECTORIES for spec in (root / directory).glob("*.*"))
    return any(kind in (read_text(spec) or "") for spec in specs if spec.suffix in (".json", ".yaml", ".yml"))


def _group(node: Path) -> int:
    try:
        return node.stat().st_gid
    except OSError:
        return 0
