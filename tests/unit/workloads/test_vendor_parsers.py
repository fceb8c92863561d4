"""What is read from the vendors' tools, on outputs laid out as theirs (tests/data/vendor_tools names the sources)."""

import json
import re
from pathlib import Path

import pytest
from gpuval_workloads.common import tool_output
from gpuval_workloads.vendor_tools import agfhc, collectives, dcgm, hl_qual, rvs
from gpuval_workloads.vendor_tools.answer import FAIL, PASS, SKIPPED, UNANSWERED, hold_against
from hypothesis import given, settings
from hypothesis import strategies as st

DATA = Path(__file__).resolve().parents[2] / "data" / "vendor_tools"


def golden(name):
    return (DATA / name).read_text()


def nccl(text, ranks=8):
    return hold_against(collectives.judge(collectives.parse(text), "all_reduce", ranks, "nccl_tests"), text)


def nccl_of_four(text):
    return nccl(text, ranks=4)


def dcgm_of_eight(text):
    return hold_against(dcgm.judge(text, 8), text, dcgm.ERROR)


def dcgm_of_four(text):
    return hold_against(dcgm.judge(text, 4), text, dcgm.ERROR)


def rvs_of_eight(text):
    return hold_against(rvs.judge(rvs.parse(text), 8), text)


def agfhc_says(text):
    return hold_against(agfhc.judge(text), text)


def hl_qual_of_eight(text):
    return hold_against(hl_qual.judge(text, 8), text)


GOLDEN = {
    "nccl_tests_all_reduce.txt": (nccl, PASS),
    "nccl_tests_per_iteration.txt": (nccl, PASS),
    "nccl_tests_unchecked.txt": (nccl, SKIPPED),
    "nccl_tests_old.txt": (nccl, PASS),
    "nccl_tests_reduced.txt": (nccl_of_four, PASS),
    "nccl_tests_wrong.txt": (nccl, FAIL),
    "rccl_tests_all_reduce.txt": (nccl, PASS),
    "dcgm3_level3.json": (dcgm_of_four, PASS),
    "dcgm3_level3_failed.json": (dcgm_of_four, FAIL),
    "dcgm4_level2.json": (dcgm_of_eight, PASS),
    "dcgm4_level2_failed.json": (dcgm_of_eight, FAIL),
    "dcgm4_level2_skipped.json": (dcgm_of_eight, SKIPPED),
    "dcgm4_level2_warning.json": (dcgm_of_eight, PASS),
    "rvs_level3.txt": (rvs_of_eight, PASS),
    "rvs_level3_failed.txt": (rvs_of_eight, FAIL),
    "rvs_old.txt": (rvs_of_eight, FAIL),
    "agfhc_all_lvl1.txt": (agfhc_says, PASS),
    "agfhc_all_lvl1_failed.txt": (agfhc_says, FAIL),
    "agfhc_simple.txt": (agfhc_says, PASS),
    "agfhc_recipe_info.txt": (agfhc_says, UNANSWERED),
    "hl_qual.txt": (hl_qual_of_eight, PASS),
    "hl_qual_failed.txt": (hl_qual_of_eight, FAIL),
}
CASES = pytest.mark.parametrize(("name", "says", "verdict"), [(n, s, v) for n, (s, v) in GOLDEN.items()])
NCCL_WARNING = "node-a:41220:41251 [3] NCCL WARN NET/IB : Got async event : port error"


def named(answer):
    return {(figure.name, figure.scope): figure.value for figure in answer.figures}


def test_every_output_kept_here_has_a_source():
    rows = (DATA / "README.md").read_text()
    for path in DATA.iterdir():
        stem = re.sub(r"(_failed|_skipped|_warning|_unchecked|_wrong)?\.\w+$", "", path.name)
        assert path.name == "README.md" or stem in rows, path.name


@CASES
def test_an_output_is_read_as_what_it_says(name, says, verdict):
    answer = says(golden(name))
    assert answer.verdict == verdict, answer
    assert bool(answer.faults) == (verdict == FAIL)
    assert bool(answer.reason) == (verdict in (UNANSWERED, SKIPPED))


@CASES
def test_carriage_returns_and_colours_change_nothing(name, says, verdict):
    text = golden(name)
    expected = says(text)
    coloured = "\n".join(f"\x1b[1;32m{line}\x1b[0m" if line.strip() else line for line in text.split("\n"))
    for changed in (text.replace("\n", "\r\n"), coloured, f"\x1b]0;title\x07{text}"):
        assert says(changed) == expected


@CASES
def test_a_cut_off_output_never_passes_unless_what_is_missing_is_of_no_account(name, says, verdict):
    text = golden(name)
    ends = sorted({*range(0, len(text), max(1, len(text) // 150)), *range(max(0, len(text) - 200), len(text))})
    passed = [end for end in ends if says(text[:end]).verdict == PASS]
    if verdict != PASS:
        assert not passed
    for end in passed:  # all that may be missing of a pass is what no verdict hangs on
        assert len(text) - end < 120, text[end:]
        assert not re.search(r"FAIL|FALSE|[1-9]\d* wrong", text[end:])


@CASES
@settings(max_examples=30)
@given(data=st.data())
def test_damaged_output_neither_raises_nor_turns_into_a_pass(name, says, verdict, data):
    text = golden(name)
    start = data.draw(st.integers(0, len(text)))
    rubbish = data.draw(st.text(max_size=40) | st.sampled_from(["{", "[", "|", "# ", "\x1b[", "9" * 400, NCCL_WARNING]))
    length = data.draw(st.integers(0, 40))
    answer = says(text[:start] + rubbish + text[start + length :])
    assert answer.verdict in (PASS, FAIL, UNANSWERED, SKIPPED)
    if verdict in (UNANSWERED, SKIPPED):
        assert answer.verdict != PASS


@pytest.mark.parametrize(
    "says", list(dict.fromkeys(says for says, _ in GOLDEN.values())), ids=lambda says: says.__name__
)
@settings(max_examples=50)
@given(text=st.text(max_size=300))
def test_no_text_raises_or_passes(says, text):
    assert says(text).verdict != PASS


# Errors beside results

#: Text of a fault of the hardware, and of a test that was broken off.
HARDWARE_ERRORS = [
    "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
    "CUDA error: uncorrectable ECC error encountered",
    "2 uncorrectable volatile ECC errors on GPU 3",
    "ECC: 4 uncorrectable errors were counted",
    "Xid (PCI:0000:1b:00): 79, pid=1234, GPU has stopped",
    "GPU 5 double-bit ECC error detected",
    "uncorrectable ECC error on GPU: 0",
    "GPU 0 uncorrectable ECC error detected",
    "could not recover from an uncorrected memory error",
    "amdgpu 0000:0c:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block, RAS",
    "HW Exception by GPU node-3 (Agent handle: 0x55) reason :GPU Hang",
]
BROKEN_OFF = [
    "node-a: Test NCCL failure common.cu:958 'unhandled cuda error'",
    "node-a: Test CUDA failure common.cu:895 'an illegal memory access was encountered'",
    " .. node-a pid 41220: Test failure common.cu:1014",
    "NCCL error: remote process exited or there was a network error",
    "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f. Reason: Unknown.",
    "HIP error: hipErrorLaunchFailure",
]
HARMLESS = [
    "no uncorrectable ECC errors were found",
    "Uncorrectable ECC errors: 0",
    "ECC: 0 uncorrectable errors",
    "volatile uncorrectable ECC error count: 0",
    "CUDA error count 0",
    NCCL_WARNING,
    "Xid 43 is of the application",
    "NCCL INFO Using network IB: error handling on",
    "correctable ECC errors: 12",
]
PASSED = [(name, says) for name, (says, verdict) in GOLDEN.items() if verdict == PASS]


def beside(text, line):
    """The line before the output, after it, and between two of its lines; inside of JSON as the text of a result."""
    lines = text.splitlines()
    cut = len(lines) // 2
    whole = ["\n".join([line, *lines]), "\n".join([*lines, line])]
    if '"status"' in text:
        return [
            *(one + "\n" for one in whole),
            text.replace('"status": "Pass"', f'"info": "{line}", "status": "Pass"', 1),
        ]
    return [one + "\n" for one in (*whole, "\n".join([*lines[:cut], line, *lines[cut:]]))]


@pytest.mark.parametrize(("name", "says"), PASSED, ids=[name for name, _ in PASSED])
def test_the_text_of_an_error_beside_good_results_fails_a_tool(name, says):
    missed = [
        (line, place)
        for line in HARDWARE_ERRORS + BROKEN_OFF
        for place, text in enumerate(beside(golden(name), line))
        if says(text).verdict != FAIL
    ]
    assert not missed


@pytest.mark.parametrize(("name", "says"), PASSED, ids=[name for name, _ in PASSED])
def test_text_that_denies_an_error_fails_no_tool(name, says):
    lines = [line for line in HARMLESS if not name.startswith("agfhc") or not re.search(r"\bERROR\b|\bFAIL", line)]
    failed = [line for line in lines for text in beside(golden(name), line) if says(text).verdict == FAIL]
    assert not failed


@pytest.mark.parametrize("line", HARDWARE_ERRORS)
@pytest.mark.parametrize(
    "says", list(dict.fromkeys(says for says, _ in GOLDEN.values())), ids=lambda says: says.__name__
)
def test_a_fault_of_the_hardware_fails_a_tool_without_results(says, line):
    answer = says(f"starting\n{line}\n")
    assert (answer.verdict, [str(fault.text) for fault in answer.faults]) == (FAIL, [line])


@pytest.mark.parametrize("line", BROKEN_OFF)
def test_a_test_that_was_broken_off_without_results_gave_no_answer(line):
    assert {says(f"starting\n{line}\n").verdict for says, _ in GOLDEN.values()} == {UNANSWERED}


def test_an_error_names_its_gpu_and_an_error_of_dcgm_itself_counts():
    text = golden("dcgm4_level2.json")
    assert dcgm_of_eight(text + "2 uncorrectable ECC errors on GPU 3\n").faults[0].scope == "gpu:3"
    assert dcgm_of_eight(text + "Error: the diagnostic ended early\n").verdict == FAIL
    assert dcgm_of_eight(text + "Errors may be shown by dcgmi health\n").verdict == PASS


@pytest.mark.parametrize(
    ("says", "text"),
    [
        (nccl, golden("nccl_tests_unchecked.txt")),
        (nccl, re.sub(r"\b4e-07\b", "  N/A", golden("nccl_tests_old.txt"))),
        (rvs_of_eight, re.sub(r"\| (PASS|TRUE) ( *)\|", r"| SKIP \2|", golden("rvs_level3.txt"))),
        (agfhc_says, golden("agfhc_simple.txt").replace("passed", "skipped").replace("5 Executed, 1", "0 Executed, 6")),
        (agfhc_says, golden("agfhc_simple.txt").replace("passed", "skipped")),
        (dcgm_of_eight, golden("dcgm4_level2.json").replace('"Pass"', '"Skip"')),
    ],
)
def test_results_that_were_not_checked_or_not_run_are_not_tested(says, text):
    assert says(text).verdict == SKIPPED


# nccl-tests, rccl-tests


def test_the_largest_size_is_judged_and_not_the_average():
    figures = named(nccl(golden("nccl_tests_all_reduce.txt")))
    assert figures["nccl_tests_all_reduce_bus_bytes_per_second", "node"] == pytest.approx(366.5e9, rel=1e-3)
    assert figures["nccl_tests_all_reduce_in_place_bus_bytes_per_second", "node"] == pytest.approx(364.7e9, rel=1e-3)
    assert figures["nccl_tests_all_reduce_latency_seconds", "node"] == pytest.approx(34e-6)
    assert figures["nccl_tests_error_count", "node"] == 0
    assert figures["nccl_tests_unchecked_count", "node"] == 0
    assert figures["nccl_tests_ranks_count", "node"] == 8


def test_the_series_has_every_size():
    (curve,) = nccl(golden("nccl_tests_all_reduce.txt")).curves
    _name, _unit, sizes, rates = curve
    assert sizes == [8 * 2**power for power in range(31)]
    assert rates[-1] == pytest.approx(366.5e9, rel=1e-3)


def test_newer_layouts_give_the_same_figures():
    expected = named(nccl(golden("nccl_tests_all_reduce.txt")))
    found = named(nccl(golden("nccl_tests_per_iteration.txt")))
    assert set(found) == set(expected)
    for key in expected:
        if key[0] != "nccl_tests_unchecked_count":
            assert found[key] == pytest.approx(expected[key], rel=1e-3), key


def test_columns_of_any_order_and_number_are_found_by_their_names():
    names = "time  algbw  jitter  busbw  #wrong  depth"
    header = f"#      count        size   {names}   {names}"
    units = "# (elements)        (MB)   (ms) (MB/s)  (%) (MB/s)  (n)  (us) (GB/s)  (%) (GB/s)  (n)"
    row = "   262144        1  0.5  2000  1  3500  0  4  499  2.1  1  3.6  1  4"
    text = f"{header}\n{units}\n{row}\n# Out of bounds values : 1 FAILED\n"
    (found,) = collectives.parse(text).rows
    assert found.size_bytes == 1e6
    assert found.out_of_place == collectives.CollectiveMeasurement(0.5e-3, 3.5e9, 0)
    assert found.in_place == collectives.CollectiveMeasurement(pytest.approx(499e-6), pytest.approx(3.6e9), 1)
    assert nccl(text, None).verdict == FAIL


def test_units_that_are_not_known_are_not_guessed():
    text = golden("nccl_tests_all_reduce.txt").replace("(us)", "(fn)")
    assert "units are not known" in nccl(text).reason
    assert "no bandwidth" in nccl(golden("nccl_tests_all_reduce.txt").replace("(GB/s)", "(Gx/s)")).reason
    without = golden("nccl_tests_all_reduce.txt").replace("#        (B) ", "#            ")
    assert nccl(without).verdict in (PASS, UNANSWERED)


def test_not_checked_is_not_zero_errors():
    table = collectives.parse(golden("nccl_tests_unchecked.txt"))
    assert {block.wrong for row in table.rows for block in (row.out_of_place, row.in_place)} == {None}
    assert named(nccl(golden("nccl_tests_unchecked.txt")))["nccl_tests_unchecked_count", "node"] == 62


def test_the_old_error_column_is_no_count():
    figures = named(nccl(golden("nccl_tests_old.txt")))
    assert figures["nccl_tests_error_count", "node"] == 0
    assert figures["nccl_tests_unchecked_count", "node"] == 50


@pytest.mark.parametrize("rate", ["0.00", "-366.5"])
@pytest.mark.parametrize("place", ["out of place", "in place"])
def test_a_bandwidth_of_nothing_is_no_pass(rate, place):
    lines = golden("nccl_tests_all_reduce.txt").splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("8589934592"))
    fields = lines[at].split()
    fields[7 if place == "out of place" else 11] = rate
    answer = nccl("\n".join([*lines[:at], "  ".join(fields), *lines[at + 1 :]]) + "\n")
    assert answer.verdict == UNANSWERED
    assert "figures are impossible" in answer.reason


@pytest.mark.parametrize("name", ["nccl_tests_all_reduce.txt", "nccl_tests_old.txt"])
def test_an_empty_column_of_the_operation_is_read_over(name):
    """Some versions print no operation for collectives that reduce nothing."""
    text = golden(name)
    empty = re.sub(r"(float +) sum\b", r"\1    ", text)
    assert "sum" not in empty
    assert nccl(empty) == nccl(text)


def test_wrong_elements_are_named_by_size_and_fail():
    answer = nccl(golden("nccl_tests_wrong.txt"))
    assert str(answer.faults[0]) == "all_reduce: 24 wrong elements, of 1,073,741,824 bytes"
    assert named(answer)["nccl_tests_error_count", "node"] == 24


@pytest.mark.parametrize("written", ["3", "3*", "1.04858e+06", "1e+00*"])
def test_wrong_elements_fail_however_they_are_written_and_whatever_the_summary_says(written):
    text = golden("rccl_tests_all_reduce.txt")
    line = next(line for line in text.splitlines() if line.strip().startswith("1048576 "))
    answer = nccl(text.replace(line, line.rsplit(None, 1)[0] + "  " + written))
    assert answer.verdict == FAIL
    assert named(answer)["nccl_tests_error_count", "node"] >= 1


def test_wrong_elements_fail_even_when_the_output_is_cut_short():
    text = golden("nccl_tests_wrong.txt")
    assert nccl(text[: text.index("2147483648")]).verdict == FAIL


def test_the_number_of_ranks_is_held_against_what_was_asked():
    answer = nccl(golden("nccl_tests_all_reduce.txt"), ranks=7)
    assert (answer.verdict, answer.reason) == (UNANSWERED, "7 ranks were asked for, it used 8")
    assert not answer.figures


def test_a_table_without_its_last_row_is_not_judged_by_the_row_before():
    lines = golden("nccl_tests_all_reduce.txt").splitlines()
    without = "\n".join(line for line in lines if not line.strip().startswith("8589934592")) + "\n"
    assert "largest size in its table is 4,294,967,296" in nccl(without).reason
    torn = golden("nccl_tests_all_reduce.txt").replace("8589934592    2147483648 ", f"8589934592 {NCCL_WARNING}")
    assert nccl(torn).verdict == UNANSWERED


def test_memory_that_holds_less_lowers_what_is_expected():
    figures = named(nccl_of_four(golden("nccl_tests_reduced.txt")))
    assert figures["nccl_tests_all_reduce_bus_bytes_per_second", "node"] == pytest.approx(11.2e9, rel=1e-2)
    assert nccl_of_four(golden("nccl_tests_reduced.txt").replace("# Reducing", "# Nothing")).verdict == UNANSWERED


def test_warnings_of_nccl_between_the_rows_change_nothing_and_a_torn_row_counts_as_unchecked():
    lines = golden("nccl_tests_all_reduce.txt").splitlines()
    between = "\n".join(line for pair in zip(lines, [NCCL_WARNING] * len(lines)) for line in pair) + "\n"
    assert named(nccl(between)) == named(nccl(golden("nccl_tests_all_reduce.txt")))
    torn = golden("nccl_tests_all_reduce.txt").replace("  262144 ", f"  262144 {NCCL_WARNING}", 1)
    assert named(nccl(torn))["nccl_tests_unchecked_count", "node"] == 1


def test_rows_of_no_bytes_give_no_latency():
    text = golden("nccl_tests_all_reduce.txt").replace("           8             2 ", "           0             0 ")
    assert named(nccl(text))["nccl_tests_all_reduce_latency_seconds", "node"] == pytest.approx(34e-6, rel=1e-2)


def test_several_collectives_are_put_together():
    good, bad = nccl(golden("nccl_tests_old.txt")), nccl(golden("nccl_tests_wrong.txt"))
    none, unchecked = nccl(""), nccl(golden("nccl_tests_unchecked.txt"))
    assert collectives.merge([good, good], "nccl_tests", 8).verdict == PASS
    for answers, verdict in (([good, unchecked], SKIPPED), ([unchecked, none], UNANSWERED), ([unchecked, bad], FAIL)):
        assert collectives.merge(answers, "nccl_tests", 8).verdict == verdict
    merged = collectives.merge([good, none], "nccl_tests", 8)
    assert (merged.verdict, merged.reason) == (UNANSWERED, "it printed no table")
    merged = collectives.merge([good, bad, none], "nccl_tests", 8)
    assert merged.verdict == FAIL
    assert named(merged)["nccl_tests_error_count", "node"] == 24
    assert named(merged)["nccl_tests_unchecked_count", "node"] == 50


# DCGM


def test_figures_in_the_texts_of_dcgm_keep_their_units():
    four = named(dcgm_of_eight(golden("dcgm4_level2.json")))
    assert four["dcgm_pcie_gpu_to_host_bandwidth_bytes_per_second", "gpu:3"] == pytest.approx(55.12e9)
    assert four["dcgm_pcie_host_to_gpu_latency_seconds", "gpu:7"] == pytest.approx(1.74e-6)
    assert four["dcgm_memory_failed_count", "gpu:0"] == 0
    assert four["dcgm_results_count", "node"] == 24
    three = named(dcgm_of_four(golden("dcgm3_level3.json")))
    assert three["dcgm_pcie_gpu_to_host_bandwidth_bytes_per_second", "gpu:2"] == pytest.approx(25.31e9)
    assert three["dcgm_pcie_bidirectional_bandwidth_bytes_per_second", "gpu:2"] == pytest.approx(38.06e9)
    assert three["dcgm_diagnostic_tflops", "gpu:1"] == pytest.approx(20.41755)
    assert three["dcgm_targeted_power_power_average_watts", "gpu:0"] == 395
    assert three["dcgm_skipped_count", "node"] == 4
    assert ("dcgm_eud_test_failed_count", "gpu:0") not in three  # skipped is not passed


@pytest.mark.parametrize(
    ("name", "says", "scope", "words"),
    [
        ("dcgm3_level3_failed.json", dcgm_of_four, "gpu:2", "GPU Memory: GPU 2 Detected 2 memory errors"),
        ("dcgm4_level2_failed.json", dcgm_of_eight, "gpu:5", "double-bit ECC error"),
    ],
)
def test_dcgm_names_the_gpu_that_failed(name, says, scope, words):
    answer = says(golden(name))
    (fault,) = answer.faults
    assert fault.scope == scope
    assert words in fault.text
    assert named(answer)["dcgm_failed_count", "node"] == 1


def test_the_numbers_of_dcgm_errors_are_reported():
    assert "(DCGM error 95)" in dcgm_of_eight(golden("dcgm4_level2_failed.json")).faults[0].text


def test_a_warning_of_dcgm_is_reported_and_is_no_failure():
    answer = dcgm_of_eight(golden("dcgm4_level2_warning.json"))
    (note,) = answer.notes
    assert note.startswith("gpu:0: software: Persistence Mode")
    assert named(answer)["dcgm_warnings_count", "node"] == 1


def test_text_around_the_json_of_dcgm_is_passed_over():
    text = golden("dcgm4_level2_failed.json")
    around = f"Warning: {{persistence}} is off [1]\n{text}\nSee {{log}} for details\n"
    assert dcgm_of_eight(around) == dcgm_of_eight(text)


def test_a_test_that_failed_as_a_whole_fails_the_node():
    text = golden("dcgm4_level2.json")
    document = json.loads(text)
    document["DCGM Diagnostic"]["test_categories"][1]["tests"][0]["test_summary"]["status"] = "Fail"
    (fault,) = dcgm_of_eight(json.dumps(document)).faults
    assert (fault.scope, fault.text) == ("node", "memory: no reason given")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace('"Pass"', '"Maybe"'), "neither a pass nor a fail"),
        (lambda text: text.replace('"entity_id": 7', '"entity_id": 6'), "it tested 7 GPUs of 8, not gpu:7"),
        (lambda text: text.replace('"DCGM Diagnostic"', '"Something"'), "missing or cut short"),
        (lambda text: "Error: unable to establish a connection to the host engine", "missing or cut short"),
        (lambda text: '{"DCGM Diagnostic": {"runtime_error": "bad device"}}', "it could not run: bad device"),
        (lambda text: '{"DCGM Diagnostic": {"test_categories": []}}', "holds no results"),
        (lambda text: '{"DCGM Diagnostic": [1]}', "holds no results"),
    ],
)
def test_what_dcgm_did_not_answer_is_no_pass(change, reason):
    answer = dcgm_of_eight(change(golden("dcgm4_level2.json")))
    assert answer.verdict == UNANSWERED
    assert reason in answer.reason


def statuses(name, change):
    """The text of a golden document of DCGM with the results that ``change`` gives by test and place."""
    document = json.loads(golden(name))
    body = document.get("DCGM Diagnostic") or document["DCGM GPU Diagnostic"]
    for test in (test for group in body["test_categories"] for test in group["tests"]):
        for place, result in enumerate(test["results"]):
            result["status"] = change(test["name"], place) or result["status"]
        test.pop("test_summary", None)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("name", "says", "kept"),
    [
        ("dcgm4_level2.json", dcgm_of_eight, {"software"}),
        ("dcgm3_level3.json", dcgm_of_four, {"Denylist", "NVML Library", "Inforom", "Persistence Mode"}),
    ],
)
def test_dcgm_that_skipped_all_tests_of_the_hardware_proves_nothing(name, says, kept):
    answer = says(statuses(name, lambda test, _: None if test in kept else "Skip"))
    assert answer.verdict == SKIPPED
    assert "it tested no hardware" in answer.reason
    assert {"memory", "pcie"} <= set(answer.not_run) or {"GPU Memory", "PCIe", "Targeted Stress"} <= set(answer.not_run)


def test_a_test_that_dcgm_skipped_on_one_gpu_alone_is_missing_evidence():
    answer = dcgm_of_eight(
        statuses("dcgm4_level2.json", lambda test, at: "Skip" if (test, at) == ("memory", 3) else "")
    )
    assert (answer.verdict, answer.reason) == (SKIPPED, "it skipped memory on gpu:3, and not elsewhere")


def test_a_test_that_dcgm_skipped_everywhere_is_named_beside_those_that_ran():
    answer = dcgm_of_eight(statuses("dcgm4_level2.json", lambda test, _: "Skip" if test == "memory" else ""))
    assert (answer.verdict, answer.not_run) == (PASS, ["memory"])
    three = dcgm_of_four(golden("dcgm3_level3.json"))
    assert three.not_run == []
    assert any("EUD Test" in note for note in three.notes)


def test_level_1_of_dcgm_has_software_tests_alone():
    document = json.loads(golden("dcgm4_level2.json"))
    del document["DCGM Diagnostic"]["test_categories"][1:]
    assert dcgm.judge(json.dumps(document), 8, level=1).verdict == PASS
    assert dcgm.judge(json.dumps(document), 8, level=2).verdict == SKIPPED


def test_dcgm_may_test_what_is_no_gpu():
    document = json.loads(golden("dcgm4_level2.json"))
    cpu = {"entity_group": "CPU", "entity_group_id": 7, "entity_id": 0, "status": "Fail", "warnings": "too hot"}
    document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["results"].append(cpu)
    (fault,) = dcgm_of_eight(json.dumps(document)).faults
    assert (fault.scope, fault.text) == ("node", "software of CPU 0: too hot")


# RVS, AGFHC, hl_qual


def test_rvs_ids_become_indices_by_its_overview():
    figures = named(rvs_of_eight(golden("rvs_level3.txt")))
    assert figures["rvs_gst_fp16_trig_tflops", "gpu:0"] == pytest.approx(1063.56)
    assert figures["rvs_iet_stress_1400w_power_max_watts", "gpu:7"] == 1400
    (fault,) = rvs_of_eight(golden("rvs_level3_failed.txt")).faults
    assert fault.scope == "gpu:3"
    assert "gst-fp16-trig: GPU id 17010 at 0000:75:00.0" in fault.text
    assert "702114" in fault.text


def test_older_rvs_names_its_own_ids():
    (fault,) = rvs_of_eight(golden("rvs_old.txt")).faults
    assert "GPU id 3254" in fault.text


def test_an_action_without_a_line_of_its_own_fails_by_the_summary():
    text = golden("rvs_level3.txt").replace("| BABEL          | PASS ", "| BABEL          | FAIL ")
    (fault,) = rvs_of_eight(text).faults
    assert fault.text == "babel-float-2MiB (BABEL): FAIL"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("| BABEL          | PASS ", "| BABEL          | N/A  "), "'N/A'"),
        (lambda text: text.replace("0000:f5:00.0", "            "), "7 GPUs of 8"),
        (lambda text: "RVS-ERROR [CLI] No platform support for the detected GPU !\n" + text, "No platform support"),
        (lambda text: text.replace("[RESULT] [301996", "[ERROR ] [301996", 1), "Module name"),
    ],
)
def test_what_rvs_did_not_answer_is_no_pass(change, reason):
    answer = rvs_of_eight(change(golden("rvs_level3.txt")))
    assert (answer.verdict, answer.faults) == (UNANSWERED, [])
    assert reason in answer.reason


def test_the_json_of_rvs_is_read_with_its_comma():
    text = golden("rvs_trailing_comma.json")
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert [one[:2] for one in rvs.failures_in_json(text)] == [("gst-fp16-trig", "27226")]
    assert not rvs.failures_in_json(text[:-40])  # what was cut off adds no fault


def test_agfhc_names_the_gpu_where_its_line_does():
    faults = agfhc_says(golden("agfhc_all_lvl1_failed.txt")).faults
    assert "FAIL: hbm_bw-1-1" in faults[0].text
    assert (faults[1].scope, "GPU 6" in faults[1].text) == ("gpu:6", True)


@pytest.mark.parametrize(
    ("line", "verdict"), [("GPU 3: 0 failed", PASS), ("0 FAILED", PASS), ("GPU 3: 10 failed", FAIL), ("1 FAILED", FAIL)]
)
def test_agfhc_complains_of_no_count_of_zero(line, verdict):
    text = golden("agfhc_all_lvl1.txt")
    assert agfhc_says(text.replace("Program exiting", f"{line}\nProgram exiting")).verdict == verdict


def test_agfhc_passes_by_its_return_code_alone():
    text = golden("agfhc_all_lvl1.txt")
    without = agfhc_says(text.replace("AGFHC_SUCCESS [0]", "AGFHC_NO_DEVICE [4]"))
    assert without.reason == "return code AGFHC_NO_DEVICE [4]"
    assert agfhc_says(text.replace("AGFHC_SUCCESS [0]", "AGFHC_TEST_FAILURE [3]")).verdict == FAIL
    assert agfhc_says(text.replace("PASS: hbm_bw", "FAIL: hbm_bw")).verdict == FAIL
    assert named(agfhc_says(text))["agfhc_tests_count", "node"] == 5


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{"summary": {"total_failed": 2}}', 2),
        ('[{"x": 1}] {"a": [{"total_failed": 0, "total_passed": 5}]}', 0),
        ('{"total_failed": "3"}', 3),
        ('{"summary": {"total_failed": 2', None),
        ("", None),
        ('{"a": ' * 5000, None),
    ],
)
def test_failures_are_found_in_results_json_wherever_they_stand(text, count):
    assert agfhc.failed_tests(text) == count


def test_hl_qual_names_the_device():
    (fault,) = hl_qual_of_eight(golden("hl_qual_failed.txt")).faults
    assert (fault.scope, "0000:b3:00.0" in fault.text) == ("gpu:6", True)
    lone = hl_qual_of_eight("== hl qual report ==\nFAILED\n")
    assert [fault.scope for fault in lone.faults] == ["node"]
    assert hl_qual.judge(golden("hl_qual.txt"), 4).reason == "it tested 8 devices of 4"


@pytest.mark.parametrize("gpus", [8, None])
def test_hl_qual_that_passed_and_names_no_device_proves_nothing(gpus):
    """Its verdict alone may be that of a run that found no device."""
    answer = hl_qual.judge("== hl qual report ==\nPASSED\n", gpus)
    assert (answer.verdict, answer.reason) == (UNANSWERED, "its report says PASSED and names no device")


# What they share


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), (" 1.5 ", 1.5), ("1e3", 1000), (".5", 0.5), ("-7", -7), (7, 7), (0.25, 0.25)]
)
def test_numbers_are_read(text, value):
    assert tool_output.number(text) == value


@pytest.mark.parametrize("text", ["N/A", "nan", "inf", "", "1,5", "1e999", "٣", "0x10", True, None, [1], 10**400])
def test_what_is_no_number_is_none(text):
    assert tool_output.number(text) is None


def test_objects_are_found_among_other_text_and_never_half():
    text = 'a {b} {"x": 1} [2, {"y": {"z": 2}}] {"cut": '
    assert list(tool_output.json_objects(text)) == [{"x": 1}, {"y": {"z": 2}}]
    assert tool_output.json_object(text, key="y") == {"y": {"z": 2}}
    assert tool_output.json_object('{"outer": {"y": 1}', key="outer") is None
    assert json.loads(tool_output.without_trailing_commas('{"a": [1, 2,], }')) == {"a": [1, 2]}


@pytest.mark.parametrize("text", ["{" * 100_000, '{"a":' * 50_000, '{"a":[' * 50_000, '{"a": ' + "9" * 100_000 + "}"])
def test_hostile_json_takes_no_time(text):
    import time

    start = time.process_time()
    tool_output.json_object(text, key="DCGM Diagnostic")
    assert time.process_time() - start < 5, "of a processor; what is quadratic takes minutes"


@given(text=st.text(max_size=200))
def test_plain_text_has_one_kind_of_line_end_and_no_escape(text):
    plain = tool_output.plain(text)
    assert "\r" not in plain
    assert "\x1b[0m" not in tool_output.plain(text + "\x1b[0m")
    assert tool_output.shortened(text, 20) == tool_output.shortened(tool_output.shortened(text, 20), 20)
    assert re.fullmatch(r"[a-z0-9_]{1,48}", tool_output.metric_part(text))
