"""Cost, plan, selection of what may be deleted: pure."""

import re

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.provision import ProvisionError, plan

from tests.kit.doks import SIZES

TAG = "gpuval:site"
SIZES = {one["slug"]: one for one in SIZES}
CPU = {"name": "cpu", "size": "s-2vcpu-4gb", "count": 3}
GPU = {"name": "gpu", "size": "gpu-h200x8-1128gb", "count": 2,
       "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}], "tags": ["team:a"]}  # fmt: skip


def pools(*given):
    return plan.ordered_pools(given or (CPU, GPU), TAG)


def cluster(name="site", tags=(TAG,), node_pools=(), **more):
    return {"id": f"id-{name}", "name": name, "region": "tor1", "tags": ["k8s", *tags], "node_pools": list(node_pools),
            "status": {"state": "running"}, **more}  # fmt: skip


def pool(name, tags=(TAG,), size="s-2vcpu-4gb", count=3, **more):
    return {"id": f"id-{name}", "name": name, "size": size, "count": count, "tags": ["k8s", *tags], **more}


def test_the_cost_is_that_of_all_nodes_by_the_prices_of_the_api():
    line = plan.cost_line(pools(), SIZES, "tor1")
    assert line.startswith("cost: 55.15 USD/hour, 1323.53 USD/day (cpu: 3 x s-2vcpu-4gb at 0.036 USD/hour; gpu: 2 x ")


@pytest.mark.parametrize(
    ("size", "region", "message"),
    [
        ("gpu-h200x8-1128g", "tor1", "no size 'gpu-h200x8-1128g'; is it gpu-h200x8-1128gb?"),
        ("gpu-h200x8-1128gb", "nyc1", "is not available in nyc1: set provision_region to one of tor1"),
        ("gpu-old", "tor1", "gpu-old is not available in tor1: try later, or another size"),
        ("free", "tor1", "free has no hourly price"),
    ],
)
def test_a_size_that_cannot_be_had_is_refused_with_what_can(size, region, message):
    with pytest.raises(ProvisionError, match=re.escape(message)):
        plan.cost_line(pools({**CPU, "size": size}), SIZES, region)


@pytest.mark.parametrize("price", [True, "1", -1, float("nan"), float("inf"), None, 0])
def test_no_price_is_guessed(price):
    with pytest.raises(ProvisionError, match="no hourly price"):
        plan.cost_line(pools(CPU), {"s-2vcpu-4gb": {**SIZES["s-2vcpu-4gb"], "price_hourly": price}}, "tor1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "provision_node_pools is empty"),
        ([{"name": "a", "size": "x"}], r"provision_node_pools\[0\]: give name, size and count"),
        ([{**CPU, "autoscale": True}], "give name, size and count"),
        ([{**CPU, "count": 0}], "count is '0'"),
        ([{**CPU, "count": "many"}], "count is 'many'"),
        ([CPU, CPU], "given twice"),
        ([{**CPU, "name": "Not/valid"}], "not small letters"),
        ([{**CPU, "taints": [{"key": "a", "effect": "Never"}]}], "a taint has key, value and effect"),
        ([{**CPU, "tags": ["a b"]}], "a tag has letters"),
    ],
)
def test_a_wrong_pool_is_named(given, message):
    with pytest.raises(ProvisionError, match=message):
        plan.ordered_pools(given, TAG)


@pytest.mark.parametrize("name", ["", "A", "a/b", "-a", "a" * 43])
def test_a_name_that_is_no_tag_is_refused(name):
    with pytest.raises(ProvisionError, match="provision_name"):
        plan.tag_of(name)


def test_pools_carry_the_tag_and_full_taints():
    _, gpu = pools()
    assert gpu.tags == [TAG, "team:a"]
    assert gpu.taints == [{"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"}]


def made(clusters, *given, existing=False):
    return plan.make_plan("site", TAG, "tor1", pools(*given), clusters, existing=existing)


def test_a_new_cluster_has_all_pools_and_a_present_one_gets_the_missing():
    new = made([cluster("other")])
    assert new.cluster is None
    assert [one.name for one in new.missing] == ["cpu", "gpu"]
    assert new.lines[0] == "create cluster site in tor1"
    assert new.lines[2].endswith(
        "gpu: 2 x gpu-h200x8-1128gb, tags gpuval:site team:a, taint nvidia.com/gpu=:NoSchedule"
    )
    assert [one.name for one in made([cluster(node_pools=[pool("cpu")])]).missing] == ["gpu"]
    assert made([cluster(node_pools=[pool("cpu")])], CPU).missing == ()
    assert [one.name for one in made([cluster(tags=())], CPU, existing=True).missing] == ["cpu"]


@pytest.mark.parametrize(
    ("clusters", "existing", "message"),
    [
        ([], True, "has no cluster site"),
        ([cluster(), cluster()], False, "has 2 clusters named site"),
        ([cluster(tags=("other",))], False, "exists without the tag gpuval:site: set provision_cluster=site"),
        ([cluster(region="nyc1")], False, "is in nyc1: set provision_region"),
        ([cluster(node_pools=[pool("cpu", tags=())])], False, "node pool cpu exists without the tag"),
        ([cluster(node_pools=[pool("cpu", count=2)])], False, "has 2 x s-2vcpu-4gb, not 3 x s-2vcpu-4gb"),
    ],
)
def test_what_is_there_and_does_not_fit_is_refused(clusters, existing, message):
    with pytest.raises(ProvisionError, match=message):
        made(clusters, CPU, existing=existing)


def test_only_what_carries_the_tag_is_deleted():
    own = cluster("own", node_pools=[pool("a"), pool("b", tags=("GPUVAL:site",))])
    shared = cluster("shared", node_pools=[pool("mine"), pool("theirs", tags=("gpuval:site-2",))])
    theirs = cluster("theirs", tags=("gpuval:site-2", "site"), node_pools=[pool("x", tags=()), pool("added")])
    untouched = cluster("untouched", tags=(), node_pools=[pool("x", tags=("gpuval:sit",))])
    found, kept = plan.deletions([own, shared, theirs, untouched], TAG)
    assert [one.line for one in found] == [
        "cluster own with 6 nodes",
        "node pool mine of cluster shared",
        "node pool added of cluster theirs",
    ]
    assert kept == ["cluster shared stays: its node pools theirs lack the tag gpuval:site"]


def test_progress_names_what_does_not_run_and_why():
    running = [{"name": f"cpu-{number}", "status": {"state": "running"}} for number in range(3)]
    assert plan.progress(cluster(node_pools=[pool("cpu", nodes=running)]), pools(CPU)) == ""
    stuck = {"name": "cpu-2", "status": {"state": "provisioning", "message": "will exceed your\x1b[31m limit"}}
    half = cluster(node_pools=[pool("cpu", nodes=[*running[:2], stuck])])
    assert plan.progress(half, pools(CPU)) == "node pool cpu: 2 of 3 nodes run (will exceed your limit)"
    bare = cluster(status={"state": "provisioning"})
    assert plan.progress(bare, pools(CPU)) == "cluster provisioning; node pool cpu: 0 of 3 nodes run"


def test_nodes_with_gpus_are_validated_else_all():
    nodes = [{"name": "n-2"}, {"name": "n-1"}]
    found = cluster(node_pools=[pool("cpu", nodes=[{"name": "c"}]), pool("gpu", nodes=nodes)])
    assert plan.expected_nodes(found, pools(), SIZES) == ["n-1", "n-2"]
    assert plan.expected_nodes(found, pools(CPU), SIZES) == ["c"]
