"""What was not tested, in lines."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import not_tested

from tests.kit.reports import report_of


def test_what_did_not_run_is_not_tested():
    report = report_of(dict.fromkeys("abcde", "PASS"))
    for stage in report["nodes"][0]["stages"]:
        stage["started_at"] = None
    gaps = [
        ("fabric", "not in the profile quick", "abcde"),
        ("deepspeed", "not in the profile quick", "abcde"),
        ("loading", "skipped: training did not succeed", "b"),
        ("x", "the node does not report it", "bcde"),
        ("training", "pending", "a"),
    ]
    report["fleet"]["not_tested"] = [
        {
            "stage": "facts" if what == "x" else what,
            "what": what,
            "reason": reason,
            "count": len(names),
            "names": list(names),
        }
        for what, reason, names in gaps
    ]
    assert not_tested.lines(report) == [
        "1 of 5 nodes ran no stage: a",
        "fabric, deepspeed: not in the profile quick",
        "loading on b: skipped: training did not succeed",
        "Figures, parts or tools: x",
    ]


def test_the_line_is_bounded():
    stages = [
        {"stage": f"s{n}", "what": f"s{n}", "reason": f"r{n // 2}", "count": 1, "names": ["a"]} for n in range(12)
    ]
    figures = [{"stage": "s", "what": f"w{n}", "reason": f"r{n}", "count": 1, "names": ["a"]} for n in range(100)]
    line = not_tested.line([*stages, *figures], 1)
    assert line.startswith("s0, s1 (r0); s2, s3 (r1); ")
    assert line.endswith("stages for 2 more reasons and 100 figures or parts of other stages: see report.html")
    assert not_tested.line(stages[:1], 1) == "s0 (r0)"
    assert not_tested.line([], 3) == ""
