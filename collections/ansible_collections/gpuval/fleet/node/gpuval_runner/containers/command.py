"""The command that creates a stage's container, and what an engine's refusal means. Pure except for host limits."""

from __future__ import annotations

import csv
import io
import re
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Optional

from gpuval_node.engines._engine import ContainerEngine, DeviceAccess

from gpuval_runner.environment import StagePaths
from gpuval_runner.plan import Image, StageContainer
from gpuval_runner.text import one_line

INSIDE = Path("/opt/gpuval")
#: Paths inside a stage's container, the same in every image. The signed URLs of the store are not mounted.
PLACES = StagePaths(
    work=INSIDE / "work",
    temporary=INSIDE / "work/tmp",
    models=INSIDE / "models",
    runner=INSIDE / "runner.pyz",
    workloads=INSIDE / "workloads.zip",
    rclone_config=INSIDE / "rclone.conf",
    run=INSIDE,
)
HOME = PLACES.work / "home"
SELINUX = Path("/sys/fs/selinux/enforce")

#: Variables of the host that fit into any image. Paths and the user of the host do not.
INHERITED = (
    *("TZ", "*_proxy", "*_PROXY", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("HSA_*", "OMP_*", "MKL_*", "NCCL_*", "RCCL_*", "GLOO_*", "NVSHMEM_*", "UCX_*", "FI_*"),
)
#: Default ulimits of a container: RDMA pins memory, CUDA and MPI need stack. A limit that an engine refuses is dropped.
ULIMITS = {"memlock": "-1:-1", "stack": "67108864:67108864", "nofile": "1048576:1048576"}
MODEST_NPROC = 32768
_RLIMITS = {"3": "stack", "6": "nproc", "7": "nofile", "8": "memlock"}
_RLIMIT = re.compile(r"rlimit type (\d+)|RLIMIT_([A-Z]+)", re.IGNORECASE)
_INIT_MISSING = re.compile(r"docker-init|catatonit.*(not found|no such file)|init binary", re.IGNORECASE)
_INIT_ERROR = re.compile(
    r"^\[FATAL tini \(\d+\)\] exec .* failed: (.+)|^ERROR \(catatonit:\d+\): failed to exec pid1: (.+)", re.IGNORECASE
)
NO_INIT = "init"
#: An engine's message about an image that was removed while the stage began.
VANISHED = re.compile("no such image|image not known|unable to find image", re.IGNORECASE)
#: Start of the message about an image that is missing on the node.
ABSENT = "image {image} is not on this node: "
LOAD = "run the image stage, which loads its archive (--tags image)"
PULL = "`{engine} pull {image}` there, or give it an archive in gpuval_images (copy, archive)"
BUILD = "build it there (`make build`)"
#: Patterns of an engine's message when a container cannot start, and its meaning; the first match counts.
REFUSALS = (
    (
        "exec format error",
        (
            "image {image} is for another processor architecture than this node's {architecture} (exec format error): "
            "give the image built for it"
        ),
    ),
    ("no space left|disk quota", "the disk of {engine} is full: make room under {storage} ({reason})"),
    (
        "device driver|cdi device|nvidia-container|runtime name",
        "{engine} cannot pass accelerators to containers: fix the vendor's container toolkit ({reason})",
    ),
    (_RLIMIT.pattern, "{engine} may not set a limit that container.ulimits asks for ({reason})"),
    ("cannot connect|connection refused|daemon running", "{engine} stopped answering: check its service ({reason})"),
    (
        "executable file not found|(?=.*exec).*(no such file|not found)",
        (
            "{program} is not in image {image}: name the image's interpreter in {stage}_workload.container.python, or "
            "correct the command"
        ),
    ),
    ("(?=.*exec).*permission denied", "{program} in image {image} may not be executed by user {user}"),
)


@dataclass(frozen=True)
class ContainerRequest:
    """All that a stage's container is made of. A mount is the path on the node, the path inside, and whether it is
    read-only. `refused` names the options that this engine refuses: ``init``; for a limit first gpuval's default
    (``nofile``), then the runner's own limit, too (``nofile!``)."""

    name: str
    reference: str
    image: str
    argv: Sequence[str]
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    inherited: Sequence[str]
    mounts: Sequence[tuple[Path, Path, bool]]
    user: str
    container: StageContainer
    access: DeviceAccess
    refused: frozenset[str] = frozenset()


def inherited_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the host's environment variables that a container gets, too."""
    return sorted(n for n in environment if any(fnmatchcase(n, pattern) for pattern in INHERITED))


def create_argv(engine: ContainerEngine, request: ContainerRequest, selinux: bool = False) -> list[str]:
    """Return the command that creates the container. Values that may be secret (proxies) are named, not shown."""
    container = request.container
    ipc = container.ipc or ("private" if container.shm_bytes else "host")
    argv = [engine.command, "create", "--pull=never", f"--name={request.name}"]
    argv += [f"--label={name}={value}" for name, value in sorted(request.labels.items())]
    argv += [f"--network={container.network}", f"--ipc={ipc}", "--log-driver=none", "--pids-limit=-1"]
    argv += [] if NO_INIT in request.refused else ["--init"]
    argv += [f"--shm-size={container.shm_bytes}"] if container.shm_bytes and ipc != "host" else []
    argv += [f"--ulimit={name}={limit}" for name, limit in sorted(ulimits(container, request.refused).items())]
    if container.memory_bytes:  # equal limits mean no swap: a stage that swaps measures the disk
        argv += [f"--memory={container.memory_bytes}", f"--memory-swap={container.memory_bytes}"]
    argv += [f"--cpus={container.cpus:g}"] if container.cpus else []
    argv += [f"--user={request.user}"] if request.user else []
    argv += ["--privileged"] if container.privileged else []
    argv += [f"--cap-add={name}" for name in container.capabilities]
    argv += [f"--device={device}" for device in container.devices]
    argv += ["--security-opt=label=disable"] if selinux else []
    argv += request.access.arguments
    argv += [f"--workdir={PLACES.work}"]
    argv += [f"--mount={_mount(*mount)}" for mount in request.mounts]
    argv += [f"--volume={volume}" for volume in container.volumes]
    values = {**dict(request.access.environment), **request.environment}
    argv += [f"--env={name}" for name in request.inherited if name not in values]
    argv += [f"--env={name}={value}" for name, value in sorted(values.items())]
    argv += container.arguments
    return [*argv, f"--entrypoint={request.argv[0]}", request.image, *request.argv[1:]]


def ulimits(container: StageContainer, refused: Iterable[str] = ()) -> dict[str, str]:
    """Return the ulimits of a container: gpuval's defaults without refused ones, and all that the stage declares."""
    limits = {name: limit for name, limit in ULIMITS.items() if name not in refused}
    # Without a value, podman sets fixed numbers for nofile and nproc, which it may not be allowed to give.
    inherited = [name for name in _RLIMITS.values() if name in refused and f"{name}!" not in refused]
    limits.update({name: _own_limit(name) for name in inherited})
    return {**limits, **container.ulimits}


def dropped_option(text: str, request: ContainerRequest) -> Optional[str]:
    """Return the option to leave out after an engine's refusal; None for another cause, or an option of the plan."""
    if _INIT_MISSING.search(text) and NO_INIT not in request.refused:
        return NO_INIT
    match = _RLIMIT.search(text)
    if not match:
        return None
    name = _RLIMITS.get(match.group(1) or "", (match.group(2) or "").lower())
    if name not in _RLIMITS.values() or name in request.container.ulimits:
        return None
    return next((step for step in (name, f"{name}!") if step not in request.refused), None)


def explain(text: str, request: ContainerRequest, engine: ContainerEngine) -> str:
    """Return why a container could not start, and what to do, from the engine's message `text`."""
    reason = one_line(re.sub(r"^(docker: )?(Error( response from daemon)?: )", "", text.strip()), 400)
    message = next((words for pattern, words in REFUSALS if re.search(pattern, text, re.IGNORECASE | re.DOTALL)), "")
    return (message or "{engine} refuses the container: {reason}").format(
        architecture=engine.facts.architecture or "own",
        engine=engine.command,
        image=request.reference,
        program=request.argv[0],
        reason=reason or "no reason given",
        stage=request.labels.get("gpuval.stage", ""),
        storage=engine.facts.storage or "its storage",
        user=request.user or "of the image",
    )


def explain_init(exit_code: Optional[int], last_line: str) -> str:
    """Return the message of the container's init if it could not start the program; empty if the program started."""
    match = _INIT_ERROR.search(last_line) if exit_code in (1, 126, 127) else None
    return f"exec: {match.group(1) or match.group(2)}" if match else ""


def absent(reference: str, planned: Optional[Image], engine: str) -> str:
    """Return the message for an image that is missing on the node: stages do not pull images."""
    steps = LOAD if planned and planned.archive else BUILD if planned and not planned.pull else PULL
    return (ABSENT + steps).format(image=reference, engine=engine)


def _own_limit(name: str) -> str:
    _soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    if name == "nproc" and not 0 <= hard <= MODEST_NPROC:  # podman lowers nproc of containers
        hard = MODEST_NPROC
    return f"{hard}:{hard}"  # -1 is unlimited for Python and for engines


def _mount(source: Path, inside: Path, read_only: bool) -> str:
    text = io.StringIO()
    fields = ["type=bind", f"source={source}", f"target={inside}", *(["readonly"] if read_only else [])]
    csv.writer(text, lineterminator="").writerow(fields)  # engines read --mount as CSV: commas in paths are quoted
    return text.getvalue()
