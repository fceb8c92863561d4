"""gpuval.prom is accepted by Prometheus's own promtool in both of its formats, whatever nodes wrote."""

import re
import subprocess

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import health
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.prometheus import health_text, help_texts, run_text

from tests.kit.builders import healthy, judge, make_record, make_run, metric, training_metrics, write_report
from tests.kit.needs import needs_programs
from tests.kit.rack_fleet import RackFleet


def promtool(*arguments, text=None):
    """Exit code of promtool, and what it says."""
    needs_programs({"promtool": "prometheus"})
    done = subprocess.run(["promtool", *arguments], check=False, input=text, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def accepted(text):
    """Whether promtool reads the text without remarks."""
    return promtool("check", "metrics", text=text) == (0, "")


@pytest.fixture
def mixed():
    run = make_run(["good", "slow", "gone"], gpu_count=8, finished_at="2026-11-02T11:00:00Z")
    evidence = healthy(run)
    evidence.records["slow"]["training"]["metrics"] = [
        {**one, "value": 1.0} if one["scope"] == "gpu:3" else one for one in training_metrics()
    ]
    evidence.records["good"]["diagnostics"] = make_record(
        "good",
        "diagnostics",
        metrics=[
            metric("diagnostics_matmul_bf16_tflops", 660.0, "TFLOP/s", "gpu:0"),
            metric("diagnostics_memory_bytes_per_second", 4.2e12, "bytes_per_second", "gpu:0"),
        ],
    )
    run["nodes"]["good"]["stages"].append("diagnostics")
    run["workloads"]["diagnostics"] = "diagnostics"
    evidence.records["good"]["inference"]["metrics"].append(metric("inference_tokens_per_second", 900.0, "tokens/s"))
    del evidence.records["gone"]
    evidence.launches["gone"] = {"state": "unreachable", "message": "No route to host"}
    return {**judge(run, evidence), "racks": RackFleet(1, 3).judged()["racks"]}


def test_promtool_accepts_both_files_without_remarks(mixed):
    texts = [run_text(mixed), health_text(health.merged({}, mixed))]
    assert all(accepted(text) for text in texts)
    types = [line.split()[2] for text in texts for line in text.splitlines() if line.startswith("# TYPE ")]
    assert sorted(types) == sorted(help_texts())


def test_promtool_would_refuse_a_mistake(mixed):
    assert not accepted(run_text(mixed).replace("gpuval_run_info{", "gpuval-run-info{"))


def test_it_is_open_metrics_too(mixed, tmp_path):
    """Its parser in promtool asks for the times of samples, which it imports, and for `# EOF`."""
    timed = re.sub(r"(?m)^(gpuval_.*)$", r"\1 1793617200", run_text(mixed))
    (tmp_path / "good").write_text(timed)
    code, said = promtool("tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "good"), str(tmp_path / "data"))
    assert code == 0, said
    (tmp_path / "bad").write_text(timed.replace("# EOF\n", ""))
    assert promtool("tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "bad"), str(tmp_path / "data"))[0] != 0


def test_verdicts_actions_and_figures(mixed):
    lines = run_text(mixed).splitlines()
    assert 'gpuval_run_verdict{verdict="FAIL"} 1' in lines
    assert 'gpuval_run_verdict{verdict="PASS"} 0' in lines
    assert "gpuval_run_timestamp_seconds 1793617200" in lines
    assert 'gpuval_node_verdict{node="good",sku="h200",run_id="run-1",verdict="PASS"} 1' in lines
    assert 'gpuval_node_action{node="slow",action="retest",class="tflops",part="gpu:3"} 1' in lines
    assert 'gpuval_node_action{node="gone",action="inspect",class="no_route",part="node"} 1' in lines
    assert not [line for line in lines if line.startswith('gpuval_node_action{node="good"')]
    assert 'gpuval_check_status{node="slow",stage="training",check="tflops",status="fail"} 1' in lines
    assert 'gpuval_check_status{node="gone",stage="launch",check="launch",status="missing"} 1' in lines
    assert 'gpuval_stage_duration_seconds{node="good",stage="loading",state="success"} 25' in lines
    assert 'gpuval_training_model_flops{node="slow",gpu="3",serial="165493"} 1000000000000' in lines
    assert 'gpuval_inference_tokens_per_second{node="good",gpu="",serial=""} 900' in lines
    lines = health_text(health.merged({}, mixed)).splitlines()
    assert 'gpuval_health_verdict{node="slow",verdict="FAIL"} 1' in lines
    assert 'gpuval_health_action{node="slow",action="retest",class="tflops",run_id="run-1"} 1' in lines
    assert 'gpuval_health_timestamp_seconds{node="good"} 1793617200' in lines


def test_a_stage_that_numbers_the_gpus_otherwise_names_no_serial():
    run = make_run(stages=["facts", "training"], gpu_count=8)
    evidence = healthy(run)
    for index, gpu in enumerate(evidence.records["node-1"]["facts"]["environment"]["gpus"]):
        gpu["uuid"] = f"GPU-{index}"
    order = [1, 0, 2, 3, 4, 5, 6, 7]
    for devices, named in ((sorted(order), 8), (order, 0)):
        evidence.records["node-1"]["training"]["environment"]["devices"] = [
            {"index": index, "uuid": f"GPU-{which}"} for index, which in enumerate(devices)
        ]
        lines = [line for line in run_text(judge(run, evidence)).splitlines() if re.search(r'_flops\{.*gpu="\d"', line)]
        assert len(lines) == 8
        assert sum('serial=""' not in line for line in lines) == named


def test_a_run_of_no_nodes():
    text = run_text(judge(make_run([]), healthy(make_run([]))))
    assert "gpuval_node" not in text
    assert accepted(text) and accepted(health_text({}))


@pytest.mark.parametrize(
    "wrong",
    [
        metric("training_tokens_per_second", None, "tokens_per_second"),
        metric("training_tokens_per_second", 5.0, "parsecs"),
        metric("training_tokens_per_second", 5.0, "tokens_per_second", "rank:0"),
    ],
)
def test_a_figure_that_is_none_is_left_out(wrong):
    run = make_run()
    evidence = healthy(run)
    evidence.records["node-1"]["training"]["metrics"] = [wrong]
    assert "gpuval_training_tokens_per_second" not in run_text(judge(run, evidence))


def test_texts_of_nodes_break_no_line():
    nasty = '"} 1\nevil_metric 1\r\x1b[2J\\\u202e'
    run = make_run(["evil"], gpu_count=8)
    evidence = healthy(run)
    twice = metric("training_tokens_per_second", 5.0, "tokens_per_second")
    evidence.records["evil"]["training"] = make_record("evil", message=nasty, metrics=[twice, {**twice, "value": 6.0}])
    report = judge(run, evidence)
    report["nodes"][0] |= {"catalogue_sku": nasty}
    text = run_text(report)
    assert accepted(text)
    assert [line for line in text.splitlines() if not re.match(r"(# HELP |# TYPE )?gpuval_|# EOF$", line)] == []


def test_it_is_among_the_forms(mixed, tmp_path):
    paths = write_report(mixed, tmp_path / "run")
    assert paths["gpuval.prom"].read_text() == run_text(mixed)
