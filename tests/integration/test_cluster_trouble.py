"""Whole runs on a simulated cluster whose API, permissions or network fail in the middle of the work."""

import json
import signal
from urllib.parse import urlsplit

import pytest

from tests.kit.cluster import Asked, ClusterKit, Fault, StageEnd
from tests.kit.cluster_fleet import BEGUN, WORK, ClusterFleet, Containers
from tests.kit.runner import until_written
from tests.kit.s3_service import S3Service
from tests.kit.spoiling_proxy import SpoilingProxy

SLOW_WORK = {**WORK, "command": ["sh", "-c", f"echo {BEGUN}; sleep 3; echo worked: 3 items"]}


@pytest.fixture
def containers(tmp_path):
    return Containers(tmp_path / "pods")


@pytest.fixture
def kit(tmp_path, containers):
    with ClusterKit(tmp_path, on_stage=containers) as kit:
        yield kit


def fleet_of(tmp_path, kit, count, **settings):
    kit.add_nodes(count, gpus=0)
    return ClusterFleet(tmp_path / "fleet", kit=kit, settings=settings)


@pytest.fixture
def going(tmp_path):
    """Until it is written, stages of `work_until` are at work."""
    return tmp_path / "going"


def work_until(file, seconds=0):
    """Work that lasts until the file is written, and so much longer."""
    script = f"echo {BEGUN}; {until_written(file)}; sleep {seconds}; echo worked: 3 items"
    return {**WORK, "command": ["sh", "-c", script], "timeout_seconds": 240}


def all_passed(fleet, count):
    return fleet.report()["counts"] == {"expected": count, "PASS": count, "FAIL": 0, "INCOMPLETE": 0, "flaky": 0}


def whole(fleet, node):
    """The node has its records and its output here, and both are in the store or came from the pod."""
    for stage in ("facts", "work"):
        record = fleet.record(node, stage)
        assert (record["state"], record["attempt"], record["attempts"]) == ("success", 1, [])
        assert json.loads((fleet.folder_in_store / "records" / stage / f"{node}.json").read_text()) == record
        assert f"{stage}: success" in fleet.log(node, stage) or f"{stage} attempt 1 ended" in fleet.log(node, stage)
        assert "GPUVAL RECORD" not in fleet.log(node, stage)
    assert "worked: 3 items" in fleet.log(node, "work")


def test_a_pod_that_is_walled_in_passes_by_its_output(tmp_path, kit, containers):
    """The store answers the controller and the other pods, and not this one."""
    containers.walled_in = lambda run: run.node == "node-002"
    fleet = fleet_of(tmp_path, kit, 3)
    done = fleet.play()
    assert done.code == 0, str(done)
    assert all_passed(fleet, 3)
    whole(fleet, "node-002")


def test_a_store_that_cannot_be_read_costs_pods_no_verdict(tmp_path, kit, going):
    """The pods upload all the same; what they print is read in its place."""
    with S3Service(tmp_path, ("key", "secret")) as service, SpoilingProxy(urlsplit(service.endpoint).port) as proxy:
        store = {"gpuval_s3_access_key": "key", "gpuval_s3_secret_key": "secret", "gpuval_create_bucket": True}
        store |= {
            "gpuval_s3_endpoint": f"http://127.0.0.1:{proxy.port}",
            "gpuval_store_address": "",
            "run_pull_seconds": 2,
        }
        fleet = fleet_of(tmp_path, kit, 2, work_workload=work_until(going), **store)
        playing = fleet.start()
        playing.expect("node-001 work: running")
        playing.expect("node-002 work: running")
        proxy.spoil("403", lambda _method, path: "X-Amz-Signature" not in path)
        playing.expect("the store does not answer")
        going.write_text("on")
        done = playing.wait()
        assert done.code == 0, str(done)
        assert all_passed(fleet, 2)
        assert "the deadline" not in done.output
        playing.expect(r"^- Store: the store cannot be read: .* \(store_denied\): ")
        assert "worked: 3 items" in fleet.log("node-001", "work")


def test_nonsense_between_the_markers_costs_its_own_node_only(tmp_path, kit, containers):
    """The pods get no addresses of the store: records and logs come from their output."""

    def nonsense(run):
        if run.node != "node-001":
            return None
        shown = {"facts": "[1]", "work": '{"stage": ["work"], "attempt": null}'}[run.stage]
        return StageEnd(
            log=f"-----BEGIN GPUVAL RECORD {run.stage}-----\n{shown}\n-----END GPUVAL RECORD {run.stage}-----\n"
        )

    containers.instead = nonsense
    fleet = fleet_of(tmp_path, kit, 2, gpuval_store_address="", run_pull_seconds=1)
    done = fleet.play()
    assert fleet.verdict("node-001")["verdict"] == "INCOMPLETE", str(done)
    assert fleet.verdict("node-002")["verdict"] == "PASS"
    whole(fleet, "node-002")
    assert {problem["stage"] for problem in fleet.verdict("node-001")["problems"]} == {"facts", "work"}


def test_output_that_may_not_be_read_names_the_rule(tmp_path, kit):
    kit.deny_after(Asked("create", "batch", "jobs"), Asked("get", "", "pods", "log"))
    fleet = fleet_of(tmp_path, kit, 1, gpuval_store_address="", run_pull_seconds=1)
    done = fleet.play()
    assert fleet.verdict("node-001")["verdict"] == "INCOMPLETE", str(done)
    assert "pods/log" in done.output
    assert "the output of facts cannot be read" in done.output


def test_watches_that_break_and_versions_that_are_gone_cost_nothing(tmp_path, kit, going):
    fleet = fleet_of(tmp_path, kit, 4, gpuval_max_nodes_at_once=2, work_workload=work_until(going, 3))
    playing = fleet.start()
    playing.expect("work: running")
    kit.drop_watches()
    going.write_text("on")
    playing.expect("work: success")
    kit.compact()
    kit.drop_watches()
    playing.expect("work: running")
    kit.down(2)
    done = playing.wait()
    assert done.code == 0, str(done)
    assert all_passed(fleet, 4)
    assert len(kit.all("Job")) == 4
    for node in ("node-001", "node-004"):
        whole(fleet, node)


def test_a_job_that_may_not_be_made_costs_its_own_node_only(tmp_path, kit, going):
    fleet = fleet_of(tmp_path, kit, 2, gpuval_max_nodes_at_once=1, work_workload=work_until(going))
    playing = fleet.start()
    playing.expect("node-001 work: running")
    kit.deny("create", "batch", "jobs")
    going.write_text("on")
    done = playing.wait()
    assert fleet.verdict("node-001")["verdict"] == "PASS", str(done)
    entry = fleet.verdict("node-002")
    (check,) = [check for check in entry["checks"] if check["name"] == "launch"]
    assert (entry["verdict"], entry["class"]) == ("INCOMPLETE", "forbidden")
    for part in ("batch", "jobs", "create"):
        assert part in check["reason"]
    assert "docs/kubernetes.md" in check["remedy"]


def test_a_watch_that_is_forbidden_names_the_rule_and_the_run_can_be_resumed(tmp_path, kit):
    fleet = fleet_of(tmp_path, kit, 2)
    kit.deny_after(Asked("list", "", "pods"), Asked("watch", "", "pods"))
    done = fleet.play()
    assert done.code != 0
    assert "watch" in done.told
    assert "pods" in done.told
    assert "FINAL ACCEPTANCE: PASS" not in done.output
    run_id = fleet.run_id
    kit.allow_only(None)
    done = fleet.play()
    assert done.code == 0, str(done)
    assert fleet.run_id == run_id
    assert all_passed(fleet, 2)


def test_a_watch_that_is_refused_for_a_while_costs_nothing(tmp_path, kit, going):
    """An API server that starts again may not know its own rules for a moment."""
    fleet = fleet_of(tmp_path, kit, 2, work_workload=work_until(going, 3))
    playing = fleet.start()
    playing.expect("work: running")
    kit.deny("watch", "", "pods")
    kit.drop_watches()
    going.write_text("on")
    done = playing.wait()
    assert done.code == 0, str(done)
    assert all_passed(fleet, 2)


def test_a_node_that_comes_back_while_others_work_has_another_turn(tmp_path, kit, containers, going):
    containers.struck = lambda run: {("node-001", "work", 1): signal.SIGKILL}.get((run.node, run.stage, run.attempt))
    kit.fault("node-001", Fault("node_lost", stage="work", attempt=1))
    fleet = fleet_of(tmp_path, kit, 2, work_workload=work_until(going))
    playing = fleet.start()
    playing.expect("node-001: DeletionByTaintManager")
    kit.restore_node("node-001")
    playing.expect("node-001: launched again, as attempt 2")
    going.write_text("on")
    done = playing.wait()
    assert done.code == 0, str(done)
    assert fleet.record("node-001", "work")["attempt"] == 2
    assert fleet.record("node-001", "facts")["attempt"] == 1
    lost = {check["name"]: check for check in fleet.verdict("node-001")["checks"]}["interrupted"]
    assert (lost["verdict"], lost["value"]) == ("warn", "node_lost"), "the node was lost: this is about the node"
    assert not any(fleet.verdict(name)["flaky"] for name in ("node-001", "node-002")), "no stage failed and then passed"


def test_another_machine_under_the_same_name_does_all_stages_again(tmp_path, kit, containers):
    """Facts of one machine and work of another would make a verdict on neither."""
    kit.fault("node-001", Fault("evicted", stage="work", attempt=1))

    def exchange(run):
        if (run.stage, run.attempt) == ("work", 1):
            kit.change("Node", "node-001", {"status": {"nodeInfo": {"machineID": "another"}}})

    containers.instead = exchange
    containers.struck = lambda run: {("work", 1): signal.SIGKILL}.get((run.stage, run.attempt))
    fleet = fleet_of(tmp_path, kit, 1, work_workload=SLOW_WORK)
    done = fleet.play()
    assert done.code == 0, str(done)
    attempts = {stage: fleet.record("node-001", stage)["attempt"] for stage in ("facts", "work")}
    assert attempts == {"facts": 2, "work": 2}
    assert "another machine has this name" in done.told


def test_a_claim_without_a_volume_is_said_once(tmp_path, kit):
    unbound = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    about = {"kind": "PersistentVolumeClaim", "name": "lustre", "namespace": "gpuval", "apiVersion": "v1"}
    why = "Waiting for a volume to be created by the external provisioner 'lustre.csi.storage.gke.io'."
    seen = {"reason": "ExternalProvisioning", "message": why, "type": "Normal", "involvedObject": about}
    kit.put({"kind": "Event", "metadata": {"name": "lustre.1", "namespace": "gpuval"}, **seen})
    for number in (1, 2, 3):
        kit.fault(f"node-00{number}", Fault("unschedulable", message=unbound))
    pods = {"image": "registry.test/gpuval:1", "volumes": [{"path": "/lustre", "claim": "lustre"}]}
    fleet = fleet_of(
        tmp_path, kit, 3, gpuval_pods=pods, gpuval_max_nodes_at_once=1, gpuval_max_transfers=1,
        run_pod_patience_seconds=10,
    )  # fmt: skip
    done = fleet.play()
    launches = [fleet.verdict(f"node-00{number}")["checks"][0] for number in (1, 2, 3)]
    assert [check["value"] for check in launches] == ["claim_pending"] * 3, str(done)
    assert done.output.count(f"namespace gpuval: claim lustre: {why}") == 1
    assert "node-001: pending" not in done.output
    assert "- node-001, node-002, node-003 INCOMPLETE launch: failed (claim_pending): claim lustre: " in done.output
    assert "check that the provisioner of the claim's storage class runs" in done.output
