"""What is to be created, what it costs, and what may be deleted, of settings and answers of the API. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from ..core.escape import one_line
from ..core.text import meant, some_of
from . import ProvisionError

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_TAG = re.compile(r"[A-Za-z0-9:_-]{1,255}")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
#: Nodes of a pool, by DOKS.
MAX_NODES = 512
HOURS_PER_DAY = 24


@dataclass(frozen=True)
class Pool:
    """A node pool as it is ordered."""

    name: str
    size: str
    count: int
    tags: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[dict[str, str]] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """``missing`` are the pools to be created; ``cluster`` is the present one, if any."""

    cluster: Mapping[str, Any] | None
    missing: tuple[Pool, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Deletion:
    """A cluster, or a pool of one."""

    cluster: Mapping[str, Any]
    pool: Mapping[str, Any] | None = None

    @property
    def line(self) -> str:
        if self.pool is not None:
            return f"node pool {text(self.pool, 'name')} of cluster {text(self.cluster, 'name')}"
        nodes = sum(pool["count"] for pool in pools_of(self.cluster))
        return f"cluster {text(self.cluster, 'name')} with {nodes} nodes"


def tag_of(name: str) -> str:
    """The tag of everything that is provisioned under a name."""
    if not NAME.fullmatch(name):
        raise ProvisionError(f"provision_name is {name!r}: small letters, digits and '-', 42 at most")
    return f"gpuval:{name}"


def text(entry: Mapping[str, Any], key: str) -> str:
    """A text of the API, for messages and comparisons."""
    return one_line(str(entry.get(key) or ""), 128)


def pools_of(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return cluster.get("node_pools") or []


def carries(entry: Mapping[str, Any], tag: str) -> bool:
    """Tags of DigitalOcean ignore case."""
    return any(one.lower() == tag for one in entry.get("tags") or ())


def ordered_pools(settings: Sequence[Mapping[str, Any]], tag: str) -> tuple[Pool, ...]:
    """``provision_node_pools``, each with the tag. Raises ProvisionError."""
    if not settings:
        raise ProvisionError("provision_node_pools is empty: give name, size and count of each node pool")
    pools: list[Pool] = []
    for number, given in enumerate(settings):
        where = f"provision_node_pools[{number}]"
        unknown = set(given) - set(Pool.__dataclass_fields__)
        if unknown or not {"name", "size", "count"} <= set(given):
            raise ProvisionError(f"{where}: give name, size and count, and optionally tags, labels and taints")
        count, taints = str(given["count"]), given.get("taints") or []
        if not count.isdecimal() or not 1 <= int(count) <= MAX_NODES:
            raise ProvisionError(f"{where}: count is {count!r}, not a number from 1 to {MAX_NODES}")
        if not NAME.fullmatch(str(given["name"])) or any(pool.name == given["name"] for pool in pools):
            raise ProvisionError(
                f"{where}: the name {given['name']!r} is given twice, or not small letters, digits, '-'"
            )
        for taint in taints:
            if not isinstance(taint, Mapping) or not taint.get("key") or taint.get("effect") not in EFFECTS:
                raise ProvisionError(f"{where}: a taint has key, value and effect; effect is {', '.join(EFFECTS)}")
        tags = [str(one) for one in given.get("tags") or ()]
        if not all(map(_TAG.fullmatch, tags)):
            raise ProvisionError(f"{where}: a tag has letters, digits, ':', '_' and '-'")
        labels = {str(key): str(value) for key, value in (given.get("labels") or {}).items()}
        taints = [{key: str(taint.get(key) or "") for key in ("key", "value", "effect")} for taint in taints]
        pools.append(Pool(str(given["name"]), str(given["size"]), int(count), [tag, *tags], labels, taints))
    return tuple(pools)


def cost_of(pools: Iterable[Pool], sizes: Mapping[str, Mapping[str, Any]], region: str) -> tuple[Decimal, list[str]]:
    """USD per hour, and a line for each pool. Raises ProvisionError for a size that the region does not have."""
    total, lines = Decimal(0), []
    for pool in pools:
        size = sizes.get(pool.size)
        if size is None:
            raise ProvisionError(f"node pool {pool.name}: no size {pool.size!r}{meant(pool.size, sizes)}")
        regions = sorted(size.get("regions") or ())
        if region not in regions or not size.get("available"):
            others = some_of(one for one in regions if one != region) if size.get("available") else ""
            raise ProvisionError(
                f"node pool {pool.name}: {pool.size} is not available in {region}: "
                + (f"set provision_region to one of {others}" if others else "try later, or another size")
            )
        price = size.get("price_hourly")
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 < price < float("inf"):
            raise ProvisionError(f"{pool.size} has no hourly price in /v2/sizes: its cost is not known")
        each = Decimal(str(price))
        total += each * pool.count
        lines.append(f"{pool.name}: {pool.count} x {pool.size} at {each:.3f} USD/hour")
    return total, lines


def cost_line(pools: Iterable[Pool], sizes: Mapping[str, Mapping[str, Any]], region: str) -> str:
    total, lines = cost_of(pools, sizes, region)
    return f"cost: {total:.2f} USD/hour, {total * HOURS_PER_DAY:.2f} USD/day ({'; '.join(lines)}), by /v2/sizes"


def make_plan(
    name: str,
    tag: str,
    region: str,
    pools: tuple[Pool, ...],
    clusters: Iterable[Mapping[str, Any]],
    *,
    existing: bool,
) -> Plan:
    """``existing``: the cluster is another's, and gets pools. Raises ProvisionError where the order does not fit."""
    found = [cluster for cluster in clusters if cluster["name"] == name]
    if len(found) > 1:
        raise ProvisionError(f"the account has {len(found)} clusters named {name}: rename or delete one")
    if not found:
        if existing:
            raise ProvisionError(f"provision_cluster: the account has no cluster {name}")
        return Plan(None, pools, (f"create cluster {name} in {region}", *map(_created, pools)))
    cluster = found[0]
    if not existing and not carries(cluster, tag):
        raise ProvisionError(
            f"cluster {name} exists without the tag {tag}: set provision_cluster={name} to add node pools to it, or "
            "another provision_name"
        )
    if text(cluster, "region") != region:
        raise ProvisionError(f"cluster {name} is in {text(cluster, 'region')}: set provision_region to that")
    present = {text(pool, "name"): pool for pool in pools_of(cluster)}
    for pool in pools:
        other = present.get(pool.name)
        if other is None:
            continue
        if not carries(other, tag):
            raise ProvisionError(f"node pool {pool.name} exists without the tag {tag}: choose another name")
        if (other["size"], other["count"]) != (pool.size, pool.count):
            raise ProvisionError(
                f"node pool {pool.name} has {other['count']} x {text(other, 'size')}, not {pool.count} x "
                f"{pool.size}: choose another name, or run `make deprovision` first"
            )
    missing = tuple(pool for pool in pools if pool.name not in present)
    return Plan(cluster, missing, (f"cluster {name} exists", *map(_created, missing)))


def _created(pool: Pool) -> str:
    taints = "".join(f", taint {one['key']}={one['value']}:{one['effect']}" for one in pool.taints)
    return f"create node pool {pool.name}: {pool.count} x {pool.size}, tags {' '.join(pool.tags)}{taints}"


def deletions(clusters: Iterable[Mapping[str, Any]], tag: str) -> tuple[list[Deletion], list[str]]:
    """What carries the tag, and lines on tagged clusters that stay, since they have pools without it."""
    found, kept = [], []
    for cluster in clusters:
        pools = pools_of(cluster)
        others = [text(pool, "name") for pool in pools if not carries(pool, tag)]
        if carries(cluster, tag) and not others:
            found.append(Deletion(cluster))
            continue
        found += [Deletion(cluster, pool) for pool in pools if carries(pool, tag)]
        if carries(cluster, tag):
            kept.append(f"cluster {text(cluster, 'name')} stays: its node pools {some_of(others)} lack the tag {tag}")
    return found, kept


def progress(cluster: Mapping[str, Any], pools: Iterable[Pool]) -> tuple[bool, str]:
    """Whether the cluster and all nodes of these pools run, and a line on what does not."""
    status = cluster["status"]
    state = text(status, "state")
    waiting = [] if state == "running" else [f"cluster {state} {text(status, 'message')}".strip()]
    present = {text(pool, "name"): pool for pool in pools_of(cluster)}
    for pool in pools:
        nodes = [one["status"] for one in (present.get(pool.name) or {}).get("nodes") or ()]
        late = [one for one in nodes if one["state"] != "running"]
        if len(nodes) - len(late) < pool.count:
            why = sorted({text(one, "message") for one in late} - {""})
            reason = f" ({some_of(why, 3, '; ')})" if why else ""
            waiting.append(f"node pool {pool.name}: {len(nodes) - len(late)} of {pool.count} nodes run{reason}")
    return not waiting, "; ".join(waiting) or "all nodes run"


def expected_nodes(
    cluster: Mapping[str, Any], pools: Sequence[Pool], sizes: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Names of the nodes to validate: of the pools with GPUs, else of all pools that were ordered."""
    with_gpus = {pool.name for pool in pools if sizes.get(pool.size, {}).get("gpu_info")}
    wanted = with_gpus or {pool.name for pool in pools}
    chosen = (pool for pool in pools_of(cluster) if text(pool, "name") in wanted)
    return sorted(str(node.get("name")) for pool in chosen for node in pool.get("nodes") or ())
