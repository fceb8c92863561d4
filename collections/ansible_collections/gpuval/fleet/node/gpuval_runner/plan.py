"""Reads and checks a node's plan and replaces placeholders in its texts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Optional, Union, get_args, get_origin, get_type_hints

from gpuval_node.engines import engine_types
from gpuval_node.hardware import pci

from gpuval_runner.errors import NodePlanError
from gpuval_runner.files import read_json
from gpuval_runner.layout import STAGE_NAME

SCHEMA = "gpuval.plan/1"
MAX_PLAN_BYTES = 4 << 20
#: File beside a plan with the members of its gang (the nodes of a multi-node test), the same for all these nodes.
GANG_FILE = "gang.json"
RUNTIMES = ("host", *engine_types(), "auto", "pod")
#: Stages that inspect the node itself and so never run in a container.
HOST_STAGES = frozenset({"facts", "image"})
VENDORS = ("auto", "cpu", *pci.VENDORS.values())
#: Fields of a plan's stage that only the controller uses.
UNUSED = ("retry", "expected_seconds", "tags")


@dataclass(frozen=True)
class ValueLimits:
    """Limits of a plan's field: the pattern that a text matches (`words` in messages), or the range of a number."""

    pattern: str = ".*"
    words: str = "a text without NUL"
    least: float = 0
    most: float = math.inf


def _one_of(*choices: str) -> ValueLimits:
    return ValueLimits("|".join(choices), f"one of {', '.join(choices)}")


_RUN_ID = ValueLimits(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "letters, digits and ._-")
_NODE = ValueLimits(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", "letters, digits and ._-")
_SHA256 = ValueLimits("[0-9a-f]{64}", "a SHA-256 in hexadecimal")
_IMAGE_ID = ValueLimits(f"sha256:{_SHA256.pattern}", "the id of an image")
_ULIMIT = ValueLimits(r"-?\d+(:-?\d+)?", "soft:hard in whole numbers (-1: unlimited)")
_VOLUME = ValueLimits("[^:]+:/[^:]*(:[^:]*)?", "host:inside or host:inside:ro")
_DATASET = ValueLimits("[a-z][a-z0-9_]{0,22}", "the name of a dataset")
_VARIABLE = ValueLimits("[A-Za-z_][A-Za-z0-9_]{0,127}", "the name of a variable")
_ANY, _POSITIVE = ValueLimits(), ValueLimits(least=1e-6)


@dataclass(frozen=True)
class OutputPattern:
    """A metric read from the output: `pattern` has a group ``value`` and perhaps ``unit`` and ``name``."""

    pattern: str
    name: Optional[str] = None
    unit: Optional[str] = None


@dataclass(frozen=True)
class OutputStep:
    """The labels before the number of a training step in a program's log. Only lines with `contains` and without
    `without` are read."""

    labels: tuple[str, ...]
    contains: str = ""
    without: str = ""


@dataclass(frozen=True)
class OutputValue:
    """A number in a program's log: the labels before the number, its unit, its curve's name, and by metric name
    (without the stage) the statistic of the values. Only lines that contain `contains` and not `without` are read. With
    `positive`, the median ignores values of zero and below: time without work."""

    labels: tuple[str, ...]
    figures: Annotated[Mapping[str, str], _one_of("first", "last", "median", "max", "sum", "nonfinite")]
    unit: str
    curve: str = ""
    contains: str = ""
    without: str = ""
    positive: bool = False


@dataclass(frozen=True)
class OutputReader:
    """How to read metrics and curves from the log of one program."""

    name: str
    values: tuple[OutputValue, ...]
    step: Optional[OutputStep] = None
    x_unit: Annotated[str, _one_of("step", "seconds")] = "step"


@dataclass(frozen=True)
class StageContainer:
    """Settings that a stage declares for its container; for others, the engine's defaults apply."""

    python: str = "python3"
    shm_bytes: Annotated[Optional[int], ValueLimits(least=1)] = None
    memory_bytes: Annotated[Optional[int], ValueLimits(least=1 << 20)] = None
    cpus: Annotated[Optional[float], _POSITIVE] = None
    ulimits: Annotated[Mapping[str, str], _ULIMIT] = field(default_factory=dict)
    user: Optional[str] = None
    privileged: bool = False
    capabilities: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    volumes: Annotated[tuple[str, ...], _VOLUME] = ()
    network: str = "host"
    ipc: Optional[str] = None
    arguments: tuple[str, ...] = ()
    ssh_keys: bool = False


@dataclass(frozen=True)
class Archive:
    """A container image as a file in the store."""

    key: str
    sha256: Annotated[str, _SHA256]
    bytes: Annotated[int, ValueLimits(least=1)]


@dataclass(frozen=True)
class Image:
    """A container image by its reference, and its origin: an archive in the store, else the registry of the reference.
    Without `pull`, no registry has the image: it was built on the node."""

    reference: Annotated[str, ValueLimits("[^-].*", "the reference of an image")]
    id: Annotated[Optional[str], _IMAGE_ID] = None
    archive: Optional[Archive] = None
    pull: bool = True


@dataclass(frozen=True)
class Stage:
    """One unit of work in a plan. Limits are in seconds, 0 is no limit."""

    name: Annotated[str, ValueLimits(STAGE_NAME.pattern, "the name of a stage")]
    workload: Annotated[str, ValueLimits(".{1,64}", "a text of 1 to 64 characters")]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    timeout_seconds: float
    inactivity_seconds: float
    grace_seconds: float
    on_failure: Annotated[str, _one_of("continue", "stop")]
    needs: tuple[str, ...]
    patterns: tuple[OutputPattern, ...]
    log_max_bytes: Annotated[int, ValueLimits(least=1024)]
    image: Optional[str] = None
    container: StageContainer = field(default_factory=StageContainer)
    output: tuple[OutputReader, ...] = ()
    datasets: Annotated[tuple[str, ...], _DATASET] = ()
    gpus: Annotated[str, _one_of("work", "memory", "none")] = "work"
    #: Names of the job's secret variables, whose values are in no plan.
    secrets: Annotated[tuple[str, ...], _VARIABLE] = ()


@dataclass(frozen=True)
class PlannedAccelerator:
    """The accelerators that the stages run on, as declared or as found; architecture, product and version of the first
    GPU are as in the facts, else empty."""

    vendor: Annotated[str, _one_of(*VENDORS)]
    count: Optional[int] = None
    architecture: str = ""
    product: str = ""
    version: str = ""


@dataclass(frozen=True)
class NodePlan:
    """The stages that one node runs, in order, and their settings."""

    run_id: Annotated[str, _RUN_ID]
    node: Annotated[str, _NODE]
    attempt: Annotated[int, ValueLimits(least=1, most=9)]
    created_at: str
    deadline_seconds: Annotated[float, _POSITIVE]
    heartbeat_seconds: Annotated[float, _POSITIVE]
    runtime: Annotated[str, _one_of(*RUNTIMES)]
    accelerator: PlannedAccelerator
    python: str
    stages: tuple[Stage, ...]
    models_dir: Optional[str] = None
    images: Mapping[str, Image] = field(default_factory=dict)
    #: Random text that the controller draws for a node and attempt. Each record repeats it.
    nonce: Annotated[str, ValueLimits("[0-9a-f]{16,64}", "a nonce in hexadecimal")] = ""
    #: Seconds between samples of GPUs and host beside a stage; 0 is no sampling.
    telemetry_seconds: float = 0.0
    #: The gang of the node (the nodes of a multi-node test), as JSON; empty for none.
    gang: str = ""
    #: Whether the plan ends when other users' processes begin to use the accelerators.
    gives_way: bool = False

    def stage(self, name: str) -> Stage:
        """Return a stage by name. Raises ``NodePlanError``."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise NodePlanError(f"the plan has no stage {name!r}; it has {', '.join(s.name for s in self.stages)}")

    def in_container(self, stage: Stage) -> bool:
        """Whether a stage runs in a container of an engine or its pod: it has an image, and the runtime uses images."""
        return bool(stage.image) and self.runtime != "host" and stage.name not in HOST_STAGES

    @property
    def containers(self) -> bool:
        """Whether any stage runs in a container engine of this node."""
        return self.runtime not in ("host", "pod") and any(self.in_container(stage) for stage in self.stages)


def load(path: Path) -> NodePlan:
    """Read and check a plan file, and the file of its gang's members beside it, if any. Raises ``NodePlanError``."""
    document = _read(path, "a plan")
    gang = document.get("gang") if isinstance(document, dict) else None
    if isinstance(gang, dict) and "members" not in gang:
        shared = _read(path.with_name(GANG_FILE), "the members of the plan's gang")
        if not isinstance(shared, dict):
            raise NodePlanError(f"{path.with_name(GANG_FILE)} is not an object")
        document = {**document, "gang": {**shared, **gang}}
    return parse(document)


def _read(path: Path, document_name: str) -> Any:
    try:
        return read_json(path.resolve(), MAX_PLAN_BYTES)  # a mounted file is a link
    except FileNotFoundError:
        raise NodePlanError(f"{path} does not exist: launch the run on this node first") from None
    except (OSError, ValueError) as error:
        raise NodePlanError(f"{path} cannot be read as {document_name}: {error}") from error


def parse(document: Any) -> NodePlan:
    """Check a plan document. Raises ``NodePlanError`` naming the field that is wrong."""
    if not isinstance(document, dict):
        raise NodePlanError("plan is not an object")
    keys = {**document}
    if keys.pop("schema", None) != SCHEMA:
        raise NodePlanError(f"plan: schema is not {SCHEMA}: the runner and the controller are of different versions")
    gang = keys.pop("gang", None)
    if gang is not None and not (isinstance(gang, dict) and isinstance(gang.get("members"), list)):
        raise NodePlanError("plan.gang is not a gang with its members")
    images = keys.get("images")
    if isinstance(images, dict) and all(isinstance(image, dict) for image in images.values()):
        keys["images"] = {reference: {**image, "reference": reference} for reference, image in images.items()}
    plan: NodePlan = _object(NodePlan, keys, "plan")
    plan = replace(plan, gang=json.dumps(gang, separators=(",", ":")) if gang else "")
    _check_stages(plan)
    return plan


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return the text with placeholders in braces replaced by `values`; all other braces are kept."""
    return re.sub(r"\{([a-z_]+)\}", lambda match: values.get(match.group(1), match.group(0)), text)


def _check_stages(plan: NodePlan) -> None:
    earlier: set[str] = set()
    if not plan.stages:
        raise NodePlanError("plan.stages is empty")
    for stage in plan.stages:
        if not stage.command:
            raise NodePlanError(f"stage {stage.name!r}: its command is empty")
        for pattern in (item.pattern for item in stage.patterns):
            try:
                groups = re.compile(pattern).groupindex
            except re.error as error:
                problem = f"is not a regular expression: {error}"
                raise NodePlanError(f"stage {stage.name!r}: {pattern!r} {problem}") from error
            if "value" not in groups:
                problem = "has no group 'value': write (?P<value>...) around the number"
                raise NodePlanError(f"stage {stage.name!r}: {pattern!r} {problem}")
        if stage.name in earlier:
            raise NodePlanError(f"stage {stage.name!r} stands twice in the plan")
        later = [s.name for s in plan.stages if s.name in stage.needs and s.name not in earlier]
        if later:
            raise NodePlanError(f"stage {stage.name!r} needs {', '.join(later)}, which does not come before it")
        unknown = [name for name in stage.needs if name not in earlier]
        if unknown and plan.attempt == 1:
            raise NodePlanError(f"stage {stage.name!r} needs {', '.join(unknown)}, which the plan does not have")
        earlier.add(stage.name)


def _object(kind: Any, document: Any, where: str) -> Any:
    """Read a JSON object as the dataclass `kind`; errors name it `where`. A field that is null gets its default."""
    if not isinstance(document, dict):
        raise NodePlanError(f"{where} is not an object")
    kinds = _kinds(kind)
    fields_by_name = {item.name: item for item in fields(kind)}
    unknown = sorted(set(document) - set(fields_by_name) - set(UNUSED))
    if unknown:
        raise NodePlanError(f"{where} has unknown fields: {', '.join(unknown)}")
    values = {}
    for name, item in fields_by_name.items():
        value = document.get(name)
        if value is not None:
            values[name] = _value(kinds[name], value, f"{where}.{name}")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise NodePlanError(f"{where}.{name} is missing")
    return kind(**values)


@cache
def _kinds(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, cached: to resolve them takes longer than to read a stage."""
    return get_type_hints(kind, include_extras=True)


def _value(kind: Any, value: Any, where: str, limits: ValueLimits = _ANY) -> Any:
    """Check that a value is of type `kind`, and return it; errors name it `where`. Limits are for a list's items."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _value(inner[0], value, where, inner[1])
    if origin is Union:  # Optional[...] is Union[..., None]
        return _value(inner[0], value, where, limits)
    if is_dataclass(kind):
        return _object(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise NodePlanError(f"{where} is not a list")
        return tuple(_value(inner[0], item, f"{where}[{number}]", limits) for number, item in enumerate(value))
    if origin is not None:
        if not isinstance(value, dict) or not all(name and not set(name) & {"=", "\0"} for name in value):
            raise NodePlanError(f"{where} is not a map of names to values")
        return {name: _value(inner[1], item, f"{where}.{name}", limits) for name, item in value.items()}
    if type(value) not in ((int, float) if kind is float else (kind,)):
        raise NodePlanError(f"{where} is not of type {kind.__name__}")
    if kind is str:
        if "\0" in value or not re.fullmatch(limits.pattern, value, re.DOTALL):
            raise NodePlanError(f"{where}: {value!r} is not {limits.words}")
    elif not limits.least <= value <= limits.most or math.isinf(value):
        raise NodePlanError(f"{where} is {value}, not a number from {limits.least:g} to {limits.most:g}")
    return value
