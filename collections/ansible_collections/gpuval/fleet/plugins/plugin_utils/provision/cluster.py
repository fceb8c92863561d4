"""Create a cluster or its missing node pools, wait for them, write an inventory; delete what carries a tag."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from ..core import files
from ..core.escape import NODE_NAME
from ..core.text import some_of
from . import ProvisionError, plan
from .api import CLUSTERS, DigitalOceanApi, NoAnswerError, path_of

Show = Callable[[str], None]

INVENTORY, KUBECONFIG = "hosts.yml", "kubeconfig"
HEADER = "# Written by make provision; make deprovision removes it.\n"
#: Keys allowed for a user in a kubeconfig; other keys may start programs.
CREDENTIALS = {"token", "client-certificate-data", "client-key-data"}


def clusters(api: DigitalOceanApi) -> list[dict[str, Any]]:
    listed = api.pages(CLUSTERS, "kubernetes_clusters")
    return [cluster for cluster in listed if cluster["status"]["state"] != "deleted"]


def sizes(api: DigitalOceanApi) -> dict[str, dict[str, Any]]:
    return {size["slug"]: size for size in api.pages("/v2/sizes", "sizes")}


def account_lines(api: DigitalOceanApi, region: str) -> list[str]:
    """A line for each VPC, cluster and available size in a region; an empty `region` means all."""
    vpcs = (plan.vpc_line(vpc) for vpc in api.pages("/v2/vpcs", "vpcs") if region in ("", vpc["region"]))
    present = (plan.cluster_line(cluster) for cluster in clusters(api) if region in ("", cluster["region"]))
    offered = (plan.size_line(size) for size in sizes(api).values() if plan.is_offered(size, region))
    return [*vpcs, *present, *offered]


def check_quota(api: DigitalOceanApi, missing: Iterable[plan.NodePool]) -> None:
    """Raise ProvisionError if the new nodes would exceed the account's limit of Droplets."""
    limit = api.get("/v2/account", "account")["droplet_limit"]
    used = api.get("/v2/droplets?per_page=1", "meta")["total"]
    ordered = sum(pool.count for pool in missing)
    if used + ordered > limit:
        raise ProvisionError(
            f"quota: {ordered} nodes are to be created, and the account has {used} of {limit} Droplets: order fewer, "
            "or ask DigitalOcean for a higher limit"
        )


def create_missing(
    api: DigitalOceanApi, order: plan.ClusterPlan, settings: Mapping[str, Any], show: Show
) -> Mapping[str, Any]:
    """Create the cluster with its node pools, or the pools that an existing cluster lacks. Returns the cluster.

    ``settings``: name, region, version and VPC of the cluster, and the tag. Raises ProvisionError.
    """
    if order.cluster is None:
        show(f"creating cluster {settings['name']}")
        pools = [asdict(pool) for pool in order.missing]
        document = {**settings, "node_pools": pools, "auto_upgrade": False, "surge_upgrade": False, "ha": False}
        created: Mapping[str, Any] = api.order(CLUSTERS, document, "kubernetes_cluster", f"Cluster {settings['name']}")
        return created
    for pool in order.missing:
        show(f"creating node pool {pool.name}: {pool.count} x {pool.size}")
        api.order(f"{path_of(order.cluster)}/node_pools", asdict(pool), "node_pool", f"Node pool {pool.name}")
    return order.cluster


def wait_until_ready(
    api: DigitalOceanApi,
    cluster: Mapping[str, Any],
    pools: Sequence[plan.NodePool],
    seconds: float,
    poll_seconds: float,
    show: Show,
) -> Mapping[str, Any]:
    """The cluster once it and all nodes of the pools run, within ``seconds``; else raises ProvisionError."""
    printed = ""

    def missing() -> str:
        nonlocal cluster, printed
        try:
            cluster = api.get(path_of(cluster), "kubernetes_cluster")
            line = plan.progress(cluster, pools)
        except NoAnswerError as error:
            line = str(error)
        if line and cluster["status"]["state"] == "error":
            raise ProvisionError(f"the cluster failed: {line}. Run `make deprovision`, then `make provision` again")
        if line not in ("", printed):
            show(line)
        printed = line
        return line

    remedy = "What exists costs money: run `make provision` again to wait for the rest, or `make deprovision`"
    _wait_until_none(missing, seconds, poll_seconds, "ready", remedy)
    return cluster


def _wait_until_none(missing: Callable[[], str], seconds: float, poll_seconds: float, state: str, remedy: str) -> None:
    """Wait until ``missing()`` returns an empty text, called every ``poll_seconds``. Raises ProvisionError after
    ``seconds``, with ``state``, the state waited for, and ``remedy`` in its message."""
    deadline = time.monotonic() + seconds
    while line := missing():
        if time.monotonic() + poll_seconds > deadline:
            raise ProvisionError(f"not {state} after {seconds:.0f} s: {line}. {remedy}")
        time.sleep(poll_seconds)


def write_inventory(folder: Path, kubeconfig: bytes, nodes: Sequence[str]) -> list[str]:
    """Write kubeconfig and inventory into the folder. Returns the changed paths."""
    invalid = [name for name in nodes if not NODE_NAME.fullmatch(name)]
    if invalid or not nodes:
        raise ProvisionError(f"the API has no usable names of nodes: {some_of(map(repr, invalid)) or 'none'}")
    ensure_ours(folder)
    inventory = {"plugin": "gpuval.fleet.kubernetes_nodes", "kubeconfig": KUBECONFIG, "expected": list(nodes)}
    text = HEADER + yaml.safe_dump(inventory, sort_keys=False)
    # Write the inventory first: its header marks both as files of `make provision`.
    contents = ((INVENTORY, text.encode(), None), (KUBECONFIG, _checked_kubeconfig(kubeconfig), files.PRIVATE))
    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for name, data, mode in contents:
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            changed.append(str(path))
            files.replace(path, data, mode)
    return changed


def ensure_ours(folder: Path) -> None:
    """Raise ProvisionError if the folder has an inventory or a kubeconfig that gpuval did not write."""
    path = folder / INVENTORY
    present = next((file for file in (path, folder / KUBECONFIG) if file.exists()), None)
    if present and not _is_ours(path):
        raise ProvisionError(f"{present} is not of `make provision`: set provision_inventory to another folder")


def remove_inventory(folder: Path) -> list[str]:
    """Remove the files that `write_inventory` wrote. Returns the removed paths."""
    path = folder / INVENTORY
    written = [file for file in (folder / KUBECONFIG, path) if file.exists()] if _is_ours(path) else []
    for file in written:
        file.unlink()
    return [str(file) for file in written]


def _is_ours(path: Path) -> bool:
    return path.exists() and path.read_bytes().startswith(HEADER.encode())


def _checked_kubeconfig(kubeconfig: bytes) -> bytes:
    """Return the kubeconfig if it is safe. Raises ProvisionError if it is malformed, or names programs or files."""
    try:
        keys = {key for user in yaml.safe_load(kubeconfig)["users"] for key in user["user"]}
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError):
        raise ProvisionError("the API returns no kubeconfig: run `make provision` again") from None
    if keys - CREDENTIALS:
        raise ProvisionError(f"the kubeconfig of the API has other credentials than a token or a key: {sorted(keys)!r}")
    return kubeconfig


def delete(
    api: DigitalOceanApi,
    tag: str,
    planned: Sequence[plan.ClusterDeletion],
    seconds: float,
    poll_seconds: float,
    show: Show,
) -> None:
    """Delete planned clusters and pools, and wait until they are gone, up to ``seconds``. Raises ProvisionError."""
    for deletion in planned:
        show(f"deleting {deletion.line}")
        api.delete(path_of(deletion.cluster, deletion.pool))

    def remaining() -> str:
        try:
            return some_of(deletion.line for deletion in plan.deletions(clusters(api), tag)[0])
        except NoAnswerError as error:
            return str(error)

    _wait_until_none(remaining, seconds, poll_seconds, "gone", "It may still cost money: run `make deprovision` again")
