# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a job and a build context for each selected model of a repository, which is read and never executed."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.core.text import some_of
from ..plugin_utils.core.vendors import GPU_VENDORS
from ..plugin_utils.judge import sku_catalogue
from ..plugin_utils.mad import checkout, context, jobs, repository, tags
from ..plugin_utils.mad.errors import MadError
from ..plugin_utils.mad.models import CREDENTIALS_IN_URL
from ..plugin_utils.runs import datasets

#: A run reads its jobs until its nodes have their plans; no run lasts longer.
KEPT_SECONDS = 7 * 86_400


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        _check(options)
        folder = _fresh(project_path(options["state_dir"]) / "mad")
        found = repository.read(_root(options, folder))
        asked = context.parse(options["context"])
        models = tags.select(found, options["tags"])
        for remark in (*found.remarks, *asked.remarks):
            self._display.warning(remark)
        chosen = jobs.Options(
            timeout=options["timeout"],
            vendor=_vendor(options["sku"]),
            runs_on_all=options["disable_skip_gpu_arch"],
            datasets=[one.name for one in datasets.parse(options["datasets"])],
            named={tag.whole for tag in tags.parse(options["tags"])},
        )
        made = jobs.write(found, models, asked, chosen, folder)
        for problem in made.left_out:
            self._display.warning(f"left out: {problem}")
        text = f"{len(made.jobs)} job(s) of {len(models)} model(s): {some_of(model.name for model in models)}"
        text += f"; {len(made.left_out)} left out" if made.left_out else ""
        self._display.display(text)
        return {
            "changed": True,
            "msg": text,
            "jobs": list(made.jobs),
            "images": dict(made.images),
            "deadline_seconds": made.deadline_seconds,
        }


def _check(options):
    """Raises MadError for settings with which no model can run."""
    if options["placement"] != "ssh":
        raise MadError(
            "gpuval_mad_repository: models run on SSH hosts only: on a cluster push their images to a registry, and "
            "run their scripts as jobs (gpuval_jobs)"
        )
    if options["runtime"] == "host":
        raise MadError("gpuval_runtime is host, and models run in containers: set it to auto, docker or podman")
    if not options["repository"]:
        raise MadError("gpuval_mad_repository is empty: set it to a folder or a git address (make mad REPO=...)")


def _fresh(place: Path) -> Path:
    """An empty folder; those of runs that are long over are removed."""
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in place.iterdir():
        if time.time() - old.stat().st_mtime > KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-"), dir=place))


def _root(options, folder):
    """The folder of the repository, cloned if it is an address."""
    given, revision = options["repository"], options["revision"]
    if not checkout.is_address(given):
        if revision:
            raise MadError(
                "gpuval_mad_revision: gpuval_mad_repository is a folder: check it out there, or name its address"
            )
        return project_path(given)
    if CREDENTIALS_IN_URL.match(given):
        raise MadError(
            "gpuval_mad_repository: credentials in an address end up in logs: use a credential helper or SSH"
        )
    checkout.clone(given, folder / "repository", revision, what="gpuval_mad_repository")
    return folder / "repository"


def _vendor(sku):
    """As Dockerfiles have it; empty where the inventory leaves it to the nodes."""
    known = sku_catalogue.named(sku)
    vendor = sku if sku in (*GPU_VENDORS, "cpu") else known.vendor if known else ""
    return vendor.upper()
