# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters of the roles' defaults."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import published
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts.model_source import folder_name
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import networks
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import sku_catalogue
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import datasets, endpoints
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import usual_search_seconds


def network_environment(name: str, sku: str = networks.AUTO) -> dict[str, str]:
    """Environment of a gang's workloads for a network of ``networks/``; empty for ``auto``."""
    try:
        return networks.environment(name, sku)
    except networks.NetworkError as error:
        raise AnsibleFilterError(str(error)) from error


def network_names(name: str) -> list[str]:
    """Names of a network in the log of the collectives' library, ``*`` for any text; none for ``auto``."""
    try:
        return networks.names(name)
    except networks.NetworkError as error:
        raise AnsibleFilterError(str(error)) from error


def dataset_workloads(declared: list, loading: dict) -> dict[str, dict]:
    """Declarations of the stages that load datasets, by stage; `loading` is what they have in common."""
    try:
        return datasets.workloads(declared, loading)
    except GpuvalError as error:
        raise AnsibleFilterError(str(error)) from error


def endpoint_entries(declared: list) -> list[dict]:
    """The endpoints of ``gpuval_endpoints`` as nodes get them, in base units."""
    try:
        return endpoints.parse(declared)
    except GpuvalError as error:
        raise AnsibleFilterError(str(error)) from error


def job_workloads(
    files, skip, force, images: dict, environment: dict, together: bool = False, stays: bool = True
) -> dict[str, dict]:
    """Declarations of the stages of jobs, by name: of those that nodes run by themselves, or `together`."""
    paths = [project_path(file) for file in stages.listed(files)]
    try:
        chosen = stages.listed(skip), stages.listed(force)
        return stages.workloads(paths, *chosen, images, environment, together=together, stays=stays)
    except stages.JobError as error:
        raise AnsibleFilterError(str(error)) from error


def published_images(sku: str) -> dict[str, dict[str, str]]:
    """The entries of ``gpuval_images`` that a release published for a SKU or a vendor; empty for ``auto``."""
    known = sku_catalogue.named(sku)
    return published.images(known.vendor if known else sku)


class FilterModule:
    def filters(self):
        return {
            "dataset_workloads": dataset_workloads,
            "endpoint_entries": endpoint_entries,
            "job_workloads": job_workloads,
            "model_folder": folder_name,
            "network_environment": network_environment,
            "network_names": network_names,
            "published_images": published_images,
            "usual_search_seconds": usual_search_seconds,
        }
