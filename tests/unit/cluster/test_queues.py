"""Jobs that wait for a queue, and the JobSet of a gang: what they look like, and what the placement does with them."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import (
    cleaning,
    config_maps,
    gangs,
    manifests,
    names,
    placement,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterAccess
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.placement import PodOrder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_diagnosis import PodLimits
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import PodSettingsError, parse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import keys
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import NodeView
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.placement import PlannedAttempt

from tests.kit.cluster import ClusterKit, Fault
from tests.kit.kubernetes_schemas import kubernetes_validate

SCHEMAS = json.loads((Path(__file__).parent / "data" / "jobset.schema.json").read_text(encoding="utf-8"))
PARENT = "20261120-201500-3f2a"
RUN = f"{PARENT}.all"
IMAGE = "registry.example/gang:1"
KUEUE = {"priority_class": "acceptance", "required_topology": "cloud.google.com/gce-topology-block"}
VERSIONS = ["1.30", "1.36"]


def follows(name, document):
    schema = {"$defs": SCHEMAS["$defs"], "$ref": f"#/$defs/{name}"}
    jsonschema.Draft202012Validator(schema).validate(document)


def plan_of(node, nodes, stages=("collective",)):
    members = [{"node": each, "address": gangs.address(RUN, each, "gpuval"), "slots": 8} for each in nodes]
    together = {"name": "all", "members": members, "index": nodes.index(node), "port": 29500, "ssh_port": 3022}
    settings = plans.PlanSettings(
        run_id=RUN, node=node, created_at="2026-11-20T20:00:00Z", deadline_seconds=600, heartbeat_seconds=10,
        runtime="auto", sku="cpu", gpu_count=0, python="python3", models_dir=None, container={}, gang=together,
    )  # fmt: skip
    return plans.build(settings, list(stages), {stage: {"command": ["true"]} for stage in stages})


def jobs_of(nodes, queue="", asked=None):
    settings = parse({"image": IMAGE, **(asked or {})}, queue)
    run = manifests.ClusterRun(RUN, "gpuval", "code", {"all": config_maps.PlanPlace("gangs", "all.json")})
    return [
        gangs.labelled(
            manifests.job_of(
                run,
                manifests.PodAttempt(
                    manifests.PodTarget(node, node[:63], "", {}),
                    settings,
                    manifests.pod_plan(plan_of(node, nodes), settings),
                ),
                config_maps.PlanPlace("plans", "plan.json"),
            ),
            gangs.GangRound(PARENT, "all"),
        )
        for node in nodes
    ]


def many(count, length=8):
    return [f"{number:03}".rjust(length, "n") for number in range(count)]


def set_of(nodes, queue="", asked=None):
    return gangs.job_set(RUN, "gpuval", "all", jobs_of(nodes, queue, asked))


@pytest.mark.parametrize("queue", ["", "gangs"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_gang_is_one_job_set_as_its_api_takes_it(queue, version):
    nodes = ["node-1", "10-0-0-7", "n" * 253]
    made = set_of(nodes, queue, {"kueue": KUEUE})
    follows("jobset", made)
    assert made["spec"].get("suspend", False) == bool(queue)
    assert made["spec"]["failurePolicy"] == {"maxRestarts": 0}
    assert made["metadata"]["labels"].items() >= names.run_labels(RUN).items()
    children = []
    for each, node in zip(made["spec"]["replicatedJobs"], nodes, strict=True):
        template = each["template"]
        name = f"{made['metadata']['name']}-{each['name']}-0"
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**template["metadata"], "name": name}}
        kubernetes_validate.validate({**job, "spec": template["spec"]}, version, strict=True)
        assert len(name) <= 63 and not name[0].isdigit()
        spec = template["spec"]
        assert (spec["completionMode"], spec["backoffLimit"], "suspend" in spec) == ("NonIndexed", 0, False)
        (term,) = spec["template"]["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
        assert term["matchFields"][0]["values"] == [node]
        labels = template["metadata"]["labels"]
        assert labels[names.NODE_LABEL] == names.label_value(node) and labels[names.PARENT_LABEL] == PARENT
        assert not any(key.startswith("kueue.") for key in labels), "its set is queued, and not it"
        assert "--last" not in spec["template"]["spec"]["containers"][-1]["command"], "it would end the others"
        children.append((name, node))
    known = gangs.jobs_of_set(made)
    assert [(job["metadata"]["name"], job["metadata"]["annotations"][names.NODE_ANNOTATION]) for job in known] == (
        children
    )
    assert len({name for name, _node in children}) == len(nodes)


def test_a_queue_gets_what_was_asked_for_and_the_job_keeps_its_node():
    (job,) = jobs_of(["node-1"], "gangs", {"kueue": KUEUE})
    labels, template = job["metadata"]["labels"], job["spec"]["template"]
    assert labels[gangs.QUEUE_LABEL] == "gangs" and labels[gangs.PRIORITY_LABEL] == "acceptance"
    assert int(labels[gangs.MAX_SECONDS_LABEL]) > job["spec"]["activeDeadlineSeconds"], "a queue's limit preempts"
    assert template["metadata"]["annotations"][gangs.TOPOLOGY["required_topology"]] == KUEUE["required_topology"]
    assert template["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "node-1"}
    workload = {
        "podSets": [{"name": "main", "count": job["spec"]["parallelism"], "template": template}],
        "queueName": labels[gangs.QUEUE_LABEL],
        "priorityClassName": labels[gangs.PRIORITY_LABEL],
        "maximumExecutionTimeSeconds": int(labels[gangs.MAX_SECONDS_LABEL]),
    }
    follows("workload", workload)
    made = set_of(["node-1", "node-2"], "gangs", {"kueue": KUEUE})
    assert {key for key in made["metadata"]["labels"] if key.startswith("kueue.")} == {
        *(gangs.QUEUE_LABEL, gangs.PRIORITY_LABEL, gangs.MAX_SECONDS_LABEL)
    }


def test_more_members_than_a_workload_may_have_stay_jobs():
    def workload(made):
        return {
            "podSets": [
                {"name": each["name"], "count": each["replicas"], "template": each["template"]["spec"]["template"]}
                for each in made["spec"]["replicatedJobs"]
            ]
        }

    follows("workload", workload(set_of(many(8), "gangs")))
    with pytest.raises(jsonschema.ValidationError):
        follows("workload", workload(set_of(many(9))))
    assert set_of(many(9), "gangs") is None
    assert set_of(many(600)) is None, "etcd takes 1.5 MiB"


def kueue_schema(version, most):
    pod_sets = {"type": "array", **({"maxItems": most} if most else {})}
    spec = {"properties": {"podSets": pod_sets}}
    schemas = {
        f"io.x-k8s.kueue.{version}.WorkloadPriorityClass": {"properties": {"value": {}}},
        f"io.x-k8s.kueue.{version}.Workload": {"properties": {"spec": spec}},
    }
    return {
        "/apis/kueue.x-k8s.io": {"preferredVersion": {"version": version}},
        f"/openapi/v3/apis/kueue.x-k8s.io/{version}": {"components": {"schemas": schemas}},
    }


@pytest.mark.parametrize(
    ("documents", "most"),
    [
        (kueue_schema("v1beta2", 18), 18),
        (kueue_schema("v1beta1", 8), 8),
        (kueue_schema("v1beta2", None), 8),
        ({"/apis/kueue.x-k8s.io": {"preferredVersion": {"version": "v1beta2"}}}, 8),
        ({}, 8),
    ],
)
def test_how_many_members_a_queue_admits_together_comes_from_its_api(kit, cluster, documents, most):
    kit.server.documents = documents
    assert gangs.max_pod_sets(cluster) == most


@pytest.mark.parametrize(("most", "sets"), [(9, 1), (8, 0)])
def test_a_gang_of_nine_is_one_workload_where_kueue_takes_so_many(kit, tmp_path, most, sets):
    kit.server.documents = kueue_schema("v1beta2", most)
    kit.add_nodes(7, prefix="more-", gpus=0)
    with Round(kit, tmp_path, queue="gangs") as of:
        assert len(of.nodes) == 9
        assert len(kit.all("JobSet")) == sets
        assert kit.wait(lambda: len(kit.all("Job"))) == 9


def test_own_stages_wait_for_the_queue_where_that_is_asked_for():
    def own(kueue):
        settings = parse({"image": IMAGE, "kueue": kueue}, "gpus")
        alone = {key: value for key, value in plan_of("node-1", ["node-1"]).items() if key != "gang"}
        alone["stages"] = [{**each, "container": {}} for each in alone["stages"]]
        item = manifests.PodAttempt(manifests.PodTarget("node-1", "h"), settings, manifests.pod_plan(alone, settings))
        return manifests.job_of(manifests.ClusterRun(RUN, "gpuval", "code"), item, config_maps.PlanPlace("plans", "p"))

    assert "suspend" not in own({})["spec"]
    job = own({"own_stages": "true"})
    assert job["spec"]["suspend"] is True and job["metadata"]["labels"][gangs.QUEUE_LABEL] == "gpus"
    with pytest.raises(PodSettingsError, match="priority"):
        parse({"kueue": {"priority": "high"}})


class Store:
    """What pods get of a store, which they do not reach."""

    reachable = False
    client = SimpleNamespace(put=lambda *_: None)

    def given(self, _node, _stages, _seconds):
        return {"store": {}, "rclone_config": "", "ca": ""}

    def secrets(self, _plan):
        return {}


class Round:
    """A round of gangs on a simulated cluster, by the placement alone."""

    def __init__(self, kit, tmp_path, *, queue="", patience_seconds=20, admission_seconds=0.0, sku="cpu", **pods):
        self.nodes = [node["metadata"]["name"] for node in kit.all("Node")]
        parent = RunFolder(tmp_path / "results" / PARENT)
        self.folder = RunFolder(parent.path / "gangs" / "all")
        self.folder.path.mkdir(parents=True, exist_ok=True)
        members = plan_of(self.nodes[0], self.nodes)["gang"]["members"]
        expected = {
            node: {
                "stages": ["collective"],
                "sku": sku,
                "gpu_count": 0 if sku == "cpu" else None,
                "gang": {"name": "all", "index": index},
            }
            for index, node in enumerate(self.nodes)
        }
        common = {
            "schema": "gpuval.run/1", "bucket": "gpuval", "profile": "quick", "created_at": "2026-11-20T20:00:00Z",
            "finished_at": None, "deadline_seconds": 600, "narrowed_by": [], "nodes": expected,
        }  # fmt: skip
        parent.write_run({**common, "run_id": PARENT, "folder": PARENT})
        together = {"all": {"members": members, "port": 29500, "ssh_port": 3022}}
        self.run = {**common, "run_id": RUN, "folder": f"{PARENT}/gangs/all", "gangs": together}
        self.folder.write_run(self.run)
        keys.make(self.folder)
        settings = parse({"image": IMAGE, **pods}, queue)
        self.cluster = Cluster(ClusterAccess(str(kit.kubeconfig), "", "gpuval"))
        self.warned = []
        self.placement = placement.ClusterPlacement(
            self.cluster,
            self.run,
            self.folder,
            Store(),
            lambda name, _node, _like: PodOrder(plan_of(name, self.nodes), settings, sku),
            self.nodes,
            self.nodes,
            self.warned.append,
            limits=PodLimits(patience_seconds=patience_seconds, admission_seconds=admission_seconds),
        )
        self.views = {name: NodeView(name, plan_of(name, self.nodes), {}) for name in self.nodes}

    def __enter__(self):
        self.placement.begin(self.views)
        for view in self.views.values():
            view.busy = "launch"
            self.placement.launch(view, PlannedAttempt(), 600)
        return self

    def __exit__(self, *_exception):
        self.placement.close()
        self.cluster.close()

    def watch_until(self, is_so, seconds=60.0):
        """Take the placement's news, as the watch does, until something is so."""
        ends = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < ends, {name: view.launch for name, view in self.views.items()}
            for event in self.placement.wait(0.2):
                view = self.views[event.node]
                view.busy = ""
                view.launch = getattr(event, "launch", None) or view.launch or self.folder.read_launch(view.name)

    def messages(self):
        return [view.launch.get("message") for view in self.views.values()]

    def ended(self):
        return all(view.attempt_ended for view in self.views.values())


@pytest.fixture
def kit(tmp_path, monkeypatch):
    monkeypatch.setattr(placement.ClusterPlacement, "SETTLE_SECONDS", 0.5)
    with ClusterKit(tmp_path) as kit:
        kit.install_job_sets()
        kit.add_nodes(2, gpus=0)
        yield kit


def test_a_gang_begins_when_its_queue_admits_its_set_and_is_cleaned_with_it(kit, tmp_path):
    kit.stage_seconds_of["collective"] = 30
    with Round(kit, tmp_path, queue="gangs") as of:
        of.watch_until(lambda: all("waits for queue gangs" in str(message) for message in of.messages()))
        (made,) = kit.all("JobSet")
        follows("jobset", {key: made[key] for key in ("apiVersion", "kind", "metadata", "spec")})
        assert len(kit.all("Job")) == 2 and not kit.all("Pod")
        kit.change("JobSet", made["metadata"]["name"], {"spec": {"suspend": False}})
        of.watch_until(
            lambda: all(pod["status"]["phase"] == "Running" for pod in kit.all("Pod") or [{"status": {"phase": ""}}])
        )
        assert {pod["spec"]["nodeName"] for pod in kit.all("Pod")} == set(of.nodes)
        assert {view.launch["job"] for view in of.views.values()} == {job["metadata"]["name"] for job in kit.all("Job")}
        cleaned = cleaning.clean(of.cluster, [PARENT], 20)
    assert cleaned.left == [] and len(cleaned.removed["JobSet"]) == 1
    assert not any(kit.all(kind) for kind in (cleaning.JOB_SET, *cleaning.KINDS))


def test_a_controller_that_resumes_makes_no_second_set(kit, tmp_path):
    kit.stage_seconds_of["collective"] = 30
    for _controller in range(2):
        with Round(kit, tmp_path) as of:
            of.watch_until(lambda: len(kit.all("Pod")) == 2)
            assert {of.folder.read_launch(node)["state"] for node in of.nodes} == {"started"}
    assert len(kit.all("JobSet")) == 1 and len(kit.all("Job")) == 2


def test_a_queue_that_admits_nothing_ends_the_gang_at_the_limit(kit, tmp_path):
    with Round(kit, tmp_path, queue="gangs", admission_seconds=1) as of:
        of.watch_until(of.ended)
        assert {view.launch["class"] for view in of.views.values()} == {"suspended"}
        assert {view.launch["state"] for view in of.views.values()} == {"failed"}
        kit.wait(lambda: not kit.all("JobSet") and not kit.all("Job"))


def test_a_member_that_dies_ends_the_others_which_say_so(kit, tmp_path):
    kit.stage_seconds_of["collective"] = 1
    kit.fault("node-001", Fault("oom", stage="collective"))
    kit.fault("node-002", Fault("hang", stage="collective"))
    with Round(kit, tmp_path) as of:
        of.watch_until(of.ended)
        contact = of.views["node-002"].launch["contact"]
        assert contact["class"] == "job_set_ended" and "another member failed" in contact["message"]


def test_a_member_without_a_place_stays_until_its_round_ends(kit, tmp_path):
    kit.fault("node-002", Fault("unschedulable"))
    with Round(kit, tmp_path, patience_seconds=5) as of:
        of.watch_until(lambda: of.views["node-002"].attempt_ended)
        assert len(kit.all("JobSet")) == 1, "the other member works"
        of.placement.finish()
        kit.wait(lambda: not kit.all("JobSet") and not kit.all("Job"))


def test_a_cluster_without_job_sets_gets_jobs(kit, tmp_path):
    kit.server.served.clear()
    with Round(kit, tmp_path) as of:
        of.watch_until(lambda: len(kit.all("Pod")) == 2)
    assert not kit.all("JobSet") and len(kit.all("Job")) == 2


def test_a_missing_right_is_named_and_half_a_gang_is_not_started(kit, tmp_path):
    kit.deny("create", "jobset.x-k8s.io", "jobsets")
    with Round(kit, tmp_path) as of:
        launches = [of.folder.read_launch(node) for node in of.nodes]
    assert {launch["class"] for launch in launches} == {"forbidden"}
    assert all("jobset.x-k8s.io" in launch["message"] for launch in launches)
    assert not kit.all("Job")


def test_a_node_that_was_not_ready_in_mid_run_is_noted_once_with_time_and_length(kit, tmp_path):
    """Its pod survives. The other node is noted no outage, and what a node has after its work is none."""
    kit.stage_seconds_of["collective"] = 60
    with Round(kit, tmp_path) as of:
        first, second = (of.views[name] for name in of.nodes)
        of.watch_until(lambda: [pod["status"]["phase"] for pod in kit.all("Pod")] == ["Running"] * 2)
        for _ in range(2):
            kit.set_node(first.name, ready=False)
            of.watch_until(lambda: of.placement._outages._open)
            kit.set_node(first.name, ready=True, taints=[])
            of.watch_until(lambda: not of.placement._outages._open)
        for outage in first.launch["interruptions"]:
            assert outage["class"] == "node_not_ready"
            assert re.search(r"no answer from 20\S+Z for \d+ s \(Ready is False .* not ready", outage["message"])
        assert (len(first.launch["interruptions"]), second.launch.get("interruptions")) == (2, None)
