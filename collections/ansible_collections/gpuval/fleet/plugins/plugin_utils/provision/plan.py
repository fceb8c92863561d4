"""What to create at DigitalOcean, what it costs, and what may be deleted, by settings and answers of the API. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ..core.escape import one_line
from ..core.text import meant, some_of
from . import ProvisionError

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_TAG = re.compile(r"[A-Za-z0-9:_-]{1,255}")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
#: Maximum number of nodes that DOKS allows in a pool.
MAX_NODES = 512
HOURS_PER_DAY = 24


@dataclass(frozen=True)
class NodePool:
    name: str
    size: str
    count: int
    tags: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class ClusterPlan:
    """What to create. ``missing``: pools to create; ``cluster``: the existing cluster, None if there is none."""

    cluster: Mapping[str, Any] | None
    missing: tuple[NodePool, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ClusterDeletion:
    """A cluster to delete, or only a pool of a cluster."""

    cluster: Mapping[str, Any]
    pool: Mapping[str, Any] | None = None

    @property
    def line(self) -> str:
        if self.pool is not None:
            return f"node pool {text(self.pool, 'name')} of cluster {text(self.cluster, 'name')}"
        nodes = sum(pool["count"] for pool in pools_of(self.cluster))
        return f"cluster {text(self.cluster, 'name')} with {nodes} nodes"


def tag_of(name: str) -> str:
    """The tag of all clusters and pools that are provisioned under a name. Raises ProvisionError."""
    if not NAME.fullmatch(name):
        raise ProvisionError(f"provision_name is {name!r}: small letters, digits and '-', 42 at most")
    return f"gpuval:{name}"


def text(entry: Mapping[str, Any], key: str) -> str:
    """A text field of the API's answer, in one line, for messages and comparisons."""
    return one_line(str(entry.get(key) or ""), 128)


def pools_of(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return cluster.get("node_pools") or []


def has_tag(entry: Mapping[str, Any], tag: str) -> bool:
    """Whether a cluster or pool has a tag; DigitalOcean ignores the case of tags."""
    return any(name.lower() == tag for name in entry.get("tags") or ())


def ordered_pools(settings: Sequence[Mapping[str, Any]], tag: str) -> tuple[NodePool, ...]:
    """The pools in ``provision_node_pools``, each with the tag added. Raises ProvisionError."""
    if not settings:
        raise ProvisionError("provision_node_pools is empty: give name, size and count of each node pool")
    pools: list[NodePool] = []
    for number, entry in enumerate(settings):
        setting = f"provision_node_pools[{number}]"
        unknown = set(entry) - set(NodePool.__dataclass_fields__)
        if unknown or not {"name", "size", "count"} <= set(entry):
            raise ProvisionError(f"{setting}: give name, size and count, and optionally tags, labels and taints")
        count, taints = str(entry["count"]), entry.get("taints") or []
        if not count.isdecimal() or not 1 <= int(count) <= MAX_NODES:
            raise ProvisionError(f"{setting}: count is {count!r}, not a number from 1 to {MAX_NODES}")
        if not NAME.fullmatch(str(entry["name"])) or any(pool.name == entry["name"] for pool in pools):
            raise ProvisionError(
                f"{setting}: the name {entry['name']!r} is given twice, or not small letters, digits, '-'"
            )
        for taint in taints:
            if not isinstance(taint, Mapping) or not taint.get("key") or taint.get("effect") not in EFFECTS:
                raise ProvisionError(f"{setting}: a taint has key, value and effect; effect is {', '.join(EFFECTS)}")
        tags = [str(name) for name in entry.get("tags") or ()]
        if not all(map(_TAG.fullmatch, tags)):
            raise ProvisionError(f"{setting}: a tag has letters, digits, ':', '_' and '-'")
        labels = {str(key): str(value) for key, value in (entry.get("labels") or {}).items()}
        taints = [{key: str(taint.get(key) or "") for key in ("key", "value", "effect")} for taint in taints]
        pools.append(NodePool(str(entry["name"]), str(entry["size"]), int(count), [tag, *tags], labels, taints))
    return tuple(pools)


def cost_line(pools: Iterable[NodePool], sizes: Mapping[str, Mapping[str, Any]], region: str) -> str:
    """A line with the cost of the pools, in all and of each. ``sizes``: the API's sizes by slug. Raises ProvisionError
    for a size that the region lacks."""
    total, lines = Decimal(0), []
    for pool in pools:
        size = sizes.get(pool.size)
        if size is None:
            raise ProvisionError(f"node pool {pool.name}: no size {pool.size!r}{meant(pool.size, sizes)}")
        regions = sorted(size.get("regions") or ())
        if not region or not is_offered(size, region):
            elsewhere = some_of(name for name in regions if name != region) if size.get("available") else ""
            raise ProvisionError(
                f"node pool {pool.name}: {pool.size} is not available in {region}: "
                + (f"set provision_region to one of {elsewhere}" if elsewhere else "try later, or another size")
            )
        price = hourly_price(size)
        if price is None:
            raise ProvisionError(f"{pool.size} has no hourly price in /v2/sizes: its cost is not known")
        total += price * pool.count
        lines.append(f"{pool.name}: {pool.count} x {pool.size} at {price:.3f} USD/hour")
    return f"cost: {total:.2f} USD/hour, {total * HOURS_PER_DAY:.2f} USD/day ({'; '.join(lines)}), by /v2/sizes"


def is_offered(size: Mapping[str, Any], region: str) -> bool:
    """Whether a size can be ordered in a region; an empty `region` means anywhere."""
    return bool(size.get("available")) and (not region or region in (size.get("regions") or ()))


def hourly_price(size: Mapping[str, Any]) -> Decimal | None:
    """Price of a node in USD per hour; None if the API gives no price."""
    price = size.get("price_hourly")
    if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 < price < float("inf"):
        return None
    return Decimal(str(price))


def vpc_line(vpc: Mapping[str, Any]) -> str:
    is_default = ", the default of its region" if vpc.get("default") else ""
    return f"VPC {text(vpc, 'id')} {text(vpc, 'name')} in {text(vpc, 'region')}{is_default}"


def cluster_line(cluster: Mapping[str, Any]) -> str:
    pools = some_of(f"{text(pool, 'name')}: {pool['count']} x {text(pool, 'size')}" for pool in pools_of(cluster))
    text_start = f"cluster {text(cluster, 'name')} in {text(cluster, 'region')}: {text(cluster['status'], 'state')}"
    return f"{text_start}; node pools {pools or 'none'}; tags {some_of(cluster.get('tags') or ()) or 'none'}"


def size_line(size: Mapping[str, Any]) -> str:
    price = hourly_price(size)
    cost = f"{price:.3f} USD/hour" if price else "no hourly price"
    return f"size {text(size, 'slug')}: {cost}, in {some_of(size.get('regions') or (), 20)}"


def make_plan(
    name: str,
    tag: str,
    region: str,
    pools: tuple[NodePool, ...],
    clusters: Iterable[Mapping[str, Any]],
    *,
    existing: bool,
) -> ClusterPlan:
    """What to create for an order. ``existing``: the pools are for a cluster that gpuval did not create. Raises
    ProvisionError if the order contradicts the existing clusters."""
    same_name = [cluster for cluster in clusters if cluster["name"] == name]
    if len(same_name) > 1:
        raise ProvisionError(f"the account has {len(same_name)} clusters named {name}: rename or delete one")
    if not same_name:
        if existing:
            raise ProvisionError(f"provision_cluster: the account has no cluster {name}")
        return ClusterPlan(None, pools, (f"create cluster {name} in {region}", *map(_order_line, pools)))
    cluster = same_name[0]
    if not existing and not has_tag(cluster, tag):
        raise ProvisionError(
            f"cluster {name} exists without the tag {tag}: set provision_cluster={name} to add node pools to it, or "
            "another provision_name"
        )
    if text(cluster, "region") != region:
        raise ProvisionError(f"cluster {name} is in {text(cluster, 'region')}: set provision_region to that")
    present = {text(pool, "name"): pool for pool in pools_of(cluster)}
    for pool in pools:
        other_pool = present.get(pool.name)
        if other_pool is None:
            continue
        if not has_tag(other_pool, tag):
            raise ProvisionError(f"node pool {pool.name} exists without the tag {tag}: choose another name")
        if (other_pool["size"], other_pool["count"]) != (pool.size, pool.count):
            raise ProvisionError(
                f"node pool {pool.name} has {other_pool['count']} x {text(other_pool, 'size')}, not {pool.count} x "
                f"{pool.size}: choose another name, or run `make deprovision` first"
            )
    missing = tuple(pool for pool in pools if pool.name not in present)
    return ClusterPlan(cluster, missing, (f"cluster {name} exists", *map(_order_line, missing)))


def _order_line(pool: NodePool) -> str:
    taints = "".join(f", taint {taint['key']}={taint['value']}:{taint['effect']}" for taint in pool.taints)
    return f"create node pool {pool.name}: {pool.count} x {pool.size}, tags {' '.join(pool.tags)}{taints}"


def deletions(clusters: Iterable[Mapping[str, Any]], tag: str) -> tuple[list[ClusterDeletion], list[str]]:
    """Clusters and pools with the tag, and lines on tagged clusters that stay, since they have pools without it."""
    planned, stay = [], []
    for cluster in clusters:
        pools = pools_of(cluster)
        untagged = [text(pool, "name") for pool in pools if not has_tag(pool, tag)]
        if has_tag(cluster, tag) and not untagged:
            planned.append(ClusterDeletion(cluster))
            continue
        planned += [ClusterDeletion(cluster, pool) for pool in pools if has_tag(pool, tag)]
        if has_tag(cluster, tag):
            stay.append(f"cluster {text(cluster, 'name')} stays: its node pools {some_of(untagged)} lack the tag {tag}")
    return planned, stay


def progress(cluster: Mapping[str, Any], pools: Iterable[NodePool]) -> str:
    """A message on the cluster and the nodes of these pools that do not run yet; empty if all run."""
    status = cluster["status"]
    state = text(status, "state")
    waiting = [] if state == "running" else [f"cluster {state} {text(status, 'message')}".strip()]
    present = {text(pool, "name"): pool for pool in pools_of(cluster)}
    for pool in pools:
        nodes = [node["status"] for node in (present.get(pool.name) or {}).get("nodes") or ()]
        late = [status for status in nodes if status["state"] != "running"]
        if len(nodes) - len(late) < pool.count:
            messages = sorted({text(status, "message") for status in late} - {""})
            reason = f" ({some_of(messages, 3, '; ')})" if messages else ""
            waiting.append(f"node pool {pool.name}: {len(nodes) - len(late)} of {pool.count} nodes run{reason}")
    return "; ".join(waiting)


def expected_nodes(
    cluster: Mapping[str, Any], pools: Sequence[NodePool], sizes: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Names of the nodes to validate: of the ordered pools with GPUs; if none has GPUs, of all ordered pools."""
    with_gpus = {pool.name for pool in pools if sizes.get(pool.size, {}).get("gpu_info")}
    validated = with_gpus or {pool.name for pool in pools}
    chosen = (pool for pool in pools_of(cluster) if text(pool, "name") in validated)
    return sorted(str(node.get("name")) for pool in chosen for node in pool.get("nodes") or ())
