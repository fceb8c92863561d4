"""Reports on runs that ended one after the other, with chosen verdicts."""

from __future__ import annotations

from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file

from tests.kit.builders import STAGES, check, healthy, judge, make_record, make_run, metric

FAILS, PASSES, LACKS = {"bad": "FAIL"}, {"bad": "PASS"}, {"bad": "INCOMPLETE"}


def report_of(verdicts, day=10, **fields):
    """The report on a run that ended on that day of November, on nodes with these verdicts."""
    time = f"2026-11-{day:02}T10:00:00Z"
    run = make_run(list(verdicts), run_id=f"run-{day}", created_at=time, finished_at=time, gpu_count=8, **fields)
    evidence = healthy(run)
    for records in evidence.records.values():
        for record in records.values():
            record["run_id"] = run["run_id"]
    for name, verdict in verdicts.items():
        if verdict == "FAIL":
            evidence.records[name]["training"]["metrics"] = [metric("training_tokens_per_second", 1.0, "tokens/s")]
        elif verdict == "INCOMPLETE":
            del evidence.records[name]["training"]
    report = judge(run, evidence, [check("speed")])
    assert {node["name"]: node["verdict"] for node in report["nodes"]} == verdicts
    return report


def json_text(report):
    """The report as JSON with a line for each node."""
    return "".join(report_file.lines(report))


def job_failed(day=10, **fields):
    """The report on a run in which nothing failed on `bad` but a job of the user's own."""
    time = f"2026-11-{day:02}T10:00:00Z"
    stages = [*STAGES, "mine"]
    run = make_run(
        ["bad"], run_id=f"run-{day}", created_at=time, finished_at=time, stages=stages, gpu_count=8, **fields
    )
    evidence = healthy(run)
    evidence.records["bad"]["mine"] = make_record("bad", "mine", state="crash", message="exit code 1", exit_code=1)
    return judge(run, evidence, [check("speed")])
