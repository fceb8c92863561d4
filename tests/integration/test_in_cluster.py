"""The controller as a Job of the cluster, by the image's own program, from the command to the clean."""

import base64
import json
import re
import threading

import pytest

from tests.kit.cluster import ClusterKit, Problem
from tests.kit.cluster_fleet import ClusterFleet, own_address
from tests.kit.controller_pod import ControllerPods
from tests.kit.fleet import STEP_SECONDS, until
from tests.kit.s3_service import S3Service

STAGES = ("first", "second")
STAGE = {"command": ["true"], "timeout_seconds": 60}
KEY, SECRET = "controller-key", "5ecret-0f-the-st0re"
IMAGE = f"registry.example/validate@sha256:{'a' * 64}"


@pytest.fixture
def kit(tmp_path):
    pods = ControllerPods(root=tmp_path / "pods")
    with ClusterKit(tmp_path, on_stage=pods) as kit:
        pods.kubeconfig = kit.kubeconfig
        kit.add_nodes(2, gpus=0)
        kit.add_node("elsewhere", gpus=0, labels={"pool": "other"})
        yield kit


@pytest.fixture
def store(tmp_path):
    (tmp_path / "s3").mkdir()
    with S3Service(tmp_path / "s3", (KEY, SECRET), address=own_address()) as service:
        (service.data / "results").mkdir()
        yield service


@pytest.fixture
def new_fleet(tmp_path, kit, store):
    """Consoles over one cluster and store."""
    fleets = []

    kit.store = store

    def make(name="fleet", **more):
        settings = {
            "gpuval_stages": list(STAGES),
            "gpuval_sku": "cpu",
            **{f"{stage}_workload": STAGE for stage in STAGES},
            "gpuval_s3_endpoint": store.endpoint,
            "gpuval_bucket": "results",
            "gpuval_store_address": "",
            "kubernetes_controller": {"image": IMAGE},
            **more,
        }
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        fleet = ClusterFleet(tmp_path / name / "of", kit=kit, settings=settings, more_environment=keys)
        fleet.source = {"selector": "pool!=other"}
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        fleet.close()


def started(kit, done):
    assert done.code == 0, str(done)
    (run_id,) = set(re.findall(r"RUN=([\w-]+)", done.output))
    return run_id


def ended(kit, name):
    def condition():
        job = kit.get("Job", name)
        return {item["type"] for item in job["status"].get("conditions", ())} & {"Complete", "Failed"}

    (state,) = until(condition, f"the end of the Job {name}", 240)
    return state


MADE = ("Job", "Pod", "Secret", "ConfigMap", "ServiceAccount", "Role", "RoleBinding", "ClusterRole")


def there(kit):
    return {kind: len(found) for kind in MADE if (found := kit.all(kind))}


def for_run(run_id, *more):
    return ("-e", f"gpuval_run_id={run_id}", *more)


def test_a_run_in_the_cluster_from_the_command_to_the_clean(kit, new_fleet):
    fleet = new_fleet()
    trial = fleet.play("gpuval.fleet.in_cluster", "--check", "--diff")
    assert trial.code == 0, trial
    assert "Job 2" in trial.output and "would be created" in trial.output and SECRET not in trial.output
    assert not there(kit)

    done = fleet.play("gpuval.fleet.in_cluster")
    run_id = started(kit, done)
    again = fleet.play("gpuval.fleet.in_cluster")
    if "is at work" in again.output:  # on a slow machine the run may have ended by then
        assert started(kit, again) == run_id and again.recap("node-001")["changed"] == 0, again
    assert ended(kit, run_id) == "Complete", kit.on_stage.pods
    (pod,) = [pod for pod in kit.all("Pod") if pod["metadata"]["labels"].get("job-name") == run_id]
    assert pod["spec"]["nodeName"] == "elsewhere", "no node under test"
    (output,) = kit.on_stage.pods[run_id]
    assert "FINAL ACCEPTANCE: PARTIAL" in output and f"run {run_id}: 2 node(s)" in output
    readable = [kit.all(kind) for kind in ("ConfigMap", "Job", "Pod")]
    assert SECRET not in output + done.output + json.dumps(readable)

    for command, said in (("status", f"run {run_id}"), ("report", "FINAL ACCEPTANCE: PARTIAL")):
        outside = fleet.play(f"gpuval.fleet.{command}", *for_run(run_id))
        assert outside.code == 0 and said in outside.output, outside
    clean = fleet.play("gpuval.fleet.clean", *for_run(run_id))
    assert clean.code == 0, clean
    assert there(kit) == RIGHTS, "rights stay"


class Held(ControllerPods):
    """The second stage runs until it is released."""

    def __init__(self, **options):
        super().__init__(**options)
        self.released = threading.Event()

    def __call__(self, run, moment):
        end = super().__call__(run, moment)
        if (run.stage, moment) == (STAGES[1], "start"):
            assert self.released.wait(STEP_SECONDS)
        return end


def test_another_pod_resumes_the_run_of_one_that_is_lost(kit, new_fleet, tmp_path):
    """With nothing of the first pod but the store and the cluster, and with keys from a Secret of the user."""
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    kit.on_stage = pods = Held(root=tmp_path / "pods", kubeconfig=kit.kubeconfig, environments={"keys": keys})
    fleet = new_fleet(kubernetes_controller={"image": IMAGE, "secret": "keys"})
    run_id = started(kit, fleet.play("gpuval.fleet.in_cluster"))
    assert SECRET not in str([base64.b64decode(text) for item in kit.all("Secret") for text in item["data"].values()])
    until(lambda: sum(count for key, count in pods.begun.items() if key[2] == STAGES[1]) == 2, "both second stages")
    until(lambda: "run_watch.json" in {path.name for path in kit.store.data.rglob("*")}, "the watch in the store")
    pods.kill()
    assert ended(kit, run_id) == "Failed"  # the simulated cluster makes no further pod
    kit.forget_requests()
    (job,) = [job for job in kit.all("Job") if job["metadata"]["name"] == run_id]
    (pod,) = [pod for pod in kit.all("Pod") if pod["metadata"]["labels"].get("job-name") == run_id]
    playing = threading.Thread(target=pods.run_again, args=(job, pod, kit))
    playing.start()
    until(lambda: "resumed where it stopped" in pods.output, "the second pod", 120)
    pods.released.set()
    playing.join(STEP_SECONDS)
    assert "FINAL ACCEPTANCE: PARTIAL" in pods.output and pods.code == 0, pods.output
    begun = {key[1:3]: count for key, count in pods.begun.items()}
    assert begun == {(node, stage): 1 for node in ("node-001", "node-002") for stage in STAGES}, "nothing runs twice"
    made = {asked.resource for asked in kit.requests if asked.verb == "create"}
    assert "jobs" not in made and "secrets" not in made


RIGHTS = {"ServiceAccount": 1, "Role": 1, "RoleBinding": 1, "ClusterRole": 1}


def test_a_controller_that_is_removed_at_work_names_the_clean_of_its_run(kit, new_fleet, tmp_path):
    kit.on_stage = pods = Held(root=tmp_path / "pods", kubeconfig=kit.kubeconfig)
    fleet = new_fleet()
    run_id = started(kit, fleet.play("gpuval.fleet.in_cluster"))
    until(lambda: sum(count for key, count in pods.begun.items() if key[2] == STAGES[1]) == 2, "both second stages")
    removed = fleet.play("gpuval.fleet.in_cluster", "-e", "kubernetes_controller_state=absent")
    pods.kill()
    assert re.search(rf"Job {run_id}: removed at work: `make clean .*RUN={run_id}` removes", removed.output), removed
    assert there(kit) != RIGHTS, "what the run has made"
    clean = fleet.play("gpuval.fleet.clean", *for_run(run_id))
    pods.released.set()
    assert clean.code == 0 and there(kit) == RIGHTS, clean


def test_a_schedule_is_applied_once_and_removed_with_all_that_belongs_to_it(kit, new_fleet):
    """In a namespace that is made with it."""
    fleet = new_fleet(run_recurring_time="02:30", gpuval_namespace="nightly")
    apply = ("gpuval.fleet.recurring", "-e", "run_recurring_apply=true")
    trial = fleet.play(*apply, "--check")
    assert trial.code == 0 and "Namespace nightly: would be created" in trial.output and not kit.all("CronJob"), trial
    done = fleet.play(*apply)
    assert done.code == 0 and kit.get("Namespace", "nightly", ""), done
    (job,) = kit.all("CronJob")
    assert job["spec"]["schedule"] == "30 2 * * *"
    assert SECRET not in json.dumps([kit.all("ConfigMap"), job])
    assert not (fleet.root / "state/recurring").exists(), "no files are written"
    again = fleet.play(*apply)
    assert again.code == 0 and "created" not in again.output and ": changed" not in again.output, again
    fleet.settings["run_recurring_time"] = "04:00"
    changed = fleet.play(*apply)
    assert "CronJob " + job["metadata"]["name"] + ": changed" in changed.output, changed
    meta = {**job["metadata"], "name": f"{job['metadata']['name']}-29933934", "labels": job["metadata"]["labels"]}
    owner = {"kind": "CronJob", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    kit.put({"kind": "Job", "metadata": {**meta, "ownerReferences": [owner]}, "spec": {"suspend": True}})
    removed = fleet.play("gpuval.fleet.in_cluster", "-e", "kubernetes_controller_state=absent")
    assert removed.code == 0 and f"Job {meta['name']}: removed at work" in removed.output, removed
    assert not [item for kind in ("CronJob", "Job", "Secret", "ConfigMap") for item in kit.all(kind)]


#: What the API server says of a Role with rights that its user does not have.
ESCALATION = (
    'roles.rbac.authorization.k8s.io "gpuval-controller" is forbidden: user "team" (groups=["system:authenticated"]) '
    "is attempting to grant RBAC permissions not currently held:\n"
    '{APIGroups:["jobset.x-k8s.io"], Resources:["jobsets"], Verbs:["create" "list" "deletecollection"]}'
)


def test_rights_that_only_an_administrator_may_grant_are_one_line_with_what_to_do(kit, new_fleet):
    """As for a user who has the role `admin` of the namespace alone."""

    def admit(resource, manifest):
        if resource.kind == "Role":
            raise Problem(403, "Forbidden", ESCALATION)

    fleet = new_fleet(run_recurring_time="02:30")
    kit.server.admit = admit
    refused = fleet.play("gpuval.fleet.in_cluster")
    (line,) = [line for line in refused.output.splitlines() if "not currently held" in line]
    assert refused.code != 0 and "jobset.x-k8s.io" in line and "kubectl apply -f .gpuval/role.yml" in line, refused
    assert "kubernetes_controller_rights: false" in line
    kit.server.admit = lambda resource, manifest: None
    kit.deny("list", "rbac.authorization.k8s.io", "clusterroles")
    kit.deny("list", "scheduling.k8s.io", "priorityclasses")
    refused = fleet.play("gpuval.fleet.recurring", "-e", "run_recurring_apply=true")
    (line,) = [line for line in refused.output.splitlines() if "this user may not list clusterroles: " in line]
    assert "kubectl create priorityclass gpuval-recurring --value=-1000" in line, refused

    fleet.settings["kubernetes_controller_rights"] = False
    done = fleet.play("gpuval.fleet.recurring", "-e", "run_recurring_apply=true")
    assert done.code == 0 and len(kit.all("CronJob")) == 1 and not kit.all("PriorityClass"), done


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"gpuval_s3_endpoint": ""}, "its pod does not reach the embedded store: set gpuval_s3_endpoint"),
        ({"gpuval_s3_endpoint": "http://localhost:9000"}, "does not reach http://localhost:9000"),
        ({"kubernetes_controller": {}}, "the controller has no image: push that of docker/validate"),
        (
            {"kubernetes_controller": {"image": IMAGE, "node_selector": {"a": "b"}}},
            "no node is left for the controller",
        ),
    ],
)
def test_what_cannot_work_is_named_and_nothing_is_applied(kit, new_fleet, settings, told):
    done = new_fleet(**settings).play("gpuval.fleet.in_cluster")
    assert done.code != 0 and told in done.told, done
    assert not there(kit)
