"""Flaky machines: back and forth without new hardware, or only on a further attempt."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.trend import Flakiness, Judged
from hypothesis import given
from hypothesis import strategies as st

GPUS = frozenset({"a", "b"})
LETTERS = {"P": "PASS", "F": "FAIL", "I": "INCOMPLETE"}


def history(letters, *, gpus=None, asked=None, retried=()):
    return [
        Judged(f"run-{number}", (asked or {}).get(number, "quick"), LETTERS[letter], number in retried,
               (gpus or {}).get(number, GPUS))
        for number, letter in enumerate(letters)
    ]  # fmt: skip


def test_back_and_forth_is_flaky_and_one_change_is_not():
    assert Flakiness(history("PFP")).flaky
    assert Flakiness(history("FPF")).changes == 2
    assert not Flakiness(history("PPPFFF")).flaky
    assert not Flakiness(history("FFPPPP")).flaky
    assert not Flakiness(history("PPPP")).flaky


def test_incomplete_says_nothing():
    assert Flakiness(history("PIPIP")).changes == 0
    told = Flakiness(history("PIFIP"))
    assert (told.changes, told.pattern, told.judged) == (2, "PFP", 3)


def test_a_new_gpu_is_a_change_of_hardware_and_a_lost_one_is_not():
    new = frozenset({"a", "c"})
    assert not Flakiness(history("PFPP", gpus={2: new, 3: new})).flaky
    assert Flakiness(history("PFP", gpus={1: frozenset({"a"})})).flaky, "it fell off, and came back"
    assert Flakiness(history("PFP", gpus={1: frozenset()})).flaky, "facts that tell nothing are no new hardware"


def test_only_runs_that_asked_the_same_are_compared():
    assert not Flakiness(history("PFPF", asked={1: "burnin", 3: "burnin"})).flaky


def test_a_further_attempt_counts_where_the_node_passed():
    told = Flakiness(history("PPF", retried={1, 2}))
    assert told.retried_runs == ["run-1"]
    assert told.flaky


@given(st.text("PFI", max_size=12))
def test_changes_are_never_more_than_the_steps_between_runs(letters):
    told = Flakiness(history(letters))
    assert told.changes <= max(0, told.judged - 1)
    assert told.flaky == (told.changes >= 2)


@given(st.text("PF", min_size=1, max_size=8), st.integers(0, 8))
def test_new_hardware_never_makes_a_machine_flakier(letters, replaced):
    gpus = {number: frozenset({"c", "d"}) for number in range(replaced, len(letters))}
    assert Flakiness(history(letters, gpus=gpus)).changes <= Flakiness(history(letters)).changes
