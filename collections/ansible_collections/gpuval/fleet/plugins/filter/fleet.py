# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Jinja filters that the defaults of the roles use."""

import functools

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts.model_source import folder_name
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.nodes import label_selector
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import networks
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory import env_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import sku_catalogue
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import datasets, endpoints
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import usual_search_seconds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.scheduler import TRAITS, scheduler_of


def _filter(function):
    """Return a function as a Jinja filter, which raises ``AnsibleFilterError`` instead of ``GpuvalError``."""

    @functools.wraps(function)
    def checked(*arguments, **named):
        try:
            return function(*arguments, **named)
        except GpuvalError as error:
            raise AnsibleFilterError(str(error)) from error

    return checked


@_filter
def job_workloads(
    files, skip, force, images: dict, environment: dict, together: bool = False, stays: bool = True
) -> dict[str, dict]:
    """Return the declarations of stages of jobs by job: of single-node jobs, or with `together` of multi-node jobs.
    `files`: of jobs; `skip`, `force`: names of steps; `environment`: variables of all stages; `stays`: whether jobs may
    stay alive after their steps."""
    paths = [project_path(file) for file in listed(files)]
    chosen = listed(skip), listed(force)
    return stages.workloads(paths, *chosen, images, environment, together=together, stays=stays)


def published_images(sku: str) -> dict[str, dict[str, str]]:
    """Return the entries of ``gpuval_images`` that a release published for a SKU or vendor; empty for ``auto``."""
    known = sku_catalogue.named(sku)
    return images.published_images(known.vendor if known else sku)


@_filter
def scheduler_traits(placement, folders, forbidden) -> dict[str, object]:
    """Return the scheduler's attributes that roles and playbooks read, by name. `placement` names the scheduler;
    `folders`: of extensions; `forbidden`: folders in which no extension may be."""
    extensions.use(listed(folders), forbidden)
    scheduler = scheduler_of(placement)
    return {trait: getattr(scheduler, trait) for trait in TRAITS}


class FilterModule:
    def filters(self):
        return {
            "dataset_workloads": _filter(datasets.workloads),
            "env_values": _filter(lambda sources: env_file.read(sources).values),
            "endpoint_entries": _filter(endpoints.parse),
            "job_workloads": job_workloads,
            "label_selector": _filter(label_selector),
            "model_folder": folder_name,
            "network_environment": _filter(networks.environment),
            "network_names": _filter(networks.names),
            "scheduler": scheduler_traits,
            "published_images": published_images,
            "usual_search_seconds": usual_search_seconds,
        }
