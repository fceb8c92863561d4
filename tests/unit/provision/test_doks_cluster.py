"""The action against a small API server: pages, faults, quota, half-made pools, files, and the token in no text."""

import stat
import time

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.provision import ProvisionError, api, cluster

from tests.kit.actions import run_action
from tests.kit.doks import TOKEN, Doks

TAG = "gpuval:site"
POOL = {"name": "gpu", "size": "gpu-h200x8-1128gb", "count": 2}
CPU = {"name": "cpu", "size": "s-2vcpu-4gb", "count": 1}


@pytest.fixture
def doks(monkeypatch):
    with Doks() as doks:
        monkeypatch.setattr(api, "URL", doks.url)
        monkeypatch.setattr(api, "BETWEEN_SECONDS", 0)
        yield doks


@pytest.fixture
def act(doks, tmp_path):
    def act(state, *, check_mode=False, **changed):
        options = {"state": state, "token": TOKEN, "name": "site", "region": "tor1", "node_pools": [CPU, POOL],
                   "confirm": "site", "timeout_seconds": 60, "poll_seconds": 0.01,
                   "inventory": str(tmp_path / "out")}  # fmt: skip
        done = run_action("doks_cluster", {**options, **changed}, check_mode=check_mode)
        assert TOKEN not in f"{done.text} {done.result}"
        return done

    return act


def own(doks, *pools):
    return doks.add("site", [TAG], [{**pool, "tags": [TAG]} for pool in pools])


def writes(doks):
    return [request for request in doks.requests if request[0] != "GET"]


def test_a_plan_shows_cost_and_creates_nothing_until_it_is_confirmed(doks, act):
    refused = act("present", confirm="")
    assert refused.failed
    assert "create node pool gpu: 2 x gpu-h200x8-1128gb" in refused.text
    assert "cost: 55.08 USD/hour" in refused.text
    assert "not confirmed: to create this, add -e provision_confirm=site" in refused.text
    assert act("present", confirm="sit").failed
    checked = act("present", confirm="", check_mode=True)
    assert checked.result["changed"] is True
    assert checked.result["lines"][0] == "create cluster site in tor1"
    assert writes(doks) == []


def test_a_cluster_is_ordered_once_with_its_pools_and_the_tag(doks, act):
    assert not act("present", version="1.34", vpc="a1-b2").failed
    pools = [{**pool, "tags": [TAG], "labels": {}, "taints": []} for pool in (CPU, POOL)]
    (order,) = doks.orders
    assert order == {
        "name": "site", "region": "tor1", "version": "1.34", "vpc_uuid": "a1-b2", "tags": [TAG], "node_pools": pools,
        "auto_upgrade": False, "surge_upgrade": False, "ha": False,
    }  # fmt: skip
    assert act("present").result["changed"] is False
    assert len(doks.orders) == 1


@pytest.mark.parametrize("fault", [(0, ""), (500, "oops"), (504, "late"), (429, "slow down")])
def test_an_order_whose_answer_is_lost_is_not_repeated_and_the_message_says_what_to_check(doks, act, fault):
    doks.faults["POST", "/v2/kubernetes"] = [fault]
    lost = act("present")
    assert "Cluster site may exist and cost money: check `make provision LIST=1`" in lost.text
    assert len(writes(doks)) == 1
    assert not act("present").failed
    assert len(doks.clusters) == 1


@pytest.mark.parametrize("answer", [{}, [], "<html>", {"kubernetes_cluster": {"id": "../x"}}])
def test_an_order_with_an_answer_of_another_form_may_exist(doks, act, monkeypatch, answer):
    answers = doks.answer
    monkeypatch.setattr(doks, "answer", lambda *given: (200, answer) if given[0] == "POST" else answers(*given))
    assert "Cluster site may exist and cost money" in act("present").text
    assert len(writes(doks)) == 1


def test_vpcs_clusters_and_sizes_are_listed(doks, act):
    own(doks, CPU)
    every = act("listed", name="", region="", node_pools=[]).result["lines"]
    assert every == [
        "VPC a1-b2 default-tor1 in tor1, the default of its region",
        "VPC c3-d4 own in nyc1",
        "cluster site in tor1: provisioning; node pools cpu: 1 x s-2vcpu-4gb; tags k8s, gpuval:site",
        "size s-2vcpu-4gb: 0.036 USD/hour, in tor1, nyc1",
        "size gpu-h200x8-1128gb: 27.520 USD/hour, in tor1",
        "size free: no hourly price, in tor1",
    ]
    in_region = act("listed", region="nyc1").result["lines"]
    assert in_region == [every[1], every[3]]
    assert writes(doks) == []


@pytest.mark.parametrize(
    ("limit", "pools", "message"),
    [
        (3, [CPU, POOL], "quota: 3 nodes are to be created, and the account has 1 of 3 Droplets"),
        (10, [{**POOL, "size": "gpu-old"}], "gpu-old is not available in tor1"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_created(doks, act, limit, pools, message):
    doks.limit = limit
    assert message in act("present", node_pools=pools).text
    assert writes(doks) == []


def test_a_cluster_past_the_first_page_is_found_completed_and_written(doks, act, tmp_path):
    for name in "abc":
        doks.add(name, [], [])
    own(doks, CPU)
    assert act("present", check_mode=True).result["lines"][0] == "cluster site exists"
    done = act("present")
    assert not done.failed, done.text
    assert "node pool gpu: 0 of 2 nodes run" in done.text
    kubeconfig, inventory = tmp_path / "out/kubeconfig", tmp_path / "out/hosts.yml"
    assert done.result["files"] == [str(inventory), str(kubeconfig)]
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
    assert yaml.safe_load(inventory.read_text()) == {
        "plugin": "gpuval.fleet.kubernetes_nodes", "kubeconfig": "kubeconfig", "expected": ["gpu-0", "gpu-1"],
    }  # fmt: skip
    again = act("present")
    assert again.result["changed"] is False
    assert [request[0] for request in writes(doks)] == ["POST"]


def test_a_half_made_pool_ends_the_wait_with_its_reason_and_the_next_call_resumes(doks, act):
    own(doks, CPU, POOL)
    doks.stuck = {"gpu-1": "creating this/these droplet(s) will exceed your droplet limit"}
    late = act("present", timeout_seconds=0.2)
    assert late.failed
    assert (
        "not ready after 0 s: node pool gpu: 1 of 2 nodes run (creating this/these droplet(s) will exceed" in late.text
    )
    assert "What exists costs money: run `make provision` again" in late.text
    doks.stuck = {}
    assert not act("present").failed


def test_a_failed_cluster_is_not_waited_for(doks, act):
    own(doks, CPU, POOL)["status"] = {"state": "error", "message": "no capacity"}
    doks.looks = 1000
    failed = act("present", timeout_seconds=600, poll_seconds=100)
    assert "the cluster failed: cluster error no capacity" in failed.text


def test_a_refused_pool_and_a_lost_answer_are_told_apart(doks, act):
    own(doks, CPU)
    doks.faults["POST", "/v2/kubernetes"] = [(422, f"too many\x1b[31m, {TOKEN}")]
    assert "is refused (422): too many, ***" in act("present").text
    doks.faults["POST", "/v2/kubernetes"] = [(0, "")]
    assert "Node pool gpu may exist and cost money: check `make provision LIST=1`" in act("present").text
    assert not act("present").failed
    assert len([pool for pool in doks.clusters[0]["node_pools"] if pool["name"] == "gpu"]) == 1


def test_reads_are_repeated_and_refused_tokens_are_not(doks, act):
    doks.faults["GET", "/v2/sizes"] = [(500, "oops"), (429, "slow down"), (0, "")]
    assert not act("present").failed
    doks.requests.clear()
    refused = act("present", token="dop_v1_other")
    assert "is refused (401): Unable to authenticate you: check provision_token and its scopes" in refused.text
    assert len(doks.requests) == 1
    assert "set DO_API_TOKEN" in act("present", token="").text
    doks.faults["GET", "/v2/sizes"] = [(503, "down")] * 9
    assert "is refused (503): down" in act("present").text


def test_an_api_that_stalls_is_not_waited_for_without_a_bound(doks, act, monkeypatch):
    monkeypatch.setattr(api, "TIMEOUT", 0.05)
    monkeypatch.setattr(api, "ATTEMPTS", 2)
    monkeypatch.setattr(doks, "answer", lambda *_: time.sleep(0.5))
    assert "GET /v2/sizes?page=1&per_page=200 has no answer" in act("present").text


@pytest.mark.parametrize(
    ("kubeconfig", "message"),
    [
        (
            "users: [{name: u, user: {exec: {command: /bin/sh}}}]",
            "has other credentials than a token or a key: ['exec']",
        ),
        ("users: [{name: u, user: {tokenFile: /etc/shadow}}]", "['tokenFile']"),
        ("[1]", "returns no kubeconfig"),
        ("{", "returns no kubeconfig"),
    ],
)
def test_a_kubeconfig_that_would_start_a_program_is_refused(doks, act, tmp_path, kubeconfig, message):
    own(doks, CPU, POOL)
    doks.kubeconfig = kubeconfig
    assert message in act("present").text
    assert not (tmp_path / "out/kubeconfig").exists()


@pytest.mark.parametrize("names", [["hosts.yml"], ["kubeconfig"], ["hosts.yml", "kubeconfig"]])
def test_the_files_of_another_are_refused_before_anything_is_created(doks, act, tmp_path, names):
    (tmp_path / "out").mkdir()
    for name in names:
        (tmp_path / "out" / name).write_text("all: {}\n")
    assert "is not of `make provision`: set provision_inventory" in act("present").text
    assert doks.clusters == []
    own(doks, CPU, POOL)
    assert "is not of `make provision`: set provision_inventory" in act("present").text
    act("absent")
    assert [(tmp_path / "out" / name).read_text() for name in names] == ["all: {}\n"] * len(names)


def test_names_of_nodes_are_checked(tmp_path):
    for names in ([], ["../x"], ["None", "a b"]):
        with pytest.raises(ProvisionError, match="no usable names"):
            cluster.write_inventory(tmp_path, b"", names)


def test_deletion_is_confirmed_takes_what_carries_the_tag_and_waits_for_its_end(doks, act, tmp_path):
    own(doks, CPU, POOL)
    act("present")
    doks.add("theirs", ["gpuval:site-2"], [{**CPU, "tags": []}, {**POOL, "tags": [TAG]}])
    doks.add("site", [], [CPU])
    assert "not confirmed: to delete this, add -e provision_confirm=site" in act("absent", confirm="").text
    assert act("absent", check_mode=True, confirm="").result["changed"] is True
    assert (tmp_path / "out/kubeconfig").exists()
    doks.requests.clear()
    done = act("absent")
    assert not done.failed, done.text
    assert [request[0] for request in writes(doks)] == ["DELETE", "DELETE"]
    assert [(one["name"], [pool["name"] for pool in one["node_pools"]]) for one in doks.clusters] == [
        ("theirs", ["cpu"]), ("site", ["cpu"]),
    ]  # fmt: skip
    assert list((tmp_path / "out").iterdir()) == []
    assert act("absent").result["changed"] is False


def test_a_deletion_that_does_not_end_says_what_is_left(doks, act, monkeypatch):
    own(doks, CPU)
    monkeypatch.setattr(doks, "_of_cluster", lambda *_: (204, None))
    late = act("absent", timeout_seconds=0.1)
    assert "not gone after 0 s: cluster site with 1 nodes. It may still cost money" in late.text


def test_answers_of_another_form_are_one_message(doks, act):
    own(doks, CPU, POOL)
    cluster = {"id": "a", "name": "site", "region": "tor1", "status": {"state": "running"}}
    answers = [
        [], {}, 7, "<html>", {"kubernetes_clusters": 7, "sizes": 7}, {"sizes": [7], "kubernetes_clusters": [7]},
        *({"sizes": [], "kubernetes_clusters": [{**cluster, **one}]}
          for one in ({"id": "../x"}, {"tags": [7]}, {"node_pools": 7})),
    ]  # fmt: skip
    for answer in answers:
        doks.answer = lambda *_, answer=answer: (200, answer)
        assert "another form than expected" in act("absent").text
        assert act("present").failed
