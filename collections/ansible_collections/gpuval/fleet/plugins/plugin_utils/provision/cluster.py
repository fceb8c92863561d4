"""Create missing node pools, wait for them, write an inventory; delete what carries a tag, and wait for its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..core import files
from ..core.escape import NODE_NAME
from ..core.text import some_of
from . import ProvisionError, plan
from .api import CLUSTERS, Api, UnreachableError, path_of

Show = Callable[[str], None]

INVENTORY, KUBECONFIG = "hosts.yml", "kubeconfig"
HEADER = "# Written by make provision; make deprovision removes it.\n"
#: Keys of a user in a kubeconfig; others may start programs.
CREDENTIALS = {"token", "client-certificate-data", "client-key-data"}


def clusters(api: Api) -> list[dict[str, Any]]:
    return [one for one in api.pages(CLUSTERS, "kubernetes_clusters") if one["status"]["state"] != "deleted"]


def sizes(api: Api) -> dict[str, dict[str, Any]]:
    return {one["slug"]: one for one in api.pages("/v2/sizes", "sizes")}


def check_quota(api: Api, missing: Iterable[plan.Pool]) -> None:
    """Raises ProvisionError where the account's limit of Droplets has no room. Nodes are Droplets."""
    limit = api.get("/v2/account", "account")["droplet_limit"]
    used = api.get("/v2/droplets?per_page=1", "meta")["total"]
    more = sum(pool.count for pool in missing)
    if used + more > limit:
        raise ProvisionError(
            f"quota: {more} nodes are to be created, and the account has {used} of {limit} Droplets: order fewer, or "
            "ask DigitalOcean for a higher limit"
        )


def complete(api: Api, found: Mapping[str, Any], missing: Iterable[plan.Pool], show: Show) -> None:
    """Create the missing pools of a cluster."""
    for pool in missing:
        show(f"creating node pool {pool.name}: {pool.count} x {pool.size}")
        try:
            api.post(f"{path_of(found)}/node_pools", pool.document)
        except UnreachableError as error:
            raise ProvisionError(
                f"{error}. Node pool {pool.name} may exist: run `make provision` again, which resumes"
            ) from None


def wait_until_ready(
    api: Api, found: Mapping[str, Any], pools: Sequence[plan.Pool], seconds: float, every: float, show: Show
) -> Mapping[str, Any]:
    """The cluster, once it and all nodes of the pools run. Raises ProvisionError at the deadline."""
    deadline, shown, line = time.monotonic() + seconds, "", "its state is not known"
    while True:
        try:
            found = api.get(path_of(found), "kubernetes_cluster")
            ready, line = plan.progress(found, pools)
        except UnreachableError as error:
            ready, line = False, str(error)
        if ready:
            return found
        if found["status"]["state"] == "error":
            raise ProvisionError(f"the cluster failed: {line}. Run `make deprovision`, then `make provision` again")
        if line != shown:
            show(line)
            shown = line
        if time.monotonic() + every > deadline:
            raise ProvisionError(
                f"not ready after {seconds:.0f} s: {line}. What exists costs money: run `make provision` again to wait "
                "for the rest, or `make deprovision`"
            )
        time.sleep(every)


def write_inventory(folder: Path, kubeconfig: bytes, nodes: Sequence[str]) -> list[str]:
    """Write kubeconfig and inventory; the paths that changed."""
    invalid = [name for name in nodes if not NODE_NAME.fullmatch(name)]
    if invalid or not nodes:
        raise ProvisionError(f"the API has no usable names of nodes: {some_of(map(repr, invalid)) or 'none'}")
    ensure_ours(folder)
    inventory = {"plugin": "gpuval.fleet.kubernetes_nodes", "kubeconfig": KUBECONFIG, "expected": list(nodes)}
    wanted = {
        INVENTORY: (
            (HEADER + yaml.safe_dump(inventory, sort_keys=False)).encode(),
            None,
        ),  # first: it shows whose they are
        KUBECONFIG: (_checked(kubeconfig), files.PRIVATE),
    }
    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for name, (data, mode) in wanted.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            changed.append(str(path))
            files.replace(path, data, mode)
    return changed


def ensure_ours(folder: Path) -> None:
    """Raises ProvisionError where the folder has an inventory or a kubeconfig of others."""
    path = folder / INVENTORY
    other = next((one for one in (path, folder / KUBECONFIG) if one.exists()), None)
    if other and not (path.exists() and _ours(path)):
        raise ProvisionError(f"{other} is not of `make provision`: set provision_inventory to another folder")


def remove_inventory(folder: Path) -> list[str]:
    """Remove what `write_inventory` wrote; the paths removed."""
    path = folder / INVENTORY
    found = [one for one in (folder / KUBECONFIG, path) if one.exists()] if path.exists() and _ours(path) else []
    for one in found:
        one.unlink()
    return [str(one) for one in found]


def _ours(path: Path) -> bool:
    return path.read_bytes().startswith(HEADER.encode())


def _checked(kubeconfig: bytes) -> bytes:
    """The kubeconfig. Raises ProvisionError if it is none, or names a program to start or a file to read."""
    try:
        users = yaml.safe_load(kubeconfig)["users"]
        keys = {key for user in users for key in user["user"]}
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError):
        raise ProvisionError("the API returns no kubeconfig: run `make provision` again") from None
    if keys - CREDENTIALS:
        raise ProvisionError(f"the kubeconfig of the API has other credentials than a token or a key: {sorted(keys)!r}")
    return kubeconfig


def delete(api: Api, tag: str, wanted: Sequence[plan.Deletion], seconds: float, every: float, show: Show) -> None:
    """Delete what was planned, and wait until it is gone. Raises ProvisionError."""
    for one in wanted:
        show(f"deleting {one.line}")
        api.delete(path_of(one.cluster, one.pool))
    deadline = time.monotonic() + seconds
    while True:
        try:
            left, _ = plan.deletions(clusters(api), tag)
        except UnreachableError as error:
            reason = str(error)
        else:
            if not left:
                return
            reason = some_of(one.line for one in left)
        if time.monotonic() + every > deadline:
            raise ProvisionError(
                f"not gone after {seconds:.0f} s: {reason}. It may still cost money: run `make deprovision` again"
            )
        time.sleep(every)
