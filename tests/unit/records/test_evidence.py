import json
from datetime import datetime, timedelta

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import safe_name
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import (
    EvidenceRefused,
    accept_record,
    accept_series,
    digest_of,
    parse_key,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kit.builders import (
    LAUNCHED,
    RUN_ID,
    accepted,
    facts_record,
    healthy_records,
    judge,
    make_record,
    make_run,
    metric,
    times,
)

KEY = {"run_id": RUN_ID, "node": "node-1", "stage": "training"}


def accept(raw, **fields):
    raw = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    return accept_record(raw, **{**KEY, **fields})


@pytest.mark.parametrize("stage", ["facts", "training", "loading", "inference"])
def test_sound_records_are_accepted_whole(stage):
    record = healthy_records()[stage]
    assert accept(record, stage=stage) == record


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"x" * ((1 << 20) + 1), "over the limit"),
        (b"", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a": 1, "a": 2}', "stands twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "5000 digits"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested"),
        (b'{"a": ' + b"[" * 50 + b"]" * 50 + b"}", "deeper than 32"),
        (b"{}", "required property"),
    ],
)
def test_what_is_no_record_is_refused(raw, said):
    with pytest.raises(EvidenceRefused, match=said):
        accept(raw)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"run_id": "run-2"}, "run_id is 'run-2'"),
        ({"node": "node-2"}, "node is 'node-2'"),
        ({"node": "node-1\n"}, "node"),
        ({"node": "../../etc/passwd"}, "node"),
        ({"stage": "loading"}, "stage is 'loading'"),
        ({"state": "great"}, "state"),
        ({"extra": 1}, "extra"),
        ({"schema": "gpuval.record/2"}, "schema"),
        ({"attempts": [make_record("node-2")], "attempt": 2}, "node is 'node-2'"),
        ({"attempts": [make_record(attempt=2)]}, "listed as earlier"),
        ({"attempts": [make_record(attempts=[make_record()], attempt=2)], "attempt": 3}, "attempts of its own"),
        ({"metrics": [metric("ok", 1), metric("Bad", 1)]}, "metrics"),
        ({"metrics": [metric("ok\n", 1)]}, "metrics"),
        ({"metrics": [metric("ok", True)]}, "metrics"),
        ({"metrics": [metric("ok", "1")]}, "metrics"),
        ({"metrics": [metric("ok", 1, scope="gpu:\u0663")]}, "metrics"),
        ({"metrics": [{**metric("ok", 1), "more": 1}]}, "metrics"),
        ({"metrics": {"ok": 1}}, "metrics"),
        ({"message": "x" * 5000}, "message"),
    ],
)
def test_forged_records_are_refused(fields, said):
    with pytest.raises(EvidenceRefused, match=said):
        accept(make_record(**fields))


def test_text_is_cleaned_everywhere():
    bad = "a\x1b[31mred\x1b]0;title\x07\u202ereversed\x00\u200b\x9b2Jend\r\nline"
    good = "aredreversedend\nline"
    record = make_record(
        message=bad,
        command=[bad],
        fingerprints={"k" + bad: bad},
        environment={"deep": [{"x": bad}]},
        artifacts=[bad],
        metrics=[metric("m", 1, "\x1b[1mcount")],
    )
    taken = accept(record)
    assert taken["message"] == good
    assert taken["command"] == [good]
    assert taken["fingerprints"] == {"k" + good: good}
    assert taken["environment"] == {"deep": [{"x": good}]}
    assert taken["metrics"][0]["unit"] == "count"


def test_lone_surrogates_become_writable():
    taken = accept(json.dumps(make_record(message="\ud800")).encode())
    assert taken["message"].encode() == b"\xef\xbf\xbd"


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_accepted_never_more(raw):
    with pytest.raises(EvidenceRefused):
        accept(raw)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("folder/records/training/node-1.json", ("records", "training", "node-1")),
        ("folder/series/training/node.1.json", ("series", "training", "node.1")),
        ("folder/logs/training/node-1.log", ("logs", "training", "node-1")),
        ("folder/records/training/node-1.log", None),
        ("folder/records/training/../x.json", None),
        ("folder/records/training/..json", None),
        ("folder/records/training/.json", None),
        ("folder/records/training/a/b.json", None),
        ("folder/records/Training/node-1.json", None),
        ("folder/records/training/node-1\n.json", None),
        ("folder/plans/node-1.json", None),
        ("folder/run.json", None),
        ("other/records/training/node-1.json", None),
        ("folderx/records/training/node-1.json", None),
    ],
)
def test_parse_key(key, expected):
    assert parse_key("folder", key) == expected
    assert parse_key("folder/", key) == expected


def test_parse_key_of_a_deep_folder():
    assert parse_key("a/b", "a/b/records/facts/n.json") == ("records", "facts", "n")


def test_series():
    document = {
        "schema": "gpuval.series/1",
        **KEY,
        "attempt": 1,
        "series": [
            {"name": "training_loss", "unit": "loss", "scope": "node", "x_unit": "step", "x": [1, 2], "y": [3.5, None]}
        ],
    }
    raw = json.dumps(document).encode()
    assert accept_series(raw, **KEY) == document
    with pytest.raises(EvidenceRefused, match="node is"):
        accept_series(raw, **{**KEY, "node": "node-2"})
    document["series"][0]["x"] = [1]
    with pytest.raises(EvidenceRefused, match="1 x values and 2 y values"):
        accept_series(json.dumps(document).encode(), **KEY)


def test_taken_records_are_evidence_or_problems():
    run = make_run(["node-1"], stages=["facts", "training"])
    found = evidence.RunEvidence()
    for key, raw in (
        ("folder/records/facts/node-1.json", json.dumps(facts_record()).encode()),
        ("folder/records/training/node-1.json", b"{"),
        ("folder/records/loading/node-1.json", json.dumps(make_record(stage="loading")).encode()),
        ("folder/records/training/stranger.json", json.dumps(make_record("stranger")).encode()),
        ("folder/records/training/../../../etc/x.json", b"{}"),
    ):
        evidence.take_record(found, run, key, raw)
    assert found.records == {"node-1": {"facts": accepted(facts_record())}}
    reasons = [problem["reason"] for problem in found.problems]
    assert [(problem["node"], problem["stage"]) for problem in found.problems] == [
        ("node-1", "training"),
        ("node-1", "loading"),
        (None, None),
        (None, None),
    ]
    assert "record refused: not JSON" in reasons[0]
    assert "'stranger'" in reasons[2]
    assert "etc/x.json" in reasons[3]


@pytest.mark.parametrize(
    ("ended", "remedy"),
    [
        ("out of memory: the kernel killed the runner (pid 7)", "give the node more memory"),
        ("the runner ended; its log ends with: OSError", "read runner.log"),
    ],
)
def test_a_runner_that_has_gone_is_named_with_its_cause(ended, remedy):
    run = make_run(stages=["training"])
    record = make_record(stage="training", state="running", finished_at=None, exit_code=None)
    launch = {"state": "started", "attempt": 1, "runner": "gone", "ended": ended}
    found = evidence.RunEvidence(records={"node-1": {"training": accepted(record)}}, launches={"node-1": launch})
    (node,) = judge(run, found)["nodes"]
    (state,) = [check for check in node["checks"] if check["name"] == "training_state"]
    assert node["verdict"] == "INCOMPLETE"
    assert "its runner ended" in state["reason"] and ended in state["reason"]
    assert state["remedy"].startswith(remedy) and "deadline" not in state["remedy"]


@pytest.mark.parametrize("where", ["the last attempt", "an earlier attempt"])
def test_a_record_of_another_workload_than_the_plans_is_no_evidence(where):
    """Checks hold for a workload: a record that names one of its own would choose which."""
    record = make_record(stage="training", workload="custom")
    if where == "an earlier attempt":
        earlier = {**record, "state": "crash"}
        record = make_record(stage="training", attempt=2, attempts=[earlier])
    run = make_run(stages=["training"])
    found = evidence.RunEvidence()
    assert evidence.take_record(found, run, "folder/records/training/node-1.json", json.dumps(record).encode()) is None
    assert "its workload is 'custom', but the run asks for 'training'" in found.problems[0]["reason"]
    (node,) = judge(run, found)["nodes"]
    assert node["verdict"] == "INCOMPLETE"
    run["workloads"]["training"] = "custom"
    if where == "the last attempt":
        assert evidence.take_record(found, run, "folder/records/training/node-1.json", json.dumps(record).encode())


def taken(launch=None, **fields):
    """The reason for which a record is refused; empty where it is taken."""
    run = make_run(["node-1"], stages=["training"])
    found = evidence.RunEvidence(launches={"node-1": launch or {}})
    evidence.take_record(found, run, "folder/records/training/node-1.json", json.dumps(make_record(**fields)).encode())
    return "".join(problem["reason"] for problem in found.problems)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"exit_code": 137}, "success with exit code 137"),
        ({"exit_code": None}, "success with exit code None"),
        ({"exit_code": 0, "signal": "SIGKILL"}, "success with signal SIGKILL"),
        ({"started_at": None}, "success without started_at"),
        ({"finished_at": None}, "success without finished_at"),
        ({"duration_seconds": None}, "success without duration_seconds"),
        ({"attempt": 2, "attempts": [make_record(exit_code=9)]}, "success with exit code 9"),
        ({"started_at": "2025-11-02T10:00:00Z"}, "2025-11-02T10:00:00Z is not within the run"),
        ({"finished_at": "2999-11-02T10:00:00Z"}, "is not within the run"),
        ({"updated_at": "2026-10-30T10:00:00Z"}, "is not within the run"),
        ({"updated_at": "2026-13-30T10:00:00Z"}, "is not a time"),
        ({"attempt": 2, "attempts": [make_record(started_at="2025-11-02T10:00:00Z")]}, "is not within the run"),
        ({}, ""),
        ({"started_at": "2026-11-02T05:00:00Z"}, ""),  # a clock that is five hours slow
        ({"state": "crash", "exit_code": 137}, ""),
    ],
)
def test_success_has_begun_and_ended_within_the_run(fields, reason):
    assert reason in taken(**fields) and bool(reason) == bool(taken(**fields))


NONCE = "0123456789abcdef0123456789abcdef"
SECOND = evidence.nonce_of(NONCE, 2)


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ({"nonce": NONCE}, True),
        ({}, False),
        ({"nonce": ""}, False),
        ({"nonce": NONCE[::-1]}, False),
        ({"nonce": "\u00e9"}, False),
        ({"nonce": NONCE, "attempt": 2}, False),
        ({"nonce": SECOND, "attempt": 2}, True),
        ({"nonce": SECOND, "attempt": 2, "attempts": [make_record(nonce=NONCE)]}, True),
        ({"nonce": SECOND, "attempt": 2, "attempts": [make_record()]}, False),
    ],
)
def test_a_record_is_of_the_launch_whose_nonce_it_shows(fields, accepted):
    assert ("nonce of its launch" in taken({"nonce": NONCE}, **fields)) is not accepted
    assert not taken({}, **fields)


@pytest.mark.parametrize("name", ["node-1", "a.b_c-d", "10.0.0.1"])
def test_safe_names_stay(name):
    assert safe_name(name) == name


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
@example("../../etc/passwd", "..")
@example("fe80::1", "user@host:22")
def test_safe_names_are_safe_and_keep_nodes_apart(one, other):
    assert parse_key("f", f"f/records/facts/{safe_name(one)}.json") == (
        "records",
        "facts",
        safe_name(one),
    )
    assert (safe_name(one) == safe_name(other)) == (one == other)


PLANNED = {"command": ["{python}", "-m", "work", "--seconds", "20"], "image": None, "runtime": "host"}
RAN = ["/usr/bin/python3", "-m", "work", "--seconds", "20"]


def refused_launch(launch=None, planned=None, **fields):
    """The reason for which a record is not of the launch; empty where it is."""
    launch = {**LAUNCHED, "attempt": 1, "stages": []} if launch is None else launch
    try:
        evidence.check_launch(make_record(**{"command": RAN, **fields}), launch, {**PLANNED, **(planned or {})})
    except evidence.EvidenceRefused as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, ""),
        ({"launch": {}}, "knows no launch of the node with a nonce"),
        ({"launch": {"state": "started", "message": ""}}, "knows no launch of the node with a nonce"),
        ({"attempt": 2}, "attempt 2, but the controller launched 1"),
        ({"attempt": 2, "launch": {**LAUNCHED, "attempt": 2, "stages": ["training"]}}, "without the attempt that it"),
        ({"attempt": 2, "launch": {**LAUNCHED, "attempt": 2, "stages": []}}, ""),  # all of the node was launched again
        ({"command": ["true"]}, "its command is 'true', but the plan's is '{python} -m work --seconds 20'"),
        ({"command": [*RAN[:-1], "1"]}, "its command is"),
        ({"command": RAN[:1]}, "its command is"),
        ({"command": RAN[:1], "message": f"{evidence.SHRUNK} 1 MiB: rest"}, ""),
        ({"image": "other:1"}, "its image is other:1, but the plan's is none"),
        ({"planned": {"image": "train:1", "runtime": "docker"}}, "its image is none, but the plan's is train:1"),
        ({"planned": {"image": "train:1", "runtime": "docker"}, "image": "train:1"}, ""),
        ({"planned": {"image": "train:1", "runtime": "pod"}, "image": "other:1"}, "its image is other:1"),
        ({"planned": {"image": "train:1", "runtime": "host"}}, ""),
        ({"planned": {"image": "train:1", "runtime": "docker"}, "stage": "facts"}, ""),
    ],
)
def test_a_record_is_of_the_launch_and_the_plan(arguments, reason):
    refusal = refused_launch(**arguments)
    assert reason in refusal and bool(reason) == bool(refusal)


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ([("gpu:0", 1.0), ("gpu:0", 2.0)], "training_model_tflops of gpu:0 stands twice: 1.0 and 2.0"),
        ([("node", 1.0), ("node", 1.0)], "stands twice"),
        ([("gpu:0", 1.0), ("gpu:00", 1.0)], "gpu:00"),
        ([("rank:01", 1.0)], "rank:01"),
        ([("gpu:0", 1.0), ("gpu:1", 1.0), ("node", 1.0)], ""),
    ],
)
def test_a_part_has_one_figure_of_a_name(figures, reason):
    metrics = [metric("training_model_tflops", value, "TFLOP/s", scope) for scope, value in figures]
    refusal = taken(metrics=metrics)
    assert reason in refusal and bool(reason) == bool(refusal)


def test_a_stage_is_no_longer_than_its_run_exists():
    run = make_run(stages=["training"], created_at=run_folder.now())
    began = run["created_at"]
    for seconds, is_taken in ((60.0, True), (300.0, False)):
        found = evidence.RunEvidence()
        raw = json.dumps(make_record(**times(began, seconds))).encode()
        assert bool(evidence.take_record(found, run, "folder/records/training/node-1.json", raw)) == is_taken


@pytest.mark.parametrize(
    ("before", "attempts", "is_taken"),
    [
        ("crash", [], False),
        ("failure", [{"state": "success"}], False),
        ("crash", [{"state": "crash", "exit_code": 1}], True),
        ("success", [], True),
        ("running", [], True),
    ],
)
def test_a_failed_attempt_that_the_controller_saw_stays(before, attempts, is_taken):
    run, found = make_run(stages=["training"]), evidence.RunEvidence()
    key = "folder/records/training/node-1.json"
    finished = None if before == "running" else make_record()["finished_at"]
    evidence.take_record(found, run, key, json.dumps(make_record(state=before, finished_at=finished)).encode())
    later = make_record(attempt=2, attempts=[make_record(**fields) for fields in attempts])
    assert bool(evidence.take_record(found, run, key, json.dumps(later).encode())) == is_taken
    assert found.records["node-1"]["training"]["state"] == ("success" if is_taken else before)


@pytest.mark.parametrize(
    ("written", "notation"),
    [("bytes_per_second", "bytes/s"), ("tokens_per_second", "tokens/s"), ("bytes/s", "bytes/s"), ("norm", "norm")],
)
def test_a_unit_has_one_notation_and_the_digest_is_of_what_the_node_wrote(written, notation):
    document = make_record(metrics=[{"name": "speed_of_it", "value": 7, "unit": written, "scope": "node"}])
    found = accept(document)
    assert [one["unit"] for one in found["metrics"]] == [notation]
    assert digest_of(found) == digest_of(document)


def test_a_figure_has_a_revision_or_none():
    figure = {"name": "speed_of_it", "value": 7, "unit": "bytes/s", "scope": "node"}
    assert accept(make_record(metrics=[{**figure, "revision": 2}]))["metrics"] == [{**figure, "revision": 2}]
    for revision in (0, 1.5, "2", None):
        with pytest.raises(EvidenceRefused):
            accept(make_record(metrics=[{**figure, "revision": revision}]))


@pytest.mark.parametrize(("lasted", "is_taken"), [(600.0, True), (60.0, False), (-3500.0, True)])
@pytest.mark.parametrize("has_ended", [True, False])
def test_a_stage_is_no_longer_than_its_run_by_a_clock_that_was_not_set_back(lasted, is_taken, has_ended):
    found, run = evidence.RunEvidence(), make_run(["node-1"], stages=["training"])
    end = datetime.fromisoformat(run["created_at"]) + timedelta(seconds=lasted)
    run["finished_at"] = end.strftime("%Y-%m-%dT%H:%M:%SZ") if has_ended else None
    raw = json.dumps(make_record(duration_seconds=400.0)).encode()
    at = (end + timedelta(days=400 if has_ended else 0)).timestamp()
    assert bool(evidence.take_record(found, run, "folder/records/training/node-1.json", raw, at)) == is_taken
    assert bool(found.problems) != is_taken


@pytest.mark.parametrize("days_later", [0, 3, 400])
def test_a_record_from_the_future_of_its_run_is_refused_whenever_it_is_judged(days_later):
    run = make_run(["node-1"], stages=["training"], finished_at="2026-11-02T11:00:00Z")
    end = datetime.fromisoformat(run["finished_at"])
    for days, is_taken in ((1, True), (3, False)):
        found, time = evidence.RunEvidence(), (end + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
        raw, at = json.dumps(make_record(updated_at=time)).encode(), (end + timedelta(days=days_later)).timestamp()
        assert bool(evidence.take_record(found, run, "folder/records/training/node-1.json", raw, at)) == is_taken
        assert bool(found.problems) != is_taken
