import threading
import time
from collections import Counter

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import streams
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import (
    Cluster,
    ClusterAccess,
    ClusterError,
    Forbidden,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.permissions import AccessRequest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.streams import Streams

from tests.kit.cluster import Fault
from tests.kit.cluster_objects import LABELS, SELECTOR, config_map, job

LIST_PODS, WATCH_PODS = AccessRequest("list", "", "pods"), AccessRequest("watch", "", "pods")


@pytest.fixture
def cluster(kit):
    with Cluster(ClusterAccess(str(kit.kubeconfig)), deadline_seconds=60) as cluster:
        yield cluster


class Follower:
    """Takes what streams tell and holds the state that follows from it."""

    def __init__(self, streams):
        self.streams = streams
        self.told = []
        self.there = {}

    def take(self, timeout=0.05):
        for kind, change, item in self.streams.take(timeout):
            self.told.append((kind, change, item))
            if change == "SYNC":
                continue
            key = (kind, item["metadata"]["uid"])
            assert (change == "ADDED") == (key not in self.there), (change, item["metadata"])
            if change == "DELETED":
                del self.there[key]
            else:
                self.there[key] = item

    def until(self, predicate, seconds=30):
        ends = time.monotonic() + seconds
        while not predicate():
            assert time.monotonic() < ends, self.counts()
            self.take()

    def counts(self):
        return Counter((kind, change) for kind, change, _ in self.told)

    def names(self, kind):
        return sorted(item["metadata"]["name"] for (its, _), item in self.there.items() if its == kind)

    def agrees_with(self, kit, kind, selector=""):
        versions = {i["metadata"]["uid"]: i["metadata"]["resourceVersion"] for i in kit.all(kind, selector)}
        mine = {uid: i["metadata"]["resourceVersion"] for (its, uid), i in self.there.items() if its == kind}
        return versions == mine


@pytest.fixture
def follow(cluster, monkeypatch):
    opened = []

    def start(*wanted, **limits):
        for name, seconds in limits.items():
            monkeypatch.setattr(streams, name.upper(), seconds)
        opened.append(Streams(cluster, wanted))
        return Follower(opened[-1])

    yield start
    for each in opened:
        each.stop()


def test_what_is_there_first_then_what_happens(kit, cluster, follow):
    kit.add_nodes(2)
    cluster.create(job("job-1", "node-001"))
    follower = follow(("Job", SELECTOR), ("Pod", SELECTOR), ("Node", ""))
    follower.until(lambda: follower.counts()["Node", "SYNC"])
    assert follower.names("Node") == ["node-001", "node-002"]
    cluster.create(job("job-2", "node-002"))
    follower.until(
        lambda: (
            follower.names("Job") == ["job-1", "job-2"]
            and all(item["status"].get("succeeded") for (kind, _), item in follower.there.items() if kind == "Job")
        )
    )
    cluster.delete_all("Job", SELECTOR)
    follower.until(lambda: not follower.names("Job") and not follower.names("Pod"))
    assert kit.counts()[LIST_PODS] == kit.counts()[WATCH_PODS] == 1
    assert [change for kind, change, _ in follower.told if kind == "Node"].index("SYNC") == 2


def test_others_are_not_reported(kit, cluster, follow):
    follower = follow(("Event", "", "involvedObject.kind=Pod"), ("Job", SELECTOR))
    kit.add_node("node-001")
    cluster.create(job("other", labels={**LABELS, "gpuval.io/run": "r2"}))
    cluster.create(job("mine"))
    follower.until(lambda: follower.names("Job") and len(follower.names("Event")) >= 2)
    follower.take(0.2)
    assert follower.names("Job") == ["mine"]
    assert {i["involvedObject"]["kind"] for (kind, _), i in follower.there.items() if kind == "Event"} == {"Pod"}


@pytest.mark.parametrize("trouble", ["drop", "gone", "both", "down"])
def test_nothing_is_lost_and_nothing_is_reported_twice(kit, cluster, follow, trouble):
    """Follower.take asserts that each object is added once and deleted once."""
    names = kit.add_nodes(20)
    kit.settings.stage_seconds = 0.05
    follower = follow(("Job", SELECTOR), ("Pod", SELECTOR), ("Node", ""), watch_seconds=3)
    seen_as_version = Counter()

    def disturb():
        for _ in range(8):
            time.sleep(0.1)
            if trouble in ("gone", "both"):
                kit.compact()
            if trouble in ("drop", "both", "gone"):
                kit.drop_watches()
            if trouble == "down":
                kit.down(0.05)

    thread = threading.Thread(target=disturb)
    thread.start()
    with Cluster(ClusterAccess(str(kit.kubeconfig)), deadline_seconds=20) as submitter:
        for name in names:
            submitter.create(job(f"job-{name}", name, stages=("a", "b", "c")))
        follower.until(
            lambda: (
                len(follower.names("Job")) == 20
                and all(item["status"].get("succeeded") for (kind, _), item in follower.there.items() if kind == "Job")
            )
        )
        submitter.delete_all("Job", SELECTOR)
    follower.until(lambda: not follower.names("Job") and not follower.names("Pod"))
    thread.join()
    kit.change("Node", "node-001", {"metadata": {"labels": {"last": "1"}}})
    follower.until(lambda: all(follower.agrees_with(kit, kind) for kind in ("Job", "Pod", "Node")))
    for kind, change, item in follower.told:
        if change != "SYNC":
            meta = item["metadata"]
            seen_as_version[kind, meta["uid"], meta["resourceVersion"], change == "DELETED"] += 1
    assert max(seen_as_version.values()) == 1
    kit.wait(lambda: not follower.streams.trouble())
    if trouble == "drop":
        assert kit.counts()[LIST_PODS] == 1  # versions are still known: no need to list


def test_what_vanished_while_no_node_looked_is_reported(kit, cluster, follow):
    cluster.create(config_map("stays"))
    cluster.create(config_map("goes"))
    cluster.create(config_map("comes-again"))
    follower = follow(("ConfigMap", SELECTOR))
    follower.until(lambda: len(follower.names("ConfigMap")) == 3)
    kit.server.down_until = time.monotonic() + 60
    kit.drop_watches()
    time.sleep(0.1)  # until it is over for the watch
    kit.remove("ConfigMap", "goes")
    kit.remove("ConfigMap", "comes-again")
    kit.put({**config_map("comes-again"), "metadata": {"name": "comes-again", "namespace": "gpuval", "labels": LABELS}})
    kit.compact()
    before = len(follower.told)
    kit.server.down_until = 0
    follower.until(lambda: follower.counts()["ConfigMap", "SYNC"] == 2)
    news = [(change, item["metadata"].get("name")) for _, change, item in follower.told[before:]]
    assert sorted(news[:2]) == [("DELETED", "comes-again"), ("DELETED", "goes")]
    assert news[2:] == [("ADDED", "comes-again"), ("SYNC", None)]
    deleted = follower.told[before][2]["metadata"]
    assert deleted["labels"] == LABELS
    assert deleted["uid"]


def test_bookmarks_keep_a_quiet_watch_young(kit, cluster, follow, monkeypatch):
    monkeypatch.setattr("tests.kit.api_server.BOOKMARK_SECONDS", 0.05)
    follower = follow(("Pod", SELECTOR))
    follower.until(lambda: follower.counts()["Pod", "SYNC"])
    kit.add_nodes(3)  # changes of other kinds
    newest = kit.server.storage.version
    kit.wait(lambda: int(follower.streams._streams[0].version) >= newest)
    kit.drop_watches()
    kit.wait(lambda: kit.counts()[WATCH_PODS] == 2)
    assert kit.counts()[LIST_PODS] == 1


def test_a_watch_that_the_server_ends_goes_on(kit, cluster, follow):
    follower = follow(("ConfigMap", SELECTOR), watch_seconds=1)
    kit.wait(lambda: kit.counts()[AccessRequest("watch", "", "configmaps")] >= 2)
    cluster.create(config_map("late"))
    follower.until(lambda: follower.names("ConfigMap") == ["late"])
    assert kit.counts()[AccessRequest("list", "", "configmaps")] == 1


def test_a_connection_that_died_in_silence_is_noticed(kit, cluster, follow, monkeypatch):
    monkeypatch.setattr("tests.kit.api_server.BOOKMARK_SECONDS", 3600)
    follower = follow(("ConfigMap", SELECTOR), silence_seconds=0.3)
    kit.wait(lambda: kit.counts()[AccessRequest("watch", "", "configmaps")])
    kit.wait(lambda: kit.server.storage.watchers)
    kit.do(kit.server.storage.watchers.clear)  # the server has forgotten this client; its connection stays open
    cluster.create(config_map("late"))
    follower.until(lambda: follower.names("ConfigMap") == ["late"])


def test_events_have_no_bookmarks_and_may_be_silent(kit, cluster, follow):
    watch = AccessRequest("watch", "", "events")
    follower = follow(("Event", ""), silence_seconds=0.2, watch_seconds=5)
    follower.until(lambda: follower.counts()["Event", "SYNC"])
    time.sleep(0.8)
    assert kit.counts()[watch] == 1
    assert not follower.streams.trouble()
    kit.wait(lambda: kit.counts()[watch] == 2)  # the server has ended it
    assert kit.counts()[AccessRequest("list", "", "events")] == 1


@pytest.mark.parametrize("trouble", ["forbidden", "unauthorized"])
def test_a_refusal_of_what_was_followed_is_borne_for_a_while(kit, cluster, follow, trouble):
    follower = follow(("Pod", SELECTOR))
    follower.until(lambda: follower.counts()["Pod", "SYNC"] and kit.server.storage.watchers)

    def refuse():
        if trouble == "forbidden":
            kit.deny("watch", "", "pods")
        else:
            kit.server.token = "another"

    refuse()
    kit.drop_watches()
    kit.wait(follower.streams.trouble)
    kit.permit()
    kit.server.token = kit.token
    kit.wait(lambda: not follower.streams.trouble())
    kit.add_node("node-001")
    cluster.create(job())
    follower.until(lambda: follower.names("Pod"))


@pytest.mark.parametrize("trouble", ["forbidden", "unauthorized"])
def test_a_refusal_that_stays_is_raised(kit, cluster, follow, trouble):
    follower = follow(("Pod", SELECTOR), refused_seconds=1)
    follower.until(lambda: follower.counts()["Pod", "SYNC"] and kit.server.storage.watchers)
    if trouble == "forbidden":
        kit.deny("watch", "", "pods")
    else:
        kit.server.token = "another"
    began = time.monotonic()
    kit.drop_watches()
    with pytest.raises(ClusterError, match="watch pods" if trouble == "forbidden" else "credentials"):
        follower.until(lambda: False)
    assert time.monotonic() - began >= 1


def test_a_login_that_fails_from_the_start_is_raised_at_once(kit, follow, cluster):
    kit.server.token = "another"
    with pytest.raises(ClusterError, match="credentials"):
        follow(("Pod", SELECTOR)).until(lambda: False)


def test_a_missing_rule_is_raised_after_what_was_reported(kit, cluster, follow):
    kit.add_node("node-001")
    kit.deny("watch", "", "nodes")
    follower = follow(("Node", ""))
    with pytest.raises(Forbidden, match='verbs: \\["watch"\\]'):
        follower.until(lambda: False)
    assert follower.names("Node") == ["node-001"]


def test_trouble_is_reported_and_ends(kit, cluster, follow):
    follower = follow(("Pod", SELECTOR))
    follower.until(lambda: follower.counts()["Pod", "SYNC"])
    kit.down(60)
    kit.wait(lambda: "Pod" in follower.streams.trouble())
    seconds, why = follower.streams.trouble()["Pod"]
    assert seconds < 30
    assert "does not answer" in why or "watch broke" in why
    kit.server.down_until = 0
    kit.wait(lambda: not follower.streams.trouble())


def test_a_server_in_trouble_is_not_flooded(kit, cluster, follow):
    follower = follow(("Pod", SELECTOR))
    follower.until(lambda: follower.counts()["Pod", "SYNC"])
    kit.forget_requests()
    kit.fail(1000)
    kit.drop_watches()
    time.sleep(2)
    assert kit.counts()[WATCH_PODS] <= 8
    kit.wait(lambda: kit.counts()[WATCH_PODS] >= 2)


def test_stop_ends_watches_at_once(kit, cluster):
    opened = Streams(cluster, [("Pod", SELECTOR), ("Node", ""), ("Job", SELECTOR)])
    kit.wait(lambda: len(kit.server.storage.watchers) == 3)
    began = time.monotonic()
    opened.stop()
    assert time.monotonic() - began < 20  # a watch lasts for minutes
    assert not any(thread.name.startswith("watch-") for thread in threading.enumerate())
    opened.stop()  # again is no error
    kit.wait(lambda: not kit.server.storage.watchers)


def test_take_returns_at_its_timeout(kit, cluster, follow):
    follower = follow(("Pod", SELECTOR))
    follower.until(lambda: follower.counts()["Pod", "SYNC"])
    began = time.monotonic()
    assert follower.streams.take(0.2) == []
    assert time.monotonic() - began > 0.15


def test_requests_of_a_hundred_nodes(kit, cluster, follow):
    """From submit to clean: a Job and a Secret for each node, and what does not grow with them."""
    names = kit.add_nodes(100)
    kit.fault("node-007", Fault("image_pull"))
    follower = follow(("Job", SELECTOR), ("Pod", SELECTOR), ("Node", ""), ("Event", ""))
    for name in names:
        cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"s-{name}", "labels": LABELS}})
        cluster.create(job(f"job-{name}", name))
    follower.until(
        lambda: sum(bool(i["status"].get("succeeded")) for (k, _), i in follower.there.items() if k == "Job") == 99
    )
    for kind in ("Job", "Pod", "Secret", "ConfigMap"):
        cluster.delete_all(kind, SELECTOR)
    follower.until(lambda: not follower.names("Job") and not follower.names("Pod"))
    assert kit.counts().total() == 200 + 4 + 4 + 4
