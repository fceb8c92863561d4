"""Additional context: what the user adds to every model of a run, as JSON or as a Python literal."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core import schemas
from ..core.text import meant
from .documents import MadError, check, parse_json, parse_literal, shown, unknown_keys, within
from .models import checked_args

SETTING = "gpuval_mad_context"
MAX_TEXT = 1 << 20
MPIRUN = "mpirun"
#: Name of the launcher for batch files of Slurm, which start their processes by srun.
SLURM = "slurm_multi"
#: {launcher: MAD_MULTI_NODE_RUNNER on one node}; empty if scripts start their processes themselves.
RUNNERS = {
    **dict.fromkeys(
        ("torchrun", "torchtitan", "megatron", "megatron-lm"), "torchrun --standalone --nproc_per_node=$NPROC_PER_NODE"
    ),
    "deepspeed": "deepspeed --num_gpus=$NPROC_PER_NODE",
    MPIRUN: "mpirun --allow-run-as-root --bind-to none -np $NPROC_PER_NODE",
    **dict.fromkeys(("primus", "sglang", "sglang-disagg", "vllm", SLURM, "none"), ""),
}
#: {launcher: MAD_MULTI_NODE_RUNNER} if several nodes run the model together. The script runs on each node, with mpirun
#: on the first node only.
GANG_RUNNERS = {
    launcher: "$GPUVAL_LAUNCHER"
    if launcher == MPIRUN
    else text.replace("--standalone", "--nnodes=$NNODES --node_rank=$NODE_RANK $where").replace(
        "deepspeed", "deepspeed --hostfile=$GPUVAL_HOSTFILE --no_ssh --node_rank=$NODE_RANK $where"
    )
    for launcher, text in RUNNERS.items()
}
MASTER_PORT = 29500
_SIZE = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECRET = re.compile(
    r"SECRET|TOKEN$|PASSWO?R?D|CREDENTIAL|(?:^|_)(?:ACCESS|API|AUTH|PRIVATE)_?KEY(?:_|$)", re.IGNORECASE
)


@dataclass(frozen=True)
class Distributed:
    """How a model's processes start: launcher, number of nodes, and processes on each node (0: one for each GPU)."""

    launcher: str
    processes: int = 0
    nodes: int = 1
    port: int = MASTER_PORT

    @property
    def is_gang(self) -> bool:
        return self.nodes > 1

    @property
    def runner(self) -> str:
        """The command that starts the model's processes; empty for a script that starts them itself."""
        return (GANG_RUNNERS if self.is_gang else RUNNERS)[self.launcher]


@dataclass(frozen=True)
class MadContext:
    """The parsed additional context. `facts` select Dockerfiles; `pre_scripts` and `post_scripts` run before and after
    the model's script. `secrets`: names of variables whose values come from gpuval_secrets."""

    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    build_arguments: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    cpus: str = ""
    image: str = ""
    shm_bytes: int | None = None
    timeout_multiplier: float = 1.0
    model_args: str | None = None
    pre_scripts: tuple[Mapping[str, str], ...] = ()
    post_scripts: tuple[Mapping[str, str], ...] = ()
    tools: str = ""
    distributed: Distributed | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def parse(source: str | Mapping[str, Any] | None) -> MadContext:
    """The additional context from a mapping, JSON text or a Python literal. Raises MadError that names the field."""
    document = _document(source)
    check("mad_context", document, subject=SETTING)
    for key in ("pre_scripts", "post_scripts"):
        for script in document.get(key, ()):
            within(script["path"], subject=f"{SETTING}: {key}")
    tools = document.get("tools", ())
    environment = variables(document, "docker_env_vars")
    for tool in tools:
        if not tool.get("cmd") and not tool.get("env_vars"):
            raise MadError(f"{SETTING}: tools: {tool['name']} has neither cmd nor env_vars: give its command as cmd")
        environment = {**variables(tool, "env_vars", f"{SETTING}: tools: {tool['name']}"), **environment}
    secrets = tuple(name for name, value in environment.items() if not value and _SECRET.search(name))
    model_args = document.get("model_args")
    unknown = unknown_keys("mad_context", document)
    return MadContext(
        environment={name: value for name, value in environment.items() if name not in secrets},
        secrets=secrets,
        build_arguments=variables(document, "docker_build_arg"),
        volumes=tuple(f"{host}:{inside}" for inside, host in document.get("docker_mounts", {}).items()),
        gpus=_gpus(document.get("docker_gpus", "all")),
        cpus=document.get("docker_cpus", "").replace(" ", ""),
        image=document.get("MAD_CONTAINER_IMAGE", ""),
        shm_bytes=_size(document["SHM_SIZE"]) if "SHM_SIZE" in document else None,
        timeout_multiplier=float(document.get("timeout_multiplier", 1)),
        model_args=None if model_args is None else checked_args(model_args, f"{SETTING}: model_args"),
        pre_scripts=tuple(document.get("pre_scripts", ())),
        post_scripts=tuple(document.get("post_scripts", ())),
        tools=" ".join(tool["cmd"] for tool in tools if tool.get("cmd")),
        distributed=distributed(document.get("distributed"), SETTING),
        facts={
            key: value
            for key, value in document.items()
            if key in ("gpu_vendor", "guest_os") or (key in unknown and isinstance(value, str | int | float))
        },
        remarks=tuple(
            f"{SETTING}: {shown(key)} is unknown: it is only compared with # CONTEXT"
            f"{meant(key, schemas.schema('mad_context')['properties'])}"
            for key in unknown
        ),
    )


def _document(source: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not isinstance(source, str):
        return source if source is not None else {}
    if len(source) > MAX_TEXT:
        raise MadError(f"{SETTING}: longer than {MAX_TEXT} characters")
    if not source.strip():
        return {}
    try:
        document = parse_json(source, subject=SETTING)
    except MadError as malformed:
        document = parse_literal(source, str(malformed))  # a Python literal such as {'gpu_vendor': 'AMD'}
    if not isinstance(document, Mapping):
        raise MadError(f"{SETTING}: is no object of names and values")
    return document


def distributed(settings: Mapping[str, Any] | None, where: str) -> Distributed | None:
    """The field `distributed` of a model or context, parsed; None without one. `where`: subject of messages. Raises
    MadError for an unknown launcher."""
    if not settings or settings.get("enabled") is False:
        return None
    check("mad_context", {"distributed": settings}, subject=where)
    launcher = settings["launcher"]
    if launcher not in RUNNERS:
        raise MadError(
            f"{where}: distributed.launcher: {shown(launcher)} is not known{meant(launcher, RUNNERS)}; "
            f"known are {', '.join(RUNNERS)}"
        )
    nodes, port = settings.get("nnodes", 1), settings.get("master_port", MASTER_PORT)
    return Distributed(launcher, settings.get("nproc_per_node", 0), nodes, port)


def _gpus(text: str) -> tuple[int, ...]:
    """GPU indices from a text such as `0,2-4`, sorted; empty for `all`. Raises MadError for a descending range."""
    indices: set[int] = set()
    for part in text.split(",") if text != "all" else ():
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise MadError(f"{SETTING}: docker_gpus: {shown(part)} runs backwards: write {last}-{first}")
        indices.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(indices))


def variables(document: Mapping[str, Any], key: str, where: str = SETTING) -> dict[str, str]:
    """Environment variables or build arguments in the field `key` of `document`, as texts. Plans and images show them:
    raises MadError for a secret that has a value."""
    texts = {name: str(value) for name, value in document.get(key, {}).items()}
    for name, value in texts.items():
        if _SECRET.search(name) and (value or key == "docker_build_arg"):
            instead = "leave it out of builds" if key == "docker_build_arg" else "leave its value empty here"
            raise MadError(
                f"{where}: {key}: {name} reads like a secret, and plans and images are in the store: "
                f"{instead}, and set it in gpuval_secrets or the controller's environment"
            )
    return texts


def _size(text: str) -> int:
    """The number of bytes in a size such as `16g`."""
    unit = text[-1].lower() if text[-1].isalpha() else ""
    return int(text[: len(text) - len(unit)]) * _SIZE[unit]
