"""perf.csv and perf.html."""

import csv
import io
import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import perf
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.documents import MadError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import models
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

from tests.kit.builders import make_run

HEADER = (
    "model,n_gpus,nnodes,gpus_per_node,training_precision,pipeline,args,tags,docker_file,base_docker,docker_sha,"
    "docker_image,git_commit,machine_name,deployment_type,launcher,gpu_architecture,performance,metric,relative_change,"
    "status,build_duration,test_duration,dataname,data_provider_type,data_size,data_download_duration,build_number,"
    "additional_docker_run_options"
)


def row(performance="", **values):
    status = "SUCCESS" if performance else "FAILURE"
    given = {"model": "net", "metric": "tokens/s", "machine_name": "node-1", "status": status}
    return {name: str({**given, "performance": performance, **values}.get(name, "")) for name in perf.COLUMNS}


def changes(rows):
    return [one["relative_change"] for one in rows]


def test_exactly_the_columns():
    assert perf.written([]) == HEADER + "\n"
    assert len(perf.COLUMNS) == 29


def test_what_is_written_is_read_again():
    rows = [row("12.5", args="--batch 8", tags="a,b", build_duration=1.5), row(args="=cmd|x", model="-2+3")]
    assert perf.read(perf.written(rows), subject="perf.csv") == rows


def test_no_cell_is_a_formula():
    text = perf.written([row("-3", args="--batch 8", model="=1+1", metric="@x", machine_name="+1 2")])
    cells = dict(zip(perf.COLUMNS, list(csv.reader(io.StringIO(text)))[1], strict=True))
    assert (cells["args"], cells["model"], cells["metric"], cells["performance"]) == (
        " --batch 8",
        "'=1+1",
        "'@x",
        "-3",
    )
    assert cells["machine_name"] == "'+1 2"


def test_files_of_older_tools_have_fewer_columns():
    (found,) = perf.read("model, performance,metric,status\nnet,1,s,SUCCESS\n", subject="perf.csv")
    assert found["performance"] == "1" and found["nnodes"] == "" and list(found) == list(perf.COLUMNS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no perf.csv: move it away"),
        ("performance,metric\n", "is no perf.csv"),
        ("model,speed\n", "has columns that perf.csv has not: 'speed'"),
        ("model,metric\na\n", "line 2 has 1 cells, the header 2"),
        ("model,model\n", "is no perf.csv"),
    ],
)
def test_another_file_is_not_taken_for_it(text, message):
    with pytest.raises(MadError) as caught:
        perf.read(text, subject="perf.csv")
    assert message in str(caught.value)


def test_relative_change_is_against_earlier_rows():
    earlier = [row("10"), row("20"), row(), row("5", metric="ms")]
    assert changes(perf.compared(earlier, [row("22"), row("4", metric="ms"), row()])) == ["0.1", "-0.2", ""]


def test_relative_change_is_not_against_a_row_of_the_same_run():
    assert changes(perf.compared([], [row("10"), row("20")])) == ["", ""]


def test_the_same_machine_comes_first():
    earlier = [row("10"), row("40", machine_name="node-2")]
    new = [row("20"), row("20", machine_name="node-2"), row("20", machine_name="node-3")]
    assert changes(perf.compared(earlier, new)) == ["1", "-0.5", "-0.5"]


def test_each_figure_of_a_run_has_its_own_predecessor():
    """A CSV file of a benchmark has the same model and metric once for each size."""
    earlier = [row("10", build_number="one"), row("80", build_number="one")]
    new = [row("11", build_number="two"), row("60", build_number="two"), row("90", build_number="two")]
    assert changes(perf.compared(earlier, new)) == ["0.1", "-0.25", ""]


def test_the_same_arguments_come_before_others():
    earlier = [row("10", args="--batch 1"), row("80", args="--batch 8")]
    new = [row("20", args="--batch 1"), row("40", args="--batch 8"), row("40", args="--batch 9")]
    assert changes(perf.compared(earlier, new)) == ["1", "-0.5", "-0.5"]


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("performance: 14164 samples_per_second\n", ("14164", "samples_per_second", "SUCCESS")),
        ("performance: 1,234.5 tokens/s\n", ("1234.5", "tokens/s", "SUCCESS")),
        ("performance: 12.5, tokens/s\n", ("12.5", "tokens/s", "SUCCESS")),
        ("performance: 1 pass\n+ echo 'performance: 1 pass'\n", ("1", "pass", "SUCCESS")),
        ("performance: 7 x\nof the performance:\n 12 images\n", ("7", "x", "SUCCESS")),
        ("performance:  samples_per_second\n", ("", "", "FAILURE")),
        ("performance: nan tokens/s\n", ("", "", "FAILURE")),
    ],
)
def test_a_success_has_a_figure(log, shown):
    stage = {"name": "mad_net_000000", "state": "success", "message": "", "duration_seconds": 1.0}
    (found,) = perf.rows(MODEL, stage, log, {}, "node-1", "one")
    assert (found["performance"], found["metric"], found["status"]) == shown


def test_a_figure_that_the_log_leaves_out_is_the_record_s():
    stage = {"name": "mad_net_000000", "state": "success", "message": "", "duration_seconds": 1.0}
    metrics = [{"name": "x", "value": 1, "unit": ""}, {"name": "mad_net_000000", "value": 12.5, "unit": "tokens/s"}]
    (found,) = perf.rows(MODEL, stage, "cut", {}, "node-1", "one", metrics)
    assert (found["performance"], found["metric"], found["status"]) == ("12.5", "tokens/s", "SUCCESS")


@pytest.mark.parametrize(
    ("rows", "results", "kept"),
    [
        ("a,1,s,8\n=b,nan,s,9", [("net_a", "1"), ("net_=b", "")], "a,1,s,8\n'=b,nan,s,9\n"),
        (f"a,1,s,8\n{'b' * 200_000},2,s,9", [("net_a", "1")], "a,1,s,8\n"),
    ],
)
def test_a_table_of_a_model_has_its_rows_and_is_kept_whole(tmp_path, rows, results, kept):
    """The second has a cell that Python's reader refuses."""
    report = run(tmp_path, "one", "10")
    log = tmp_path / "one/nodes/node-0/mad_net_000000.log"
    log.write_text(f"{perf.BEGIN}model, performance,metric,batch\n{rows}{perf.END}\n")
    made = written(report, tmp_path)
    found = perf.read(made["perf.csv"], subject="perf.csv")
    assert [(row["model"], row["performance"]) for row in found] == results
    assert made["nodes/node-0/mad_net_000000.csv"] == f"model,performance,metric,batch\n{kept}"


@pytest.mark.parametrize("before", ["0", "nan", "many", ""])
def test_nothing_is_compared_with_what_is_no_number(before):
    earlier = [row(before, status="SUCCESS")]
    assert changes(perf.compared(earlier, [row("20")])) == [""]


def test_the_page_escapes_every_text():
    attack = "<script>alert(1)</script>"
    html = models.perf_html([row("1", model=attack, args='" onmouseover="x'), row(model="bad\x1b[2J\u202e")])
    assert "<script" not in html and "&lt;script&gt;" in html and 'onmouseover="x' not in html
    assert "\x1b" not in html and "\u202e" not in html
    assert html.index("bad") < html.index("&lt;script&gt;")
    assert "2 rows: 1 SUCCESS, 1 FAILURE" in html
    assert "default-src 'none'" in html and '<td class="bad">FAILURE</td>' in html


def test_the_page_of_a_long_history_is_bounded():
    html = models.perf_html([row("1")] * 6000)
    assert "6000 rows" in html and "The last 5000 are shown" in html and html.count("<tr>") == 5001


AT = "2026-11-20T20:00:00Z"
MODEL = {"model": "net", "n_gpus": "-1", "args": "--batch 8", "docker_image": "ci-net"}
STAGE = {
    "name": "mad_net_000000",
    "image": "localhost/ci-net:latest",
    "environment": {perf.VARIABLE: json.dumps(MODEL)},
}
PLAN = {
    "images": {"localhost/ci-net:latest": {"id": "sha256:1"}},
    "stages": [{"name": "facts", "environment": {}}, STAGE],
}


def run(results, run_id, performance, states=("success",)):
    """A run's folder with a node for each state; returns its report."""
    folder = RunFolder(results / run_id)
    (folder.state / "plans").mkdir(parents=True)
    nodes = []
    for index, state in enumerate(states):
        name = f"node-{index}"
        log = folder.evidence_file(name, STAGE["name"], "logs")
        log.parent.mkdir(parents=True)
        log.write_text(f"performance: 1 tokens/s\nperformance: {performance} tokens/s\n")
        facts = {"accelerator": {"vendor": "amd", "count": 8}, "gpus": [{"architecture": "gfx942"}]}
        folder.evidence_file(name, "facts").write_text(json.dumps({"environment": facts}))
        stage = {"name": STAGE["name"], "state": state, "message": "", "duration_seconds": 1.5}
        nodes.append({"name": name, "stages": [{"name": "facts"}, stage], "metrics": {}})
    folder.plan_file("node-0").write_text(json.dumps(PLAN))
    return {"run": {"run_id": run_id}, "nodes": nodes}


def written(report, results):
    return {name: text() for name, text in models.forms(report, results / report["run"]["run_id"]).items()}


def shown(text):
    rows = perf.read(text, subject="perf.csv")
    return [(row["machine_name"], row["performance"], row["relative_change"], row["status"]) for row in rows]


def test_a_run_has_a_row_for_each_model_and_node(tmp_path):
    made = written(run(tmp_path, "one", "10", ("success", "missing")), tmp_path)
    assert set(made) == {"perf.csv", "perf.html"}
    assert shown(made["perf.csv"]) == [("node-0", "10", "", "SUCCESS"), ("node-1", "", "", "FAILURE")]
    first = perf.read(made["perf.csv"], subject="perf.csv")[0]
    assert (first["n_gpus"], first["gpus_per_node"], first["gpu_architecture"]) == ("8", "8", "gfx942")
    assert (first["docker_sha"], first["test_duration"], first["build_number"]) == ("sha256:1", "1.5", "one")


def test_what_is_known_of_images_and_datasets(tmp_path):
    report = run(tmp_path, "one", "10")
    plan = {**PLAN, "stages": [{**STAGE, "datasets": ["pixels", "words"]}]}
    (tmp_path / "one/.state/plans/node-0.json").write_text(json.dumps(plan))
    (node,) = report["nodes"]
    for name, size in (("pixels", 1 << 40), ("words", 1)):
        stage = f"dataset_{name}"
        node["stages"].append({"name": stage, "state": "success", "message": "", "duration_seconds": 2.25})
        node["metrics"][stage] = [{"name": "loading_bytes", "value": size, "unit": "bytes"}]
    kept = tmp_path / "team.csv"
    made = models.forms(report, tmp_path / "one", kept, {STAGE["image"]: {"build_seconds": 31.5}})["perf.csv"]()
    (row,) = perf.read(made, subject="perf.csv")
    assert (row["build_duration"], row["data_size"], row["data_download_duration"]) == (
        "31.5",
        str((1 << 40) + 1),
        "4.5",
    )
    assert shown(kept.read_text()) == shown(made)
    assert "1 rows: 1 SUCCESS" in (tmp_path / "team.html").read_text()
    assert not (tmp_path / "perf.csv").exists(), "it is gpuval_mad_output"


def test_rows_are_kept_over_runs_and_a_report_again_adds_none(tmp_path):
    first, second = run(tmp_path, "one", "10"), run(tmp_path, "two", "12")
    for report in (first, second, second, first):
        made = written(report, tmp_path)
    assert shown(made["perf.csv"]) == [("node-0", "10", "", "SUCCESS")]
    rows = [("node-0", "10", "", "SUCCESS"), ("node-0", "12", "0.2", "SUCCESS")]
    assert shown((tmp_path / "perf.csv").read_text()) == rows
    assert "2 rows: 2 SUCCESS" in (tmp_path / "perf.html").read_text()


def test_another_perf_csv_is_moved_away(tmp_path):
    (tmp_path / "perf.csv").write_text("speed\n1\n")
    written(run(tmp_path, "one", "10"), tmp_path)
    assert (tmp_path / "perf.csv.unreadable").read_text() == "speed\n1\n"
    assert len(shown((tmp_path / "perf.csv").read_text())) == 1


def test_a_model_of_several_nodes_has_the_rows_of_its_first_node(tmp_path):
    report = run(tmp_path, "one", "10", ("success", "success", "success"))
    folder = RunFolder(tmp_path / "one")
    model = {**MODEL, "nnodes": "2", "launcher": "torchrun"}
    plan = {**PLAN, "stages": [{**STAGE, "environment": {perf.VARIABLE: json.dumps(model)}}]}
    folder.plan_file("node-0").write_text(json.dumps({"stages": []}))
    place = RunFolder(folder.path / "gangs/all")
    (place.state / "plans").mkdir(parents=True)
    place.run_file.write_text("{}")
    place.plan_file("node-0").write_text(json.dumps(plan))
    names = ["node-1", "node-0", "node-2"]
    for name in names:
        log, record = (place.evidence_file(name, STAGE["name"], kind) for kind in ("logs", "records"))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"performance: {name[-1]}0 tokens/s\n")
        record.write_text(json.dumps({"environment": {"gang": {"leader": "node-1", "node": name}}}))
    document = {
        "schema": "gpuval.gangs/1", "formed_at": AT, "ended_at": AT, "alone": [], "searches": {}, "findings": {},
        "gangs": {"all": [{"node": name, "address": "a", "slots": 8, "vendor": "amd"} for name in names]},
        "rounds": [{"name": "all", "kind": "gangs", "gangs": {"all": names}, "ended_at": AT}], "left_out": {},
    }  # fmt: skip
    (folder.path / "gangs/gangs.json").write_text(json.dumps(document))
    folder.write_run(make_run(names))
    made = written(report, tmp_path)
    assert shown(made["perf.csv"]) == [("node-1", "10", "", "SUCCESS")]
    (row,) = perf.read(made["perf.csv"], subject="perf.csv")
    assert (row["n_gpus"], row["nnodes"], row["gpus_per_node"], row["launcher"]) == ("16", "2", "8", "torchrun")
    for name in names:
        place.evidence_file(name, STAGE["name"]).unlink()
    assert len(shown(written(report, tmp_path)["perf.csv"])) == 1, "without a record it is one row, too"


def test_a_run_without_models_has_neither(tmp_path):
    report = run(tmp_path, "one", "10")
    (tmp_path / "one/.state/plans/node-0.json").write_text(json.dumps({"stages": PLAN["stages"][:1]}))
    assert written(report, tmp_path) == {}
    assert not (tmp_path / "perf.csv").exists()
