"""What several nodes fail at once through one thing that they share is one finding about that thing."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import stage_end
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.stage_end import FailedStage, find_shared

from tests.kit.builders import check, healthy, judge, make_record, make_run, metric

ECC = {"class": "hardware", "text": "CUDA error: uncorrectable ECC error encountered", "rank": 3}


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("crash: no route to 10.0.0.7:29500", "crash: no route to 10.0.0.12:29500"),
        ("rank 3 of node-a: out of range at 0x7f1bc2", "rank 11 of node-b: out of range at 0xdeadbeef"),
        ("GPU-0a1b2c3d-11ee-4f5a-9b6c-778899aabbcc", "GPU-ffeeddcc-11ee-4f5a-9b6c-001122334455"),
        ("over its limit of 60 s; step12 loss 3.14", "over its limit of 60 s; step7 loss 9e-5"),
        ("0000:9d:00.0 gpu:3 23 % left", "0000:1b:00.0 gpu:7 5 % left"),
    ],
)  # fmt: skip
def test_names_numbers_and_addresses_do_not_tell_causes_apart(text, other):
    names = {"node-a", "node-b"}
    assert stage_end.normalised(text, names) == stage_end.normalised(other, names)


@pytest.mark.parametrize(
    ("text", "other"),
    [("TypeError: x", "KeyError: x"), ("killed by SIGSEGV", "killed by SIGBUS"), ("dead beef", "feed")],
)
def test_words_tell_causes_apart(text, other):
    assert stage_end.normalised(text, ()) != stage_end.normalised(other, ())


@pytest.mark.parametrize(
    ("failed", "ran", "shared"),
    [(1, 1, 0), (1, 2, 0), (2, 2, 2), (2, 3, 2), (2, 4, 2), (2, 5, 0), (8, 16, 8), (7, 16, 0), (50, 100, 50)],
)
def test_half_of_the_nodes_that_ran_and_two_of_them_share_a_failure(failed, ran, shared):
    ends = [FailedStage(f"n{index}", "training", "training_crash", "crash: x") for index in range(failed)]
    assert len(find_shared(ends, {"training": ran})) == shared


def test_causes_of_other_classes_or_stages_are_not_one():
    ends = [
        FailedStage("n1", "training", "environment", "x"), FailedStage("n2", "training", "training_crash", "x"),
        FailedStage("n3", "loading", "environment", "x"),
    ]  # fmt: skip
    assert find_shared(ends, {"training": 2, "loading": 1}) == {}


def fleet(count, failing, stage="training", *, state="crash", message="exit code 1 without a result", **environment):
    """A run whose first nodes fail the stage; the environment may be that of a node."""
    names = [f"node-{index}" for index in range(count)]
    run = make_run(names, stages=["facts", stage])
    evidence = healthy(run)
    for index, name in enumerate(names):
        evidence.records[name].setdefault(stage, make_record(name, stage))
        if index < failing:
            evidence.records[name][stage] = make_record(
                name, stage, state=state, message=f"{message} on {name}", environment=environment, exit_code=1
            )
    return run, evidence


def outcome(run, evidence, checks=()):
    report = judge(run, evidence, list(checks))
    schemas.validate("report", report, what="report")
    return report


def shared_findings(report):
    return [check for check in report["fleet"]["checks"] if check["name"].endswith("_shared")]


def test_a_crash_that_half_of_the_nodes_share_fails_none_and_is_one_finding():
    report = outcome(*fleet(4, 2))
    assert [(node["verdict"], node["class"]) for node in report["nodes"]][:2] == [("INCOMPLETE", "shared")] * 2
    assert report["counts"]["FAIL"] == 0
    (finding,) = shared_findings(report)
    assert (finding["name"], finding["class"], finding["part"], finding["value"]) == (
        "training_shared",
        "shared",
        "fleet",
        2,
    )
    assert finding["reason"] == (
        "2 of 4 nodes ended alike: crash: exit code 1 without a result on the node (node-0, node-1)"
    )
    (line,) = [text for text in report["summary"] if "ended alike" in text]
    assert line.startswith("node-0, node-1 INCOMPLETE training: 2 of 4 nodes ended alike: crash")
    assert "--limit node-0,node-1" in line


def test_a_nodes_name_is_replaced_where_it_is_a_whole_word():
    failures = [FailedStage(name, "training", "training_crash", f"crash in {name}: no n10") for name in ("n1", "n2")]
    assert find_shared(failures, {"training": 2})["n1", "training"].text == "crash in the node: no n10"


@pytest.mark.parametrize(("count", "failing"), [(1, 1), (2, 1), (4, 1), (5, 2), (16, 7)])
def test_less_than_half_of_the_nodes_fail_for_themselves(count, failing):
    report = outcome(*fleet(count, failing))
    assert report["counts"]["FAIL"] == failing
    assert shared_findings(report) == []


def test_a_batch_of_bad_gpus_that_fails_alike_is_a_fail_of_each():
    report = outcome(*fleet(16, 8, cause=ECC))
    assert report["counts"]["FAIL"] == 8
    assert {node["class"] for node in report["nodes"][:8]} == {"hardware"}


@pytest.mark.parametrize(
    ("stage", "message"),
    [("diagnostics", "gpu:1: wrong results in matmul"), ("fingerprint", "gpu:3 differs from itself"),
     ("storage", "the file system lost data"), ("vendor_tools", "dcgm: memory failed")],
)  # fmt: skip
def test_faults_that_a_shipped_program_found_fail_each_node_of_a_bad_batch(stage, message):
    report = outcome(*fleet(4, 2, stage, state="failure", message=message))
    assert report["counts"]["FAIL"] == 2
    assert shared_findings(report) == []


def test_evidence_of_its_own_fails_a_node_that_shares_the_failure():
    run, evidence = fleet(4, 4)
    evidence.records["node-2"]["training"]["metrics"] = [metric("training_xid_count", 1)]
    xid = check("xid", stage="training", metric="training_xid_count", kind="max", value=0, where_reported=True)
    report = outcome(run, evidence, [xid])
    assert [node["verdict"] for node in report["nodes"]] == ["INCOMPLETE", "INCOMPLETE", "FAIL", "INCOMPLETE"]
    assert report["nodes"][2]["class"] == "xid"


@pytest.mark.parametrize(
    ("stage", "environment", "failure_class"),
    [
        ("loading", {"fault": "store_away"}, "store_away"),
        ("inference", {"cause": {"class": "environment", "text": "No module named 'httpx2'"}}, "environment"),
        ("my_job", {"cause": {"class": "own_program", "text": "TypeError: x", "rank": 1}}, "own_program"),
        ("my_job", {}, "own_program"),
    ],
)
def test_a_shared_thing_that_records_name_has_its_class(stage, environment, failure_class):
    report = outcome(*fleet(4, 4, stage, **environment))
    assert {(node["verdict"], node["class"]) for node in report["nodes"]} == {("INCOMPLETE", failure_class)}
    (finding,) = shared_findings(report)
    assert (finding["name"], finding["class"]) == (f"{stage}_shared", failure_class)


def test_ranks_and_last_lines_differ_where_the_root_cause_is_one():
    run, evidence = fleet(3, 3)
    for index, name in enumerate(run["nodes"]):
        cause = {"class": "crash", "text": f"RuntimeError: no socket of rank {index}", "rank": index}
        evidence.records[name]["training"].update(message=f"exit code {index}", environment={"cause": cause})
    report = outcome(run, evidence)
    assert {node["class"] for node in report["nodes"]} == {"shared"}
    assert "RuntimeError: no socket of rank 0" in shared_findings(report)[0]["reason"]


def test_members_of_one_gang_share_no_finding():
    run, evidence = fleet(2, 2, "collective")
    for node in run["nodes"].values():
        node["gang_stages"] = ["collective"]
    assert shared_findings(outcome(run, evidence)) == []
