"""Small makers of runs, records, evidence and checks."""

import copy
import hashlib
import json
from datetime import datetime, timedelta
from types import MappingProxyType

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import version
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import actions, criteria, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence, report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence, accept_record
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_file, write_forms
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines

RUN_ID = "run-1"
TIME = "2026-11-02T10:00:00Z"
#: Of every launch; records show it, or that of their attempt.
NONCE = "5f" * 16
LAUNCHED = {"state": "started", "message": "", "nonce": NONCE}
STAGES = ["facts", "training", "loading", "inference"]
#: Read once, since it takes 0.1 s.
SHIPPED = criteria.load(criteria.shipped_files())
#: A check as a file of criteria has it.
SPEED = """\
- name: speed
  stage: training
  metric: training_tokens_per_second
  kind: min
  severity: required
  value: 10
  source: measured
  remedy: look
"""


def make_run(nodes=("node-1",), *, stages=STAGES, sku="auto", gpu_count=None, **fields):
    return {
        "schema": "gpuval.run/1",
        "version": version(),
        "run_id": RUN_ID,
        "folder": "folder",
        "bucket": "bucket",
        "profile": "quick",
        "created_at": TIME,
        "finished_at": None,
        "deadline_seconds": 600,
        "narrowed_by": [],
        "workloads": {stage: stage for stage in stages},
        "nodes": {name: {"stages": list(stages), "sku": sku, "gpu_count": gpu_count} for name in nodes},
        **fields,
    }


def metric(name, value, unit="count", scope="node"):
    return {"name": name, "value": value, "unit": unit, "scope": scope}


def seconds_after(time, seconds):
    """The RFC 3339 time so many seconds later."""
    text = (datetime.fromisoformat(time) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
    return text.replace(".000", "").replace("+00:00", "Z")


def make_record(node="node-1", stage="training", *, state="success", metrics=(), **fields):
    """A record that agrees with itself: it ends so long after its start as it took, unless ``fields`` say otherwise."""
    started, seconds = fields.get("started_at", TIME) or TIME, fields.get("duration_seconds", 25.0) or 0
    finished = fields.get("finished_at", seconds_after(started, seconds))
    return {
        "schema": "gpuval.record/1",
        "run_id": RUN_ID,
        "node": node,
        "stage": stage,
        "workload": stage,
        "attempt": 1,
        "state": state,
        "message": "",
        "started_at": TIME,
        "updated_at": finished or started,
        "finished_at": finished,
        "duration_seconds": 25.0,
        "command": ["true"],
        "image": None,
        "exit_code": 0,
        "signal": None,
        "metrics": list(metrics),
        "fingerprints": {},
        "environment": {},
        "artifacts": [],
        "attempts": [],
        "nonce": evidence.nonce_of(NONCE, fields.get("attempt", 1)),
        **fields,
    }


def times(began, seconds=12.5):
    """The times of a record of so many seconds."""
    ended = seconds_after(began, seconds)
    return {"started_at": began, "updated_at": ended, "finished_at": ended, "duration_seconds": seconds}


def real_records(node, told):
    """Records of tests/data, of which only what is judged was kept: one after the other, with a sample each second."""
    records, began = {}, TIME
    for stage, kept in told.items():
        metrics = [dict(zip(("name", "value", "unit", "scope"), figure, strict=True)) for figure in kept["metrics"]]
        samples = (float(one["value"]) for one in metrics if one["name"] == "telemetry_samples_count")
        records[stage] = make_record(node, stage, **{**times(began, next(samples, 12.5)), **kept, "metrics": metrics})
        began = records[stage]["finished_at"]
    return records


def facts_record(node="node-1", *, vendor="nvidia", gpus=8, hardware=None, **fields):
    environment = {
        "accelerator": {"vendor": vendor, "count": gpus},
        "identity": {
            "machine_id": f"machine-of-{node}",
            "serial": f"S-{node}",
            "gpu_uuids": [f"GPU-{node}-{index}" for index in range(gpus)],
        },
        "gpus": [
            {"index": index, "name": "H200", "serial": f"16549{index}", "pci_address": f"0000:9{index}:00.0"}
            for index in range(gpus)
        ],
    }
    metrics = [metric("gpu_count", gpus), metric("gpu_hardware_count", gpus if hardware is None else hardware)]
    return make_record(node, "facts", metrics=metrics, environment=environment, **fields)


def training_metrics(gpus=8, tflops=700.0, part="gpu"):
    return [
        metric("training_duration_seconds", 20.93, "seconds"),
        metric("training_loss_first", 8.0, "loss"),
        metric("training_loss_last", 4.0, "loss"),
        metric("training_tokens_per_second", 56000.0, "tokens/s"),
        metric("training_processes_count", gpus),
        *(metric("training_model_tflops", tflops + index, "TFLOP/s", f"{part}:{index}") for index in range(gpus)),
        *(metric("training_step_p99_seconds", 0.2, "seconds", f"rank:{index}") for index in range(gpus)),
    ]


def healthy_records(node="node-1", *, gpus=8, vendor="nvidia"):
    return {
        "facts": facts_record(node, gpus=gpus, vendor=vendor),
        "training": make_record(
            node,
            "training",
            duration_seconds=25.0,
            metrics=training_metrics(max(gpus, 1), part="gpu" if gpus else "rank"),
        ),
        "loading": make_record(
            node,
            "loading",
            metrics=[
                metric("loading_bytes", 8_035_000_000, "bytes"),
                metric("loading_duration_seconds", 11.1, "seconds"),
                metric("loading_bytes_per_second", 5.79e9 / 8, "bytes/s"),
            ],
        ),
        "inference": make_record(
            node,
            "inference",
            metrics=[
                metric("inference_startup_seconds", 5.0, "seconds"),
                metric("inference_running_seconds", 7.0, "seconds"),
                metric("inference_requests_done_count", 640),
                metric("inference_requests_failed_count", 0),
                metric("inference_generated_tokens_count", 6300),
            ],
            fingerprints={"inference_warm_up_answer": hashlib.sha256(b"Hello").hexdigest()},
        ),
    }


def healthy(run, *, gpus=8, vendor="nvidia"):
    return RunEvidence(
        records={node: healthy_records(node, gpus=gpus, vendor=vendor) for node in run["nodes"]},
        launches={node: dict(LAUNCHED) for node in run["nodes"]},
    )


def check(name="speed", **fields):
    entry = {
        "name": name,
        "stage": "training",
        "metric": "training_tokens_per_second",
        "kind": "min",
        "severity": "required",
        "source": "measured",
        "remedy": "look at the clocks",
        **fields,
    }
    if entry["kind"] in ("min", "max") and "value" not in entry:
        entry["value"] = 1000
    return criteria.parse({"schema": "gpuval.criteria/1", "checks": [entry]})[0]


def standard_checks():
    return [
        check("gpus", stage="facts", metric="gpu_count", kind="equal", value_from="gpu_count",
              applies={"accelerator": ["gpu"]}),
        check("loss", metric="training_loss_last", kind="trend", baseline_metric="training_loss_first",
              direction="falling", min_change=0.05),
        check("speed"),
        check("tflops", metric="training_model_tflops", scope="gpu", value=600, unit="TFLOP/s", retry=True,
              applies={"accelerator": ["gpu"]}),
        check("steps", metric="training_step_p99_seconds", scope="rank", parts_from="training_processes_count",
              kind="max", value=500, unit="ms", severity="advisory"),
        check("failed_requests", stage="inference", metric="inference_requests_failed_count", kind="max", value=0),
        check("load_speed", stage="loading", metric="loading_bytes_per_second", value=1, unit="Gbps"),
    ]  # fmt: skip


def judge(run, evidence, checks=None, *, earlier=MappingProxyType({})):
    checks = standard_checks() if checks is None else checks
    report = verdict.judge(run, evidence, checks, judged_at=TIME, **actions.found_earlier(earlier))
    actions.assign(report, earlier)
    return {**report, "summary": summary_lines(report)}


def judge_metric(check, metrics, *, gpus=8, gpu_count=None, sku="auto", vendor="nvidia", setups=None, **record):
    """The entries of one check for a node whose training reported ``metrics``."""
    run = make_run(gpu_count=gpu_count, sku=sku, setups=setups or {})
    evidence = healthy(run, gpus=gpus, vendor=vendor)
    evidence.records["node-1"]["training"] = make_record(metrics=metrics, **record)
    node = judge(run, evidence, [check])["nodes"][0]
    return [entry for entry in node["checks"] if entry["name"] == check.name]


def accepted(record):
    """The record after it went through intake, as the judge sees it."""
    record = copy.deepcopy(record)
    return accept_record(
        json.dumps(record).encode(), run_id=record["run_id"], node=record["node"], stage=record["stage"]
    )


def write_report(report, directory):
    """What a run leaves of its report: the forms, and the judge's report.json; the paths by file name."""
    paths = write_forms(report, directory)
    paths["report.json"] = directory / "report.json"
    write_file(paths["report.json"], report_file.lines(report))
    return paths
