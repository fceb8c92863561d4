"""Makes stages of a node's plan from job files. Reads those files, and has no other effects."""

import base64
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import SettingError
from ..core.text import meant
from ..runs import job_secrets, plans
from . import document
from .document import JobDocument

#: Environment variable that holds the job for the program which runs its steps on the node.
VARIABLE = "GPUVAL_JOB"
#: {launcher of a multi-node job: Python package that the launcher needs on the node}.
LAUNCHER_PACKAGES = {"torchrun": "torch", "deepspeed": "deepspeed"}
#: Images that a stage without container can do without: the host's `gpuval_workload_python` may have their packages.
HOST_IMAGES = ("training", "loading", "inference")
UNDECLARED = ", which is empty: declare the image, or leave out `image` to run on the host"
#: Maximum bytes of the packed job: Linux limits an environment variable to 128 KiB.
MAX_VARIABLE = 120 << 10
#: Environment variables with which users of multi-node test beds skip or force a step: {variable: step}.
SKIP_VARIABLES = {
    "SKIP_ENV_SETUP": "environment",
    "SKIP_CLONE_REPO": "clone",
    "SKIP_DOWNLOAD_DATA": "download",
    "SKIP_CHECKPOINT_CONVERSION": "convert",
    "SKIP_TRAINING": "train",
}
FORCE_VARIABLES = {"FORCE_CONVERSION": "convert"}
#: Environment variables that keep a job alive after its steps, for a day unless the job sets a time.
STAY_VARIABLES = {"SLEEP_INFINITY": "stay_alive"}
NO = ("", "0", "false", "no", "off")
#: Pattern of output lines with a result: what model repositories print (`performance: 12.3 examples/sec`, or
#: `14164/s examples`), and what the program prints of a CSV file. A line without a value matches, to be reported.
PERFORMANCE = r"performance:\s*(?:(?P<value>[^\s/]+)(?P<per>/s(?:ec(?:ond)?)?)?\s+)?(?P<unit>\S+)"
OF_CSV = r"^gpuval figure (?P<name>\S+): (?P<value>\S+) (?P<unit>\S+)$"


def workloads(
    paths: Sequence[str | Path],
    skip: Iterable[str] = (),
    force: Iterable[str] = (),
    images: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    *,
    together: bool = False,
    stays: bool = True,
) -> dict[str, dict[str, Any]]:
    """{job name: declaration of its stage}, of the single-node jobs in these files, or with ``together`` of the
    multi-node jobs. ``skip``, ``force``: names of steps; ``images``: gpuval_images; ``environment``: variables of all
    stages, which jobs override; ``stays``: whether jobs may stay alive after their steps. Raises SettingError."""
    if wrong := problems(paths, skip, force, images, environment):
        raise SettingError("; ".join(wrong))
    declared = {}
    for job in _readable(paths):
        seconds = job.stay_alive_seconds
        if _asked(_variables(job, environment or {}), STAY_VARIABLES):
            seconds = seconds or document.MAX_STAY_SECONDS
        if bool(job.gang) == together:
            stay = replace(job, stay_alive_seconds=seconds if stays else 0.0)
            declared[job.name] = _declaration(stay, skip, force, images or {}, environment or {})
    return declared


def _readable(paths: Iterable[str | Path]) -> list[JobDocument]:
    jobs = (document.examine(Path(path))[0] for path in paths)
    return [job for job in jobs if job]


def names(paths: Iterable[str | Path], *, together: bool = False) -> list[str]:
    """Names of the jobs in valid files at these paths; with ``together`` only multi-node jobs."""
    return [job.name for job in _readable(paths) if job.gang or not together]


def needs(paths: Iterable[str | Path]) -> list[tuple[Path, str]]:
    """(file of a job, name of a stage that the job needs), for all valid job files."""
    return [(job.path, name) for job in _readable(paths) for name in job.stage.get("needs", ())]


def secret_names(paths: Iterable[str | Path]) -> list[str]:
    return [name for job in _readable(paths) for name in job.stage.get("secrets", ())]


def lacking(paths: Iterable[str | Path], store: Mapping[str, Any]) -> list[str]:
    """Messages on secrets of jobs that have no usable value. `store`: the `store` option, which names their sources."""
    wrong = []
    for job in _readable(paths):
        try:
            job_secrets.values(job.stage.get("secrets", ()), store)
        except job_secrets.SecretError as error:
            wrong.append(f"gpuval_jobs: {job.path}: {error}")
    return wrong


def problems(
    paths: Sequence[str | Path],
    skip: Iterable[str] = (),
    force: Iterable[str] = (),
    images: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> list[str]:
    """Messages on mistakes in job files, and in names of steps to skip or force. Each begins with its setting."""
    examined = [document.examine(Path(path)) for path in paths]
    wrong = [f"gpuval_jobs: {problem}" for _job, problems in examined for problem in problems]
    jobs = [job for job, _problems in examined if job]
    by_name: dict[str, JobDocument] = {}
    for job in jobs:
        first = by_name.setdefault(job.name, job)
        if first is not job:
            wrong.append(f"gpuval_jobs: {job.path} and {first.path} have the same name {job.name}")
        if job.image and job.image not in (images or HOST_IMAGES):
            near = meant(job.image, images or HOST_IMAGES)
            near = near or (f"; declared are {', '.join(map(str, images))}" if images else UNDECLARED)
            wrong.append(f"gpuval_jobs: {job.path}: no image {job.image} in gpuval_images{near}")
        if {step.name for step in job.steps} <= _skipped(job, skip, environment or {}):
            wrong.append(f"gpuval_job_skip: every step of {job.path} is skipped: leave the job out of gpuval_jobs")
        if len(_packed(job, (), ())) > MAX_VARIABLE:
            wrong.append(f"gpuval_jobs: {job.path}: steps and files are too large for a plan: put files into its image")
    if len(jobs) < len(examined):
        return wrong  # the steps of unreadable jobs are unknown
    steps = {step.name for job in jobs for step in job.steps}
    for setting, chosen in (("gpuval_job_skip", skip), ("gpuval_job_force", force)):
        for name in chosen:
            if name not in steps:
                near = meant(name, steps) or (f"; steps are {', '.join(sorted(steps))}" if steps else "")
                wrong.append(f"{setting}: no job has a step {name}{near}")
    return wrong


def _declaration(
    job: JobDocument,
    skip: Iterable[str],
    force: Iterable[str],
    images: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    variables = _variables(job, environment)
    skipped = _skipped(job, skip, environment)
    forced = {*force, *_asked(variables, FORCE_VARIABLES)}
    owed = job.steps[-1].name not in skipped
    launchers = {step.launcher for step in job.steps if job.gang and step.name not in skipped}
    return {
        "needs": ["facts", "image"],
        "requires": [{"import": package} for name, package in LAUNCHER_PACKAGES.items() if name in launchers],
        **({"retry": []} if job.gang else {}),
        **job.stage,
        "workload": job.name,
        "command": ["{python}", "-m", plans.JOB],
        "image": (images.get(job.image) or {}).get("reference") if job.image else None,
        "environment": {**variables, VARIABLE: _packed(job, skipped, forced)},
        "patterns": [*(job.patterns if owed else ()), {"pattern": PERFORMANCE, "name": job.name}, {"pattern": OF_CSV}],
        "output": list(job.output) if owed else [],
    }


def _variables(job: JobDocument, environment: Mapping[str, Any]) -> dict[str, str]:
    return {**{str(name): str(value) for name, value in environment.items()}, **job.environment}


def _skipped(job: JobDocument, skip: Iterable[str], environment: Mapping[str, Any]) -> set[str]:
    return {*skip, *_asked(_variables(job, environment), SKIP_VARIABLES)}


def _asked(variables: Mapping[str, str], steps: Mapping[str, str]) -> list[str]:
    return [step for name, step in steps.items() if variables.get(name, "").strip().lower() not in NO]


def _packed(job: JobDocument, skip: Collection[str], force: Collection[str]) -> str:
    """The job for the program that runs its steps: JSON as base64, since braces in a plan are placeholders."""
    result_of_all = job.steps[-1].name not in skip
    program = {
        **{key: getattr(job, key) for key in ("name", "files", "gang", "stay_alive_seconds")},
        "figures": bool(job.patterns or job.output) and result_of_all,
        "csv": job.csv if result_of_all else "",
        "steps": [{**vars(step), "skip": step.name in skip, "force": step.name in force} for step in job.steps],
    }
    return base64.b64encode(zlib.compress(json.dumps(program, sort_keys=True).encode(), 9)).decode("ascii")
