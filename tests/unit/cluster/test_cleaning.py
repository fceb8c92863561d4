"""Cleaning a cluster by run label, against the API server for tests."""

import itertools
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import cleaning, gangs, names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit import run_commands
from tests.kit.actions import run_action
from tests.kit.cluster import ClusterKit

OURS, THEIRS = "20261120-201500-3f2a", "20261120-201500-77b0"
IMAGE = "registry.test/gpuval:1"


@pytest.fixture
def kit(tmp_path):
    with ClusterKit(tmp_path, stage_seconds=0.02) as kit:
        yield kit


def objects(run_id, node, attempt=1):
    meta = {
        "name": names.object_name(run_id, node, attempt),
        "namespace": "gpuval",
        "labels": names.node_metadata(run_id, "", node, attempt)["labels"],
        "annotations": names.node_metadata(run_id, "", node, 1)["annotations"],
    }
    resources = {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}}
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [{"name": "facts", "image": IMAGE, "args": ["--stage", "facts"], "resources": resources}],
    }
    template = {"metadata": {"labels": meta["labels"], "annotations": meta["annotations"]}, "spec": pod}
    job = {"backoffLimit": 0, "activeDeadlineSeconds": 600, "template": template}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"store.json": "e30="}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": job},
    ]


def code(run_id):
    meta = {"name": names.run_name(run_id, "code"), "namespace": "gpuval", "labels": names.run_labels(run_id)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}}


def submit(cluster, run_id, nodes):
    for manifest in [code(run_id), *(one for node in nodes for one in objects(run_id, node))]:
        cluster.create(manifest)


def left_of(kit, run_id):
    return {kind: len(found) for kind in cleaning.KINDS if (found := kit.all(kind, names.run_selector(run_id)))}


@pytest.mark.parametrize("count", [1, 100])
def test_a_run_goes_and_another_stays(kit, cluster, count):
    nodes = kit.add_nodes(count)
    kit.stage_seconds_of["facts"] = 60
    submit(cluster, OURS, nodes)
    submit(cluster, THEIRS, nodes[:1])
    kit.wait(lambda: len(kit.all("Pod", names.run_selector(OURS))) == count)
    kit.forget_requests()
    cleaned = cleaning.clean(cluster, [OURS], 20)
    assert left_of(kit, OURS) == {}
    assert left_of(kit, THEIRS) == {"Job": 1, "Pod": 1, "Secret": 1, "ConfigMap": 1}
    assert (cleaned.left, len(cleaned.removed["Job"]), len(cleaned.removed["Pod"])) == ([], count, count)
    assert cleaned.count == 3 * count + 1
    assert len(kit.requests) <= 20
    assert {one.verb for one in kit.requests} == {"list", "deletecollection"}


def test_pods_that_go_with_their_jobs_are_counted(kit, cluster, monkeypatch):
    submit(cluster, OURS, kit.add_nodes(2))
    kit.wait(lambda: len(kit.all("Pod")) == 2)
    delete_all = cluster.delete_all

    def and_their_pods(kind, selector):
        delete_all(kind, selector)
        kit.wait(lambda: kind != "Job" or not kit.all("Pod"))

    monkeypatch.setattr(cluster, "delete_all", and_their_pods)
    assert len(cleaning.clean(cluster, [OURS], 20).removed["Pod"]) == 2


def test_all_runs_go_and_what_is_not_gpuval_s_stays(kit, cluster):
    nodes = kit.add_nodes(1)
    for run_id in (OURS, THEIRS):
        submit(cluster, run_id, nodes)
    kit.put({"kind": "Secret", "metadata": {"name": "registry", "namespace": "gpuval", "labels": {"app": "x"}}})
    assert cleaning.clean(cluster, [], 20).left == []
    assert [secret["metadata"]["name"] for secret in kit.all("Secret")] == ["registry"]
    assert not kit.all("Job") and not kit.all("Pod") and not kit.all("ConfigMap")
    assert kit.get("Namespace", "gpuval", None) or kit.all("Namespace")


def test_several_runs_are_cleaned_together(kit, cluster):
    nodes = kit.add_nodes(1)
    for run_id in (OURS, THEIRS, "third"):
        submit(cluster, run_id, nodes)
    cleaning.clean(cluster, [OURS, THEIRS, OURS], 20)
    assert left_of(kit, OURS) == left_of(kit, THEIRS) == {}
    assert left_of(kit, "third")["Job"] == 1


def submit_round(cluster, run_id, name, nodes):
    """What a round of gangs makes: objects of a run of its own."""
    of, own = gangs.GangRound(run_id, name), f"{run_id}.{name}"
    made = [code(own), gangs.service(own, "gpuval", 29500), *(one for node in nodes for one in objects(own, node))]
    for manifest in made:
        cluster.create(gangs.labelled(manifest, of))


def test_rounds_of_gangs_go_with_their_run(kit, cluster):
    nodes = kit.add_nodes(2)
    kit.stage_seconds_of["facts"] = 60
    for run_id in (OURS, THEIRS):
        submit(cluster, run_id, nodes)
        submit_round(cluster, run_id, "all", nodes)
    submit_round(cluster, OURS, "search-01", nodes)
    would = cleaning.clean(cluster, [OURS], 20, trial=True)
    counts = {kind: len(found) for kind, found in would.removed.items()}
    assert (counts["Job"], counts["Service"], counts["Secret"], counts["ConfigMap"]) == (6, 2, 6, 3)
    assert len(kit.all("Job")) == 10, "a trial removes nothing"
    cleaned = cleaning.clean(cluster, [OURS], 20)
    assert (cleaned.left, len(cleaned.removed["Job"]), cleaned.removed["Service"]) == ([], 6, would.removed["Service"])
    for run_id in (OURS, f"{OURS}.all", f"{OURS}.search-01"):
        assert left_of(kit, run_id) == {}
    assert left_of(kit, THEIRS)["Job"] == left_of(kit, f"{THEIRS}.all")["Job"] == 2
    assert cleaning.clean(cluster, [OURS], 20).count == 0
    cleaning.clean(cluster, [], 20)
    assert not any(kit.all(kind) for kind in cleaning.KINDS)


def test_a_clean_of_nothing_is_nothing(kit, cluster):
    cleaned = cleaning.clean(cluster, [OURS], 20)
    assert (cleaned.count, cleaned.left, len(kit.requests)) == (0, [], 5)
    assert "nothing was there" in cleaning.lines([OURS], cleaned, "gpuval")[0]


def test_check_mode_removes_nothing_and_says_what_it_would(kit, cluster):
    submit(cluster, OURS, kit.add_nodes(2))
    kit.wait(lambda: len(kit.all("Pod")) == 2)
    kit.forget_requests()
    cleaned = cleaning.clean(cluster, [OURS], 20, trial=True)
    assert {kind: len(found) for kind, found in cleaned.removed.items()} == {
        "Job": 2,
        "Pod": 2,
        "Secret": 2,
        "ConfigMap": 1,
    }
    assert left_of(kit, OURS) == {"Job": 2, "Pod": 2, "Secret": 2, "ConfigMap": 1}
    assert {one.verb for one in kit.requests} == {"list"}
    assert "would be removed: 2 Jobs" in cleaning.lines([OURS], cleaned, "gpuval", trial=True)[0]


class Stubborn:
    """A cluster in which nothing goes, or something new comes each time."""

    namespace = "gpuval"

    @staticmethod
    def serves(kind):
        return False

    def __init__(self, deleting=True, finalizers=(), kind="Secret"):
        self.deleting, self.finalizers, self.kind, self.deletions = deleting, list(finalizers), kind, []

    def list(self, kind, selector):
        meta = {"name": "one", "finalizers": self.finalizers, "labels": names.run_labels(OURS)}
        if self.deleting:
            meta["deletionTimestamp"] = "2026-11-20T20:15:00Z"
        return ([{"metadata": meta, "spec": {"nodeName": "n7"}}] if kind == self.kind else []), "1"

    def delete_all(self, kind, selector):
        self.deletions.append((kind, selector))


@pytest.mark.parametrize(
    ("deleting", "finalizers", "why", "repeated"),
    [
        (True, ["example.com/keep"], "held by example.com/keep", False),
        (True, [], "takes longer", False),
        (False, [], "recreated", True),
    ],
)
def test_what_does_not_go_is_named_with_its_cause_at_the_deadline(monkeypatch, deleting, finalizers, why, repeated):
    cluster, slept = Stubborn(deleting, finalizers), []
    cleaned = clean_for_a_while(monkeypatch, cluster, slept)
    (left,) = cleaned.left
    assert why in left.why
    assert cleaned.removed == {}
    assert (len(cluster.deletions) > 1) == repeated
    assert slept == sorted(slept) and max(slept) <= cleaning.LONGEST_WAIT_SECONDS


def clean_for_a_while(monkeypatch, cluster, slept):
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)), sleep=slept.append)
    monkeypatch.setattr(cleaning, "time", clock)
    return cleaning.clean(cluster, [OURS], 10)


def test_a_pod_that_its_lost_node_cannot_end_is_named_with_the_way_out(monkeypatch):
    cleaned = clean_for_a_while(monkeypatch, Stubborn(kind="Pod"), [])
    (left,) = cleaned.left
    assert (left.kind, left.why) == ("Pod", "the node n7 has not ended it")
    assert "kubectl -n gpuval delete pod one --force" in left.remedy
    assert cleaning.lines([OURS], cleaned, "gpuval")[1].startswith("- Pod one is left: the node n7 has not ended it")


def test_what_a_controller_in_the_cluster_creates_until_it_has_ended_goes_too(monkeypatch):
    monkeypatch.setattr(cleaning.time, "sleep", lambda _seconds: None)
    own = {**names.owner_labels(), names.PARENT_LABEL: OURS}

    def thing(name, labels, **meta):
        return {"metadata": {"name": name, "labels": labels, **meta}}

    controller = {**own, names.COMPONENT_LABEL: names.CONTROLLER}
    ending = thing("controller-x", controller, deletionTimestamp="2026-11-20T20:15:00Z")
    stage = names.run_labels(OURS)
    lists = {  # before the deletion, while the controller ends, after it, and when all is gone
        "Job": iter([[thing("controller", controller), thing("n1", stage)], [], [thing("n1-again", stage)], []]),
        "Pod": iter([[thing("controller-x", controller)], [ending], [], []]),
    }
    deleted = []
    cluster = SimpleNamespace(
        namespace="gpuval",
        serves=lambda kind: False,
        list=lambda kind, selector: (next(lists.get(kind, iter([])), []), "1"),
        delete_all=lambda kind, selector: deleted.append(kind),
    )
    cleaned = cleaning.clean(cluster, [OURS], 60)
    assert deleted.count("Job") == 3 and not cleaned.left


def test_a_kind_that_may_not_be_deleted_does_not_keep_the_others(kit, cluster):
    submit(cluster, OURS, kit.add_nodes(1))
    kit.deny("deletecollection", "", "secrets")
    cleaned = cleaning.clean(cluster, [OURS], 20)
    assert left_of(kit, OURS) == {"Secret": 1}
    (left,) = cleaned.left
    assert left.kind == "Secret" and "deletecollection" in left.remedy


def test_many_that_are_left_are_counted():
    cleaned = cleaning.Cleaned(left=[cleaning.Left("Pod", f"p{number}", "why", "remedy") for number in range(9)])
    told = cleaning.lines([], cleaned, "gpuval")
    assert told[0].startswith("CLEAN: all runs in namespace gpuval")
    assert (len(told), told[-1]) == (7, "- and 4 more")


@pytest.mark.parametrize("volumes", [False, True])
def test_volumes_are_only_asked_for_when_a_run_made_some(volumes):
    class Empty(Stubborn):
        def list(self, kind, selector):
            self.deletions.append(kind)
            return [], "1"

    cluster = Empty()
    cleaning.clean(cluster, [OURS], 10, volumes=volumes)
    asked = [*cleaning.KINDS, *cleaning.CLAIMS, *(cleaning.VOLUMES if volumes else ())]
    assert cluster.deletions == asked


def test_a_clean_asks_for_no_more_with_a_history(kit, tmp_path):
    """Requests of a clean after the first run, and after 27 that were cleaned, by the actions of the playbook."""
    results = run_commands.lay_out(tmp_path)
    counts = []
    for number in range(27):
        folder = run_commands.started(results, f"run-{number:02}")
        folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
        closed = run_commands.clean_run(results).result
        kit.forget_requests()
        options = {"run_ids": closed["run_ids"], "results_dir": str(results), "kubeconfig": str(kit.kubeconfig)}
        done = run_action(
            "clean_scheduler", {**options, "placement": "kubernetes", "context": "", "namespace": "gpuval"}
        )
        assert not done.failed and closed["run_ids"] == [f"run-{number:02}"], done.text
        counts.append(len(kit.requests))
    assert set(counts) == {counts[0]}, counts
    assert "CLEAN: run run-26 in namespace gpuval" in done.text
