"""Writes jobs and build contexts of images for selected models, one for each Dockerfile, with the models' files, within
limits and without secrets."""

import base64
import gzip
import io
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..core.text import meant
from . import checkout
from .context import MadContext
from .data import CUSTOM
from .documents import MadError, located, shown
from .job_document import PACKED, UNLIMITED_SECONDS, job_of
from .models import MadModel
from .planning import MadOptions, Planned, plan
from .repository import Repository

#: Seconds that build and transfer of a model's image add to the run's deadline.
IMAGE_SECONDS = 1_800.0
MAX_DEADLINE_SECONDS = 6 * 86_400.0
#: Folder in build context and image that has, for each stage, the folders `model` and `repository`.
FILES = "gpuval_mad"
INSIDE = f"/opt/{FILES}"
#: Names of files that are never copied into an image.
SECRET_FILES = (checkout.CREDENTIALS_FILE, ".git")
MAX_FILES, MAX_BYTES = 50_000, 4 << 30
MAX_PACKED = 80 << 10


def remove_leftovers(state_dir: Path, before: float) -> int:
    """Remove folders of jobs, build contexts and clones that were last written before a time (Unix seconds); returns
    their number. Commands at work keep writing to their folders."""
    root = state_dir / "mad"
    old = [path for path in root.iterdir() if path.stat().st_mtime < before] if root.is_dir() else []
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
    return len(old)


@dataclass(frozen=True)
class Made:
    """What `write` made. `jobs`: paths of job files; `images`: {name: entry of gpuval_images}; `deadline_seconds`: for
    all jobs; `left_out`: why models are left out; `remarks`: options of batch files without effect."""

    jobs: tuple[str, ...]
    images: Mapping[str, Mapping[str, Any]]
    deadline_seconds: float
    left_out: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def write(
    repository: Repository, models: Iterable[MadModel], context: MadContext, options: MadOptions, folder: Path
) -> Made:
    """Write jobs and build contexts of the models into the empty `folder`. Models chosen by a tag are left out if they
    cannot run. Raises MadError with all problems if a model chosen by its name cannot run, or no model can."""
    names = [model.name for model in repository.models]
    problems = [
        f"gpuval_mad_images: the repository has no model {shown(name)}{meant(name, names)}"
        for name in options.images
        if name not in names
    ]
    left_out: list[str] = []
    planned: list[Planned] = []
    for model in models:
        try:
            planned += plan(repository, model, context, options)
        except MadError as error:
            (problems if model.name in options.named else left_out).append(str(error))
    problems += left_out if problems or not planned else []
    stages = [model_run.stage for model_run in planned]
    problems += [
        f"{model_run.model.where}: has the name and the arguments of another model: rename one"
        for index, model_run in enumerate(planned)
        if model_run.stage in stages[:index]
    ]
    if problems:
        raise MadError("; ".join(dict.fromkeys(problems)))
    (folder / "jobs").mkdir()
    images: dict[str, dict[str, Any]] = {}
    paths, seconds = [], 0.0
    owners: dict[tuple[str, str], Planned] = {}
    for model_run in planned:
        owner = owners.setdefault(model_run.made_of, model_run)
        target = folder / "contexts" / owner.stage
        if model_run.given:
            images[model_run.stage] = {"reference": model_run.given}
        elif owner is model_run and not model_run.batch:
            _write_context(repository.root, model_run, options, target)
            images[model_run.stage] = {
                "reference": f"{options.registry if options.in_pods else 'localhost'}/{model_run.image}:latest",
                "build": True,
                "folder": str(target),
                "base": model_run.base,
                "arguments": dict(context.build_arguments),
            }
        files = target / FILES / model_run.stage
        try:
            commit = _write_files(repository.root, model_run, context, options, files)
        except MadError as error:  # for example, its code cannot be cloned
            (problems if model_run.model.name in options.named else left_out).append(str(error))
            shutil.rmtree(files, ignore_errors=True)
            if owner is model_run:
                del owners[model_run.made_of]
                images.pop(model_run.stage, None)
            continue
        if model_run.given:
            text = packed(files, model_run.model.where)
            (folder / "jobs" / model_run.stage).mkdir()
            (folder / "jobs" / model_run.stage / PACKED).write_text(text, encoding="ascii")
        path = folder / "jobs" / (model_run.stage if model_run.given else "") / f"{model_run.stage}.yml"
        files_at = "" if model_run.given else str(files) if model_run.batch else f"{INSIDE}/{model_run.stage}"
        document = job_of(model_run, owner, context, options, commit, files_at)
        path.write_text(yaml.safe_dump(document, sort_keys=False, width=4096), encoding="utf-8")
        paths.append(str(path))
        seconds += (document["timeout_seconds"] or UNLIMITED_SECONDS) + IMAGE_SECONDS
    if problems or not paths:
        raise MadError("; ".join(dict.fromkeys([*problems, *left_out])))
    batches = [(model_run.script, model_run.batch) for model_run in planned if model_run.batch]
    remarks = dict.fromkeys(
        f"{'/'.join(script[2:0:-1])}: #SBATCH {', '.join(batch.unused)}: no effect: gpuval_slurm_*, timeout of the "
        "model and the run decide"
        for script, batch in batches
        if batch.unused
    )
    deadline = min(seconds, MAX_DEADLINE_SECONDS)
    return Made(tuple(paths), images, deadline, tuple(dict.fromkeys(left_out)), tuple(remarks))


def _write_context(root: Path, planned: Planned, options: MadOptions, target: Path) -> None:
    """Write the build context: the model's own context, and the Dockerfile with one more line."""
    if planned.dockerfile:
        ModelCopy(root, planned.model.where, options.secrets_file).tree(planned.model.dockercontext, target)
    target.mkdir(parents=True, exist_ok=True)
    text = planned.dockerfile.text if planned.dockerfile else f"FROM {planned.base}"
    (target / "Dockerfile").write_text(f"{text.rstrip()}\nCOPY {FILES}/ {INSIDE}/\n", encoding="utf-8")
    ignored = target / ".dockerignore"
    if ignored.exists():
        with ignored.open("a", encoding="utf-8") as stream:
            stream.write(f"\n!{FILES}\n!{FILES}/**\n")


def _write_files(root: Path, planned: Planned, context: MadContext, options: MadOptions, target: Path) -> str:
    """Write the files of one model that run_model.sh reads. Returns the commit of the model's cloned code."""
    model = planned.model
    copied = ModelCopy(root, model.where, options.secrets_file)
    commit = ""
    if model.url:
        target.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=target) as scratch:  # links in the clone could name files of this machine
            code = Path(scratch) / "code"
            login = checkout.login_for(model, options.credentials)
            commit = checkout.clone(model.url, code, what=f"{model.where}: url", login=login)
            ModelCopy(code, f"{model.where}: url", foreign=True).tree(".", target / "model")
    copied.tree("." if planned.batch else planned.script[2], target / "model")
    helpers = [script["path"] for script in (*context.pre_scripts, *context.post_scripts)]
    helpers += [placed.provider.path for placed in planned.data if placed.provider.kind == CUSTOM]
    for folder in sorted({posixpath.dirname(path) or "." for path in helpers}):
        copied.tree(folder, target / "repository" / folder)
    return commit


def packed(folder: Path, where: str) -> str:
    """A folder as text: tar, gzip, base64. `where`: subject of messages. Raises MadError if too large for a plan."""
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


class ModelCopy:
    """Copies folders of a repository within limits: follows links, leaves out secrets, and links out of a `foreign`
    repository, which the user cannot correct."""

    def __init__(self, root: Path, where: str, secrets_file: Path | None = None, *, foreign: bool = False) -> None:
        self._root, self._where, self._foreign = root, where, foreign
        self._secrets_file = secrets_file and secrets_file.resolve()
        self._files = self._bytes = 0

    def tree(self, folder: str, target: Path) -> None:
        """Copy a folder of the repository to `target`. Counts all files before it copies the first. Raises MadError for
        a link out of the repository, or too many files or bytes."""
        source = located(self._root, folder)
        for path, copied in [*self._listed(source, source.resolve(), target, ())]:
            if path.is_dir():
                copied.mkdir(parents=True, exist_ok=True)
            else:
                shutil.copy(path, copied)

    def _listed(
        self, source: Path, resolved: Path, target: Path, above: tuple[Path, ...]
    ) -> Iterator[tuple[Path, Path]]:
        """Each folder and file below `source`, with its path in `target`. `above`: folders that contain `source`."""
        yield source, target
        for path in sorted(source.iterdir()):
            real, parts = resolved / path.name, {path.name}
            if path.is_symlink():
                try:
                    real = located(self._root, path.relative_to(self._root).as_posix()).resolve()
                except MadError:
                    if self._foreign:
                        continue
                    raise
                parts.update(real.relative_to(self._root.resolve()).parts)
            if parts & set(SECRET_FILES) or real == self._secrets_file:
                continue
            self._files += 1
            self._bytes += path.stat().st_size if path.is_file() else 0
            if self._files > MAX_FILES or self._bytes > MAX_BYTES:
                raise MadError(
                    f"{self._where}: more than {MAX_FILES} files or {MAX_BYTES >> 30} GiB: move data sets out of the "
                    "repository, or name a smaller dockercontext"
                )
            if path.is_file():
                yield path, target / path.name
            elif path.is_dir() and real not in (*above, resolved):
                yield from self._listed(path, real, target / path.name, (*above, resolved))
