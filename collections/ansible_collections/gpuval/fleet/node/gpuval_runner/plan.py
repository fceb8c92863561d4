"""The plan: read, checked, and its placeholders replaced."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from gpuval_node.hardware import pci

from gpuval_runner.errors import PlanError
from gpuval_runner.files import read_json
from gpuval_runner.layout import STAGE_NAME

SCHEMA = "gpuval.plan/1"
MAX_PLAN_BYTES = 4 << 20
#: Beside the plan, where that names its gang alone: the members, which all plans of the gang have in common.
GANG_FILE = "gang.json"
RUNTIMES = ("host", "docker", "podman", "auto", "pod")
ENGINES = ("docker", "podman")
#: They look at the node itself and never go into a container.
HOST_STAGES = frozenset({"facts", "image"})
VENDORS = ("auto", "cpu", *pci.VENDORS.values())

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}")
_ULIMIT = re.compile(r"-?\d+(:-?\d+)?")
_PLACEHOLDER = re.compile(r"\{(python|runner|runner_python|workloads|work_dir|models_dir|run_dir|node|run_id)\}")


@dataclass(frozen=True)
class OutputPattern:
    """A metric read from the output: `pattern` has a group ``value`` and perhaps ``unit`` and ``name``."""

    pattern: str
    name: Optional[str] = None
    unit: Optional[str] = None


@dataclass(frozen=True)
class Container:
    """What a stage asks of its container; the engine's defaults apply to the rest."""

    python: str = "python3"
    shm_bytes: Optional[int] = None
    memory_bytes: Optional[int] = None
    cpus: Optional[float] = None
    ulimits: Mapping[str, str] = field(default_factory=dict)
    user: Optional[str] = None
    privileged: bool = False
    capabilities: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    network: str = "host"
    ipc: Optional[str] = None
    arguments: tuple[str, ...] = ()
    ssh_keys: bool = False


@dataclass(frozen=True)
class Archive:
    """An image as a file in the store."""

    key: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Image:
    """Which image a reference stands for, and where it comes from: an archive, else the reference's registry.

    Without `pull` no registry has it: it was built on the node.
    """

    reference: str
    id: Optional[str] = None
    archive: Optional[Archive] = None
    pull: bool = True


@dataclass(frozen=True)
class Stage:
    """One unit of work. Limits in seconds, 0 is none."""

    name: str
    workload: str
    command: tuple[str, ...]
    image: Optional[str]
    environment: Mapping[str, str]
    timeout_seconds: float
    inactivity_seconds: float
    grace_seconds: float
    on_failure: str
    needs: tuple[str, ...]
    patterns: tuple[OutputPattern, ...]
    log_max_bytes: int
    container: Container = field(default_factory=Container)


@dataclass(frozen=True)
class Plan:
    """What one node is to do, in order."""

    run_id: str
    node: str
    attempt: int
    created_at: str
    deadline_seconds: float
    heartbeat_seconds: float
    runtime: str
    vendor: str
    gpu_count: Optional[int]
    python: str
    models_dir: Optional[str]
    stages: tuple[Stage, ...]
    images: Mapping[str, Image] = field(default_factory=dict)
    #: How often GPUs and host are sampled beside a stage; 0 is not at all.
    telemetry_seconds: float = 0.0
    #: The gang that the node is part of, as JSON; empty for none.
    gang: str = ""

    def stage(self, name: str) -> Stage:
        """Return a stage by name. Raises ``PlanError``."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise PlanError(f"the plan has no stage {name!r}; it has {', '.join(s.name for s in self.stages)}")

    def in_container(self, stage: Stage) -> bool:
        """Whether a stage runs in a container, of an engine or of its pod: it has an image and the runtime uses it."""
        return bool(stage.image) and self.runtime != "host" and stage.name not in HOST_STAGES

    @property
    def containers(self) -> bool:
        """Whether any stage runs in a container engine of this node."""
        return self.runtime not in ("host", "pod") and any(self.in_container(stage) for stage in self.stages)


def load(path: Path) -> Plan:
    """Read and check a plan file, with its gang's members where they are beside it. Raises ``PlanError``."""
    document = _read(path, "a plan")
    gang = document.get("gang") if isinstance(document, dict) else None
    if isinstance(gang, dict) and "members" not in gang:
        shared = _read(path.with_name(GANG_FILE), "the members of the plan's gang")
        if not isinstance(shared, dict):
            raise PlanError(f"{path.with_name(GANG_FILE)} is not an object")
        document = {**document, "gang": {**shared, **gang}}
    return parse(document)


def _read(path: Path, what: str) -> Any:
    try:
        return read_json(path.resolve(), MAX_PLAN_BYTES)  # mounted files are links
    except FileNotFoundError:
        raise PlanError(f"{path} does not exist: launch the run on this node first") from None
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} cannot be read as {what}: {error}") from error


def parse(document: Any) -> Plan:
    """Check a plan document. Raises ``PlanError`` naming the field that is wrong."""
    top = _Fields(document, "plan")
    if top.take("schema") != SCHEMA:
        raise PlanError(f"plan: schema is not {SCHEMA}: the runner and the controller are of different versions")
    accelerator = _Fields(top.take("accelerator"), "accelerator")
    attempt = top.integer("attempt", 1, 9)
    plan = Plan(
        run_id=top.matching("run_id", _RUN_ID),
        node=top.matching("node", _NODE),
        attempt=attempt,
        created_at=top.text("created_at"),
        deadline_seconds=top.number("deadline_seconds", above=0),
        heartbeat_seconds=top.number("heartbeat_seconds", above=0),
        runtime=top.choice("runtime", RUNTIMES),
        vendor=accelerator.choice("vendor", VENDORS),
        gpu_count=accelerator.optional(accelerator.integer, "count", 0, 1 << 20),
        python=top.text("python"),
        models_dir=top.optional(top.text, "models_dir"),
        stages=tuple(_stage(item, number) for number, item in enumerate(top.sequence("stages"))),
        images=_images(top.take("images")) if "images" in top.left else {},
        telemetry_seconds=top.number("telemetry_seconds") if "telemetry_seconds" in top.left else 0.0,
        gang=_gang(top.take("gang")) if "gang" in top.left else "",
    )
    accelerator.finish()
    top.finish()
    _check_stages(plan)
    return plan


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders that `values` names; every other brace is kept."""
    return _PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group(0)), text)


def _stage(document: Any, number: int) -> Stage:
    fields = _Fields(document, f"stages[{number}]")
    stage = Stage(
        name=fields.matching("name", STAGE_NAME),
        workload=fields.text("workload", 64),
        command=tuple(fields.strings("command")),
        image=fields.optional(fields.text, "image"),
        environment=fields.string_map("environment"),
        timeout_seconds=fields.number("timeout_seconds"),
        inactivity_seconds=fields.number("inactivity_seconds"),
        grace_seconds=fields.number("grace_seconds"),
        on_failure=fields.choice("on_failure", ("continue", "stop")),
        needs=tuple(fields.strings("needs")),
        patterns=tuple(_pattern(item, f"{fields.where}.patterns") for item in fields.sequence("patterns", empty=True)),
        log_max_bytes=fields.integer("log_max_bytes", 1024, 1 << 40),
        container=_container(fields.left.pop("container", None), f"{fields.where}.container"),
    )
    for unused in ("retry", "expected_seconds", "tags"):  # for the controller alone
        fields.take(unused)
    fields.finish()
    if not stage.command:
        raise PlanError(f"{fields.where}.command is empty")
    return stage


def _container(document: Any, where: str) -> Container:
    if document is None:
        return Container()
    fields = _Fields(document, where)
    readers: dict[str, Any] = {
        "python": fields.text,
        "shm_bytes": lambda name: fields.integer(name, 1, 1 << 50),
        "memory_bytes": lambda name: fields.integer(name, 1 << 20, 1 << 50),
        "cpus": lambda name: fields.number(name, above=0),
        "ulimits": fields.string_map,
        "user": fields.text,
        "privileged": fields.flag,
        "ssh_keys": fields.flag,
        "capabilities": lambda name: tuple(fields.strings(name)),
        "devices": lambda name: tuple(fields.strings(name)),
        "volumes": lambda name: tuple(fields.strings(name)),
        "network": fields.text,
        "ipc": fields.text,
        "arguments": lambda name: tuple(fields.strings(name)),
    }
    asked = {name: reader(name) for name, reader in readers.items() if fields.left.get(name) is not None}
    for name in readers:
        fields.left.pop(name, None)  # null is as if it were not there
    fields.finish()
    for name, limit in asked.get("ulimits", {}).items():
        if not _ULIMIT.fullmatch(limit):
            raise PlanError(f"{where}.ulimits.{name}: {limit!r} is not soft:hard in whole numbers (-1: unlimited)")
    for volume in asked.get("volumes", ()):
        parts = volume.split(":")
        if not 2 <= len(parts) <= 3 or not parts[0] or not parts[1].startswith("/"):
            raise PlanError(f"{where}.volumes: {volume!r} is not host:inside or host:inside:ro")
    return Container(**asked)


def _gang(document: Any) -> str:
    if not isinstance(document, dict) or not isinstance(document.get("members"), list):
        raise PlanError("plan.gang is not a gang with its members")
    return json.dumps(document, separators=(",", ":"))


def _images(document: Any) -> dict[str, Image]:
    if not isinstance(document, dict):
        raise PlanError("plan.images is not an object")
    return {reference: _image(reference, item) for reference, item in document.items()}


def _image(reference: str, document: Any) -> Image:
    fields = _Fields(document, f"images[{reference}]")
    if not reference or reference.startswith("-"):
        raise PlanError(f"{fields.where}: this is not the reference of an image")
    image_id = fields.optional(fields.matching, "id", _IMAGE_ID)
    described = fields.take("archive")
    pull = fields.flag("pull") if "pull" in fields.left else True
    fields.finish()
    if described is None:
        return Image(reference, image_id, pull=pull)
    fields = _Fields(described, f"{fields.where}.archive")
    archive = Archive(fields.text("key"), fields.matching("sha256", _SHA256), fields.integer("bytes", 1, 1 << 50))
    fields.finish()
    return Image(reference, image_id, archive, pull)


def _pattern(document: Any, where: str) -> OutputPattern:
    fields = _Fields(document, where)
    pattern = OutputPattern(
        pattern=fields.text("pattern"),
        name=fields.text("name") if "name" in fields.left else None,
        unit=fields.text("unit") if "unit" in fields.left else None,
    )
    fields.finish()
    try:
        groups = re.compile(pattern.pattern).groupindex
    except re.error as error:
        raise PlanError(f"{where}: {pattern.pattern!r} is not a regular expression: {error}") from error
    if "value" not in groups:
        raise PlanError(f"{where}: {pattern.pattern!r} has no group 'value': write (?P<value>...) around the number")
    return pattern


def _check_stages(plan: Plan) -> None:
    earlier: set[str] = set()
    for stage in plan.stages:
        if stage.name in earlier:
            raise PlanError(f"stage {stage.name!r} stands twice in the plan")
        later = [s.name for s in plan.stages if s.name in stage.needs and s.name not in earlier]
        if later:
            raise PlanError(f"stage {stage.name!r} needs {', '.join(later)}, which does not come before it")
        unknown = [name for name in stage.needs if name not in earlier]
        if unknown and plan.attempt == 1:
            raise PlanError(f"stage {stage.name!r} needs {', '.join(unknown)}, which the plan does not have")
        earlier.add(stage.name)


class _Fields:
    """Takes typed fields out of a mapping and names what is wrong."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise PlanError(f"{where} is not an object")
        self.left = dict(document)
        self.where = where

    def take(self, name: str) -> Any:
        if name not in self.left:
            raise PlanError(f"{self.where}.{name} is missing")
        return self.left.pop(name)

    def finish(self) -> None:
        if self.left:
            raise PlanError(f"{self.where} has unknown fields: {', '.join(sorted(self.left))}")

    def optional(self, reader: Any, name: str, *arguments: Any) -> Any:
        if self.left.get(name, ...) is None:
            return self.left.pop(name)
        return reader(name, *arguments)

    def text(self, name: str, limit: int = 1 << 16) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not value or len(value) > limit:
            raise PlanError(f"{self.where}.{name} is not a text of 1 to {limit} characters")
        return value

    def matching(self, name: str, pattern: re.Pattern[str]) -> str:
        value = self.text(name)
        if not pattern.fullmatch(value):
            raise PlanError(f"{self.where}.{name}: {value!r} does not match {pattern.pattern}")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.take(name)
        if value not in choices:
            raise PlanError(f"{self.where}.{name}: {value!r} is none of {', '.join(choices)}")
        return str(value)

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise PlanError(f"{self.where}.{name} is neither true nor false")
        return value

    def number(self, name: str, above: Optional[float] = None) -> float:
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise PlanError(f"{self.where}.{name} is not a number")
        if value < 0 or (above is not None and value <= above):
            raise PlanError(f"{self.where}.{name} is {value}, which is too small")
        return float(value)

    def integer(self, name: str, least: int, most: int) -> int:
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise PlanError(f"{self.where}.{name} is not a whole number from {least} to {most}")
        return value

    def sequence(self, name: str, empty: bool = False) -> list[Any]:
        value = self.take(name)
        if not isinstance(value, list) or not (value or empty):
            raise PlanError(f"{self.where}.{name} is not a list" + ("" if empty else " with at least one entry"))
        return value

    def strings(self, name: str) -> list[str]:
        value = self.sequence(name, empty=True)
        if not all(isinstance(item, str) and "\0" not in item for item in value):
            raise PlanError(f"{self.where}.{name} is not a list of texts")
        return value

    def string_map(self, name: str) -> dict[str, str]:
        value = self.take(name)
        if not isinstance(value, dict) or not all(_is_variable(k, v) for k, v in value.items()):
            raise PlanError(f"{self.where}.{name} is not a map of variable names to texts")
        return value


def _is_variable(name: Any, value: Any) -> bool:
    return isinstance(value, str) and bool(name) and "=" not in name and "\0" not in name + value
