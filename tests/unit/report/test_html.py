"""report.html as text: what is in it, what cannot break out of it, and how large it may become."""

import copy
import hashlib
import json
import multiprocessing
import os
import re
import signal
from html.parser import HTMLParser
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import processes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_forms
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.html import ASSETS, html_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.page import checks, curves, encode, figures
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import (
    facts_record,
    healthy,
    judge,
    make_record,
    make_run,
    metric,
    training_metrics,
    write_report,
)

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\"><img src=x onerror='alert(1)'>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\u2028\u2029\ud800\x1b[31m",
]


class Page(HTMLParser):
    """Elements with their attributes, texts of scripts and of the page, and the names of the nodes that are shown."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.nodes, self.links, self.text = [], [], [], [], []
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        self._script = tag in ("script", "style")
        if tag == "script":
            self.scripts.append((attributes, ""))
        if "data-node" in attributes:
            self.nodes.append((attributes["data-node"], attributes["data-verdict"]))
        if tag == "a":
            self.links.append(attributes["href"])

    def handle_endtag(self, tag):
        self._script = self._script and tag not in ("script", "style")

    def handle_data(self, data):
        if self._script and self.scripts:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif not self._script:
            self.text.append(data)

    @property
    def data(self):
        (text,) = [text for attributes, text in self.scripts if attributes.get("type") == "application/json"]
        return json.loads(text)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


DEEP = '{"x": ' + "[" * 1000 + "]" * 1000 + "}"


def series(node="good", stage="training", **fields):
    curve = {
        "name": "training_loss", "unit": "loss", "scope": "node", "x_unit": "step",
        "x": [1, 2, 3], "y": [8.0, 5.0, 4.0], **fields,
    }  # fmt: skip
    return {
        "schema": "gpuval.series/1",
        "run_id": "run-1",
        "node": node,
        "stage": stage,
        "attempt": 1,
        "series": [curve],
    }


def put(folder, node, stage, document, suffix=".series.json"):
    place = folder / "nodes" / node
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{stage}{suffix}").write_text(document if isinstance(document, str) else json.dumps(document))


def test_verdict_counts_and_failing_nodes_need_no_script(mixed):
    page = Page(html_report(mixed))
    assert "FAIL" in page.words
    assert "At least one node failed a required check." in page.words
    for word, count in (("Expected", 4), ("PASS", 1), ("FAIL", 2), ("INCOMPLETE", 1)):
        assert f"{word} {count}" in page.words
    assert page.nodes == [("crashed", "FAIL"), ("slow", "FAIL"), ("gone", "INCOMPLETE")]
    assert "killed by SIGKILL" in page.words
    assert "gpu:3, serial 165493, 0000:93:00.0" in page.words
    assert "look at the clocks" in page.words
    assert "No route to host" in page.words
    assert "Expected: at least 600 TFLOP/s" in page.words


def test_a_pass_shows_no_failing_node():
    run = make_run()
    page = Page(html_report(judge(run, healthy(run))))
    assert page.nodes == []
    assert "Every expected node passed." in page.words


def test_a_run_without_nodes_has_a_page():
    page = Page(html_report(judge(make_run([]), RunEvidence())))
    assert "INCOMPLETE" in page.words
    assert page.data["nodes"] == []


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_node_says_becomes_markup(mixed, text, tmp_path):
    honest = Page(html_report(mixed, tmp_path))
    report = copy.deepcopy(mixed)
    report["summary"].append(text)
    report["fleet"]["problems"].append({"node": text, "stage": text, "reason": text})
    for node in report["nodes"]:
        node["name"] += text
        node["id"] = node["class"] = node["accelerator"] = text
        node["identity"] = {"machine_id": text, "serial": text, "gpus": [{"index": 0, "model": text, "serial": text}]}
        for stage in node["stages"]:
            stage["message"] = text
        for check in node["checks"]:
            check |= {"reason": text, "remedy": text, "source": text, "expected": text, "part": text, "unit": text}
            if isinstance(check["value"], str):
                check["value"] = text
        for metrics in node["metrics"].values():
            for one in metrics:
                one |= {"name": text, "unit": text}
    written = html_report(report, tmp_path)
    written.encode()
    page = Page(written)
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "style")] == [
        tag for tag, _ in honest.tags if tag in ("script", "img", "style")
    ]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert all(re.match(r"#|nodes/|[a-z_]+\.[a-z]+$", link) for link in page.links)
    assert len(page.data["nodes"]) == 4
    assert "49" not in page.words.replace("165493", "").replace("165494", "") or "7 * 7" in page.words


@given(st.recursive(st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists, max_leaves=8))
def test_json_for_a_script_says_the_same_and_ends_nothing(value):
    text = encode.script_json(value)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == json.loads(json.dumps(value))


def test_the_browser_may_run_only_what_the_page_was_made_with(mixed):
    page = Page(html_report(mixed))
    (policy,) = [
        attributes["content"] for tag, attributes in page.tags if "Security" in attributes.get("http-equiv", "")
    ]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    import base64

    for attributes, text in page.scripts:
        if "type" not in attributes:
            assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert not [attributes for _, attributes in page.tags if "style" in attributes or "src" in attributes]


def test_vendored_files_are_those_that_their_readme_names():
    told = dict(
        reversed(line.split())
        for line in (ASSETS / "uplot" / "README.md").read_text().splitlines()
        if "  uPlot" in line
    )
    assert len(told) == 2
    for name, digest in told.items():
        assert hashlib.sha256((ASSETS / "uplot" / name).read_bytes()).hexdigest() == digest


def test_a_pass_has_a_table_of_nodes_with_their_figures():
    run = make_run(["node-1", "node-2"], gpu_count=8)
    report = judge(run, healthy(run))
    assert report["verdict"] == "PASS"
    page = html_report(report)
    rows = re.findall(r'<tr><th scope="row"><a href="#node=(node-.)">.*?</tr>', page, re.DOTALL)
    assert rows == ["node-1", "node-2"]
    words = Page(page).words
    assert "56,000 tokens/s 703.5 TFLOP/s 723.75 MB/s 8 x H200" in words, "of GPUs the median"


def test_the_page_folds():
    """Cards of many different failures: the first are open, the last are folded."""
    run = make_run([f"node-{number}" for number in range(60)])
    evidence = healthy(run)
    for number, name in enumerate(run["nodes"]):
        evidence.records[name]["training"] = make_record(
            name, state="crash", message=f"broke off at {'x' * (number + 1)}"
        )
    page = html_report(judge(run, evidence))
    shown, folded = page.split('<details class="fold"><summary>and 36 more nodes</summary>')
    assert shown.count("data-node=") == 24
    assert folded.count("data-node=") == 36
    assert len(re.findall(r'<details class="bad[^>]* open>', page)) == 3


def test_counts_of_each_check(mixed):
    tabled = checks.ChecksTable(mixed)
    columns = {column.name: column for column in tabled.columns}
    assert columns["tflops"].counts == {"p": 1, "F": 1, "M": 1}
    number = list(columns).index("tflops")
    assert [node["name"] for node, row in zip(mixed["nodes"], tabled.letters) if row[number] == "F"] == ["slow"]
    assert columns["tflops"].limit == "at least 600 TFLOP/s"
    assert columns["launch"].counts == {"p": 3, "M": 1}
    assert all(column.counts.total() <= 4 for column in columns.values())


def test_cells_say_what_the_checks_say(mixed):
    page = Page(html_report(mixed))
    names = [column["n"] for column in page.data["columns"]]
    assert all(len(node["l"]) == len(names) for node in page.data["nodes"])
    for node, told in zip(mixed["nodes"], page.data["nodes"], strict=True):
        assert told["n"] == node["name"]
        failed = {check["name"] for check in node["checks"] if checks.letter(check) == "F"}
        assert {name for name, letter in zip(names, told["l"], strict=True) if letter == "F"} == failed


def test_worst_entry_of_a_check_counts():
    run = make_run(gpu_count=8)
    evidence = healthy(run)
    for one in evidence.records["node-1"]["training"]["metrics"]:
        if one["scope"] in ("gpu:2", "gpu:5"):
            one["value"] = 1.0
    tabled = checks.ChecksTable(judge(run, evidence))
    (index,) = [index for index, column in enumerate(tabled.columns) if column.name == "tflops"]
    assert tabled.letters[0][index] == "F"
    assert tabled.cells[0][index]["part"] in ("gpu:2", "gpu:5")


def fleet_of_figures(values, name="training_tokens_per_second"):
    run = make_run([f"node-{index}" for index in range(len(values))])
    evidence = healthy(run)
    for node, value in zip(run["nodes"], values, strict=True):
        evidence.records[node]["training"]["metrics"] = [
            *(one for one in training_metrics() if one["name"] != name), metric(name, value, "tokens/s"),
        ]  # fmt: skip
    report = judge(run, evidence)
    return report, {one.metric: one for one in figures.PlottedFigures(report).figures}


def test_the_node_that_stands_out_is_named():
    report, found = fleet_of_figures([100, 101, 99, 100.5, 99.5, 92, 100.2])
    (outlier,) = found["training_tokens_per_second"].outliers
    assert (outlier[0], report["nodes"][outlier[1][0]]["name"]) == (92, "node-5")
    assert "node-5" in Page(html_report(report)).words


def test_small_differences_are_no_outliers():
    _, found = fleet_of_figures([100, 100, 100, 100, 100, 101])
    assert found["training_tokens_per_second"].outliers == []


def test_figures_that_are_the_same_are_counted_only():
    report, found = fleet_of_figures([100, 100, 100])
    assert "training_tokens_per_second" not in found
    assert figures.PlottedFigures(report).same > 0


@pytest.mark.parametrize("values", [[1e299, -1e299, 3, 4], [0, 0, 0, 1e-300], [None, 1, 2, 3, 4], [5e-324, 0, 1]])
def test_extreme_figures_are_shown_somehow(values):
    report, _ = fleet_of_figures(values)
    html_report(report)


def test_unpacked_pairs_are_the_values():
    packed = encode.pairs([0.0, 50.0, None, 100.0, 200.0], 0.0, 100.0)
    assert len(packed) == 10
    assert packed[4:6] == "__"
    assert packed[6:8] == packed[8:10] == "_-"
    assert packed[:2] == "AA"


def test_curves_are_read_thinned_and_named(mixed, tmp_path):
    loss = [8 - step / 100 for step in range(500)]
    put(tmp_path, "good", "training", series(x=list(range(500)), y=loss))
    (index,) = [index for index, node in enumerate(mixed["nodes"]) if node["name"] == "good"]
    data = Page(html_report(mixed, tmp_path)).data
    ((kind, name, unit, stage, begin, end, low, high, packed),) = data["curves"][index]
    assert (kind, data["texts"][name], data["texts"][unit], data["texts"][stage]) == (
        "s",
        "training_loss",
        "loss",
        "training",
    )
    assert (begin, end) == (0, 499)
    assert len(packed["node"]) == 2 * curves.MAX_BINS
    assert 3 < low < 3.1
    assert 7.9 < high <= 8


@pytest.mark.parametrize(
    "document",
    [
        "no json",
        "[" * 100_000,
        "NaN",
        "[]",
        {"series": 3},
        series(node="other"),
        {**series(), "attempt": 2},
        series(x=[1, 2]),
        series(x=[3, 2, 1]),
        series(x=["1", "2", "3"]),
        series(y=[True, False, True]),
        series(y=[None, None, None]),
        series(name=["x"]),
        series(scope="<b>"),
        json.dumps(series()).replace("8.0", "1e999"),
        json.dumps(series()).replace("8.0", "NaN"),
        json.dumps(series()).replace("8.0", "1" + "0" * 400),
        '{"node": "good", "stage": "training", "attempt": 1, "series": [' + ", ".join([DEEP, DEEP]) + "]}",
    ],
)
def test_a_file_of_curves_that_is_none_is_left_out(mixed, tmp_path, document):
    put(tmp_path, "good", "training", document)
    assert not any(Page(html_report(mixed, tmp_path)).data["curves"])


def test_many_gpus_in_a_large_fleet_become_a_band():
    gpus = {f"gpu:{index}": [curves.Piece([0.0, 1.0, 2.0], [index, index, index])] for index in range(8)}
    told = curves.NodeCurves()
    told.timed["gpu_power_watts", "watts"] = gpus
    (few,) = curves.as_data(told, 10)
    assert set(few[-1]) == set(gpus)
    (many,) = curves.as_data(told, 5000)
    assert tuple(many[-1]) == tuple(curves.BAND)
    assert (many[6], many[7]) == (0, 7)


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.none() | st.floats(-1e6, 1e6)), min_size=1, max_size=60),
    st.integers(2, 40),
)
def test_thinning_stays_within_the_curve(points, bins):
    points.sort(key=lambda point: point[0])
    x, y = [point[0] for point in points], [point[1] for point in points]
    thin = curves.thinned(x, y, 0.0, 1000.0, bins)
    known = [value for value in y if value is not None]
    assert len(thin) == bins
    for value in thin:
        assert value is None or min(known) - 1e-6 <= value <= max(known) + 1e-6


def test_links_lead_to_files_that_are_there(mixed, tmp_path):
    put(tmp_path, "slow", "training", "log", ".log")
    put(tmp_path, "slow", "training", make_record("slow"), ".json")
    page = Page(html_report(mixed, tmp_path))
    found = [link for link in page.links if link.startswith("nodes/")]
    assert found == ["nodes/slow/training.log", "nodes/slow/training.json"]
    assert all((tmp_path / link).is_file() for link in found)


def test_versions_and_who_differs(mixed, tmp_path):
    drivers = {"good": "580.1", "slow": "580.1", "crashed": "570.9</td>"}
    for node in mixed["nodes"]:
        node["versions"] = {"driver": drivers[node["name"]]} if node["name"] in drivers else {}
    mixed["nodes"][0]["stages"][-1]["versions"] = {"image": "registry/train:1", "unknown": "x"}
    words = Page(html_report(mixed, tmp_path)).words
    assert "GPU driver 580.1 2 nodes 570.9</td> 1 node: crashed" in words
    assert f"Image {mixed['nodes'][0]['stages'][-1]['name']}: registry/train:1" in words


def test_a_report_of_release_1_0_has_no_versions(mixed, tmp_path):
    for node in mixed["nodes"]:
        del node["versions"]
        for stage in node["stages"]:
            stage.pop("versions", None)
    assert "No record has one." in Page(html_report(mixed, tmp_path)).words


def test_a_fleet_in_which_all_failed_stays_a_page_that_opens():
    run = make_run([f"node-{index}" for index in range(300)], gpu_count=8)
    evidence = healthy(run)
    for node in run["nodes"]:
        evidence.records[node]["training"]["metrics"] = [
            {**one, "value": 1.0} if one["scope"].startswith("gpu") else one for one in training_metrics()
        ]
    text = html_report(judge(run, evidence))
    assert len(text.encode()) < 1_500_000  # 5 MB for 1,000 nodes
    assert len(Page(text).nodes) == 300


@pytest.fixture
def fleet(tmp_path):
    """A report of so many nodes that several processes read their results."""
    run = make_run([f"node-{index:02}" for index in range(processes.MIN_NODES)])
    for index, node in enumerate(run["nodes"]):
        put(tmp_path, node, "training", series(node, y=[8.0, None, float(index)]))
        put(tmp_path, node, "facts", facts_record(node), ".json")
    return judge(run, healthy(run))


def test_the_results_of_a_fleet_are_read_by_several_processes(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    shared = html_report(fleet, tmp_path)
    assert all(Page(shared).data["curves"])
    monkeypatch.setattr(processes, "MIN_NODES", 1 << 20)
    assert html_report(fleet, tmp_path) == shared


def test_curves_that_a_killed_process_does_not_read_are_in_the_page(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    expected = html_report(fleet, tmp_path)
    parent, of_node = os.getpid(), curves.of_node

    def read_or_die(*words):
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return of_node(*words)

    monkeypatch.setattr(curves, "of_node", read_or_die)
    assert html_report(fleet, tmp_path) == expected


def test_a_form_that_fails_ends_the_processes_that_read(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    (tmp_path / "junit.xml").mkdir()
    with pytest.raises(IsADirectoryError, match=r"junit\.xml"):
        write_forms(fleet, tmp_path)
    assert not multiprocessing.active_children()
    assert (tmp_path / "report.md").exists()
    assert not (tmp_path / "report.html").exists()


def test_the_page_is_one_of_the_written_files(mixed, tmp_path):
    paths = write_report(mixed, tmp_path)
    assert paths["report.html"].read_text() == html_report(mixed, tmp_path)
    assert list(paths)[-1] == "report.json"


def test_the_template_lies_beside_what_fills_it():
    assert Path(ASSETS, "report.html.j2").is_file()


@pytest.fixture
def grouped():
    """A fleet in which the nodes of rack r1 train slower, within the limits."""
    run = make_run([f"node-{index}" for index in range(40)], gpu_count=8)
    evidence = healthy(run)
    for index, node in enumerate(run["nodes"]):
        run["nodes"][node]["labels"] = {"rack": f"r{index // 8}"}
        facts = facts_record(node)
        for gpu in facts["environment"]["gpus"]:
            gpu["serial"] = f"{index}-{gpu['index']}"
        evidence.records[node]["facts"] = facts
        rate = (700 if index // 8 != 1 else 650) + index / 10
        evidence.records[node]["training"]["metrics"] = training_metrics(tflops=rate)
    return judge(run, evidence)


def test_the_group_that_differs_and_the_statistics_are_shown(grouped, tmp_path):
    page = Page(html_report(grouped))
    assert "rack r1 8 nodes" in page.words
    assert "% below the other 32" in page.words
    assert page.data["texts"][page.data["nodes"][9]["b"][0]] == "rack r1"
    rows = [attributes for tag, attributes in page.tags if attributes.get("class") == "statistic"]
    assert any("training_model_tflops" in row["data-find"] for row in rows)
    write_report(grouped, tmp_path)
    told = (tmp_path / "report.md").read_text()
    assert "- rack r1: training_model_tflops " in told
    assert "| training_model_tflops | " in told


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_the_analysis_becomes_markup(grouped, text):
    honest = Page(html_report(grouped))
    report = copy.deepcopy(grouped)
    analysis = report["fleet"]["analysis"]
    for one in analysis["findings"]:
        one |= {"by": text, "value": text, "moved": text, "text": text, "names": [text], "kind": text, "metric": text}
        one["alike"] = [{"by": text, "value": text, "same": True}]
    for one in (*analysis["statistics"], *analysis["groups"]):
        one |= {"metric": text + one["metric"], "kind": text, "unit": text, "stage": text}
    pair = {"metric": text, "scope": text}
    analysis["correlations"] = [
        {"stage": text, "kind": text, "one": pair, "other": pair, "rho": 0.9, "over": text, "count": 9, "nodes": 9}
    ]
    for node in report["nodes"]:
        node["labels"] = {text: text}
    page = Page(html_report(report))
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "style")] == [
        tag for tag, _ in honest.tags if tag in ("script", "img", "style")
    ]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_a_report_without_an_analysis_is_shown(mixed):
    del mixed["fleet"]["analysis"]
    for node in mixed["nodes"]:
        del node["labels"]
    assert "Analysis" not in Page(html_report(mixed)).words


def test_checks_between_nodes_tell_who_the_peers_are(mixed):
    report = copy.deepcopy(mixed)
    for node in report["nodes"]:
        for check in node["checks"]:
            if check["name"] == "tflops":
                check |= {"kind": "outlier", "verdict": "pass"}
            elif check["name"] == "speed":
                check |= {"kind": "baseline", "verdict": "pass", "reason": "1 % under 7 of the baseline site version 2"}
            elif check["name"] == "loss":
                check |= {"kind": "baseline", "verdict": "skipped", "reason": "gpuval_baseline names no baseline"}
    (one,) = [check for check in report["nodes"][0]["checks"] if check["name"] == "tflops"][:1]
    said = "h200 8 GPUs: tflops of 92 nodes, median 700 TFLOP/s, deviation 0.5 %"
    report["fleet"]["checks"] = [{**one, "part": "fleet", "reason": said}]
    columns = {column.name: column.beside for column in checks.ChecksTable(report).columns}
    assert columns["tflops"] == [said]
    assert columns["speed"] == [f"{report['nodes'][0]['name']}: 1 % under 7 of the baseline site version 2"]
    assert columns["loss"] == ["gpuval_baseline names no baseline"]
    assert columns["launch"] == []
    assert said in Page(html_report(report)).words
