"""Every rule on how a stage ended decides a case, and the first that applies counts."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import stage_end
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.stage_end import SharedFailure, StageEnd
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.documents import RUN_ENDED

from tests.kit.builders import check, healthy, judge, make_record, make_run, metric

USERS = [{"process": "python 12", "accelerator": "gpu:0"}]
POD = {"class": "evicted", "message": "the node was low on memory", "remedy": "free memory on {node}", "pod": "p-1"}
NO_RESULT = "exit code 1 without a result; last output: done"
OF_PROGRAM = {"class": "own_program", "text": "TypeError: unsupported operand", "rank": 1}
OF_PACKAGE = {"class": "environment", "text": "No module named 'httpx2'", "rank": None, "package": "httpx2"}
XID = {"class": "hardware", "text": "NVRM: Xid (PCI:0000:9d:00): 79, GPU has fallen off the bus.", "rank": None}


def record(stage="training", state="crash", message=NO_RESULT, exit_code=1, attempts=(), **environment):
    return make_record(
        "node-1", stage, state=state, message=message, exit_code=exit_code, environment=environment,
        attempt=1 + len(attempts), attempts=list(attempts),
    )  # fmt: skip


def end(stage_record, **fields):
    return StageEnd("node-1", stage_record["stage"], stage_record, **fields)


def repeated(*earlier):
    return record("my_job", attempts=[record("my_job", state) for state in earlier])


def shared(failure_class):
    return SharedFailure("training", failure_class, "crash: exit code 1", ("node-1", "node-2"), 2)


UNSTARTED = {"state": "failed", "class": "suspended", "message": "waits", "remedy": "raise the quota"}
CASES = {
    "contact lost": (end(record(state="running"), contact=POD), "missing", "evicted"),
    "succeeded": (end(record(state="success")), "pass", ""),
    "run not ended": (end(record(state="running"), resume="make validate"), "missing", "training_running"),
    "not started in a gang": (
        StageEnd("node-1", "collective", unstarted=UNSTARTED, of_gang=True),
        "missing",
        "suspended",
    ),
    "refused its part in a gang": (
        StageEnd("node-1", "collective", refusal="run first is at work on this node", of_gang=True),
        "missing",
        "collective_missing",
    ),
    "own program of a gang": (end(record("my_job"), of_gang=True), "missing", "own_program"),
    "no success of a gang": (end(record("collective", state="timeout"), of_gang=True), "missing", "collective_timeout"),
    "hardware": (end(record("my_job", cause=XID, accelerator_users=USERS)), "fail", "hardware"),
    "beside other work": (end(record(accelerator_users=USERS)), "missing", "training_crash"),
    "cause outside the node": (end(record("inference", cause=OF_PACKAGE)), "missing", "environment"),
    "shared with other nodes": (end(record(), shared=shared("shared")), "missing", "shared"),
    "own program that peers passed": (end(repeated("crash"), peers_passed=2), "fail", "my_job_crash"),
    "own program": (end(record("my_job")), "missing", "own_program"),
    "failed": (end(record("dataset_a", "failure", "dataset a: wrong checksum of b")), "fail", "wrong_digest"),
    "ended by a clean": (end(record(state="pending"), cleaned=True), "missing", "training_pending"),
    "record refused": (
        StageEnd("node-1", "training", refusal="record refused: it is not JSON"),
        "missing",
        "training_refused",
    ),
    "no end": (StageEnd("node-1", "training"), "missing", "training_missing"),
}


def rule_of(stage):
    return next(rule for rule in stage_end.RULES if rule.applies(stage))


def test_every_rule_has_a_case():
    assert list(CASES) == [rule.name for rule in stage_end.RULES]


@pytest.mark.parametrize("name", CASES)
def test_the_rule_decides_its_case(name):
    stage, verdict, failure_class = CASES[name]
    entry = stage_end.judge_end(stage)
    assert rule_of(stage).name == name
    assert (entry["verdict"], entry.get("class", "")) == (verdict, failure_class)
    assert bool(entry["remedy"]) == (verdict != "pass")
    assert "{" not in entry["remedy"]


#: What the record of a stage says, and the class that follows.
OUTSIDE = [
    ("loading", "crash", "exit code 3 without a result; it answers HTTP 500", {"fault": "store_away"}, "store_away"),
    ("loading", "timeout", "over its limit of 600 s; transferring 4 files", {"fault": "store_away"}, "store_away"),
    ("loading", "failure", "the store lacks the model", {"fault": "store_incomplete"}, "store_incomplete"),
    ("loading", "failure", "rclone is not installed", {"fault": "no_rclone"}, "no_rclone"),
    ("inference", "failure", "neither vllm nor transformers can be imported", {"fault": "no_server"}, "no_server"),
    ("inference", "failure", "the server exited with code 1", {"cause": OF_PACKAGE}, "environment"),
    ("image", "crash", "manifest unknown", {"fault": "delivery"}, "delivery"),
    ("training", "crash", "cannot start: [Errno 28] No space left on device", {}, "disk_full"),
    ("training", "failure", "the log cannot be written: [Errno 122] Disk quota exceeded", {}, "disk_full"),
    ("training", "crash", "no container engine: neither docker nor podman", {}, "no_engine"),
    ("deepspeed", "crash", "DeepSpeed cannot be imported (No module named deepspeed)", {}, "no_package"),
    ("training", "crash", NO_RESULT, {"cause": OF_PROGRAM}, "own_program"),
    ("training", "crash", "killed by SIGKILL", {"cause": {**OF_PROGRAM, "class": "out_of_memory"}}, "out_of_memory"),
    # a program of the user's own
    ("my_job", "crash", "cannot start: /opt/train.sh: No such file or directory", {}, "own_program"),
    ("my_job", "failure", "step train: exit code 2", {}, "own_program"),
    ("my_job", "timeout", "over its limit of 60 s; last output: step 3", {}, "own_program"),
    ("my_job", "crash", "ended without a result: its output has no declared figure", {}, "own_program"),
    ("my_job", "failure", "results.csv: no row has a number as performance", {}, "own_program"),
    ("my_job", "crash", "killed by SIGBUS; last output: step 3", {}, "own_program"),
    ("my_job", "crash", "exit code 1 without a result; [Errno 30] Read-only file system", {}, "own_program"),
    ("my_job", "crash", "exit code 1 without a result; [Errno 28] No space left on device", {}, "disk_full"),
    ("my_job", "crash", NO_RESULT, {"cause": OF_PACKAGE}, "environment"),
    ("my_job", "crash", NO_RESULT, {"cause": {**OF_PROGRAM, "class": "crash"}}, "own_program"),
]  # fmt: skip
IN_THE_NODE = [
    ("my_job", "crash", "killed by SIGBUS", {"cause": {**XID, "text": "Memory failure: 0x1a2b: recovery"}}, "hardware"),
    ("my_job", "failure", "step train: exit code 2", {"cause": XID}, "hardware"),
    ("training", "crash", NO_RESULT, {"cause": XID}, "hardware"),
    ("training", "crash", NO_RESULT, {}, "training_crash"),
    ("image", "crash", "exit code 125 without a result; no output", {}, "image_crash"),
    ("training", "crash", NO_RESULT, {"cause": {**XID, "class": "crash"}}, "training_crash"),
    ("training", "crash", NO_RESULT, {"cause": {**XID, "class": "preempted"}}, "training_crash"),
    ("training", "crash", "cannot open the log: Read-only file system", {}, "read_only"),
    ("combined_load", "failure", "wrong results under load: gpu:3", {}, "combined_load_failure"),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "state", "message", "environment", "failure_class"), OUTSIDE)
def test_what_is_not_the_nodes_is_incomplete_with_its_class(stage, state, message, environment, failure_class):
    entry = stage_end.judge_end(end(record(stage, state, message, **environment)))
    assert (entry["verdict"], entry["class"]) == ("missing", failure_class)
    assert entry["remedy"]


@pytest.mark.parametrize(("stage", "state", "message", "environment", "failure_class"), IN_THE_NODE)
def test_what_speaks_of_the_node_is_a_fail(stage, state, message, environment, failure_class):
    entry = stage_end.judge_end(end(record(stage, state, message, **environment)))
    assert (entry["verdict"], entry["class"]) == ("fail", failure_class)


@pytest.mark.parametrize(
    ("earlier", "peers", "verdict"),
    [(("crash",), 2, "fail"), (("crash",), 1, "missing"), ((), 2, "missing"), (("cancelled",), 2, "missing")],
)
def test_a_program_of_ones_own_is_the_nodes_fault_only_beside_peers_and_on_a_retry(earlier, peers, verdict):
    assert stage_end.judge_end(end(repeated(*earlier), peers_passed=peers))["verdict"] == verdict


def test_peers_that_passed_are_counted_in_the_run():
    run = make_run(["node-1", "node-2", "node-3"], stages=["facts", "my_job"])
    evidence = healthy(run)
    for name in run["nodes"]:
        evidence.records[name]["my_job"] = make_record(name, "my_job")
    evidence.records["node-1"]["my_job"] = repeated("timeout")
    first, *others = judge(run, evidence)["nodes"]
    assert (first["verdict"], first["class"]) == ("FAIL", "my_job_crash")
    assert [node["verdict"] for node in others] == ["PASS", "PASS"]
    evidence.records["node-2"]["my_job"]["state"] = "cancelled"
    assert judge(run, evidence)["nodes"][0]["class"] == "own_program"


def test_a_failed_xid_check_fails_a_node_whose_own_program_crashed():
    run = make_run(stages=["facts", "my_job"])
    evidence = healthy(run)
    evidence.records["node-1"]["my_job"] = record("my_job")
    evidence.records["node-1"]["my_job"]["metrics"] = [metric("my_xid_count", 1, scope="gpu:0")]
    xid = check("my_xid", stage="my_job", metric="my_xid_count", kind="max", value=0, scope="gpu")
    report = judge(run, evidence, [xid])
    schemas.validate("report", report, what="report")
    assert (report["verdict"], report["nodes"][0]["class"]) == ("FAIL", "my_xid")


def test_a_cleaned_run_says_so_and_a_lost_pod_says_why():
    assert CASES["ended by a clean"][0].reason == f"pending: {RUN_ENDED}"
    reason = CASES["contact lost"][0].reason
    assert reason.endswith("; its pod ended (evicted): the node was low on memory")
    assert stage_end.judge_end(CASES["contact lost"][0])["remedy"] == "free memory on node-1"
