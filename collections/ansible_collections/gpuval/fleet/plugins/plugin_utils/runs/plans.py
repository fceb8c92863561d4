"""Makes the plan of a node from a profile and the declarations of its stages. Pure, except for a random nonce."""

import functools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import extensions, schemas, yaml_file
from ..core.errors import GpuvalError, SettingError
from ..core.paths import COLLECTION
from ..core.stage_traits import traits_of
from ..core.text import meant
from ..records import evidence
from . import datasets

_STAGE, _CONTAINER = (schemas.schema("plan")["$defs"][name]["properties"] for name in ("stage", "container"))
#: Defaults of the optional keys in the declaration of a stage. A plan lacks `requires`, which the launch checks.
STAGE_DEFAULTS = {**{key: rule["default"] for key, rule in _STAGE.items() if "default" in rule}, "requires": []}
#: Fields of PlanSettings that are not copied to a plan as they are.
NOT_COPIED = ("sku", "gpu_count", "container", "gang", "gives_way", "nonce")
#: Python module that runs a job's steps on a node. Only this program gets secrets.
JOB = "gpuval_workloads.job"
FACTS, IMAGE, LOADING = "facts", "image", "loading"
#: Keys of a log reader that a plan contains, and max readers of a stage.
READER_KEYS, MAX_READERS = ("name", "step", "x_unit", "values"), 8
#: Conversions of settings to the numeric types of the schema: a template may leave numbers as text.
_NUMBERS = {"integer": int, "number": float}
REQUIREMENT_KEYS = {"import", "start", "where", "install"}


class PlanError(GpuvalError):
    """The profile, the tags or a declaration of a stage are wrong; the message names a remedy."""


class NothingChosenError(PlanError):
    """The tags leave nothing to run."""


@dataclass(frozen=True)
class PlanSettings:
    run_id: str
    node: str
    created_at: str
    deadline_seconds: float
    heartbeat_seconds: float
    runtime: str
    sku: str
    gpu_count: int | None
    python: str
    models_dir: str | None
    container: Mapping[str, Any] = field(default_factory=dict)
    telemetry_seconds: float = 1.0
    gang: Mapping[str, Any] | None = None
    gives_way: bool = False
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    @classmethod
    def of(cls, run: Mapping[str, Any], node: str, **chosen: Any) -> "PlanSettings":
        """The settings of a node: its expectations from the run, all other fields from `chosen`."""
        expected = run["nodes"][node]
        settings = {"deadline_seconds": run["deadline_seconds"], "gang": gang_of(run, node), **chosen}
        return cls(run["run_id"], node, sku=expected["sku"], gpu_count=expected["gpu_count"], **settings)


def with_datasets(
    profile: Sequence[str],
    gang_stages: Iterable[str],
    declarations: Mapping[str, Mapping[str, Any]],
    *,
    in_pods: bool = False,
) -> list[str]:
    """The stages of a profile, with a stage that loads a dataset before the first that uses it; for multi-node stages
    at the end. Raises PlanError for an undeclared dataset, or one of multi-node stages in pods (`in_pods`)."""
    stages: list[str] = []
    together = list(gang_stages)
    for name in [*profile, *together]:
        dataset_names = _datasets(name, declarations.get(name, {}))
        if unknown := [one for one in dataset_names if datasets.STAGE + one not in declarations]:
            declared = [one.removeprefix(datasets.STAGE) for one in declarations if one.startswith(datasets.STAGE)]
            raise PlanError(
                f"datasets of {name}: no dataset {unknown[0]}{meant(unknown[0], declared)}; gpuval_datasets "
                f"declares {', '.join(sorted(declared)) or 'none'}"
            )
        if dataset_names and in_pods and name in together:
            raise PlanError(
                f"datasets of {name}: pods of multi-node stages have no datasets: name a folder of the nodes in "
                "container.volumes"
            )
        dataset_stages = (datasets.STAGE + one for one in dataset_names)
        stages += [one for one in dataset_stages if one not in stages]
        stages += [name] if name not in together else []
    return stages


def loads(stages: Iterable[str]) -> bool:
    """Whether one of the stages reads ``models/`` of the store."""
    return any(name == LOADING or name.startswith(datasets.STAGE) for name in stages)


def _datasets(name: str, declaration: Mapping[str, Any]) -> list[str]:
    dataset_names = declaration.get("datasets") or []
    if not isinstance(dataset_names, (list, tuple)) or not all(isinstance(one, str) for one in dataset_names):
        raise PlanError(f"datasets of {name}: {dataset_names!r} is no list of names: write [{dataset_names}]")
    return list(dict.fromkeys(dataset_names))


def _needs(declaration: Mapping[str, Any]) -> list[str]:
    """The stages that a stage needs, including the stages that load its datasets."""
    return [*declaration.get("needs", []), *(datasets.STAGE + one for one in declaration.get("datasets") or [])]


def select_stages(
    profile: Sequence[str],
    declarations: Mapping[str, Mapping[str, Any]],
    run_tags: Iterable[str],
    skip_tags: Iterable[str],
) -> list[str]:
    """Stages of the profile that the tags choose, in its order, with `facts` and the stages that the chosen ones need.
    Raises PlanError for an undeclared stage, an unknown log reader, or if no stage is left."""
    if undeclared := [name for name in profile if name not in declarations]:
        raise PlanError(
            f"no workload is declared for {', '.join(undeclared)}: "
            f"define {undeclared[0]}_workload, or correct gpuval_stages"
        )
    allowed, unwanted = set(run_tags), set(skip_tags)
    tags = {name: _tags(name, declarations) for name in profile}
    everything = not allowed or "all" in allowed
    chosen = {name for name in profile if (everything or tags[name] & allowed) and not tags[name] & unwanted}
    if chosen and FACTS in profile and not tags[FACTS] & unwanted:
        chosen.add(FACTS)  # without facts a node's hardware is unknown, which makes it INCOMPLETE
    chosen = set(_with_needed(chosen, (), profile, declarations, unwanted))
    if not chosen and allowed == {IMAGE}:
        raise NothingChosenError(
            f"there is no image to load: the stages of the run are {', '.join(profile)}. Images are loaded where "
            "gpuval_images names some, gpuval_runtime is not host and gpuval_stages, if it is set, has image"
        )
    if not chosen:
        raise NothingChosenError(
            f"the tags leave no stage to run; the profile has: {', '.join(profile)} (--tags {','.join(sorted(allowed))}"
            + (f" --skip-tags {','.join(sorted(unwanted))})" if unwanted else ")")
        )
    for name in chosen:
        _readers(name, declarations[name])  # a mistyped reader must end the run before a node works
    return [name for name in profile if name in chosen]


def _tags(name: str, declarations: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {name, *declarations[name].get("tags", [])}


def _with_needed(
    chosen: Iterable[str],
    needed: Iterable[str],
    profile: Sequence[str],
    declarations: Mapping[str, Mapping[str, Any]],
    unwanted: set[str],
) -> list[str]:
    """The stages `chosen` and `needed`, and all stages of the profile that these need, in the profile's order. Skips
    stages with an unwanted tag, unless they are in `chosen`."""
    stages = set(chosen)
    todo = [*stages, *needed]
    while todo:
        name = todo.pop()
        if name not in stages:
            if name not in profile or _tags(name, declarations) & unwanted:
                continue
            stages.add(name)
        todo += [other for other in _needs(declarations[name]) if other not in stages]
    return [name for name in profile if name in stages]


def gang_of(run: Mapping[str, Any], node: str) -> dict[str, Any] | None:
    """The `gang` field of a node's plan: the nodes that run multi-node stages with it. None for no gang."""
    gang = run["nodes"][node].get("gang")
    if gang is None:
        return None
    return {"name": gang["name"], "index": gang["index"], **run["gangs"][gang["name"]]}


def without_members(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan as controller and store keep it: its gang has name and index, without the members that run.json lists."""
    gang = plan.get("gang")
    return {**plan, **({"gang": {"name": gang["name"], "index": gang["index"]}} if gang else {})}


def with_members(plan: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The plan that a node gets: adds to a plan from `without_members` the members of its gang in run.json."""
    gang = gang_of(run, plan["node"])
    return {**plan, **({"gang": gang} if gang else {})}


def select(
    profile: Sequence[str],
    gang_stages: Sequence[str],
    declarations: Mapping[str, Mapping[str, Any]],
    run_tags: Iterable[str],
    skip_tags: Iterable[str],
) -> tuple[list[str], list[str]]:
    """Returns the single-node and the multi-node stages that the tags choose. If they choose only multi-node stages, a
    node runs just `facts` and the stages that those need. Raises PlanError."""
    run_tags, skip_tags = list(run_tags), list(skip_tags)
    absent = [
        tag for tag in run_tags if tag in extensions.found("stages") and tag not in {IMAGE, *profile, *gang_stages}
    ]
    if absent:
        raise PlanError(
            f"--tags {','.join(absent)}: no stage of this run, which has {', '.join([*profile, *gang_stages])}; "
            "choose a profile that has it (-e gpuval_profile=standard, or burnin), or name it in gpuval_stages"
        )
    chosen: list[str] = []
    with suppress(NothingChosenError):
        chosen = select_stages(gang_stages, declarations, run_tags, skip_tags) if gang_stages else []
    try:
        node_stages = select_stages(profile, declarations, run_tags, skip_tags)
    except NothingChosenError:
        if not chosen:
            raise
        node_stages = [name for name in profile if name == FACTS and not _tags(FACTS, declarations) & set(skip_tags)]
    needed = [name for stage in chosen for name in _needs(declarations[stage])]
    node_stages = _with_needed(node_stages, needed, profile, declarations, set(skip_tags))
    if problems := unmet_needs(node_stages, chosen, declarations, skip_tags):
        raise PlanError("; ".join(problems))
    return node_stages, chosen


def unmet_needs(
    stages: Sequence[str],
    gang_stages: Sequence[str],
    declarations: Mapping[str, Mapping[str, Any]],
    skip_tags: Iterable[str] = (),
) -> list[str]:
    """Messages on needs of stages that no earlier stage of the node meets. Met are images, which a node may have, and
    skipped stages, which ran in an earlier run."""
    unwanted = set(skip_tags)
    brought = {IMAGE, *unwanted, *(name for name in declarations if _tags(name, declarations) & unwanted)}
    problems = []
    for name in [*stages, *gang_stages]:
        for need in dict.fromkeys(_needs(declarations.get(name, {}))):
            if need not in brought:
                remedy = f"move {need}" if need in stages else f"add {need}, or --skip-tags {need} where it ran before"
                problems.append(f"gpuval_stages: {name} needs {need}, which no stage before it brings: {remedy}")
        brought.add(name)
    return problems


def check_images(runtime: str, images: Mapping[str, str | None]) -> None:
    """Raise PlanError if `runtime` names a container engine and no stage has an image: a mistyped gpuval_images would
    silently test the host's own software. `images`: {stage: image reference or None}."""
    work = [stage for stage in images if stage not in (FACTS, IMAGE)]
    if runtime not in ("auto", "host") and work and not any(images.values()):
        raise PlanError(
            f"gpuval_runtime is {runtime}, and none of {', '.join(work)} has an image: declare gpuval_images "
            "(training, loading, inference), or set gpuval_runtime to host or auto"
        )


def stage(
    name: str, declaration: Mapping[str, Any], chosen: Iterable[str], container: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Make a plan's stage from its declaration. Drops needs outside the `chosen` stages of the run. `container`:
    settings of all stages' containers, which the declaration overrides. Raises PlanError."""
    unknown = set(declaration) - set(STAGE_DEFAULTS) - {"command", "workload"}
    if unknown or "command" not in declaration:
        problem = f"unknown keys {', '.join(sorted(unknown))}" if unknown else "no command"
        raise PlanError(f"{name}_workload: {problem}; known are command, workload, {', '.join(STAGE_DEFAULTS)}")
    chosen = set(chosen)
    merged = {**STAGE_DEFAULTS, "workload": name, **declaration, "name": name}
    merged["command"] = [str(word) for word in merged["command"]]
    merged["environment"] = {str(key): str(value) for key, value in merged["environment"].items()}
    merged["datasets"] = _datasets(name, merged)
    merged["secrets"] = list(merged["secrets"])
    if merged["secrets"] and JOB not in merged["command"]:
        raise PlanError(f"{name}_workload.secrets: only jobs have secrets: declare a job (gpuval_jobs)")
    requires = merged.pop("requires")  # only the launch checks them
    for need in requires if isinstance(requires, (list, tuple)) else [requires]:
        is_need = isinstance(need, Mapping) and len({"import", "start"} & need.keys()) == 1
        if not is_need or need.keys() - REQUIREMENT_KEYS or not all(isinstance(word, str) for word in need.values()):
            raise PlanError(
                f"{name}_workload.requires: {need!r}: write {{import: MODULE>=VERSION}} or {{start: COMMAND}}; "
                "`where` names a file of nodes that need it, `install` what to install"
            )
    merged["needs"] = [needed for needed in dict.fromkeys(_needs(merged)) if needed in chosen]
    merged["tags"] = sorted({name, *merged["tags"]})
    merged["image"] = str(merged["image"]) if merged["image"] else None
    merged["output"] = _readers(name, declaration)
    gpus = "none" if name.startswith(datasets.STAGE) else traits_of(name).gpus
    merged |= {"gpus": gpus} if gpus != "work" else {}
    merged["container"] = checked_container(name, {**(container or {}), **(merged["container"] or {})})
    return merged


@functools.cache
def shipped_readers() -> dict[str, dict[str, Any]]:
    """{program: log reader, as a plan contains it}, of the programs in ``outputs/programs.yml`` whose output the runner
    understands. Raises schemas.Invalid if the file breaks its schema."""
    programs = yaml_file.shipped(COLLECTION / "outputs/programs.yml", "outputs")["programs"]
    return {program["name"]: {key: program[key] for key in READER_KEYS if key in program} for program in programs}


def readers(declaration: Any) -> list[dict[str, Any]]:
    """Log readers for the `output` value of a declaration: a name, a list of names, or None. Raises SettingError."""
    names = declaration if isinstance(declaration, list | tuple) else [declaration] if declaration else []
    if len(names) > MAX_READERS:
        raise SettingError(f"{len(names)} programs, at most {MAX_READERS} are read")
    listed = shipped_readers() if names else {}
    for name in names:
        if not isinstance(name, str) or name not in listed:
            raise SettingError(f"no reader is called {name!r}{meant(name, listed)}; there are {', '.join(listed)}")
    return [listed[name] for name in dict.fromkeys(names)]


def _readers(name: str, declaration: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return readers(declaration.get("output"))
    except SettingError as error:
        raise PlanError(f"{name}_workload.output: {error}") from error


def checked_container(name: str, container: Mapping[str, Any]) -> dict[str, Any] | None:
    """Check container settings of the stage `name`, and convert numbers that a template left as text. None if no
    setting has a value. Raises PlanError."""
    if unknown := sorted(container.keys() - _CONTAINER.keys()):
        raise PlanError(
            f"{name}_workload.container (or gpuval_container): unknown keys {', '.join(unknown)}"
            f"{meant(unknown[0], sorted(_CONTAINER))}; known are {', '.join(sorted(_CONTAINER))}"
        )
    checked = {key: value for key, value in container.items() if value is not None and value != ""}
    try:
        for key, rule in _CONTAINER.items():
            if key in checked and rule["type"][0] in _NUMBERS:
                checked[key] = _NUMBERS[rule["type"][0]](checked[key])
    except (TypeError, ValueError):
        raise PlanError(f"{name}_workload.container.{key}: {checked[key]!r} is not a number") from None
    if "ulimits" in checked:
        checked["ulimits"] = {str(key): str(value) for key, value in checked["ulimits"].items()}
    return checked or None


def accelerator(sku: str, gpu_count: int | None) -> dict[str, Any]:
    """The `accelerator` field of a plan. The vendor `auto` lets the node detect it; `gpu_count` None: any count."""
    if sku == "cpu":
        return {"vendor": "cpu", "count": 0}
    return {"vendor": sku if sku in GPU_VENDORS else "auto", "count": gpu_count}


def build(
    settings: PlanSettings,
    stages: Sequence[str],
    declarations: Mapping[str, Mapping[str, Any]],
    attempt: int = 1,
    images: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The plan (gpuval.plan/1) of one node. `images`: {reference: image, and where the node gets it}. Raises PlanError
    if the node's variables do not declare one of the `stages`."""
    if undeclared := [name for name in stages if name not in declarations]:
        raise PlanError(
            f"{settings.node}: gpuval_stages or gpuval_profile of this host leave out {', '.join(undeclared)}, which "
            "the run expects: set them alike for all hosts of a run"
        )
    # Nodes of a gang connect to each other's addresses: their containers use the host's network.
    container = {**settings.container, "ssh_keys": True, "network": None} if settings.gang else settings.container
    return {
        "schema": "gpuval.plan/1",
        **{name: value for name, value in vars(settings).items() if name not in NOT_COPIED},
        "attempt": attempt,
        "nonce": evidence.nonce_of(settings.nonce, attempt),
        "accelerator": accelerator(settings.sku, settings.gpu_count),
        "images": dict(images or {}),
        **({"gang": dict(settings.gang)} if settings.gang else {}),
        **({"gives_way": True} if settings.gives_way else {}),
        "stages": [stage(name, declarations[name], stages, container) for name in stages],
    }


def for_attempt(plan: Mapping[str, Any], names: Sequence[str], attempt: int) -> dict[str, Any]:
    """The plan of a later attempt, which runs only the stages `names` again."""
    stages = [item for item in plan["stages"] if item["name"] in set(names)]
    return {**plan, "attempt": attempt, "stages": stages, "nonce": evidence.nonce_of(plan.get("nonce", ""), attempt)}


def with_needs(stages: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """The named stages and all stages that they need, directly or not, in the order of the plan's `stages`."""
    by_name = {stage["name"]: stage for stage in stages}
    return _with_needed((), names, list(by_name), by_name, set())
