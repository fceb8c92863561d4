import pytest
from gpuval_runner import plan as plans
from gpuval_runner.machine import FINISHED, STATES, Close, next_step, opening, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.runner import plan, stage


def parsed(*stages, **changes):
    return plans.parse(plan(*stages, **changes)).stages


@pytest.mark.parametrize(
    ("record", "interruptions", "expected"),
    [
        (None, 0, "new"),
        ({"state": "pending", "attempt": 2}, 0, "keep"),
        ({"state": "success", "attempt": 2}, 0, "keep"),
        ({"state": "running", "attempt": 2}, 0, "resume"),
        ({"state": "running", "attempt": 2}, 1, "give_up"),
        ({"state": "success", "attempt": 1}, 0, "again"),
        ({"state": "running", "attempt": 1}, 1, "again"),
        ({"state": "success", "attempt": 3}, 0, "newer"),
    ],
)
def test_what_to_do_with_a_record_at_start(record, interruptions, expected):
    assert opening(2, record, interruptions) == expected


@pytest.mark.parametrize("state", ["failure", "crash", "timeout", "cancelled"])
def test_a_failed_stage_stops_the_plan_only_where_asked(state):
    stopping = parsed(stage("a", on_failure="stop"), stage("b"))
    assert next_step(stopping, {"a": state}) == Close("b", "skipped", f"a ended in {state} and stops the plan")
    assert next_step(parsed(stage("a"), stage("b")), {"a": state}) == "b"


def test_a_skipped_stage_does_not_stop_the_plan():
    stages = parsed(stage("a"), stage("b", needs=["a"], on_failure="stop"), stage("c"))
    assert next_step(stages, {"a": "crash", "b": "skipped"}) == "c"


def test_needs_skip_and_say_which():
    stages = parsed(stage("a"), stage("b", needs=["a"]))
    assert next_step(stages, {"a": "timeout"}) == Close("b", "skipped", "needs a, which ended in timeout")


def test_needs_are_met_by_a_record_of_an_earlier_plan():
    stages = parsed(stage("b", needs=["a"]), attempt=2)
    assert next_step(stages, {"a": "success"}) == "b"
    assert next_step(stages, {}) == Close("b", "skipped", "needs a, which has no record")


def test_halt_cancels_all_that_is_left():
    stages = parsed(stage("a"), stage("b"))
    assert next_step(stages, {"a": "success"}, halt="no time left") == Close("b", "cancelled", "no time left")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["success", "success"], "success"),
        (["success", "pending"], "running"),
        (["success", "skipped"], "failure"),
        (["crash", "cancelled"], "cancelled"),
    ],
)
def test_outcome(states, expected):
    assert outcome(states) == expected


@st.composite
def plans_with_states(draw):
    names = [f"s{i}" for i in range(draw(st.integers(1, 6)))]
    stages = [
        stage(
            name,
            on_failure=draw(st.sampled_from(["continue", "stop"])),
            needs=draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else [],
        )
        for i, name in enumerate(names)
    ]
    return parsed(*stages), draw(st.lists(st.sampled_from(sorted(FINISHED - {"skipped"})), min_size=6, max_size=6))


@settings(max_examples=80)
@given(plans_with_states(), st.integers(0, 12))
def test_every_plan_ends_and_runs_each_stage_at_most_once_with_its_needs_met(case, halt_after):
    stages, endings = case
    states: dict[str, str] = {}
    ran = []
    for step_number in range(100):
        step = next_step(stages, states, "halted" if step_number >= halt_after else None)
        if step is None:
            break
        if isinstance(step, str):
            assert step not in ran
            needs = next(s.needs for s in stages if s.name == step)
            assert all(states[name] == "success" for name in needs)
            assert step_number < halt_after
            ran.append(step)
            states[step] = endings[len(ran) - 1]
        else:
            states[step.stage] = step.state
    assert step is None
    assert set(states) == {s.name for s in stages}
    assert set(states.values()) <= set(STATES)
    assert (outcome(states[s.name] for s in stages) == "success") == (
        len(ran) == len(stages) and set(states.values()) == {"success"}
    )
    assert ran == [s.name for s in stages if s.name in ran]
