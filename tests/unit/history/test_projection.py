"""What is kept of records: setups that compare, identities that are some, and nothing without bounds."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history import projection
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.flaky import Judged, flakiness
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import accepted, facts_record, healthy, judge, make_record, make_run, metric

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.text("aB0 ;-\n", max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["index", "name", "serial", "vendor"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def setup(command, **fields):
    return projection.setup_of(make_record(command=command, **fields))


def test_arguments_make_a_setup_and_places_do_not():
    one = setup(["/usr/bin/python3", "-m", "work", "--out", "/tmp/run-1/node-1", "--seconds", "20"])
    assert setup(["/opt/venv/bin/python3", "-m", "work", "--out", "/tmp/run-1/node-1", "--seconds", "20"]) == one
    other = make_record(node="n2", command=["python3", "-m", "work", "--out", "/tmp/run-2/n2", "--seconds", "20"])
    assert projection.setup_of({**other, "run_id": "run-2"}) == one
    assert setup(["python3", "-m", "work", "--out", "/tmp/run-1/node-1", "--seconds", "300"]) != one


def test_a_setup_that_the_stage_reported_is_part_of_it_and_results_are_not():
    one = setup(["x"], fingerprints={"training_setup": "llama-1b", "answer_sha256": "1"})
    assert one == setup(["x"], fingerprints={"training_setup": "llama-1b", "answer_sha256": "2"})
    assert one != setup(["x"], fingerprints={"training_setup": "llama-8b", "answer_sha256": "1"})
    assert one.startswith("llama-1b ")


def test_facts_tell_machine_gpus_and_versions():
    record = facts_record(gpus=2)
    record["environment"]["gpus"][0] |= {"name": "NVIDIA H200", "driver_version": "580.1", "uuid": "GPU-1"}
    record["environment"]["gpus"][1] |= {"name": "NVIDIA H200", "driver_version": "590.1", "serial": "0"}
    line = projection.of_record(accepted(record), "stamp")
    assert (line["machine_id"], line["serial"], line["kind"], line["gpu_count"]) == (
        "machine-of-node-1",
        "S-node-1",
        "h200",
        2,
    )
    assert line["gpus"][0] == {"index": 0, "model": "NVIDIA H200", "serial": "165490", "uuid": "GPU-1"}
    assert line["gpus"][1]["serial"] is None, "a filler is no serial"
    assert line["versions"]["driver"] == "580.1, 590.1"


@pytest.mark.parametrize(
    "filler", ["To be filled by O.E.M.", "0", "None", "00000000-0000-0000-0000-000000000000", "", 7, None]
)
def test_fillers_are_no_identity(filler):
    record = facts_record()
    record["environment"]["identity"] = {"serial": filler, "machine_id": filler}
    line = projection.of_record(record, "")
    assert line["serial"] is line["machine_id"] is None


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("identity", "accelerator", "gpus", "os", "firmware"), JSON)))
def test_facts_of_any_form_are_accepted(environment):
    line = projection.of_record(make_record(stage="facts", environment=environment), "")
    assert len(json.dumps(line)) < 100_000
    assert all(isinstance(gpu["index"], int) for gpu in line["gpus"])


@pytest.mark.parametrize(
    ("state", "message", "retried"),
    [("crash", "killed by SIGSEGV", True), ("cancelled", "", False), ("running", "", False), ("skipped", "", False),
     ("crash", "probably out of memory: the kernel killed it", False)],
)  # fmt: skip
def test_only_a_failure_of_its_own_counts_as_a_further_attempt(state, message, retried):
    earlier = make_record(state=state, message=message)
    line = projection.of_record(make_record(attempt=2, attempts=[earlier]), "")
    assert line["retried"] is retried


def test_figures_that_are_no_number_are_left_out():
    line = projection.of_record(make_record(metrics=[metric("a", None), metric("b", 1)]), "")
    assert [one["name"] for one in line["metrics"]] == ["b"]


def test_a_report_is_read_node_by_node(tmp_path):
    run = make_run(["node-1", "node-2"])
    evidence = healthy(run)
    evidence.records["node-2"]["training"]["state"] = "crash"
    path = tmp_path / "report.json"
    path.write_text("".join(report_file.lines(judge(run, evidence))))
    head, *nodes = report_file.walk(path)
    assert head["run"]["run_id"] == "run-1" and head["nodes"] == []
    good, bad = map(projection.of_judged, nodes)
    assert (good["verdict"], good["failed"]) == ("PASS", [])
    assert bad["verdict"] == "FAIL"
    assert {"name": "training_state", "part": "node", "verdict": "fail"} in bad["failed"]

    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole))
    assert [one["name"] for one in list(report_file.walk(path))[1:]] == ["node-1", "node-2"]
    with pytest.raises(ValueError, match="a line each"):
        list(report_file.walk(path, max_bytes=10))
    path.write_text("".join(report_file.lines(whole)).split('"name":"node-2"')[0])
    with pytest.raises(ValueError):
        list(report_file.walk(path))
    path.write_text("[]")
    with pytest.raises(ValueError, match="no nodes"):
        list(report_file.walk(path))


def test_a_run_with_gangs_is_not_compared_with_one_without():
    """A node that a search finds bad each time, and that is fine alone each time, is no flaky one."""
    alone, together = make_run(stages=["facts"]), make_run(stages=["facts"])
    for node in together["nodes"].values():
        node["gang_stages"] = ["fabric"]
    asked = [tuple(projection.of_run(run)[0]["stages"]) for run in (alone, together)]
    assert asked == [("facts",), ("facts", "fabric")]
    verdicts = zip(["PASS", "FAIL"] * 3, asked * 3, strict=True)
    assert not flakiness(
        [Judged(str(number), *one[::-1], False, frozenset("g")) for number, one in enumerate(verdicts)]
    ).flaky
