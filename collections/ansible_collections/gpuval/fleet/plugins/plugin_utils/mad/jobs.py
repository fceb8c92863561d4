"""From selected models to jobs and images: a job file and a build context for each model and each Dockerfile."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import posixpath
import re
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from ..core.text import meant
from ..jobs.stages import PERFORMANCE
from ..runs import job_secrets
from . import checkout, credentials, perf
from . import context as contexts
from .context import Context, Distributed
from .data import CUSTOM, DATASET, LOCAL, S3, Placed, place
from .dockerfiles import Dockerfile, fitting
from .documents import located, shown
from .errors import MadError
from .models import UNSET, Model, timeout_seconds
from .repository import Repository

RUN_MODEL = Path(__file__).with_name("run_model.sh")
#: In the build context, and in the image: by stage the folders `model` and `repository`.
FILES = "gpuval_mad"
INSIDE = f"/opt/{FILES}"
#: Never in an image.
SECRET_FILES = (credentials.FILE, ".git")
MAX_FILES, MAX_BYTES = 50_000, 4 << 30
#: Beside the job of a model whose image is given: its files, packed. They travel in the plan.
PACKED = "gpuval_mad"
MAX_PACKED = 80 << 10
#: What a model without a limit counts for the deadline of the run, and building and bringing its image.
#: Where the folder of the node is in the container that keeps folders of models.
KEPT = "/opt/gpuval_kept"
UNLIMITED_SECONDS, IMAGE_SECONDS = 86_400.0, 1_800.0
BY_REGISTRY = "set gpuval_mad_registry to one that the controller pushes to and the nodes pull from"
MAX_DEADLINE_SECONDS = 6 * 86_400.0
_NO_IMAGE_NAME = re.compile(r"[^a-z0-9._-]+")
#: Image references have one separator between letters and digits.
_SEPARATORS = re.compile(r"([._-])[._-]+")


@dataclass(frozen=True)
class Options:
    """What the user asks for a run. `timeout` -1 is not specified, 0 none; `vendor` of the GPUs is empty if unknown.

    `named` are models that the user asks for by their names, `credentials` the document of `secrets_file`, `secrets`
    variables that all models get, `images` those that exist already, by model. In pods an image comes from there, or is
    pushed to `registry`. `nodes` are how many there are, `keep_folder` is where on them a model's folder stays,
    `pipeline` a column of perf.csv.
    """

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
    registry: str = ""
    nodes: int = 1
    keep_alive_seconds: int = 0
    keep_folder: str = ""
    pipeline: str = ""


@dataclass(frozen=True)
class Made:
    """Job files, entries of gpuval_images by name, the deadline that all of them need, and why models are left out."""

    jobs: tuple[str, ...]
    images: Mapping[str, Mapping[str, Any]]
    deadline_seconds: float
    left_out: tuple[str, ...] = ()


def write(repository: Repository, models: Iterable[Model], context: Context, options: Options, folder: Path) -> Made:
    """Write below `folder`, which is empty, what the models need. A model of a tag that cannot run is left out.

    Raises MadError with all that is wrong where a model is asked for by its name, or no model can run.
    """
    known = [model.name for model in repository.models]
    problems = [
        f"gpuval_mad_images: the repository has no model {shown(name)}{meant(name, known)}"
        for name in options.images
        if name not in known
    ]
    left_out: list[str] = []
    planned: list[_Planned] = []
    for model in models:
        try:
            planned += _planned(repository, model, context, options)
        except MadError as error:
            (problems if model.name in options.named else left_out).append(str(error))
    problems += left_out if problems or not planned else []
    stages = [one.stage for one in planned]
    problems += [
        f"{one.model.where}: has the name and the arguments of another model: rename one"
        for index, one in enumerate(planned)
        if one.stage in stages[:index]
    ]
    if problems:
        raise MadError("; ".join(dict.fromkeys(problems)))
    (folder / "jobs").mkdir()
    images: dict[str, dict[str, Any]] = {}
    paths, seconds = [], 0.0
    owners: dict[tuple[str, str], _Planned] = {}
    for one in planned:
        owner = owners.setdefault(one.made_of, one)
        target = folder / "contexts" / owner.stage
        if one.given:
            images[one.stage] = {"reference": one.given}
        elif owner is one:
            _write_context(repository.root, one, options, target)
            images[one.stage] = {
                "reference": f"{options.registry if options.in_pods else 'localhost'}/{one.image}:latest",
                "build": True,
                "folder": str(target),
                "base": one.base,
                "arguments": dict(context.build_arguments),
            }
        commit = _write_files(repository.root, one, context, options, target / FILES / one.stage)
        if one.given:
            text = _packed(target / FILES / one.stage, one.model.where)
            (folder / "jobs" / one.stage).mkdir()
            (folder / "jobs" / one.stage / PACKED).write_text(text, encoding="ascii")
        path = folder / "jobs" / (one.stage if one.given else "") / f"{one.stage}.yml"
        document = _document(one, owner, context, options, commit)
        path.write_text(yaml.safe_dump(document, sort_keys=False, width=4096), encoding="utf-8")
        paths.append(str(path))
        seconds += (document["timeout_seconds"] or UNLIMITED_SECONDS) + IMAGE_SECONDS
    return Made(tuple(paths), images, min(seconds, MAX_DEADLINE_SECONDS), tuple(dict.fromkeys(left_out)))


@dataclass(frozen=True)
class _Planned:
    """A model with one of its Dockerfiles; without any, on the image of the context, or in the one that is `given`."""

    model: Model
    dockerfile: Dockerfile | None
    stage: str
    image: str
    base: str
    script: tuple[str, str, str]
    data: tuple[Placed, ...]
    distributed: Distributed | None
    secrets: tuple[str, ...]
    environment: Mapping[str, str]
    given: str = ""

    @property
    def is_gang(self) -> bool:
        return bool(self.distributed and self.distributed.is_gang)

    @property
    def by_mpirun(self) -> bool:
        return bool(self.distributed and self.is_gang and self.distributed.launcher == contexts.MPIRUN)

    def gpus_per_node(self, context: Context) -> int:
        """What each node of a gang is asked for; 0 is all that it has."""
        return (self.distributed.processes if self.distributed else 0) or max(self.model.n_gpus, 0) or len(context.gpus)

    @property
    def made_of(self) -> tuple[str, str]:
        """Models of one Dockerfile and one context share an image, which is the first one's."""
        if self.given:
            return self.given, self.stage
        return self.dockerfile.path if self.dockerfile else "", self.model.dockercontext


def _planned(repository: Repository, model: Model, context: Context, options: Options) -> list[_Planned]:
    of_model = credentials.of(model, options.credentials)
    own = contexts.variables({"env_vars": model.env_vars}, "env_vars", model.where)
    root = repository.root
    script = _script(root, model)
    for path in (one["path"] for one in (*context.pre_scripts, *context.post_scripts)):
        if not located(root, path).is_file():
            raise MadError(f"{contexts.SETTING}: pre_scripts, post_scripts: no file {path} in the repository")
    given = options.images.get(model.name, "")
    if options.in_pods and not options.registry:
        given = given or context.image
        if not given:
            raise MadError(f"{model.where}: no image for its pods: add one to gpuval_mad_images, or {BY_REGISTRY}")
    if not given and not located(root, model.dockercontext).is_dir():
        raise MadError(f"{model.where}: dockercontext: no folder {model.dockercontext} in the repository")
    accounts = {name for name, value in job_secrets.flat(options.credentials).items() if value}
    inside = [volume.split(":")[1].rstrip("/") for volume in context.volumes]
    data = place(model.data, repository.data, options.datasets, where=model.where, credentials=accounts, mounted=inside)
    of_data = [name for one in data for name in one.secrets]
    secrets = tuple(dict.fromkeys((*of_model, *of_data, *context.secrets, *options.secrets)))
    for one in data:
        if one.provider.kind == CUSTOM and not located(root, one.provider.path).is_file():
            raise MadError(f"{model.where}: data: {one.name}: no file {one.provider.path} in the repository")
    if options.in_pods and context.cpus:
        raise MadError(f"{contexts.SETTING}: docker_cpus: pods have no set of processors: use gpuval_pods.resources")
    distributed = context.distributed or contexts.distributed(model.distributed, f"{model.where}: distributed")
    if distributed and distributed.is_gang:
        if distributed.nodes > options.nodes:
            raise MadError(
                f"{model.where}: distributed.nnodes is {distributed.nodes}, and {options.nodes} nodes are chosen: "
                "choose more, or set nnodes in gpuval_mad_context"
            )
        if options.in_pods and any(one.provider.kind == DATASET for one in data):
            raise MadError(f"{model.where}: data: pods of several nodes have no datasets: use gpuval_pods.volumes")
    facts = {**({"gpu_vendor": options.vendor} if options.vendor else {}), **context.facts}
    found: Sequence[Dockerfile | None] = [None] if given or context.image else fitting(root, model, facts)
    planned = []
    for dockerfile in found:
        variant = PurePosixPath(dockerfile.path).name.removesuffix(".Dockerfile") if dockerfile else ""
        planned.append(
            _Planned(
                model,
                dockerfile,
                stage_name(model.name, variant if len(found) > 1 else "", model.args),
                given or image_name(model.name, variant),
                dockerfile.base(context.build_arguments) if dockerfile else given or context.image,
                script,
                tuple(data),
                distributed,
                secrets,
                {name: text for name, text in own.items() if name not in secrets},
                given,
            )
        )
    return planned


def stage_name(model: str, variant: str = "", args: str = "") -> str:
    """A stage's name: the model's in its alphabet, with a digest that keeps models and arguments apart."""
    digest = hashlib.sha256(f"{model}\0{variant}\0{args}".encode()).hexdigest()[:6]
    word = re.sub(r"[^a-z0-9]+", "_", model.lower()).strip("_")[:20].strip("_")
    return f"mad_{word}_{digest}" if word else f"mad_{digest}"


def image_name(model: str, variant: str) -> str:
    """`ci-NAME_VARIANT`, in the alphabet of image references."""
    name = "_".join(filter(None, (model.replace("/", "_").lower(), variant.lower())))
    return f"ci-{_SEPARATORS.sub(lambda found: found[1], _NO_IMAGE_NAME.sub('-', name)).strip('._-')}"


def _script(root: Path, model: Model) -> tuple[str, str, str]:
    """Interpreter, name and folder of the model's script. Raises MadError if it is missing."""
    path = located(root, model.scripts)
    folder, name = (model.scripts, "run.sh") if path.is_dir() else posixpath.split(model.scripts)
    if not located(root, posixpath.join(folder, name)).is_file():
        raise MadError(f"{model.where}: scripts: no file {posixpath.join(folder, name)} in the repository")
    if not name.endswith((".sh", ".py")):
        raise MadError(f"{model.where}: scripts: {name} is neither a folder, a .sh nor a .py: select other models")
    return "python3" if name.endswith(".py") else "bash", name, folder or "."


def _write_context(root: Path, one: _Planned, options: Options, target: Path) -> None:
    """The files of a build: the model's own context, and the Dockerfile with one line more."""
    if one.dockerfile:
        _Copy(root, one.model.where, options.secrets_file).tree(one.model.dockercontext, target)
    target.mkdir(parents=True, exist_ok=True)
    text = one.dockerfile.text if one.dockerfile else f"FROM {one.base}"
    (target / "Dockerfile").write_text(f"{text.rstrip()}\nCOPY {FILES}/ {INSIDE}/\n", encoding="utf-8")
    ignored = target / ".dockerignore"
    if ignored.exists():
        with ignored.open("a", encoding="utf-8") as stream:
            stream.write(f"\n!{FILES}\n!{FILES}/**\n")


def _write_files(root: Path, one: _Planned, context: Context, options: Options, target: Path) -> str:
    """What run_model.sh reads of one model. Returns the commit of its clone."""
    model = one.model
    copied = _Copy(root, model.where, options.secrets_file)
    commit = ""
    if model.url:
        target.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=target) as place:  # its links would name files of this machine
            code = Path(place) / "code"
            login = credentials.login(model, options.credentials)
            commit = checkout.clone(model.url, code, what=f"{model.where}: url", submodules=True, login=login)
            _Copy(code, f"{model.where}: url", foreign=True).tree(".", target / "model")
    copied.tree(one.script[2], target / "model")
    helpers = [script["path"] for script in (*context.pre_scripts, *context.post_scripts)]
    helpers += [placed.provider.path for placed in one.data if placed.provider.kind == CUSTOM]
    for folder in sorted({posixpath.dirname(path) or "." for path in helpers}):
        copied.tree(folder, target / "repository" / folder)
    return commit


def _packed(folder: Path, where: str) -> str:
    """The files of a model as text. Raises MadError where they are too large for a plan."""
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        tar.add(folder, ".", filter=_anonymous)
    if stream.tell() > MAX_PACKED:
        raise MadError(
            f"{where}: its files are {stream.tell() >> 10} KiB when packed, and at most {MAX_PACKED >> 10} KiB travel "
            "to an image that is given: leave it out of gpuval_mad_images, and have the image built"
        )
    return base64.encodebytes(stream.getvalue()).decode("ascii")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


class _Copy:
    """Copies folders of a repository: links as what they name, no secrets, within limits.

    In a `foreign` repository, which the user cannot correct, a link that leads out is left out.
    """

    def __init__(self, root: Path, where: str, secrets_file: Path | None = None, *, foreign: bool = False) -> None:
        self._root, self._where, self._foreign = root, where, foreign
        self._secrets_file = secrets_file and secrets_file.resolve()
        self._files = self._bytes = 0

    def tree(self, folder: str, target: Path, above: tuple[Path, ...] = ()) -> None:
        """`above` are the folders that this one is in. Raises MadError for a link out of the repository, or for too
        much."""
        source = located(self._root, folder)
        above = (*above, source.resolve())
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.iterdir()):
            name = (PurePosixPath(folder) / path.name).as_posix()
            try:
                real = located(self._root, name).resolve()
            except MadError:
                if self._foreign:
                    continue
                raise
            parts = {path.name, *real.relative_to(self._root.resolve()).parts}
            if parts & set(SECRET_FILES) or real == self._secrets_file:
                continue
            self._files += 1
            self._bytes += path.stat().st_size if path.is_file() else 0
            if self._files > MAX_FILES or self._bytes > MAX_BYTES:
                raise MadError(
                    f"{self._where}: {folder} has more than {MAX_FILES} files or {MAX_BYTES >> 30} GiB: move data sets "
                    "out of the repository, or name a smaller dockercontext"
                )
            if path.is_file():
                shutil.copy(path, target / path.name)
            elif path.is_dir() and real not in above:
                self.tree(name, target / path.name, above)


def _document(one: _Planned, owner: _Planned, context: Context, options: Options, commit: str) -> dict[str, Any]:
    """The job (gpuval.job/1)."""
    model = one.model
    csv = model.multiple_results
    seconds = timeout_seconds(model, options.timeout, context.timeout_multiplier)
    container: dict[str, Any] = {} if options.in_pods else {"user": "0:0"}  # scripts install packages
    volumes = [
        f"{placed.provider.path}:{placed.home}" + ("" if placed.provider.readwrite else ":ro")
        for placed in one.data
        if placed.provider.kind == LOCAL
    ]
    volumes += [*context.volumes, *([f"{options.keep_folder}:{KEPT}"] if options.keep_folder else [])]
    container |= {"volumes": volumes} if volumes else {}
    container |= {"shm_bytes": context.shm_bytes} if context.shm_bytes else {}
    container |= {"arguments": ["--cpuset-cpus", context.cpus]} if context.cpus else {}
    facts = _facts(one, owner.image, options, commit, container)
    datasets = [placed.provider.path for placed in one.data if placed.provider.kind == DATASET]
    return {
        "schema": "gpuval.job/1",
        "name": one.stage,
        "image": owner.stage,
        **({"files": [PACKED]} if one.given else {}),
        **({"container": container} if container else {}),
        "environment": {perf.VARIABLE: json.dumps(facts, sort_keys=True)},
        **({"datasets": datasets} if datasets else {}),
        **({"secrets": list(one.secrets)} if one.secrets else {}),
        "steps": _steps(one, context, options),
        "results": {"csv": csv} if csv else {"patterns": [{"pattern": PERFORMANCE, "name": one.stage}]},
        **_together(one, context),
        **({"stay_alive": options.keep_alive_seconds} if options.keep_alive_seconds else {}),
        "timeout_seconds": seconds if seconds or not one.is_gang else UNLIMITED_SECONDS,
        "inactivity_seconds": 0,
        "retry": [],
        "tags": ["mad", *(tag for tag in model.tags if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", tag))],
    }


def _steps(one: _Planned, context: Context, options: Options) -> list[dict[str, Any]]:
    """The model's script on each node; with mpirun the files on each, and then the script on the first."""
    step: dict[str, Any] = {
        "name": "model",
        "run": _shell(one, context, options) + RUN_MODEL.read_text(encoding="utf-8"),
        "environment": _environment(one, context),
    }
    if not one.by_mpirun:
        return [step]
    return [{**step, "name": "prepare"}, {**step, "once": True, "launcher": contexts.MPIRUN}]


def _together(one: _Planned, context: Context) -> dict[str, Any]:
    """The keys of a job of several nodes; none for a model that each node runs by itself."""
    if not (one.distributed and one.is_gang):
        return {}
    nodes = one.distributed.nodes
    return {
        "nodes": "gang",
        "least_nodes": nodes,
        "most_nodes": nodes,
        **({"gpus_per_node": count} if (count := one.gpus_per_node(context)) else {}),
    }


def _environment(one: _Planned, context: Context) -> dict[str, str]:
    """The variables that scripts know, beside those that the runner sets; one without a value is left out."""
    guest = context.facts.get("guest_os") or (one.dockerfile.context.get("guest_os") if one.dockerfile else None)
    given = {
        "MAD_MODEL_NAME": one.model.name,
        "MAD_GUEST_OS": str(guest or ""),
        "MAD_OUTPUT_CSV": one.model.multiple_results,
        "MAD_DATANAME": ",".join(one.model.data),
        "MAD_DATAHOME": ",".join(placed.home for placed in one.data),
        "MASTER_PORT": str(one.distributed.port) if one.distributed and one.is_gang else "",
    }
    return {**{name: text for name, text in given.items() if text}, **one.environment, **context.environment}


def _shell(one: _Planned, context: Context, options: Options) -> str:
    """What run_model.sh reads. Arguments are shell text, as the model's author and the user wrote them."""
    interpreter, script, _folder = one.script
    model = one.model
    args = model.args if context.model_args is None else context.model_args
    runner = one.distributed.runner if one.distributed else contexts.RUNNERS["torchrun"]
    given = {
        "FILES": "" if one.given else f"{INSIDE}/{one.stage}",
        "COMMAND": " ".join(filter(None, (context.tools, interpreter, shlex.quote(script), args))),
        "SKIPS": "" if options.runs_on_all else ",".join(model.skip_gpu_arch),
        "N_GPUS": str(model.n_gpus),
        "GPUS": ",".join(map(str, context.gpus)),
        "RUNNER": runner,
        "PROCESSES": str(one.distributed.processes if one.distributed else 0),
        "DATA": " && ".join(filter(None, map(_fetch, one.data))),
        "FETCHED": " ".join(shlex.quote(placed.home) for placed in one.data if placed.provider.kind in (CUSTOM, *S3)),
        "PREPARED": "yes" if one.by_mpirun else "",
        "KEPT": f"{KEPT}/{one.stage}" if options.keep_folder else "",
        "BEFORE": _scripts(context.pre_scripts),
        "AFTER": _scripts(context.post_scripts),
    }
    return "".join(f"MODEL_{name}={shlex.quote(text)}\n" for name, text in given.items())


def _scripts(scripts: Sequence[Mapping[str, str]]) -> str:
    return " && ".join(f'bash "$files"/repository/{shlex.quote(one["path"])} {one.get("args", "")}' for one in scripts)


def _fetch(placed: Placed) -> str:
    """The command that brings a data set in the container; empty for one that is mounted."""
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


def _run_options(container: Mapping[str, Any]) -> str:
    """What the additional context and the data add to the engine's command."""
    words = [f"--volume={volume}" for volume in container.get("volumes", ())]
    words += [f"--shm-size={container['shm_bytes']}"] if "shm_bytes" in container else []
    return " ".join([*words, *container.get("arguments", ())])


def _facts(one: _Planned, image: str, options: Options, commit: str, container: Mapping[str, Any]) -> dict[str, str]:
    """What perf.csv says of the model that no record has."""
    model = one.model
    return {
        "model": model.name,
        "n_gpus": str(model.n_gpus),
        "training_precision": model.training_precision,
        "args": model.args,
        "tags": ",".join(model.tags),
        "docker_file": one.dockerfile.path if one.dockerfile else "",
        "base_docker": one.base,
        "docker_image": image,
        "git_commit": commit,
        "pipeline": options.pipeline,
        "additional_docker_run_options": "" if options.in_pods else _run_options(container),
        "deployment_type": "kubernetes" if options.in_pods else "ssh",
        "launcher": one.distributed.launcher if one.distributed else "",
        **({"nnodes": str(one.distributed.nodes)} if one.distributed and one.is_gang else {}),
        "dataname": ",".join(model.data),
        "data_provider_type": ",".join(placed.provider.kind for placed in one.data),
    }
