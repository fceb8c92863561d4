import pytest
from gpuval_runner.outcome import StageEvidence, StageStop, judge, signal_name
from gpuval_runner.result import ResultFile

GOOD, BAD, PARTIAL = ResultFile("success", "good"), ResultFile("failure", "bad"), ResultFile("running")
NOTHING = "it wrote no result file and declares no patterns"


@pytest.mark.parametrize(
    ("evidence", "state", "said"),
    [
        (StageEvidence(exit_code=0, result=GOOD), "success", "good"),
        (StageEvidence(exit_code=0, result=GOOD, stuck=True), "failure", "KILL did not end; good"),
        (StageEvidence(exit_code=0, patterns=1, matched=1, stuck=True), "failure", "KILL did not end"),
        (StageEvidence(exit_code=0, result=BAD, stuck=True), "failure", "bad"),
        (StageEvidence(exit_code=0, result=BAD), "failure", "bad"),
        (StageEvidence(exit_code=1, result=BAD), "failure", "bad"),
        (StageEvidence(exit_code=7, result=BAD), "failure", "bad"),
        (StageEvidence(exit_code=1, result=ResultFile("failure")), "failure", "without a message"),
        (StageEvidence(exit_code=1, result=GOOD), "crash", "exit code 1 after reporting success"),
        (StageEvidence(exit_code=3), "crash", "exit code 3 without a result; no output"),
        (StageEvidence(exit_code=3, result=PARTIAL, last_line="boom"), "crash", "last output: boom"),
        (
            StageEvidence(exit_code=2, last_line="crash: rank 1 died"),
            "crash",
            "without a result; last output: rank 1 died",
        ),
        (StageEvidence(exit_code=137), "crash", "exit code 137 (SIGKILL)"),
        (StageEvidence(exit_code=0), "crash", NOTHING),
        (StageEvidence(exit_code=0, result=PARTIAL), "crash", "never became final"),
        (StageEvidence(exit_code=0, patterns=1, matched=1), "success", ""),
        (StageEvidence(exit_code=0, patterns=2), "crash", "its output has no declared figure"),
        (
            StageEvidence(exit_code=0, patterns=1, result=ResultFile(state="success"), unfilled="performance: {{ tps"),
            "failure",
            "its output has a template in place of a figure: `performance: {{ tps`",
        ),
        (StageEvidence(exit_code=0, patterns=2, not_numbers=("loss",)), "failure", "not a number: loss"),
        (StageEvidence(exit_code=0, patterns=2, matched=1, not_numbers=("loss",)), "success", ""),
        (StageEvidence(exit_code=1, patterns=1, matched=1), "crash", "exit code 1"),
        (StageEvidence(exit_code=0, patterns=1, matched=1, result=BAD), "failure", "bad"),
        (StageEvidence(signal="SIGSEGV", result=PARTIAL), "crash", "killed by SIGSEGV"),
        (StageEvidence(signal="SIGKILL", result=GOOD), "crash", "killed by SIGKILL"),
        (StageEvidence(signal="SIGKILL", oom="out of memory: x"), "crash", "killed by SIGKILL; out of memory: x"),
        (StageEvidence(exit_code=1, oom="out of memory: x"), "crash", "out of memory"),
        (StageEvidence(start_error="command not found: x"), "crash", "cannot start: command not found: x"),
        (StageEvidence(signal="SIGTERM", stop=StageStop("timeout", "too long")), "timeout", "too long; no output"),
        (StageEvidence(exit_code=0, result=GOOD, stop=StageStop("cancelled", "on request")), "cancelled", "on request"),
    ],
)
def test_how_a_stage_ended(evidence, state, said):
    got, message = judge(evidence)
    assert got == state
    assert said in message


def test_a_cause_replaces_the_last_output_if_it_is_known():
    evidence = StageEvidence(exit_code=1, last_line="bye", cause="cause: rank 1: TypeError: x")
    assert judge(evidence)[1] == "exit code 1 without a result; cause: rank 1: TypeError: x"
    evidence = StageEvidence(exit_code=1, last_line="bye", cause="probable cause: x failed", cause_is_known=False)
    assert judge(evidence)[1].endswith("; probable cause: x failed; last output: bye")
    stop = StageStop("timeout", "over its limit")
    assert judge(StageEvidence(stop=stop, cause="cause: x"))[1] == "over its limit; cause: x"


def test_without_evidence_nothing_is_reported_of_memory():
    assert "memory" not in judge(StageEvidence(signal="SIGKILL"))[1]


def test_the_last_line_is_made_safe_and_short():
    message = judge(StageEvidence(exit_code=1, last_line="\x1b[31m<script>\x07" + "y" * 500))[1]
    assert "\x1b" not in message
    assert "\x07" not in message
    assert len(message) < 300


def test_signals_have_names():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(63) == "SIG63"
