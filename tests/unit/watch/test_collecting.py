"""What the results still lack once the store was read."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import collecting

EXPECTED = {"stages": ["training"]}
END = "2026-11-20T20:15:00Z training attempt 1 ended: success after 12.0 s"


def record(state="success", attempt=1, started="2026-11-20T20:14:48Z"):
    return {"state": state, "attempt": attempt, "started_at": started}


def lacks(found, log, series=None, **launch):
    return collecting.lacks(EXPECTED, {"training": found}, lambda _stage: log, lambda _stage: series, launch)


def test_a_last_record_with_its_whole_log_lacks_nothing():
    assert not lacks(record(), f"epoch 1\n{END}\n")


@pytest.mark.parametrize("found", [None, record("running"), record("pending", started=None)])
def test_a_record_that_is_not_the_last_one_is_lacking(found):
    assert lacks(found, f"{END}\n")


@pytest.mark.parametrize(
    ("launch", "lacking"),
    [
        ({"attempt": 2}, True),
        ({"attempt": 2, "stages": ["training"]}, True),
        ({"attempt": 2, "stages": ["facts"]}, False),
        ({"attempt": 2, "interruptions": [{"class": "not_measured_again"}]}, False),
        ({"attempt": 2, "interruptions": [{"class": "lost_contact"}]}, True),
        ({"attempt": 1, "stages": ["training"]}, False),
    ],
)
def test_the_end_of_an_attempt_is_lacking_once_another_was_launched(launch, lacking):
    assert lacks(record(), f"epoch 1\n{END}\n", **launch) is lacking
    assert not lacks(record(attempt=2), f"epoch 1\n{END.replace('attempt 1', 'attempt 2')}\n", **launch)


@pytest.mark.parametrize(
    "log",
    [
        None,
        "",
        "epoch 1\n",
        END.replace("attempt 1", "attempt 2"),
        END.replace("success", "crash"),
        f"{END}\nand more that came later\n",
    ],
)
def test_a_log_without_its_last_line_is_lacking(log):
    assert lacks(record(), log)


def test_curves_that_the_log_announces_must_be_there():
    log = f"{END}, with 1 curve\n"
    assert lacks(record(), log)
    assert lacks(record(attempt=1), log, {"attempt": 0})
    assert not lacks(record(), log, {"attempt": 1})
    assert lacks(record(), f"{END}, with 3 curves\n")


@pytest.mark.parametrize("state", ["skipped", "cancelled"])
def test_a_stage_that_never_ran_has_no_log(state):
    assert not lacks(record(state, started=None), None)
