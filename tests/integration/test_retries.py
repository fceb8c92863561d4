"""A rank of the training is killed: each attempt on one node, only the first on another. One is FAIL, one is flaky."""

import signal

import pytest

from tests.kit.fleet import at_once, machine, until
from tests.kit.processes import ranks_of, send


@pytest.fixture(scope="module")
def run(new_fleet):
    """The fleet after the run, and how the run ended."""
    settings = {"gpuval_stages": ["facts", "training", "loading"], "training_seconds": 5}
    with new_fleet("killed", nodes={"doomed": {}, "unlucky": {}}, settings=settings) as fleet:
        for number, (name, variables) in enumerate(fleet.nodes.items()):
            variables.update(machine(fleet.root / "machines" / name, f"{number:032x}"))
        fleet.nodes["doomed"]["training_seconds"] = 120
        playing = fleet.start()
        playing.expect("training: running")
        at_once(
            lambda: kill_rank(fleet, "doomed", rank=1, attempt=1, saying="step 1 "),
            lambda: kill_rank(fleet, "unlucky", rank=0, attempt=1),  # before its work is done, however slow we are
        )
        kill_rank(fleet, "doomed", rank=1, attempt=2, saying="step 1 ")
        yield fleet, playing.wait()


def kill_rank(fleet, node, *, rank, attempt, saying=""):
    fleet.at_work(node, "training", attempt, saying=saying)
    ranks = until(lambda: len(found := ranks_of(fleet.run_id, node, attempt=attempt)) == 2 and found, "both ranks")
    send([ranks[rank]], signal.SIGKILL)


def test_the_run_fails_for_the_node_that_crashed_twice(run):
    fleet, done = run
    assert done.code != 0
    assert "FINAL ACCEPTANCE: FAIL" in done.output, done
    assert fleet.report()["counts"] == {"expected": 2, "PASS": 1, "FAIL": 1, "INCOMPLETE": 0, "flaky": 1}
    for node in ("doomed", "unlucky"):
        assert f"{node}: training again, as attempt 2" in done.output


def test_two_crashes_are_fail_and_both_are_kept(run):
    fleet, done = run
    fleet.assert_evidence("doomed", {"facts": "success", "training": "crash", "loading": "success"})
    record = fleet.record("doomed", "training")
    assert (record["attempt"], [earlier["state"] for earlier in record["attempts"]]) == (2, ["crash"])
    for attempt in (record, *record["attempts"]):
        assert "rank 1" in attempt["message"]
        assert "SIGKILL" in attempt["message"]
    (check,) = [check for check in fleet.decisive("doomed") if check["name"] == "training_state"]
    assert check["verdict"] == "fail"
    assert "kernel log" in check["remedy"]
    assert "- doomed FAIL training: crash:" in done.output
    log = fleet.log("doomed", "training")
    assert "training attempt 1 ended: crash" in log
    assert "training attempt 2 ended: crash" in log


def test_a_second_attempt_that_passes_is_flaky_and_the_crash_is_kept_whole(run):
    fleet, done = run
    fleet.assert_evidence("unlucky", {"facts": "success", "training": "success", "loading": "success"})
    node = fleet.verdict("unlucky")
    assert (node["verdict"], node["flaky"]) == ("PASS", True)
    assert "Flaky, passed only on a retry: unlucky" in done.output
    record = fleet.record("unlucky", "training")
    (crash,) = record["attempts"]
    assert (record["attempt"], crash["attempt"], crash["state"]) == (2, 1, "crash")
    assert "rank 0" in crash["message"]
    assert crash["finished_at"] <= record["started_at"]
    assert set(crash) == set(record)


def test_what_had_passed_was_not_run_again(run):
    fleet, _ = run
    for node in ("doomed", "unlucky"):
        for stage in ("facts", "loading"):
            record = fleet.record(node, stage)
            assert (record["attempt"], record["attempts"]) == (1, [])
            assert fleet.log(node, stage).count("starts\n") == 1
