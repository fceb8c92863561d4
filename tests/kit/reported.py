"""The metrics that each stage reports; what a workload of a CPU node reported, against them and the criteria."""

from pathlib import Path

import yaml
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.collect import facts_result
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import coverage

from tests.kit.builders import SHIPPED, healthy, judge, make_record, make_run

REPORTED = yaml.safe_load(Path(__file__).with_name("reported_metrics.yml").read_text())
ANYWHERE = set(REPORTED.pop("any"))


def names_of(result):
    return {metric["name"] for metric in result["metrics"]}


def assert_covered(stage, ended, workload=None):
    """Every metric of a workload that ended is known and judged, or has a reason not to be, and the node passes by it.

    Its record is as long as the work took: on a busy machine figures exceed any other duration."""
    result = ended.result
    names = names_of(result)
    assert names - ANYWHERE <= set(REPORTED[stage]) | {name for name in names if name.startswith("diagnostics_")}
    assert coverage.compare({stage: names}, SHIPPED, SHIPPED.informational).unjudged == ()
    run = make_run(stages=["facts", stage])
    run["workloads"][stage] = workload or stage
    evidence = healthy(run)
    for name, one in (("facts", facts_result(accelerator="cpu")), (stage, result)):
        fields = {key: one.get(key, {}) for key in ("fingerprints", "environment")}
        if name == stage:
            fields["duration_seconds"] = ended.seconds
        evidence.records["node-1"][name] = make_record(
            stage=name, workload=run["workloads"][name], state=one["state"], metrics=one["metrics"], **fields
        )
    report = judge(run, evidence, SHIPPED)
    own = [entry for entry in report["nodes"][0]["checks"] if entry["stage"] == stage]
    open_checks = [
        entry for entry in own if entry["metric"]
        and entry["verdict"] not in ("pass", "skipped") and not entry["metric"].startswith("kernel_")  # no runner here
    ]  # fmt: skip
    assert open_checks == []
    assert report["verdict"] == "PASS", [
        entry for entry in report["nodes"][0]["checks"] if entry["verdict"] not in ("pass", "skipped")
    ]
