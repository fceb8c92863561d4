"""Plans the stages, images, data and secrets of a model for the nodes of a run, once for each of its Dockerfiles."""

import argparse
import hashlib
import itertools
import posixpath
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ..runs import job_secrets
from . import checkout
from . import context as contexts
from .context import Distributed, MadContext
from .data import CUSTOM, DATASET, PlacedDataset, place
from .dockerfiles import Dockerfile, fitting
from .documents import MadError, located, read_bytes
from .models import UNSET, MadModel
from .repository import Repository

#: Advice in messages on how pods get images that the controller builds.
BY_REGISTRY = "set gpuval_mad_registry to one that the controller pushes to and the nodes pull from"
_NO_IMAGE_NAME = re.compile(r"[^a-z0-9._-]+")
#: Consecutive separators, of which image references allow only one between letters and digits.
_SEPARATORS = re.compile(r"([._-])[._-]+")
#: Suffixes of models' scripts that are batch files of Slurm, with options that sbatch would read.
BATCH_SUFFIXES = (".slurm", ".sbatch")
_MARK = "#SBATCH"
_OPTIONS = re.compile(rb"(?:[ \t]*(?:#[^\n]*)?\n)*?" + _MARK.encode())
#: sbatch options about steps, which srun reads from variables that sbatch sets. All others are about the job.
_OF_STEPS = (
    *("-N --nodes", "-n --ntasks", "-c --cpus-per-task", "-G --gpus", "-m --distribution", "--gres", "--hint"),
    *(f"--ntasks-per-{unit}" for unit in ("node", "gpu", "socket", "core")),
    *("--gpus-per-node", "--gpus-per-task", "--gpus-per-socket", "--cpus-per-gpu", "--threads-per-core"),
)
_PARSER = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
for _names in _OF_STEPS:
    _PARSER.add_argument(*_names.split())


@dataclass(frozen=True)
class BatchFile:
    """#SBATCH options in a batch file. `nodes`: number, 0 if not given; `variables`: {environment variable that srun
    reads: value}; `unused`: names of options about the job, which have no effect."""

    nodes: int
    variables: Mapping[str, str]
    unused: tuple[str, ...]


@dataclass(frozen=True)
class MadOptions:
    """The user's settings for models. `timeout`: seconds, -1 not specified, 0 none; `vendor`: of GPUs, "" if unknown.
    `named`: models chosen by name; `credentials`: document of `secrets_file`; `secrets`: variables that all models get;
    `images`: existing images by model, which pods use unless theirs is pushed to `registry`; jobs of Slurm have none.
    `nodes`: their number; `keep_folder`: folder on nodes that keeps models' folders; `pipeline`: a column of
    perf.csv."""

    timeout: int = UNSET
    vendor: str = ""
    runs_on_all: bool = False
    datasets: Collection[str] = ()
    named: Collection[str] = ()
    credentials: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets_file: Path | None = None
    secrets: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    in_pods: bool = False
    in_slurm: bool = False
    registry: str = ""
    nodes: int = 1
    keep_alive_seconds: int = 0
    keep_folder: str = ""
    pipeline: str = ""


@dataclass(frozen=True)
class Planned:
    """A model with one of its Dockerfiles. Without a Dockerfile it runs on the context's base image or in the existing
    image `given`; as a `batch` file it has no image. `script`: (interpreter, name, folder)."""

    model: MadModel
    dockerfile: Dockerfile | None
    stage: str
    image: str
    base: str
    script: tuple[str, str, str]
    data: tuple[PlacedDataset, ...]
    distributed: Distributed | None
    secrets: tuple[str, ...]
    environment: Mapping[str, str]
    given: str = ""
    batch: BatchFile | None = None

    @property
    def is_gang(self) -> bool:
        return bool(self.distributed and self.distributed.is_gang)

    @property
    def by_mpirun(self) -> bool:
        return bool(self.distributed and self.is_gang and self.distributed.launcher == contexts.MPIRUN)

    def gpus_per_node(self, context: MadContext) -> int:
        """Number of GPUs that a multi-node model needs on each node; 0: all of the node's GPUs."""
        return (self.distributed.processes if self.distributed else 0) or max(self.model.n_gpus, 0) or len(context.gpus)

    @property
    def made_of(self) -> tuple[str, str]:
        """Key of a model's image: models with the same Dockerfile and build context share an image."""
        if self.given or self.batch:
            return self.given, self.stage
        return self.dockerfile.path if self.dockerfile else "", self.model.dockercontext


def plan(repository: Repository, model: MadModel, context: MadContext, options: MadOptions) -> list[Planned]:
    """Plan a model once for each of its Dockerfiles that fits the nodes. Raises MadError for what it lacks."""
    of_model = checkout.credentials_for(model, options.credentials)
    variables = contexts.variables({"env_vars": model.env_vars}, "env_vars", model.where)
    root = repository.root
    script, batch = _script(root, model, options)
    for path in (part["path"] for part in (*context.pre_scripts, *context.post_scripts)):
        if not located(root, path).is_file():
            raise MadError(f"{contexts.SETTING}: pre_scripts, post_scripts: no file {path} in the repository")
    image = "" if batch else options.images.get(model.name, "")
    if options.in_pods and not options.registry:
        image = image or context.image
        if not image:
            raise MadError(f"{model.where}: no image for its pods: add one to gpuval_mad_images, or {BY_REGISTRY}")
    if not (image or batch or located(root, model.dockercontext).is_dir()):
        raise MadError(f"{model.where}: dockercontext: no folder {model.dockercontext} in the repository")
    accounts = {name for name, value in job_secrets.flat(options.credentials).items() if value}
    inside = [volume.split(":")[1].rstrip("/") for volume in context.volumes]
    names = () if batch else model.data  # batch files get their data themselves
    data = place(names, repository.data, options.datasets, where=model.where, credentials=accounts, mounted=inside)
    of_data = [name for part in data for name in part.provider.secrets]
    secrets = tuple(dict.fromkeys((*of_model, *of_data, *context.secrets, *options.secrets)))
    for part in data:
        if part.provider.kind == CUSTOM and not located(root, part.provider.path).is_file():
            raise MadError(f"{model.where}: data: {part.name}: no file {part.provider.path} in the repository")
    if options.in_pods and context.cpus:
        raise MadError(f"{contexts.SETTING}: docker_cpus: pods have no set of processors: use gpuval_pods.resources")
    distributed = context.distributed or contexts.distributed(model.distributed, f"{model.where}: distributed")
    if batch and batch.nodes > 1 and not distributed:
        distributed = Distributed(contexts.SLURM, nodes=batch.nodes)
    if distributed and distributed.is_gang:
        if distributed.nodes > options.nodes:
            raise MadError(
                f"{model.where}: distributed.nnodes{' or --nodes' if batch else ''} is {distributed.nodes}, and "
                f"{options.nodes} nodes are chosen: choose more, or set nnodes in gpuval_mad_context"
            )
        if options.in_pods and any(part.provider.kind == DATASET for part in data):
            raise MadError(f"{model.where}: data: pods of several nodes have no datasets: use gpuval_pods.volumes")
    facts = {**({"gpu_vendor": options.vendor} if options.vendor else {}), **context.facts}
    files: Sequence[Dockerfile | None] = [None] if image or batch or context.image else fitting(root, model, facts)
    environment = {name: text for name, text in variables.items() if name not in secrets}
    planned = []
    for dockerfile in files:
        variant = PurePosixPath(dockerfile.path).name.removesuffix(".Dockerfile") if dockerfile else ""
        stage = stage_name(model.name, variant if len(files) > 1 else "", model.args)
        own_image = "" if batch else image or image_name(model.name, variant)
        base = dockerfile.base(context.build_arguments) if dockerfile else "" if batch else image or context.image
        more = (script, tuple(data), distributed, secrets, environment, image, batch)
        planned.append(Planned(model, dockerfile, stage, own_image, base, *more))
    return planned


def stage_name(model: str, variant: str = "", args: str = "") -> str:
    """Name of a model's stage: the model's name, and a digest that distinguishes models, variants and arguments."""
    digest = hashlib.sha256(f"{model}\0{variant}\0{args}".encode()).hexdigest()[:6]
    word = re.sub(r"[^a-z0-9]+", "_", model.lower()).strip("_")[:20].strip("_")
    return f"mad_{word}_{digest}" if word else f"mad_{digest}"


def image_name(model: str, variant: str) -> str:
    """Name of a model's image: `ci-NAME_VARIANT`, in the characters allowed for image references."""
    name = "_".join(filter(None, (model.replace("/", "_").lower(), variant.lower())))
    return f"ci-{_SEPARATORS.sub(lambda match: match[1], _NO_IMAGE_NAME.sub('-', name)).strip('._-')}"


def _script(root: Path, model: MadModel, options: MadOptions) -> tuple[tuple[str, str, str], BatchFile | None]:
    """Interpreter, name and folder of the model's script, and its batch file if the script is one. Raises MadError if
    the script is missing, or cannot run on these nodes."""
    path = located(root, model.scripts)
    folder, name = (model.scripts, "run.sh") if path.is_dir() else posixpath.split(model.scripts)
    if not located(root, posixpath.join(folder, name)).is_file():
        raise MadError(f"{model.where}: scripts: no file {posixpath.join(folder, name)} in the repository")
    batch = read_batch_file(name, read_bytes(root, posixpath.join(folder, name)), f"{model.where}: scripts")
    if batch and not options.in_slurm:
        raise MadError(
            f"{model.where}: scripts: {name} is a batch file of Slurm, which starts containers itself: use an "
            f"inventory of Slurm, run `sbatch {name}` in {folder or '.'} on a login node, or select other models"
        )
    if options.in_slurm and not batch:
        raise MadError(
            f"{model.where}: scripts: {name} runs in a container, and jobs of Slurm run on the host: use SSH hosts or "
            "pods, or select models with batch files (#SBATCH)"
        )
    if not batch and not name.endswith((".sh", ".py")):
        raise MadError(f"{model.where}: scripts: {name} is neither a folder, a .sh nor a .py: select other models")
    return ("python3" if name.endswith(".py") else "bash", name, folder or "."), batch


def read_batch_file(name: str, data: bytes, where: str) -> BatchFile | None:
    """The options of a batch file; None for other scripts. Raises MadError for an option that cannot be read."""
    if not (name.endswith(BATCH_SUFFIXES) or _OPTIONS.match(data)):
        return None
    lines = data.decode(errors="replace").splitlines()  # sbatch reads no further than the first command
    head = itertools.takewhile(lambda line: not line.strip() or line.lstrip().startswith("#"), lines)
    try:
        words = [shlex.split(line.removeprefix(_MARK), comments=True) for line in head if line.startswith(_MARK)]
        parsed, unparsed = _PARSER.parse_known_args([*itertools.chain(*words)])
        nodes = int((parsed.nodes or "0").partition("-")[0])
    except (ValueError, argparse.ArgumentError) as error:
        raise MadError(f"{where}: {name}: #SBATCH: {str(error).lower()}: correct the option") from error
    options = {key.upper(): text for key, text in vars(parsed).items() if text is not None and key != "nodes"}
    variables = {f"SLURM_{key}": text for key, text in options.items()}
    variables |= {f"SRUN_{key}": text for key, text in options.items() if key == "CPUS_PER_TASK"}
    unused = {word.partition("=")[0].lstrip("-") for word in unparsed if word.startswith("-")}
    return BatchFile(nodes, variables, tuple(sorted(unused)))
