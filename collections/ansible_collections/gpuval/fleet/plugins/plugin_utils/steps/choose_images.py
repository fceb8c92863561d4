"""Choose, for each vendor of accelerators, the images that stages need, and the inventory files to name them in."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.template import trust_as_template

from ..artifacts import images, registry_images
from ..cluster import nodes as cluster_nodes
from ..cluster import pod_settings
from ..core.host_values import place_of, templar_of, values_of
from ..core.paths import project_path
from ..core.text import some_of
from ..judge import sku_catalogue
from ..runs.action import RunAction

WORKLOADS = trust_as_template(
    "{{ lookup('gpuval.fleet.workloads', gpuval_stages + gpuval_gang_stages[gpuval_profile] | default([])) }}"
)
#: Groups of every inventory, whose nodes may be of any kind.
GENERAL_GROUPS = ("all", "ungrouped")


def choose_images(action: RunAction, *, registry: str, folder: Path = Path("docker")) -> dict[str, Any]:
    """`registry`: where the images are pushed, HOST:PORT/PATH; `folder`: of the Dockerfiles and bases.yml."""
    registry = registry_images.check_registry(registry)
    bases = images.read_bases(folder / "bases.yml")["vendors"]
    names = {name for vendor_bases in bases.values() for name in vendor_bases}
    needed: dict[str, set[str]] = {}
    places: dict[str, dict[str, str]] = {}
    declared_by_site: dict[str, str] = {}
    for node in action.task_vars["ansible_play_hosts_all"]:
        values = values_of(action, node, action.task_vars)
        template = templar_of(action, values).template
        declared = template(values["gpuval_images"]) or {}
        vendor = template(values["container_image_vendor"]) or _vendor(values, template)
        named = {**values, registry_images.VARIABLE: {name: {"reference": name} for name in names}}
        workloads = templar_of(action, named).template(WORKLOADS)
        used = names & {workload.get("image") for workload in workloads.values()}
        of_site = {name for name in used if registry_images.is_of_site(name, declared.get(name))}
        declared_by_site |= {name: declared[name]["reference"] for name in of_site}
        needed.setdefault(vendor, set()).update(used - of_site)
        places.setdefault(vendor, {})[node] = place_of(values, registry_images.VARIABLE).rpartition(":")[0]
    for name, reference in sorted(declared_by_site.items()):
        action.display.display(f"{name} is {reference}, as the inventory declares: it is not built")
    vendors = [
        {
            "vendor": vendor,
            "images": registry_images.sources(registry, vendor, needed[vendor]),
            "files": sorted(map(str, _files(action, vendor, places))),
        }
        for vendor in sorted(needed)
        if needed[vendor]
    ]
    return {"changed": False, "vendors": vendors}


def _vendor(values: Mapping[str, Any], template: Any) -> str:
    """Vendor of a node's accelerators by its SKU, else by the cluster's description of the node; empty if unknown."""
    sku = str(template(values.get("gpuval_sku")) or "auto")
    if entry := sku_catalogue.named(sku):
        return entry.vendor
    description = template(values.get(cluster_nodes.VARIABLE) or {})
    if not description.get("exists"):
        return ""
    settings = pod_settings.parse(template(values.get("gpuval_pods")) or {})
    labelled = cluster_nodes.vendor_by_labels(description["labels"])
    return cluster_nodes.gpus(description, settings, sku).vendor or labelled or sku_catalogue.CPU


def _files(action: RunAction, vendor: str, places: Mapping[str, Mapping[str, str]]) -> set[Path]:
    """Variable files in which to name the images of a vendor's nodes: those that name them already, else files of
    groups without other nodes. `places`: {vendor: {node: file that names its images}}. Raises ImagesError."""
    of_others = {place for other, nodes in places.items() if other != vendor for place in nodes.values()}
    files: set[Path] = set()
    groups: set[str] = set()
    for node, place in places[vendor].items():
        if place and place not in of_others:
            files.add(Path.cwd() / place)
        else:
            groups.add(_group(action.task_vars["groups"], places, vendor, node))
    return files | {_file_of_group(action.inventory, group) for group in groups}


def _group(groups: Mapping[str, Sequence[str]], places: Mapping[str, Mapping[str, str]], vendor: str, node: str) -> str:
    """The largest group that has `node` and only nodes of `vendor`. `places`: as in `_files`. Raises ImagesError."""
    if len(places) == 1:
        return "all"
    nodes = places[vendor].keys()
    own = [
        name
        for name, members in groups.items()
        if name not in GENERAL_GROUPS and node in members and nodes >= set(members)
    ]
    if not own:
        raise images.ImagesError(
            f"nodes have accelerators of {', '.join(sorted(places))}, and no group has those of {vendor} alone "
            f"({some_of(nodes)}): make one, such as by `skus` of the cluster's inventory"
        )
    return max(own, key=lambda name: (len(groups[name]), name))


def _file_of_group(inventory: Iterable[str], group: str) -> Path:
    sources = [project_path(source) for source in inventory]
    folders = [source if source.is_dir() else source.parent for source in sources if source.exists()]
    if not folders:
        raise images.ImagesError("the inventory is a list of hosts: give a folder, whose group_vars take the digests")
    names = (group, *(f"{group}{suffix}" for suffix in (".yml", ".yaml", ".json")))
    present = [path for folder in folders for name in names if (path := folder / "group_vars" / name).exists()]
    path = present[0] if present else folders[0] / "group_vars" / f"{group}.yml"
    return path / "images.yml" if path.is_dir() else path
