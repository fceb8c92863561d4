"""A round of gangs on a cluster: what is made there, how it is carried out, and that it goes with its run."""

import base64
import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import gangs, names, permissions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import keys
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.builders import make_run
from tests.kit.cluster import ClusterKit, Fault
from tests.kit.cluster_fleet import ClusterFleet, Containers
from tests.kit.cluster_records import Records
from tests.kit.fleet import NODE_PYTHON, until

STAGES = ("first", "second")
STAGE = {"command": ["true"], "timeout_seconds": 60}
KINDS = ("Job", "Pod", "Service", "Secret", "ConfigMap")
ROUND = "all"
IMAGE = "registry.example/gang:1"
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: gpuval.fleet.gpuval}
    - ansible.builtin.import_role: {name: gpuval.fleet.store}
    - ansible.builtin.import_role: {name: gpuval.fleet.run, tasks_from: watch}
      vars:
        run_opened: {run: {run_id: "{{ round }}"}}
        gpuval_retries: 0
"""


@pytest.fixture
def kit(tmp_path):
    with ClusterKit(tmp_path, on_stage=Records()) as kit:
        yield kit


@pytest.fixture
def fleet(tmp_path, kit):
    kit.add_nodes(2, gpus=0)
    fleet = ClusterFleet(
        tmp_path / "fleet" / "of",
        kit=kit,
        settings={
            "gpuval_stages": list(STAGES),
            "gpuval_sku": "cpu",
            **{f"{stage}_workload": STAGE for stage in STAGES},
        },
    )
    yield fleet
    fleet.end()  # the cluster goes with its kit


def begun(fleet):
    """A run whose nodes have done their own work."""
    run_id = "20261120-201500-3f2a"
    folder = run_folder.RunFolder(fleet.results / run_id)
    folder.path.mkdir(parents=True)
    (fleet.results / "latest").symlink_to(run_id)
    place = {"run_id": run_id, "folder": run_id, "bucket": "gpuval", "created_at": run_folder.now()}
    folder.write_run(make_run(["node-001", "node-002"], stages=["first"], sku="cpu", gpu_count=0, **place))


def opened(fleet, name=ROUND):
    """A round of the fleet's run, as the controller writes it down before it starts it."""
    folder = run_folder.RunFolder(fleet.run_folder / "gangs" / name)
    folder.path.mkdir(parents=True)
    run = fleet.read_run()
    run_id, nodes = f"{run['run_id']}.{name}", list(run["nodes"])
    members = [{"node": node, "address": gangs.address(run_id, node, "gpuval"), "slots": 1} for node in nodes]
    expected = {
        node: {"stages": ["second"], "sku": "cpu", "gpu_count": 0, "gang": {"name": ROUND, "index": index}}
        for index, node in enumerate(nodes)
    }
    document = {
        **run,
        "run_id": run_id,
        "folder": f"{run['folder']}/gangs/{name}",
        "created_at": run_folder.now(),
        "finished_at": None,
        "deadline_seconds": 120,
        "gangs": {ROUND: {"members": members, "port": 29500, "ssh_port": 3022}},
        "nodes": expected,
    }
    folder.write_run(document)
    keys.make(folder)
    return folder


def carry_out(fleet, **more):
    playbook = fleet.root / "round.yml"
    playbook.write_text(PLAYBOOK)
    extra = {"gpuval_results_dir": str(fleet.run_folder / "gangs"), "round": ROUND, **more}
    return fleet.start(str(playbook), "-e", json.dumps(extra))


def of_rounds(run_id):
    return f"{names.ALL_RUNS},{names.PARENT_LABEL}={names.label_value(run_id)}"


def there(kit, selector):
    return {kind: len(found) for kind in KINDS if (found := kit.all(kind, selector))}


def test_a_round_is_carried_out_beside_its_run_and_cleaned_with_it(kit, fleet):
    roles = permissions.documents("gpuval")
    assert fleet.play().code == 0
    own = there(kit, names.run_selector(fleet.run_id))
    folder = opened(fleet)
    run_id = folder.read_run()["run_id"]
    kit.forget_requests()
    done = carry_out(fleet).wait()
    assert done.code == 0, str(done)
    assert set(kit.requests) <= permissions.granted(roles)
    for node in ("node-001", "node-002"):
        record = json.loads(folder.evidence_file(node, "second").read_text())
        assert (record["run_id"], record["state"]) == (run_id, "success")
    assert there(kit, names.run_selector(fleet.run_id)) == own, "the run's own objects are left as they were"
    assert there(kit, of_rounds(fleet.run_id)) == {
        "Job": 2,
        "Pod": 2,
        "Service": 1,
        "Secret": 3,
        "ConfigMap": 3,  # programs, plans, and who is in the gang
    }
    for pod in kit.all("Pod", of_rounds(fleet.run_id)):
        labels, spec = pod["metadata"]["labels"], pod["spec"]
        assert (labels["gpuval.io/round"], labels["gpuval.io/gang"]) == (ROUND, ROUND)
        assert f"{spec['hostname']}.{spec['subdomain']}.gpuval.svc" in folder.run_file.read_text()
    token = keys.files_for(folder, "node-001")["token"]
    (secret,) = [one for one in kit.all("Secret") if "token" in one["data"]]
    assert base64.b64decode(secret["data"]["token"]).decode() == token
    for path in folder.path.rglob("*"):
        assert not path.is_file() or path.name == "gang_keys.json" or token not in path.read_text(), path
    assert token not in done.output
    plans_of = [path.read_text() for path in (fleet.store_data / folder.read_run()["folder"] / "plans").iterdir()]
    assert len(plans_of) == 2 and not any("members" in plan for plan in plans_of), "run.json has them once"

    would = fleet.play("gpuval.fleet.clean", "--check")
    assert would.code == 0, str(would)
    assert "would be removed: 4 Jobs, 4 Pods, 1 Service, 5 Secrets, 5 ConfigMaps" in would.told
    assert there(kit, names.run_selector(run_id))["Job"] == 2
    cleaned = fleet.play("gpuval.fleet.clean")
    assert cleaned.code == 0, str(cleaned)
    assert not there(kit, names.run_selector(run_id)) and not there(kit, names.run_selector(fleet.run_id))
    asked = {permissions.AccessRequest(*one) for one in kit.requests}
    assert not [one for one in permissions.granted(roles) - asked if one.resource == "services"]
    assert fleet.play("gpuval.fleet.clean").code == 0


def test_a_queue_lets_a_round_begin_and_a_controller_takes_it_up(kit, fleet):
    kit.install_job_sets()
    begun(fleet)
    folder = opened(fleet)
    playing = carry_out(fleet, gpuval_kueue_queue="gangs")
    selector = names.run_selector(folder.read_run()["run_id"])
    until(lambda: len(kit.all("Job", selector)) == 2, "the Jobs of the round")
    (job_set,) = kit.all("JobSet", selector)
    assert job_set["metadata"]["labels"][gangs.QUEUE_LABEL] == "gangs"
    playing.kill()
    assert not kit.all("Pod", selector), "nothing runs that no queue has admitted"
    kit.forget_requests()
    playing = carry_out(fleet, gpuval_kueue_queue="gangs")
    playing.expect(r"waits for queue gangs")
    kit.change("JobSet", job_set["metadata"]["name"], {"spec": {"suspend": False}})
    done = playing.wait()
    assert done.code == 0, str(done)
    assert len(kit.all("Job", selector)) == 2 and len(kit.all("JobSet", selector)) == 1
    assert set(kit.requests) <= permissions.granted(permissions.documents("gpuval"))
    assert {json.loads(folder.evidence_file(n, "second").read_text())["state"] for n in folder.read_run()["nodes"]} == {
        "success"
    }
    assert fleet.play("gpuval.fleet.clean").code == 0
    assert not kit.all("JobSet", selector)
    assert {one.verb for one in kit.requests if one.resource == "jobsets"} >= {"list", "deletecollection"}


def test_a_member_that_was_evicted_is_not_started_alone(kit, fleet):
    begun(fleet)
    folder = opened(fleet)
    kit.fault("node-002", Fault("evicted", stage="second", times=1))
    done = carry_out(fleet).wait()
    assert done.code == 0, str(done)
    launch = json.loads(folder.launch_file("node-002").read_text())
    assert (launch["attempt"], launch["contact"]["class"]) == (1, "evicted")
    selector = names.run_selector(folder.read_run()["run_id"])
    assert sorted(job["metadata"]["labels"]["gpuval.io/attempt"] for job in kit.all("Job", selector)) == ["1", "1"]


def test_what_a_queue_still_holds_back_ends_with_its_round(kit, fleet):
    begun(fleet)
    folder = opened(fleet)
    playing = carry_out(fleet, gpuval_kueue_queue="gangs")
    selector = names.run_selector(folder.read_run()["run_id"])
    (first, _second) = until(lambda: len(found := kit.all("Job", selector)) == 2 and found, "the Jobs of the round")
    kit.change("Job", first["metadata"]["name"], {"spec": {"suspend": False}})
    node = first["metadata"]["annotations"]["gpuval.io/node-name"]
    until(lambda: folder.evidence_file(node, "second").exists(), "the record of the one that was admitted")
    folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
    done = playing.wait()
    assert done.code == 0, str(done)
    until(lambda: [job["metadata"]["name"] for job in kit.all("Job", selector)] == [first["metadata"]["name"]],
          "the other's Job to be gone: admitted later, its pod would take the node from the next round")  # fmt: skip


def test_a_member_without_a_place_does_not_hold_up_the_round_and_a_search_leaves_nothing(kit, fleet):
    begun(fleet)
    folder = opened(fleet, "search-01")
    kit.fault("node-002", Fault("unschedulable"))
    done = carry_out(fleet, round="search-01", run_pod_patience_seconds=3).wait()
    assert done.code == 0, str(done)
    record = json.loads(folder.evidence_file("node-001", "second").read_text())
    assert record["state"] == "success"
    launch = json.loads(folder.launch_file("node-002").read_text())
    assert (launch["attempt"], launch["state"], launch["class"]) == (1, "failed", "gpus_in_use")
    selector = names.run_selector(folder.read_run()["run_id"])
    until(lambda: not there(kit, selector), "everything of the round to be gone")


def test_a_round_that_may_not_make_its_service_says_which_rule_is_missing(kit, fleet):
    begun(fleet)
    folder = opened(fleet)
    kit.deny("create", "", "services")
    done = carry_out(fleet).wait()
    assert done.code != 0
    assert "this user may not create services" in done.told
    assert not kit.all("Job", names.run_selector(folder.read_run()["run_id"]))


def test_a_round_whose_keys_are_gone_is_refused(kit, fleet):
    begun(fleet)
    folder = opened(fleet)
    keys.forget(folder)
    done = carry_out(fleet).wait()
    assert done.code != 0
    assert "its keys were not made, or forgotten" in done.told
    assert not kit.all("Job", names.run_selector(folder.read_run()["run_id"]))


def test_nodes_that_passed_work_together_for_real(tmp_path):
    """By the playbook, with the real runner and PyTorch; the nodes' own network is addresses of the loopback here."""
    with ClusterKit(tmp_path, on_stage=Containers(tmp_path / "pods")) as kit:
        for number, name in enumerate(kit.add_nodes(2, gpus=0), 2):
            addresses = [{"type": "InternalIP", "address": f"127.0.0.{number}"}]
            kit.change("Node", name, {"status": {"addresses": addresses}}, namespace="")
        fleet = ClusterFleet(
            tmp_path / "fleet" / "of",
            kit=kit,
            settings={
                "gpuval_stages": ["facts"],
                "gpuval_telemetry": False,
                "gpuval_pods": {"image": IMAGE, "python": str(NODE_PYTHON), "gang": {"host_network": True}},
                "run_gang_stages": ["collective"],
                "collective_seconds": 2,
                "collective_largest_bytes": 1 << 20,
            },
        )
        done = fleet.play()
        fleet.end()
        assert done.code == 0, str(done)
        assert "round all: 2 nodes in 1 gang(s), collective" in done.told
        for node in ("node-001", "node-002"):
            record = fleet.record(node, "collective")
            assert record["state"] == "success", record["message"]
            assert record["environment"]["gang"]["name"] == "all"
        (jobs,) = [kit.all("Job", of_rounds(fleet.run_id))]
        assert len(jobs) == 2 and all(job["spec"]["template"]["spec"]["hostNetwork"] for job in jobs)
