"""Makes the job document (gpuval.job/1) of a planned model, with its steps and their environment."""

import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..jobs.stages import PERFORMANCE
from . import context as contexts
from . import perf
from .context import MadContext
from .data import CUSTOM, DATASET, LOCAL, S3, PlacedDataset
from .models import timeout_seconds
from .planning import MadOptions, Planned

#: File beside the job of a model with a given image: the model's files, packed, which plans carry to the nodes.
PACKED = "gpuval_mad"
RUN_MODEL = Path(__file__).with_name("run_model.sh")
#: Mount point in the container of the node's folder that keeps the models' folders.
KEPT = "/opt/gpuval_kept"
#: Seconds that a model without a time limit adds to the run's deadline.
UNLIMITED_SECONDS = 86_400.0


def job_of(
    plan: Planned, owner: Planned, context: MadContext, options: MadOptions, commit: str, files: str
) -> dict[str, Any]:
    """The job document (gpuval.job/1) of a planned model. `owner`: the planned model whose image it shares; `commit`:
    of its cloned code; `files`: folder of the model's files on the nodes, empty if the job brings them."""
    model = plan.model
    csv = model.multiple_results
    seconds = timeout_seconds(model, options.timeout, context.timeout_multiplier)
    container: dict[str, Any] = {} if options.in_pods else {"user": "0:0"}  # root: models' scripts install packages
    volumes = [
        f"{placed.provider.path}:{placed.home}" + ("" if placed.provider.readwrite else ":ro")
        for placed in plan.data
        if placed.provider.kind == LOCAL
    ]
    volumes += [*context.volumes, *([f"{options.keep_folder}:{KEPT}"] if options.keep_folder else [])]
    container |= {"volumes": volumes} if volumes else {}
    container |= {"shm_bytes": context.shm_bytes} if context.shm_bytes else {}
    container |= {"arguments": ["--cpuset-cpus", context.cpus]} if context.cpus else {}
    facts = _facts(plan, owner.image, options, commit, container)
    datasets = [placed.provider.path for placed in plan.data if placed.provider.kind == DATASET]
    return {
        "schema": "gpuval.job/1",
        "name": plan.stage,
        **({} if plan.batch else {"image": owner.stage}),
        **({"files": [PACKED]} if plan.given else {}),
        **({"container": container} if container and not plan.batch else {}),
        "environment": {perf.VARIABLE: json.dumps(facts, sort_keys=True)},
        **({"datasets": datasets} if datasets else {}),
        **({"secrets": list(plan.secrets)} if plan.secrets else {}),
        "steps": _steps(plan, context, options, files),
        "results": {"csv": csv} if csv else {"patterns": [{"pattern": PERFORMANCE, "name": plan.stage}]},
        **_together(plan, context),
        **({"stay_alive": options.keep_alive_seconds} if options.keep_alive_seconds else {}),
        "timeout_seconds": seconds if seconds or not plan.is_gang else UNLIMITED_SECONDS,
        "inactivity_seconds": 0,
        "retry": [],
        "tags": ["mad", *(tag for tag in model.tags if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", tag))],
    }


def _steps(plan: Planned, context: MadContext, options: MadOptions, files: str) -> list[dict[str, Any]]:
    """The job's steps: the model's script on each node; with mpirun first the files on each node, then the script on
    the first node. A batch file runs on the first node."""
    step: dict[str, Any] = {
        "name": "model",
        "run": _shell(plan, context, options, files) + RUN_MODEL.read_text(encoding="utf-8"),
        "environment": _environment(plan, context),
    }
    if not plan.by_mpirun:
        return [{**step, "once": True} if plan.batch and plan.is_gang else step]
    return [{**step, "name": "prepare"}, {**step, "once": True, "launcher": contexts.MPIRUN}]


def _together(plan: Planned, context: MadContext) -> dict[str, Any]:
    """The keys that only the job of a multi-node model has; empty for a model that each node runs by itself."""
    if not (plan.distributed and plan.is_gang):
        return {}
    nodes = plan.distributed.nodes
    return {
        "nodes": "gang",
        "least_nodes": nodes,
        "most_nodes": nodes,
        **({"gpus_per_node": count} if (count := plan.gpus_per_node(context)) else {}),
    }


def _environment(plan: Planned, context: MadContext) -> dict[str, str]:
    """Environment variables for the model's scripts, besides those of the runner; empty ones are left out."""
    guest = context.facts.get("guest_os") or (plan.dockerfile.context.get("guest_os") if plan.dockerfile else None)
    texts = {
        "MAD_MODEL_NAME": plan.model.name,
        "MAD_GUEST_OS": str(guest or ""),
        "MAD_OUTPUT_CSV": plan.model.multiple_results,
        "MAD_DATANAME": ",".join(plan.model.data),
        "MAD_DATAHOME": ",".join(placed.home for placed in plan.data),
        "MASTER_PORT": str(plan.distributed.port) if plan.distributed and plan.is_gang else "",
    }
    return {**{name: text for name, text in texts.items() if text}, **plan.environment, **context.environment}


def _shell(plan: Planned, context: MadContext, options: MadOptions, files: str) -> str:
    """Assignments of the shell variables that run_model.sh reads. A model's arguments are shell text, not quoted."""
    interpreter, script, folder = plan.script
    model = plan.model
    args = model.args if context.model_args is None else context.model_args
    runner = plan.distributed.runner if plan.distributed else contexts.RUNNERS["torchrun"]
    variables = plan.batch.variables if plan.batch else {}
    folder_kept = options.keep_folder if plan.batch else KEPT
    texts = {
        "FILES": files,
        "SLURM": folder if plan.batch else "",
        "OPTIONS": " ".join(f"{name}={shlex.quote(text)}" for name, text in variables.items()),
        "COMMAND": " ".join(filter(None, (context.tools, interpreter, shlex.quote(script), args))),
        "SKIPS": "" if options.runs_on_all else ",".join(model.skip_gpu_arch),
        "N_GPUS": str(model.n_gpus),
        "GPUS": ",".join(map(str, context.gpus)),
        "RUNNER": runner,
        "PROCESSES": str(plan.distributed.processes if plan.distributed else 0),
        "DATA": " && ".join(filter(None, map(_fetch, plan.data))),
        "FETCHED": " ".join(shlex.quote(placed.home) for placed in plan.data if placed.provider.kind in (CUSTOM, *S3)),
        "PREPARED": "yes" if plan.by_mpirun else "",
        "KEPT": f"{folder_kept}/{plan.stage}" if options.keep_folder else "",
        "BEFORE": _scripts(context.pre_scripts),
        "AFTER": _scripts(context.post_scripts),
    }
    return "".join(f"MODEL_{name}={shlex.quote(text)}\n" for name, text in texts.items())


def _scripts(scripts: Sequence[Mapping[str, str]]) -> str:
    paths = ((shlex.quote(script["path"]), script.get("args", "")) for script in scripts)
    return " && ".join(f'bash "$files"/repository/{path} {args}' for path, args in paths)


def _fetch(placed: PlacedDataset) -> str:
    """The shell command that downloads a data set in the container; empty for a mounted data set."""
    provider, home = placed.provider, shlex.quote(placed.home)
    if provider.kind == CUSTOM:
        script = f'"$files"/repository/{shlex.quote(provider.path)}'
        return f"( mkdir -p {home} && cd {home} && bash {script} {provider.args} )"
    if provider.kind in S3:
        return f"( mkdir -p {home} && cd {home} && fetch_s3 {S3[provider.kind][0]} {shlex.quote(provider.path)} )"
    if provider.kind == DATASET:
        parent = shlex.quote(posixpath.dirname(placed.home))
        return f'mkdir -p {parent} && ln -sfn "$GPUVAL_DATASET_{provider.path.upper()}" {home}'
    return ""


def _facts(plan: Planned, image: str, options: MadOptions, commit: str, container: Mapping[str, Any]) -> dict[str, str]:
    """{column of perf.csv: text} about a model, for columns that no record contains. `container`: that of the job."""
    model = plan.model
    words = [f"--volume={volume}" for volume in container.get("volumes", ())]
    words += [f"--shm-size={container['shm_bytes']}"] if "shm_bytes" in container else []
    words += container.get("arguments", ())
    return {
        "model": model.name,
        "n_gpus": str(model.n_gpus),
        "training_precision": model.training_precision,
        "args": model.args,
        "tags": ",".join(model.tags),
        "docker_file": plan.dockerfile.path if plan.dockerfile else "",
        "base_docker": plan.base,
        "docker_image": image,
        "git_commit": commit,
        "pipeline": options.pipeline,
        "additional_docker_run_options": "" if options.in_pods else " ".join(words),
        "deployment_type": "kubernetes" if options.in_pods else "slurm" if plan.batch else "ssh",
        "launcher": plan.distributed.launcher if plan.distributed else "",
        **({"nnodes": str(plan.distributed.nodes)} if plan.distributed and plan.is_gang else {}),
        "dataname": ",".join(model.data),
        "data_provider_type": ",".join(placed.provider.kind for placed in plan.data),
    }
