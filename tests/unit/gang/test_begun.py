"""What ends a group before its work began is no evidence against hardware, and what failed is told in its own words."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import rounds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.fault_search import FaultSearch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.pair_noise import GroupResult
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.search_limits import SearchLimits

PAIR = ("a", "b")


def record(state="success", message="", joined=None, metrics=(), **gang):
    told = {"name": "all", **({} if joined is None else {"joined": joined}), **gang}
    return {
        "state": state,
        "message": message,
        "finished_at": "2026-11-22T00:00:00Z",
        "metrics": [{"name": name, "value": value} for name, value in metrics],
        "environment": {"gang": told},
    }


def result(a, b):
    return rounds.result_of(PAIR, {"a": a, "b": b})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("crash", "the gang has ended: b (10.0.0.2) did not join within 120 s"),
        ("crash", "port 29501 of 10.0.0.1 cannot be used: Address already in use"),
        ("failure", "b has torch 2.6.0, a has 2.7.1: a gang needs the same everywhere"),
        ("timeout", "it took longer than 264 s"),
    ],
)
def test_work_that_has_not_begun_accuses_no_node(state, message):
    for joined in (False, None):
        found = result(record(state, message, joined), record(state, "", joined))
        assert found.state == "missing"
        assert message in found.message
        assert " on " not in found.message


def test_the_one_that_was_not_there_is_named():
    found = result(record("crash", "b was lost", True), record("crash", "broke off", False))
    assert (found.state, found.message) == ("missing", "the work did not begin on b: b was lost")


def test_work_that_had_begun_counts():
    assert result(record("crash", "rank 0 broke off", True, stopped_by="b"), record("crash", "", True)) == GroupResult(
        "crash", message="rank 0 broke off"
    )
    assert result(record("timeout", "", True), record("crash", "", True)).state == "timeout"
    wrong = record("failure", "3 elements", True, [("gang_collective_error_count", 3)])
    assert result(wrong, record("failure", "", True)).state == "wrong"


def test_a_member_that_went_well_needs_no_word():
    assert result(record(), record("crash", "rank 1 broke off", True)).state == "crash"


@pytest.mark.parametrize(
    "message",
    [
        "rank 0 broke off with torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "rank 0 broke off with RuntimeError: CUDA error: out of memory",
        "HIP out of memory. Tried to allocate",
        "rank 1 (gpu:1) ran out of device memory: of 139.7 GiB this process holds 0.5, others 139",
        "the gang has ended: n2 (10.0.0.2): rank 9 (gpu:1) ran out of device memory. Lower --batch-size",
        "rank 0 broke off with DistBackendError: NCCL error in: x; Cuda failure 2 'out of memory'",
        "rank 0 broke off with DistBackendError: NCCL error in: x; Cuda failure 'out of memory'",
        "rank 0 broke off with DistNetworkError: The server socket has failed to listen. port: 29500, name: EADDRINUSE",
    ],
)
def test_memory_or_a_port_that_another_process_holds_accuses_no_node(message):
    assert result(record("crash", message, True), record("crash", "", True)).state == "missing"
    killed = "rank 0 was killed by SIGKILL: look in the kernel log for an out-of-memory kill"
    assert result(record("crash", killed, True), record("crash", "", True)).state == "crash"


def carry(bad, answer):
    search = FaultSearch.start([f"n{number}" for number in range(8)], limits=SearchLimits(climb=False))
    while (round_ := search.next_round()) is not None:
        search.add_results(
            {
                group.id: answer if bad in group.nodes else GroupResult("ok", bus_bytes_per_second=350e9)
                for group in round_
            },
            1.0,
        )
    return search.finding()


def test_the_words_of_what_failed_are_evidence_and_bounded():
    finding = carry("n3", GroupResult("crash", message="NCCL error: \x1b[31munhandled system error " + "x" * 5000))
    assert finding.nodes["n3"] == "bad"
    (told, *_) = finding.evidence["n3"]
    assert "unhandled system error" in told
    assert "\x1b" not in told
    assert len(told) < 600


def test_a_node_whose_groups_never_begin_is_not_tested():
    finding = carry("n3", GroupResult("missing", message="the work did not begin: port 29501 cannot be used"))
    assert finding.nodes.pop("n3") == "untested"
    assert set(finding.nodes.values()) == {"healthy"}
