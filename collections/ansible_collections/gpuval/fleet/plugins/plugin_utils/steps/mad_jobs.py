"""Write a job and a build context for each selected model of a repository, which is read and never executed."""

import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core.paths import project_path
from ..core.step_options import PathText, StepOptions
from ..core.text import some_of
from ..judge import sku_catalogue
from ..mad import checkout, context, jobs, planning, repository
from ..mad.data import DATA_FILE
from ..mad.documents import MadError, located
from ..mad.models import CREDENTIALS_IN_URL
from ..runs import datasets, job_secrets
from ..runs.action import RunAction
from ..watch.scheduler import scheduler_of

#: Age in seconds at which generated jobs are removed: no run lasts longer.
KEPT_SECONDS = 7 * 86_400
#: Prefix of the controller's environment variables that all models get.
SECRETS_FOR_ALL = "MAD_SECRETS"
FOLDER = re.compile(r"(/[^/:,\s]+)+/?")
REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-][a-z0-9]+)*)*/?")


class MadJobsOptions(StepOptions):
    repository: str
    revision: str = ""
    tags: Sequence[str] = ("all",)
    timeout: int = -1
    context: Any = None
    disable_skip_gpu_arch: bool = False
    sku: str = "auto"
    datasets: Sequence[Mapping[str, Any]] = ()
    secrets: Sequence[str] = ()
    secrets_file: PathText = ""
    images: Mapping[str, Any] = field(default_factory=dict)
    registry: str = ""
    keep_alive_seconds: int = 0
    keep_folder: str = ""
    skip_run: bool = False
    output: Path | None = None
    pipeline: str = ""
    placement: str = "ssh"
    runtime: str = "auto"
    state_dir: Path


def mad_jobs(action: RunAction, options: MadJobsOptions) -> dict[str, Any]:
    _check(options)
    jobs_folder = options.state_dir / "mad"
    jobs_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    jobs.remove_leftovers(options.state_dir, time.time() - KEPT_SECONDS)  # jobs of runs that ended long ago
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-"), dir=jobs_folder))
    models_repository = repository.read(_root(options, folder))
    secrets_file = None
    if options.secrets_file:
        secrets_file = project_path(options.secrets_file)
    elif (models_repository.root / checkout.CREDENTIALS_FILE).exists():
        secrets_file = located(models_repository.root, checkout.CREDENTIALS_FILE)
    secrets = job_secrets.read(secrets_file) if secrets_file else {}
    requested_context = context.parse(options.context)
    scheduler = scheduler_of(options.placement)
    in_pods = scheduler.in_pods
    if in_pods and not (options.registry or options.images or requested_context.image):
        raise MadError(f"models on a cluster need images: {planning.BY_REGISTRY}, or name images in gpuval_mad_images")
    models = repository.select(models_repository, options.tags)
    without = [model.name for model in models if model.data and models_repository.data is None]
    fetched = [f"{DATA_FILE} is missing: the scripts of {some_of(without)} fetch their data"] if without else []
    for remark in (*models_repository.remarks, *requested_context.remarks, *fetched):
        action.display.warning(remark)
    set_here = [name for name, value in os.environ.items() if value]
    for_all = {
        name for name in (*options.secrets, *job_secrets.flat(secrets), *set_here) if name.startswith(SECRETS_FOR_ALL)
    }
    chosen = planning.MadOptions(
        timeout=options.timeout,
        vendor=_vendor(options.sku),
        runs_on_all=options.disable_skip_gpu_arch,
        datasets=[one.name for one in datasets.parse(options.datasets)],
        credentials=secrets,
        secrets_file=secrets_file,
        secrets=tuple(sorted(for_all)),
        named={tag.whole for tag in repository.parse_tags(options.tags)},
        images={str(name): str(image) for name, image in options.images.items()},
        in_pods=in_pods,
        in_slurm=scheduler.runs_batch_files,
        keep_alive_seconds=options.keep_alive_seconds,
        keep_folder=options.keep_folder,
        pipeline=options.pipeline,
        nodes=len(action.task_vars.get("ansible_play_hosts_all") or ()),
        registry=options.registry.rstrip("/"),
    )
    written_jobs = jobs.write(models_repository, models, requested_context, chosen, folder)
    for remark in (*(f"left out: {problem}" for problem in written_jobs.left_out), *written_jobs.remarks):
        action.display.warning(remark)
    text = f"{len(written_jobs.jobs)} job(s) of {len(models)} model(s): {some_of(model.name for model in models)}"
    text += f"; {len(written_jobs.left_out)} left out" if written_jobs.left_out else ""
    action.display.display(text)
    return {
        "changed": True,
        "msg": text,
        "jobs": [] if options.skip_run else list(written_jobs.jobs),
        "images": dict(written_jobs.images),
        "secrets_file": str(secrets_file or ""),
        "deadline_seconds": written_jobs.deadline_seconds,
    }


def _check(options):
    """Raises MadError for settings with which no model can run."""
    if options.output and not os.access(options.output.parent, os.W_OK):
        raise MadError(f"gpuval_mad_output: {options.output}: its folder is missing, or this user may not write it")
    if options.keep_folder and not FOLDER.fullmatch(options.keep_folder):
        raise MadError("gpuval_mad_keep_folder: is no absolute path without colons and commas")
    if options.registry and not REGISTRY.fullmatch(options.registry):
        raise MadError("gpuval_mad_registry: is no registry: write HOST[:PORT]/PATH, such as registry.example:5000/mad")
    if options.runtime == "host" and scheduler_of(options.placement).over_ssh:
        raise MadError("gpuval_runtime is host, and models run in containers: set it to auto, docker or podman")
    if not options.repository:
        raise MadError("gpuval_mad_repository is empty: set it to a folder or a git address (`make mad REPO=...`)")


def _root(options, folder):
    """The folder of the model repository, which is cloned into `folder` if the setting is an address."""
    source, revision = options.repository, options.revision
    if not checkout.is_address(source):
        if revision:
            remedy = "check it out there, or name its address"
            raise MadError(f"gpuval_mad_revision: gpuval_mad_repository is a folder: {remedy}")
        return project_path(source)
    if CREDENTIALS_IN_URL.match(source):
        remedy = "use a credential helper or SSH"
        raise MadError(f"gpuval_mad_repository: credentials in an address end up in logs: {remedy}")
    target = folder / "repository"
    checkout.clone(source, target, revision, what="gpuval_mad_repository", transports=checkout.ALL_TRANSPORTS)
    return target


def _vendor(sku):
    """The GPU vendor of a SKU as Dockerfiles name it; empty if the inventory leaves it to the nodes."""
    declared_sku = sku_catalogue.named(sku)
    vendor = sku if sku in (*GPU_VENDORS, "cpu") else declared_sku.vendor if declared_sku else ""
    return vendor.upper()
