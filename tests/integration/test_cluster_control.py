"""What the operator steers of a run on a cluster: trials, windows, rights, marks, runs that others began."""

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import names, permissions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.accepted_condition import condition_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.cluster import POD_SECURITY, Asked, ClusterKit
from tests.kit.cluster_fleet import ClusterFleet
from tests.kit.cluster_records import Records
from tests.kit.fleet import ROOT, STEP_SECONDS, until

STAGES = ("first", "second")
STAGE = {"command": ["true"], "timeout_seconds": 60}
#: All that is read, and no more; `get` is for the namespace whose UID tells clusters apart.
READING = {"get", "list", "watch"}
MADE = ("Job", "Pod", "Secret", "ConfigMap")
BENCHMARK_SECONDS = 500


def settings(**more):
    return {
        "gpuval_stages": list(STAGES),
        "gpuval_sku": "cpu",
        **{f"{stage}_workload": STAGE for stage in STAGES},
        **more,
    }


@pytest.fixture
def kit(tmp_path):
    with ClusterKit(tmp_path, on_stage=Records()) as kit:
        yield kit


@pytest.fixture
def new_fleet(tmp_path, kit):
    """Fleets over one cluster, each a controller of its own; their playbooks and stores end with the test."""
    fleets = []

    def make(name="fleet", **more):
        fleet = ClusterFleet(tmp_path / name / "of", kit=kit, settings=settings(**more))
        fleets.append(fleet)
        return fleet

    yield make
    kit.allow_only(None)
    kit.permit()
    for fleet in fleets:
        fleet.close()


def passed(fleet, done, nodes):
    assert done.code == 0, str(done)
    counts = fleet.report()["counts"]
    assert counts == {"expected": nodes, "PASS": nodes, "FAIL": 0, "INCOMPLETE": 0, "flaky": 0}


def begun(kit, fleet):
    """How often each stage ran for a fleet's run, by node and stage."""
    run = names.label_value(fleet.run_id)
    return {(node, stage): count for (of, node, stage, _attempt), count in kit.on_stage.begun.items() if of == run}


def there(kit, selector=""):
    return {kind: len(found) for kind in MADE if (found := kit.all(kind, selector))}


def test_check_mode_shows_what_would_be_made_and_makes_nothing(kit, new_fleet):
    kit.add_nodes(2, gpus=0)
    fleet = new_fleet()
    done = fleet.play("gpuval.fleet.validate", "--check", "--diff")
    assert done.code == 0, str(done)
    assert {asked.verb for asked in kit.requests} <= READING, kit.counts()
    assert not there(kit)
    assert not fleet.results.exists()
    assert "FINAL ACCEPTANCE" not in done.output
    for told in ("first: true (at most 60 s)", "node-001", "node-002", "Job gpuval-", "Secret gpuval-"):
        assert told in done.output, told

    rendered = fleet.play("gpuval.fleet.validate", "--check", "--diff", "-e", "gpuval_render_only=true")
    assert rendered.code == 0, str(rendered)
    assert "Job gpuval-" in rendered.output
    assert {asked.verb for asked in kit.requests} <= READING, kit.counts()


def test_no_more_nodes_at_once_than_the_window(kit, new_fleet):
    kit.add_nodes(6, gpus=0)
    kit.settings.stage_seconds = 0.5
    fleet = new_fleet(gpuval_max_nodes_at_once=2)
    passed(fleet, fleet.play(), 6)
    assert kit.most_running == 2


def test_no_more_nodes_pull_their_images_at_once_than_transfers(kit, new_fleet):
    kit.add_nodes(6, gpus=0)
    kit.settings.pull_seconds, kit.settings.stage_seconds = 0.6, 3.0
    fleet = new_fleet(gpuval_max_transfers=2)
    passed(fleet, fleet.play(), 6)
    assert kit.most_pulling <= 2
    assert kit.most_running > 2, "who has its image works on while others pull"


def test_two_runs_at_once_leave_each_other_alone(kit, new_fleet):
    kit.add_nodes(2, gpus=0)
    kit.settings.stage_seconds_of["second"] = 4.0
    one, two = new_fleet("one"), new_fleet("two")
    playing = [one.start(), two.start()]
    until(lambda: len(kit.all("Job")) == 4, "the Jobs of both")
    for fleet, play in zip((one, two), playing, strict=True):
        passed(fleet, play.wait(), 2)
    assert one.run_id != two.run_id
    kept = there(kit, names.run_selector(two.run_id))
    done = one.play("gpuval.fleet.clean")
    assert done.code == 0, str(done)
    assert not there(kit, names.run_selector(one.run_id))
    assert there(kit, names.run_selector(two.run_id)) == kept == there(kit)


class Held(Records):
    """The second stage runs until it is released."""

    def __init__(self):
        super().__init__()
        self.released = threading.Event()

    def __call__(self, run, moment):
        end = super().__call__(run, moment)
        if (run.stage, moment) == (STAGES[1], "start"):
            assert self.released.wait(STEP_SECONDS)
        return end


def test_a_killed_controller_is_resumed_and_nothing_runs_twice(kit, new_fleet):
    kit.add_nodes(3, gpus=0)
    kit.on_stage = Held()
    fleet = new_fleet(gpuval_max_nodes_at_once=2)  # the third has its turn only after the crash
    first = fleet.start()
    first.expect(r"node-00\d second: running")
    first.kill()
    run_id = fleet.run_id
    assert len(kit.all("Job")) == 2
    kit.forget_requests()
    resumed = fleet.start()
    resumed.expect("resumed where it stopped")
    kit.on_stage.released.set()
    passed(fleet, resumed.wait(), 3)
    assert fleet.run_id == run_id
    assert begun(kit, fleet) == {(f"node-00{number}", stage): 1 for number in (1, 2, 3) for stage in STAGES}
    assert there(kit)["Job"] == there(kit)["Secret"] == 3
    made = Counter(asked.resource for asked in kit.requests if asked.verb == "create")
    assert (made["jobs"], made["secrets"]) == (1, 1), "what is there is not asked for again"


def test_rendered_manifests_applied_by_another_are_validated(kit, new_fleet):
    kit.add_nodes(2, gpus=0)
    fleet = new_fleet()
    done = fleet.play("gpuval.fleet.prepare", "-e", "gpuval_render_only=true")
    assert done.code == 0, str(done)
    assert not there(kit)
    rendered = list(yaml.safe_load_all((fleet.run_folder / "manifests.yml").read_text()))
    for manifest in rendered:
        if manifest["kind"] != "Namespace":
            kit.put(manifest)
    made = {(item["kind"], item["metadata"]["name"]) for item in rendered if item["kind"] in MADE}
    run_id = fleet.run_id
    kit.forget_requests()
    passed(fleet, fleet.play("gpuval.fleet.validate", "-e", f"gpuval_run_id={run_id}"), 2)
    assert {asked.resource for asked in kit.requests if asked.verb == "create"} == {"configmaps"}
    assert fleet.run_id == run_id
    assert set(begun(kit, fleet).values()) == {1}
    there_now = {(kind, item["metadata"]["name"]) for kind in MADE if kind != "Pod" for item in kit.all(kind)}
    assert there_now == made, "validate makes what the file has, under the same names"


def test_prepare_writes_the_role_and_names_what_is_missing(kit, new_fleet):
    kit.add_nodes(1, gpus=0)
    fleet = new_fleet()
    kit.deny("create", "batch", "jobs")
    done = fleet.play("gpuval.fleet.prepare")
    assert done.code != 0
    for told in ("this user may not create jobs", 'apiGroups: ["batch"]', 'verbs: ["create"]', "kubectl apply -f"):
        assert told in done.told, told
    role = fleet.root / "state/role.yml"
    kinds = Counter(document["kind"] for document in yaml.safe_load_all(role.read_text()))
    assert kinds["Role"] and kinds["ClusterRole"]
    kit.permit()
    done = fleet.play("gpuval.fleet.prepare")
    assert done.code == 0, str(done)


def test_rights_that_are_missing_end_a_validate_before_anything_is_made(kit, new_fleet):
    kit.add_nodes(1, gpus=0)
    fleet = new_fleet(gpuval_mark_nodes=True)
    kit.deny("patch", "", "nodes")
    done = fleet.play()
    assert done.code != 0
    for told in ("this user may not patch nodes", "kubectl create clusterrolebinding gpuval-marks"):
        assert told in done.told, told
    assert "node-001 INCOMPLETE launch: failed (not_prepared): " in done.output and not there(kit)
    kit.permit()
    kit.change("Namespace", "gpuval", {"metadata": {"labels": {POD_SECURITY: "restricted"}}}, "")
    done = fleet.play()
    assert done.code != 0
    assert "set gpuval_pods.run_as_user" in done.told
    assert not there(kit)
    kit.change("Namespace", "gpuval", {"metadata": {"labels": {POD_SECURITY: "privileged"}}}, "")
    passed(fleet, fleet.play(), 1)
    assert [run.path.name for run in run_folder.known_runs(fleet.results)] == [fleet.run_id], (
        "it is the same run each time"
    )


def test_marks_that_are_refused_fail_the_playbook_after_the_verdict(kit, new_fleet):
    kit.add_nodes(1, gpus=0)
    kit.on_stage.states["node-001", "facts"] = "failure"
    fleet = new_fleet(gpuval_mark_nodes=True, gpuval_retries=0, gpuval_stages=["facts", *STAGES])
    kit.deny_after(Asked("create", "batch", "jobs"), Asked("patch", "", "nodes"))
    done = fleet.play()
    assert done.code != 0
    failed, _, block = done.output.partition("FINAL ACCEPTANCE: FAIL")
    assert block and fleet.report()["counts"]["FAIL"] == 1
    (line,) = [line for line in failed.splitlines() if "no verdict is changed on the nodes" in line]
    assert "this user may not patch nodes" in line and "kubectl create clusterrolebinding gpuval-marks" in line


def accepted(node):
    """Status and reason of a node's condition; None without one."""
    condition = condition_of(node)
    return condition and (condition["status"], condition["reason"])


def test_the_role_is_enough_and_all_of_it_is_used(kit, new_fleet):
    """With marks that are set, change with the verdict, and are removed."""
    kit.add_nodes(2, gpus=0)
    kit.install_job_sets()
    bound = ("gpuval-controller", "gpuval-nodes", "gpuval-marks")
    roles = [role for role in permissions.documents("gpuval") if role["metadata"]["name"] in bound]
    allowed = permissions.granted(roles) | {permissions.REVIEW, permissions.RULES_REVIEW}
    kit.allow_only(lambda asked: tuple(asked) in allowed)
    marking = {"gpuval_mark_nodes": "true", "gpuval_taint_failed": "true"}  # as -e gives them
    fleet = new_fleet(**marking, gpuval_retries=0, gpuval_stages=["facts", *STAGES])
    done = fleet.play("gpuval.fleet.prepare")
    assert done.code == 0, str(done)
    kit.on_stage.states["node-002", "facts"] = "failure"
    assert fleet.play().code != 0
    good, bad = (kit.get("Node", name, "") for name in ("node-001", "node-002"))
    assert [node["metadata"]["labels"].get("gpuval.io/verdict") for node in (good, bad)] == [None, "FAIL"]
    assert bad["metadata"]["annotations"]["gpuval.io/run-id"] == fleet.run_id
    assert not good["spec"].get("taints")
    assert [accepted(node) for node in (good, bad)] == [None, ("False", "facts_failure")]
    assert [(taint["key"], taint["effect"]) for taint in bad["spec"]["taints"]] == [("gpuval.io/failed", "NoSchedule")]

    kit.on_stage.states.clear()  # the taint does not keep the next run away, and goes with its verdict
    repair = {"node": "node-002", "part": "node", "action": "seated again", "at": run_folder.now(), "by": "K. Weber"}
    fleet.settings["gpuval_repairs"] = [repair]
    passed(fleet, fleet.play(), 2)
    good, bad = (kit.get("Node", name, "") for name in ("node-001", "node-002"))
    assert [node["metadata"]["labels"].get("gpuval.io/verdict") for node in (good, bad)] == [None, "INCOMPLETE"]
    assert not any(node["spec"].get("taints") for node in kit.all("Node"))
    assert [accepted(node) for node in (good, bad)] == [None, ("Unknown", "Incomplete")]
    # No node of this one reaches the store: records would come from their pods' output.
    away = new_fleet("away", gpuval_store_address="")
    kit.on_stage = Silent()
    done = away.play()
    assert away.report()["counts"]["INCOMPLETE"] == 2, str(done)
    follow = ("gpuval.fleet.reach", "-e", "run_reach=follow", "-e", "run_reach_node=node-001")
    for command in (("gpuval.fleet.logs",), follow):
        done = fleet.play(*command)
        assert done.code == 0, str(done)
    done = fleet.play("gpuval.fleet.clean", "-e", "cleanup_marks=true", "--limit=node-001")
    assert done.code == 0, str(done)
    assert kit.get("Node", "node-002", "")["metadata"]["labels"]["gpuval.io/verdict"] == "INCOMPLETE"
    for each in (fleet, away):
        done = each.play("gpuval.fleet.clean", "-e", "cleanup_marks=true")
        assert done.code == 0, str(done)
    assert not there(kit)
    for node in kit.all("Node"):
        assert not [
            key for part in ("labels", "annotations") for key in node["metadata"].get(part, {}) if "gpuval" in key
        ]
        assert not node["spec"].get("taints") and accepted(node) is None
    asked = {permissions.AccessRequest(*one) for one in kit.requests}
    assert asked <= allowed
    # Only rounds of gangs make Services and JobSets: test_cluster_gangs sees that these are used. kubectl gets the pod
    # of a log.
    made = (("", "services"), ("jobset.x-k8s.io", "jobsets"))
    of_gangs = {permissions.AccessRequest(verb, *kind, "") for verb in ("create", "deletecollection") for kind in made}
    # Of devices a cluster without DRA is asked nothing: see test_cluster_dra.
    groups = ("resource.k8s.io", "resource.nvidia.com")
    of_devices = {rule for rule in permissions.granted(roles) if rule.group in groups}
    assert of_devices and not of_devices & asked
    assert permissions.granted(roles) - asked == {*of_gangs, *of_devices, permissions.AccessRequest("get", "", "pods")}


class Silent(Records):
    """Containers that end without a record."""

    def __call__(self, run, moment):
        return None


def test_tags_and_limit_narrow_the_run(kit, new_fleet):
    kit.add_nodes(2, gpus=0)
    fleet = new_fleet(gpuval_stages=["facts", *STAGES])
    done = fleet.play("gpuval.fleet.validate", "--limit", "node-001", "--tags", "facts")
    assert done.code == 0, str(done)
    assert "FINAL ACCEPTANCE: PARTIAL" in done.output
    assert set(begun(kit, fleet)) == {("node-001", "facts")}
    assert fleet.read_run()["narrowed_by"] == ["limit", "tags"]


def test_a_hundred_nodes_cost_few_requests_and_little_memory(tmp_path):
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks/cluster/run.py"), "--nodes", "100", "--seconds", "2", "4", "2"]
    done = subprocess.run(
        [*command, "--json", str(figures), "--keep", str(Path(tmp_path) / "logs")],
        capture_output=True,
        text=True,
        timeout=BENCHMARK_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(figures.read_text())
    assert result["jobs"] == 100
    counts = {**result["requests"], "clean": result["clean_requests"]}
    assert (counts["create batch jobs"], counts["create secrets"]) == (100, 100)
    assert result["all_requests"] <= 235, counts
    assert result["memory"] < 300e6
