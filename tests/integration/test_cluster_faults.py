"""Whole runs on a simulated cluster where each node has another fault: each is named with what to do, none is lost."""

import signal

import pytest

from tests.kit.cluster import ClusterKit, Fault
from tests.kit.cluster_fleet import BEGUN, WORK, ClusterFleet, Containers

#: It has to pass for pods that never start; the cluster starts the others at once.
PATIENCE = {"run_pod_patience_seconds": 5, "run_pod_start_seconds": 5}
DEADLINE_SECONDS = 120  # two attempts of all fit into it on a busy machine, too

#: Node, what strikes it, and what the report must say: verdict, class, words of the reason, words of the remedy.
FAULTS = {
    "no-image": (
        Fault("image_pull"),
        ("INCOMPLETE", "image_not_found", "registry.example/facts:1: not found", "gpuval_images"),
    ),
    "no-work-image": (
        Fault("image_pull", stage="work"),
        ("INCOMPLETE", "image_not_found", "registry.example/work:1: not found", "gpuval_images"),
    ),
    "bad-name": (
        Fault("invalid_image"),
        ("INCOMPLETE", "image_name", "invalid reference format", "gpuval_pods.image"),
    ),
    "full": (
        Fault("unschedulable"),
        ("INCOMPLETE", "gpus_in_use", "Insufficient nvidia.com/gpu", "spec.nodeName=full"),
    ),
    "over-quota": (
        Fault("quota"),
        ("INCOMPLETE", "quota", "exceeded quota: gpus", "kubectl describe quota"),
    ),
    **{
        f"over-quota-{number}": (
            Fault("quota"),
            ("INCOMPLETE", "quota", "pods refused: exceeded quota: gpus", "kubectl describe quota"),
        )
        for number in range(3)
    },
    "refused": (
        Fault("admission"),
        ("INCOMPLETE", "gpu_allocation", "requested number of devices unavailable", "device plugin"),
    ),
    "oom": (
        Fault("oom", stage="work"),
        ("INCOMPLETE", "out_of_memory", "the container of work: out of memory (its limit", "what fills the memory"),
    ),
    "broken": (
        Fault("exit", stage="work", exit_code=139),
        ("FAIL", "work_crash", "the container of work was killed by SIGSEGV", "nodes/broken/work.log"),
    ),
    "lost": (
        Fault("node_lost", stage="work"),
        ("INCOMPLETE", "node_lost", "Taint manager: deleting due to NoExecute taint", "the log of its kubelet"),
    ),
    "gone": (
        Fault("node_deleted", stage="work"),
        ("INCOMPLETE", "node_lost", "PodGC: node no longer exists", "if the node was removed, replace it"),
    ),
    "late": (
        Fault("hang", stage="work"),
        ("INCOMPLETE", "deadline_exceeded", "ended by its deadline in work", "gpuval_deadline_seconds"),
    ),
}
#: Struck once only: their second attempt passes.
SPARED = {
    "evicted": Fault("evicted", stage="work", attempt=1),
    "preempted": Fault("preempted", stage="work", attempt=1),
    "deleted": Fault("deleted", stage="work", attempt=1),
    "job-deleted": Fault("job_deleted", stage="work", attempt=1),
    "oom-once": Fault("oom", stage="work", attempt=1),
}
#: What is wrong before anything is placed.
AWAY = {
    "not-ready": ("INCOMPLETE", "node_not_ready", "NetworkPluginNotReady", "kubectl describe node not-ready"),
    "cordoned": ("INCOMPLETE", "cordoned", "it is cordoned", "kubectl uncordon cordoned"),
    "missing": ("INCOMPLETE", "node_missing", "the cluster has no node missing", "kubectl get nodes"),
}
GOOD = ("good-1", "good-2")
SLOW_WORK = {**WORK, "command": ["sh", "-c", f"echo {BEGUN}; sleep 3; echo worked: 3 items"], "grace_seconds": 2}
#: Faults whose pod is told to end; others take its processes away.
TOLD = ("preempted", "drained", "deleted", "job_deleted")
KILLED = ("oom", "evicted", "exit", "node_lost", "node_deleted", "hang")


def struck(run):
    """The signal that a fault of the simulated cluster means for the runner of a stage."""
    fault = SPARED.get(run.node) or FAULTS.get(run.node, (None,))[0]
    if fault is None or fault.stage != run.stage or fault.attempt not in (0, run.attempt):
        return None
    return {**dict.fromkeys(TOLD, signal.SIGTERM), **dict.fromkeys(KILLED, signal.SIGKILL)}.get(fault.kind)


def decisive(entry):
    """Reasons and remedies of the required checks that a node did not pass."""
    found = [
        check
        for check in entry["checks"]
        if check["severity"] == "required" and check["verdict"] in ("fail", "missing")
    ]
    return [check["reason"] for check in found], [check["remedy"] for check in found]


def states(entry):
    return {stage["name"]: (stage["state"], stage["attempt"]) for stage in entry["stages"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The fleet, the cluster and how the run ended."""
    root = tmp_path_factory.mktemp("cluster-faults")
    with ClusterKit(root, removal_seconds=1.2, on_stage=Containers(root / "pods", struck=struck)) as kit:
        for name in (*GOOD, *FAULTS, *SPARED):
            kit.add_node(name, gpus=0)
        machine = kit.get("Node", "good-1", "")["status"]["nodeInfo"]
        kit.change("Node", "good-2", {"status": {"nodeInfo": machine}}, "")
        kit.add_node("not-ready", gpus=0, ready=False)
        kit.add_node("cordoned", gpus=0, unschedulable=True)
        for name, (fault, _said) in FAULTS.items():
            kit.fault(name, fault)
        for name, fault in SPARED.items():
            kit.fault(name, fault)
        fleet = ClusterFleet(
            root / "fleet",
            kit=kit,
            expected=[*GOOD, *FAULTS, *SPARED, *AWAY],
            settings={
                **PATIENCE,
                "work_workload": SLOW_WORK,
                "gpuval_deadline_seconds": DEADLINE_SECONDS,
                "gpuval_pods": {"image": "registry.example/facts:1", "deadline_slack_seconds": 1},
            },
        )
        done = fleet.play()
        print(done)  # shown with whatever fails
        yield fleet, kit, done
        done = fleet.play("gpuval.fleet.clean")
        assert done.code == 0, str(done)
        assert [kit.all(kind) for kind in ("Job", "Pod", "Secret", "ConfigMap")] == [[], [], [], []]


def test_nothing_is_lost(run):
    fleet, _kit, done = run
    assert done.code == 2, str(done)
    names = {*GOOD, *FAULTS, *SPARED, *AWAY}
    assert {entry["name"] for entry in fleet.report()["nodes"]} == names
    verdicts = [said[0] for _fault, said in FAULTS.values()] + [said[0] for said in AWAY.values()]
    assert fleet.report()["counts"] == {
        "expected": len(names),
        "PASS": len(GOOD) + len(SPARED),
        "FAIL": verdicts.count("FAIL"),
        "INCOMPLETE": verdicts.count("INCOMPLETE"),
        "flaky": 0,  # an eviction and a want of memory are no flakiness
    }, str(done)


@pytest.mark.parametrize("node", [*FAULTS, *AWAY])
def test_each_fault_is_named_with_its_remedy(run, node):
    fleet, _kit, done = run
    verdict, known, message, remedy = AWAY[node] if node in AWAY else FAULTS[node][1]
    entry = fleet.verdict(node)
    reasons, remedies = decisive(entry)
    assert (entry["verdict"], entry["class"]) == (verdict, known), (reasons, str(done))
    assert any(message in reason for reason in reasons), reasons
    assert any(remedy in text for text in remedies), remedies


@pytest.mark.parametrize("node", GOOD)
def test_the_others_pass(run, node):
    fleet, _kit, _done = run
    assert states(fleet.verdict(node)) == {"facts": ("success", 1), "work": ("success", 1)}
    assert fleet.verdict(node)["verdict"] == "PASS"


def test_a_pod_that_was_evicted_has_another_turn(run):
    fleet, kit, done = run
    assert "evicted: launched again, as attempt 2" in done.output
    assert "evicted" in done.output.partition("passed on a retry: ")[2].partition("\n")[0]
    assert "Flaky" not in done.output
    assert states(fleet.verdict("evicted")) == {"facts": ("success", 1), "work": ("success", 2)}
    assert "another machine has this name" not in done.told
    for name in ("preempted", "deleted", "job-deleted"):
        assert states(fleet.verdict(name)) == {"facts": ("success", 1), "work": ("success", 2)}
        assert BEGUN in (fleet.run_folder / f"nodes/{name}/work.attempt-1.log").read_text()
    (before,) = fleet.record("preempted", "work")["attempts"]
    assert before["state"] == "cancelled"
    assert len([job for job in kit.all("Job") if job["metadata"]["labels"]["gpuval.io/node"] == "evicted"]) == 2


def test_a_stage_out_of_memory_is_run_again_by_the_retry_rules(run):
    fleet, _kit, _done = run
    entry = fleet.verdict("oom-once")
    assert (entry["verdict"], entry["flaky"]) == ("PASS", False)
    assert "oom-once" in _done.output.partition("- Ran out of memory once")[2].partition("\n")[0]
    assert states(entry) == {"facts": ("success", 1), "work": ("success", 2)}
    assert BEGUN in (fleet.run_folder / "nodes/oom-once/work.attempt-1.log").read_text()
    assert [(one["attempt"], one["state"]) for one in fleet.record("oom-once", "work")["attempts"]] == [(1, "crash")]
    assert states(fleet.verdict("oom"))["work"] == ("crash", 2)


def test_a_refusal_of_the_namespace_is_said_once(run):
    _fleet, _kit, done = run
    assert done.told.count("namespace gpuval: pods refused: exceeded quota: gpus") == 1
    assert "over-quota: pending" not in done.told


def test_two_nodes_with_one_machine_id_are_named(run):
    _fleet, _kit, done = run
    assert "good-1, good-2 have one machine id" in done.told


def test_evidence_of_what_ran_is_kept(run):
    fleet, _kit, _done = run
    for node in ("no-work-image", "lost", "gone", "late", "oom", "broken"):
        assert states(fleet.verdict(node))["facts"][0] == "success", node
        assert "facts attempt" in fleet.log(node, "facts")


def test_the_run_does_not_wait_for_what_does_not_come(run):
    """The node that hangs ends by its deadline; nothing waits longer than that."""
    _fleet, _kit, done = run
    assert "the deadline of" not in done.output, str(done)
