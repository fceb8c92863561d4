"""Who is wrong, by votes and by what the host knows."""

import pytest
from gpuval_workloads.fingerprint.judge import Section, Trace, judge

GOOD, BAD, WORSE = (10, 11, 12, 13), (10, 11, 99, 98), (10, 11, 77, 66)
SECTION = Section("training", ["first weights", "loss 1", "gradient", "loss 2"], {0: 10}, {"loss": 1e-5})


def parts(*traces):
    """Each part's traces, from digests, or from several (digests, repeats)."""
    return [
        [
            Trace(*one) if isinstance(one[0], tuple) else Trace(one, 5)
            for one in (part if isinstance(part, list) else [part])
        ]
        for part in traces
    ]


def test_parts_that_agree_are_right():
    judgement = judge(SECTION, parts(GOOD, GOOD, GOOD))
    assert (judgement.right, judgement.findings) == (GOOD, [])


def test_one_part_alone_is_held_against_itself_and_the_host():
    assert judge(SECTION, parts(GOOD)).findings == []
    (finding,) = judge(SECTION, parts([(GOOD, 4), (BAD, 1)])).findings
    assert (finding.part, finding.count) == (0, 2)
    assert finding.text.startswith("first differs at 'gradient'")
    assert "1 of 5 repeats" in finding.text


@pytest.mark.parametrize("wrong", range(8))
def test_the_one_of_eight_that_differs_is_named_with_what_differs_first(wrong):
    judgement = judge(SECTION, parts(*(BAD if part == wrong else GOOD for part in range(8))))
    assert judgement.right == GOOD
    (finding,) = judgement.findings
    assert (finding.part, finding.count) == (wrong, 10)
    assert finding.text == "first differs at 'gradient' from the other parts; 10 values in 5 of 5 repeats"


def test_a_part_that_differs_now_and_then_is_named_and_has_no_vote():
    judgement = judge(SECTION, parts(GOOD, [(BAD, 9), (GOOD, 1)]))
    assert judgement.right == GOOD
    (finding,) = judgement.findings
    assert (finding.part, finding.count) == (1, 18)
    assert "and from its own other repeats; 18 values in 9 of 10 repeats" in finding.text


def test_what_the_host_knows_outvotes_a_majority():
    wrong_weights = (666, 11, 12, 13)
    judgement = judge(SECTION, parts(wrong_weights, wrong_weights, GOOD))
    assert judgement.right == GOOD
    assert [finding.part for finding in judgement.findings] == [0, 1]
    assert "'first weights' from what the host knows" in judgement.findings[0].text


@pytest.mark.parametrize(("errors", "right", "named"), [((1e-7, 1e-6), GOOD, [1]), ((1e-6, 1e-7), BAD, [0])])
def test_of_two_the_one_closer_to_float64_is_believed(errors, right, named):
    two = [[Trace(GOOD, 5, {"loss": errors[0]})], [Trace(BAD, 5, {"loss": errors[1]})]]
    judgement = judge(SECTION, two)
    assert judgement.right == right
    assert [finding.part for finding in judgement.findings] == named


def test_of_two_as_close_both_are_named_and_there_is_no_fingerprint():
    two = [[Trace(GOOD, 5, {"loss": 1.0e-7})], [Trace(BAD, 5, {"loss": 1.5e-7})]]
    judgement = judge(SECTION, two)
    assert judgement.right is None
    assert [(finding.part, finding.count) for finding in judgement.findings] == [(0, 10), (1, 10)]
    assert all("is right is unknown" in finding.text for finding in judgement.findings)


@pytest.mark.parametrize("error", [2e-5, float("nan"), float("inf")])
def test_all_alike_but_far_from_float64_are_all_wrong(error):
    judgement = judge(SECTION, [[Trace(GOOD, 3, {"loss": error})] for _ in range(4)])
    assert [finding.part for finding in judgement.findings] == [0, 1, 2, 3]
    assert "loss is off from float64 by" in judgement.findings[0].text


def test_no_part_agrees_with_itself():
    judgement = judge(SECTION, parts([(BAD, 1), (GOOD, 1)], [(GOOD, 1), (WORSE, 1)]))
    assert judgement.right == GOOD
    assert [finding.count for finding in judgement.findings] == [2, 2]
    alone = judge(SECTION, parts([(BAD, 1), (GOOD, 1)]))
    assert alone.right is None
    assert "from itself" in alone.findings[0].text
