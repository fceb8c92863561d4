import csv
import html
import io
import json
import re
from xml.etree import ElementTree as ET

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import escape, extensions, schemas, units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence, take_record
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import (
    acceptance,
    final_block,
    junit_xml,
    markdown_report,
    perf_csv,
    write_file,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.html import html_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.lookup import node_facts
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import decisive, reasons, summary_lines
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.kit.builders import (
    healthy,
    healthy_records,
    judge,
    make_record,
    make_run,
    metric,
    training_metrics,
    write_report,
)
from tests.kit.reports import json_text


def test_console_block(mixed):
    lines = final_block(mixed).splitlines()
    assert lines[0] == lines[-1] == "=" * 50
    assert lines[1] == "FINAL ACCEPTANCE: FAIL"
    assert lines[2] == "- Nodes: 4 expected, 1 PASS, 2 FAIL, 1 INCOMPLETE"
    assert lines[3].startswith("- crashed FAIL training: crash: killed by SIGKILL: ")
    assert "(gpu:3, serial 165493, 0000:93:00.0)" in lines[4]
    assert lines[5].startswith("- gone INCOMPLETE launch: unreachable (no_route): No route to host: ")


def test_what_was_spent_and_how_busy_the_gpus_were():
    run = make_run(["node-1", "node-2"], stages=["facts", "training", "inference"], gpu_count=8)
    evidence = healthy(run)
    clocks = {"facts": ("00", "01"), "inference": ("01", "31"), "training": ("40", "60")}
    shares = {"training": 0.9, "inference": 0.5}
    for records in evidence.records.values():
        for stage, (begun, ended) in clocks.items():
            hour, minute = divmod(int(ended), 60)
            records[stage] |= {
                "started_at": f"2026-11-28T10:{begun}:00.000Z",
                "finished_at": f"2026-11-28T{10 + hour}:{minute:02d}:00.000Z",
                "duration_seconds": 60.0 * (int(ended) - int(begun)),
            }
            records[stage]["metrics"] += [
                metric("gpu_utilisation_mean_ratio", shares[stage], "ratio", f"gpu:{number}")
                for number in range(8) if stage in shares
            ]  # fmt: skip
    report = judge(run, evidence)
    line = "Spent: 16.0 GPU-hours, GPUs busy for 55 % (training 90 %, inference 50 %)"
    assert line in summary_lines(report)
    for node in report["nodes"]:
        node["metrics"] = {}
    assert "Spent: 16.0 GPU-hours" in summary_lines(report)


def refused(names, message="No route to host", **fields):
    run = make_run(["good", *names], gpu_count=8)
    evidence = healthy(run)
    for name in names:
        del evidence.records[name]
        evidence.launches[name] = {"state": "unreachable", "message": message.format(node=name), **fields}
    return judge(run, evidence)


def test_warnings_are_in_the_order_of_the_checks():
    """A set has another order in each process, and the same results would be delivered as other bytes."""
    run = make_run()
    report = judge(run, healthy(run))
    names = ["training_c", "training_a", "loading_d", "training_b", "facts_e"]
    (node,) = report["nodes"]
    node["checks"] = [{**node["checks"][0], "name": name, "verdict": "warn"} for name in names]
    assert f"Warnings: {', '.join(names)}; see report.html" in summary_lines(report)


def test_equal_reasons_and_remedies_are_said_once_with_their_nodes():
    lines = final_block(refused(["node-1", "node-2", "node-10"])).splitlines()
    (line,) = [line for line in lines if "No route to host" in line]
    assert line.startswith("- node-1, node-2, node-10 INCOMPLETE launch: unreachable (no_route): No route to host: ")
    assert line.endswith("then validate again with --limit node-1,node-2,node-10")
    many = refused([f"node-{number}" for number in range(30)])
    block = final_block(many)
    assert "- node-0, node-1, node-2, node-3, node-4, node-5, node-6, node-7 and 22 more INCOMPLETE" in block
    assert block.count("--limit @results/INVENTORY/run-1/failed_nodes.txt") == 1
    block = final_block(many, page="/srv/results/lab/run-1/report.html")
    assert block.count("--limit @/srv/results/lab/run-1/failed_nodes.txt") == 1 and "INVENTORY" not in block


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("u@h: Permission denied (publickey,password).", "u@h: Permission denied (publickey,password): check"),
        ("/x cannot be made. Set it to a folder you may write.", "Set it to a folder you may write: "),
        ("it ends with ...", "it ends with ...: "),
    ],
)
def test_no_full_stop_stands_before_the_colon_of_the_remedy(message, line):
    (found,) = [one for one in refused(["bad"], message)["summary"] if one.startswith("bad ")]
    assert line in found and ".:" not in found.replace("...:", "")


def test_equal_failures_are_one_section_of_the_text_and_one_card_of_the_page():
    report = refused(["node-1", "node-2"], "{node}: No route to host")
    text = markdown_report(report)
    assert "### node-1, node-2: INCOMPLETE (no_route)" in text
    assert text.count("- **missing** unreachable (no_route): NODE: No route to host") == 1
    page = html_report(report)
    assert page.count('<details class="bad') == 1
    assert [page.count(f'data-node="{name}"') for name in ("node-1", "node-2", "good")] == [1, 1, 0]
    assert "NODE: No route to host" in page


def test_the_action_of_a_node_is_in_every_form_of_its_verdict():
    run = make_run(["good", "slow", "gone"], gpu_count=8)
    evidence = healthy(run)
    evidence.records["slow"]["training"]["metrics"] = [
        {**one, "value": 1.0} if one["scope"] == "gpu:3" else one for one in training_metrics()
    ]
    del evidence.records["gone"]
    evidence.launches["gone"] = {"state": "unreachable", "message": "No route to host"}
    report = judge(run, evidence, earlier={("no_route", "name gone"): {"run-0"}})
    slow = "retest gpu:3, serial 165493, 0000:93:00.0 (tflops)"
    gone = "replace_node (no_route, also found in run-0)"
    line = "Actions: replace_node gone; retest slow (gpu:3, serial 165493, 0000:93:00.0)"
    assert f"- {line}" in final_block(report).splitlines()
    text, page = markdown_report(report).replace("\\", ""), html_report(report)
    for action in (slow, gone):
        assert f"- **action** {action}" in text
        assert f'<p class="action"><b>Action</b> {action}</p>' in page
    properties = {
        (suite.get("name"), one.get("name")): one.get("value")
        for suite in ET.fromstring(junit_xml(report))
        for one in suite.iterfind("properties/property")
    }
    assert properties == {
        ("slow", "action"): "retest",
        ("slow", "action_text"): slow,
        ("gone", "action"): "replace_node",
        ("gone", "action_text"): gone,
    }
    names = {node["name"]: node_facts(report, node)["action"] for node in report["nodes"]}
    assert names == {"good": None, "slow": "retest", "gone": "replace_node"}


def test_a_report_of_before_actions_is_written_all_the_same(mixed):
    for node in mixed["nodes"]:
        node.pop("action", None)
    mixed["summary"] = summary_lines(mixed)
    schemas.validate("report", mixed, what="report")
    for text in (markdown_report(mixed), html_report(mixed), junit_xml(mixed), "\n".join(summary_lines(mixed))):
        assert "action_text" not in text and "**action**" not in text and "Actions:" not in text


def test_parts_with_one_reason_and_remedies_of_one_node_are_said_once():
    run = make_run(gpu_count=8)
    run["nodes"]["node-1"]["versions"] = {"driver": ["999.*"]}
    evidence = healthy(run)
    for gpu in evidence.records["node-1"]["facts"]["environment"]["gpus"]:
        gpu["driver_version"] = "580.1"
    evidence.records["node-1"]["training"]["metrics"] = training_metrics(tflops=5.0)
    node = judge(run, evidence)["nodes"][0]
    told = reasons(node)
    assert len(told) < len(decisive(node))
    assert next(part for check, part, _ in told if check["name"] == "versions_driver").count("gpu:") == 8
    remedies = [remedy for _, _, remedy in told if remedy != "as above"]
    assert len(remedies) == len(set(remedies))


def test_names_of_nodes_make_reasons_no_different_and_a_remedy_is_said_once():
    (line,) = [one for one in refused(["a-1", "a-2"], "{node}: no route")["summary"] if "launch" in one]
    assert "NODE: no route" in line
    run = make_run(["good", "slow", "slower"], gpu_count=8)
    evidence = healthy(run)
    for name, rate in (("slow", 5.0), ("slower", 4.0)):
        evidence.records[name]["training"]["metrics"] = training_metrics(tflops=rate)
    block = final_block(judge(run, evidence))
    assert block.count("look at the clocks") == 1
    assert ": remedy as for slow" in block


def test_a_remedy_with_a_command_is_never_cut(mixed):
    command = "ssh-keygen -R " + "x" * 700 + " -f /home/operator/.ssh/known_hosts"
    for check in mixed["nodes"][-1]["checks"]:
        check["remedy"] = command
    mixed["summary"] = summary_lines(mixed)
    assert command in final_block(mixed)
    assert command in markdown_report(mixed).replace("\\", "")


@pytest.mark.parametrize("nodes", [["node-1"], []])
def test_the_block_ends_with_the_path_of_the_page(nodes):
    run = make_run(nodes)
    block = final_block(judge(run, healthy(run)), page="/srv/results/run-1/report.html")
    assert block.splitlines()[-2:] == ["- Report: /srv/results/run-1/report.html", "=" * 50]


def test_commands_of_the_block_choose_the_inventory(mixed):
    mixed["summary"].append("see that the store answers (`make prepare`), then `make status INVENTORY=x`")
    block = final_block(mixed, inventory="inventories/my site")
    assert "(`make prepare INVENTORY='inventories/my site'`), then `make status INVENTORY=x`" in block
    assert "- Validate again what did not pass: `make rerun INVENTORY='inventories/my site'`" in block
    assert "rerun" not in final_block(judge(make_run(), healthy(make_run())), inventory="inventories/site")
    mixed["run"] |= {"profile": "custom", "narrowed_by": ["stages"]}
    assert "rerun" not in final_block(mixed, inventory="inventories/site"), "it would validate, not run the job"


def test_the_block_of_a_run_names_its_page_and_its_inventory(mixed, tmp_path):
    folder = tmp_path / "results" / "run-1"
    paths = write_report(mixed, folder)
    inventory = tmp_path / "nodes.yml"
    inventory.write_text("")
    assert "rerun" not in acceptance(paths["report.json"]), "without run.json the inventory is unknown"
    (folder / "run.json").write_text(json.dumps({"origin": {"inventory": ["../nodes.yml"]}}))
    block = acceptance(paths["report.json"])
    assert f"`make rerun INVENTORY={inventory}`\n- Report: {paths['report.html']}\n===" in block


def test_console_block_of_a_pass_says_what_was_measured():
    run = make_run()
    done = {"facts", "image", "endpoints", "training", "loading", "inference"}
    of_racks = {"collective_nvlink", "fabric_nvlink"}  # which this node is in none of
    untested = sorted(set(extensions.found("stages")) - done - of_racks)
    lines = final_block(judge(run, healthy(run)), width=20).splitlines()
    assert lines == [
        "=" * 20,
        "FINAL ACCEPTANCE: PASS",
        "- Nodes: 1 expected, 1 PASS, 0 FAIL, 0 INCOMPLETE",
        "- training: 20.93 s, 56,000 tokens/s",
        "- loading: 8.04 GB, 11.1 s, 723.75 MB/s (5.79 Gbps)",
        "- inference: start-up 5 s, running 7 s, 640 requests done",
        "- GPU count not declared: node-1; set gpuval_gpu_count to have it checked",
        f"- Not tested: {', '.join(untested)} (not in the profile quick)",
        "- Spent: 0.1 GPU-hours",
        "=" * 20,
    ]


@pytest.mark.parametrize(("stages", "accepts"), [(["facts"], False), (["facts", "training"], True)])
def test_a_pass_without_a_test_of_a_gpu_does_not_read_as_an_acceptance(stages, accepts):
    run = make_run(stages=stages)
    lines = final_block(judge(run, healthy(run))).splitlines()
    remark = f"- No stage that tests a GPU ran: the run had {', '.join(stages)}. Leave out gpuval_stages"
    assert lines[1] == f"FINAL ACCEPTANCE: PASS{'' if accepts else ' (no GPU was tested)'}"
    assert lines[2].startswith(remark) == (not accepts)


@pytest.mark.parametrize(
    ("skus", "gpus", "said"),
    [
        (("auto", "auto", "auto"), 0, "3 of 3 node(s) have no GPU hardware, and no GPU was declared"),
        (("auto", "cpu", "cpu"), 0, "1 of 3 node(s) have no GPU hardware, and no GPU was declared"),
        (("cpu", "cpu", "cpu"), 0, ""),
        (("auto", "auto", "auto"), 8, ""),
    ],
)
def test_a_pass_of_nodes_without_gpus_says_that_none_was_tested(skus, gpus, said):
    run = make_run([f"node-{number}" for number in (1, 2, 3)])
    for node, sku in zip(run["nodes"].values(), skus, strict=True):
        node["sku"] = sku
    evidence = healthy(run)
    for name in ("node-1", "node-2", "node-3")[: 3 if not gpus else 2]:  # one with GPUs among three
        evidence.records[name] = healthy_records(name, gpus=0, vendor="cpu")
    report = judge(run, evidence)
    line = f"No GPU was tested: {said}: set gpuval_gpu_count, or gpuval_sku: cpu for CPU nodes"
    assert report["verdict"] == "PASS"
    assert [one for one in report["summary"] if "No GPU" in one] == ([line] if said else [])
    assert (f"- {line}\n" in final_block(report)) == bool(said)
    assert (line in html.unescape(markdown_report(report)).replace("\\", "")) == bool(said)


def test_written_files(mixed, tmp_path):
    paths = write_report(mixed, tmp_path / "run-1")
    forms = {"report.html", "report.md", "junit.xml", "ctrf-report.json", "cluster_test_report.json", "gpuval.prom"}
    forms |= {"perf.csv", "failed_nodes.txt"}
    assert set(paths) == {"report.json", *forms}
    assert sorted(path.name for path in (tmp_path / "run-1").iterdir()) == sorted(paths)
    assert report_file.unpacked(report_file.read(paths["report.json"])) == mixed
    assert paths["failed_nodes.txt"].read_text() == "crashed\ngone\nslow\n"
    write_report(mixed, tmp_path / "run-1")


def test_json_has_a_line_for_each_node(mixed):
    lines = json_text(mixed).splitlines()
    assert sum(line.startswith('{"name":') for line in lines) == 4
    empty = judge(make_run([]), RunEvidence())
    assert json.loads(json_text(empty)) == empty


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    write_file(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_file(path, "\ud800")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("x", "old")]


def test_markdown(mixed):
    text = markdown_report(mixed)
    assert text.startswith("# FINAL ACCEPTANCE: FAIL\n")
    assert "### slow: FAIL" in text
    assert "remedy: look at the clocks" in text
    assert "- Node: good, Training Time: 20.9 seconds, 56,000 tokens/s" in text
    assert "- Node: good, Data Size: 8.04 GB, Duration: 11.1 seconds, Throughput: 5.79 Gbps" in text
    inference = "Startup Time: 5 seconds, Running Time: 7 seconds, Inference Number: 640, Generated Token Number: 6300"
    assert f"- Node: good, {inference}" in text
    assert "| crashed | success 25 s, store only | crash 25 s, store only | success 25 s, store only |" in text
    assert "| good | 3 | H200 | 165493 |  | 0000:93:00.0 |  |" in text, "each GPU by its index, with what finds it"
    gone = text[text.index("### gone") : text.index("### slow")]
    assert gone.count("- **missing**") == 1
    assert gone.count("remedy: ") == 1
    assert "no record" not in gone


def test_junit(mixed):
    root = ET.fromstring(junit_xml(mixed))
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["crashed", "gone", "good", "slow"]
    for element in [root, *root]:
        cases = list(element.iter("testcase"))
        assert int(element.get("tests")) == len(cases)
        assert int(element.get("failures")) == len(list(element.iter("failure")))
        assert int(element.get("errors")) == len(list(element.iter("error")))
        assert int(element.get("skipped")) == len(list(element.iter("skipped")))
    (failure,) = suites["slow"].iter("failure")
    assert failure.get("message").endswith("(gpu:3, serial 165493, 0000:93:00.0)")
    assert "remedy: look at the clocks" in failure.text
    assert "No route to host" in next(suites["gone"].iter("error")).get("message")
    assert not list(suites["good"].iter("failure")) + list(suites["good"].iter("error"))


def test_junit_shows_skips_with_their_reason_and_warnings_as_output():
    run = make_run(sku="cpu")
    evidence = healthy(run, gpus=0, vendor="cpu")
    record = evidence.records["node-1"]["training"]
    record["metrics"] = [
        {**one, "value": 9.0} if one["name"] == "training_step_p99_seconds" else one for one in record["metrics"]
    ]
    root = ET.fromstring(junit_xml(judge(run, evidence)))
    assert {skip.get("message") for skip in root.iter("skipped")} == {"applies to gpu, this is cpu"}
    assert next(root.iter("system-out")).text.startswith("warn: training_step_p99_seconds")


def test_perf_csv(mixed):
    rows = list(csv.DictReader(io.StringIO(perf_csv(mixed))))
    assert list(rows[0]) == ["model", "performance", "metric", "node", "stage", "scope", "unit", "min", "max"]
    good = {(row["node"], row["metric"], row["scope"]): row for row in rows}
    rate = good["good", "training_model_tflops", "gpu"]
    assert (rate["performance"], rate["min"], rate["max"]) == ("703.5", "700", "707"), "a row for eight GPUs"
    assert good["good", "loading_bytes", "node"]["unit"] == "bytes"
    assert good["crashed", "crash", "node"]["performance"] == ""
    assert [(row["stage"], row["metric"]) for row in rows if row["node"] == "gone"] == [("launch", "no_route")]


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1+1", "'+1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("-x", "'-x"),
        ("-1.5e-3", "-1.5e-3"),
        ("+7", "+7"),
        ("plain", "plain"),
        (None, ""),
        (-3.5, "-3.5"),
    ],
)
def test_csv_cells_are_no_formulas(cell, written):
    assert escape.csv_cell(cell) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("validate again with --limit @results/run-1/failed_nodes.txt", None),
        ("ssh -p 22 root@10.0.0.1 fails", None),
        ("https://10.0.0.5:9000/bucket answers 500", None),
        ("A & B, 5 > 3, gpu_0", "A & B, 5 > 3, gpu_0"),
        ("mail @all now", "mail `@all` now"),
        ("&#64; <b> x@<b>", "&amp;#64; &lt;b> x\\@&lt;b>"),
        ("# heading", "\\# heading"),
        ("1. list", "1\\. list"),
    ],
)
def test_markdown_is_good_to_read_as_it_stands(text, written):
    """Commands can be copied; nothing is written as the number of a character."""
    cell = escape.markdown(text)
    assert cell.replace("`", "") == text if written is None else cell == written


@given(st.text())
@example("<script>alert(1)</script> | `x` [a](http://b) ![i](x) @all www.evil.example")
@example("__0__ ___a___ _b_")
@example("\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\")
def test_any_text_is_defused(text):
    cell = escape.markdown(text)
    assert "\n" not in cell
    assert "<" not in cell
    (paragraph,) = [one for one in MarkdownIt().parse(f"x {cell}") if one.type == "inline"]
    assert {one.type for one in paragraph.children} <= {"text", "text_special", "code_inline"}
    assert "".join(one.content for one in paragraph.children) == f"x {escape.one_line(text)}".strip()
    plain = "".join(one for number, one in enumerate(re.split("(?<!\\\\)`", cell)) if number % 2 == 0)
    assert "://" not in plain and "www." not in plain
    assert plain.count("@") == plain.count("\\@")
    assert plain.count("|") == plain.count("\\|")
    started = [one.type for one in MarkdownIt().parse(f"- {cell}") if one.type.endswith("_open")]
    assert started[:2] == ["bullet_list_open", "list_item_open"] and set(started[2:]) <= {"paragraph_open"}
    line = escape.one_line(text)
    assert len(line) <= 400
    assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in line)
    element = ET.fromstring(f"<a>{escape.xml_text(text).replace('&', '').replace('<', '').replace('>', '')}</a>")
    assert element.tag == "a"


NASTY = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> | `code` [click](javascript:alert(1)) http://evil.example "
    "\x1b[2J\x1b]0;owned\x07\x9b31m \u202egnp.exe\r\n=cmd|' /C calc'!A0\x00\ufffe"
)


def test_malicious_records_harm_nothing_and_are_named(tmp_path):
    run = make_run(["good", "evil", "forger", "glutton"], gpu_count=8)
    run["workloads"]["training"] = "=1+1"  # so that the text of the record comes as far as the files
    sound = healthy(run)
    sound.records["good"]["training"]["workload"] = "=1+1"
    objects = [
        (f"folder/records/{stage}/good.json", json.dumps(record).encode())
        for stage, record in sound.records["good"].items()
    ]
    evil = make_record("evil", state="failure", message=NASTY, workload="=1+1", command=[NASTY], image=NASTY[:100])
    evil["metrics"] = [
        metric("training_tokens_per_second", 1.7e308, NASTY[:32]),
        metric("x", None, "\x1b[31m", "link:a>b"),
    ]
    evil["fingerprints"] = {NASTY: NASTY}
    evil["environment"] = {NASTY: [NASTY], "identity": NASTY, "gpus": [{"index": 10**30, "serial": NASTY}]}
    objects += [
        ("folder/records/training/evil.json", json.dumps(evil).encode()),
        ("folder/records/facts/evil.json", json.dumps({**evil, "stage": "facts", "workload": "facts"}).encode()),
        ("folder/records/training/forger.json", json.dumps(sound.records["good"]["training"]).encode()),
        ("folder/records/training/glutton.json", b'{"a":"' + b"x" * (2 << 20) + b'"}'),
        ("folder/records/training/../../../../tmp/pwned.json", b"{}"),
        (f"folder/records/training/{NASTY}.json", b"{}"),
    ]
    evidence = RunEvidence(launches={node: {"state": "started", "message": NASTY} for node in run["nodes"]})
    for key, raw in objects:
        take_record(evidence, run, key, raw)
    report = judge(run, evidence)
    schemas.validate("report", report, what="report")
    verdicts = {node["name"]: node["verdict"] for node in report["nodes"]}
    assert verdicts == {"evil": "FAIL", "forger": "INCOMPLETE", "glutton": "INCOMPLETE", "good": "PASS"}
    reasons = {problem["node"]: problem["reason"] for problem in report["fleet"]["problems"]}
    assert "node is 'good', but it was found under 'forger'" in reasons["forger"]
    assert "over the limit" in reasons["glutton"]
    assert any("tmp/pwned" in problem["reason"] for problem in report["fleet"]["problems"])

    outside = set(tmp_path.parent.iterdir())
    paths = write_report(report, tmp_path / "run")
    assert set(tmp_path.parent.iterdir()) == outside
    texts = {name: path.read_text() for name, path in paths.items()}
    texts["console"] = final_block(report)
    for name, text in texts.items():
        strange = {c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\ufffe"}
        assert not strange, name
    assert "<script" not in texts["report.md"]
    assert "<img" not in texts["report.md"]
    assert "http://" not in texts["report.md"].replace("`http://evil.example`", "")
    assert "[click](" not in texts["report.md"]
    assert texts["console"].count("\n") == len(report["summary"]) + 2
    ET.fromstring(texts["junit.xml"])
    for row in csv.reader(io.StringIO(texts["perf.csv"])):
        assert not any(cell.startswith(("=", "@", "\t")) for cell in row)
        assert len(row) == 9
    assert "'=1+1" in texts["perf.csv"]
    assert texts["failed_nodes.txt"] == "evil\nforger\nglutton\n"


@pytest.fixture
def with_tables(monkeypatch):
    """Reports of few nodes have tables, too."""
    monkeypatch.setattr(report_file, "MAX_WHOLE_NODES", -1)


def test_a_report_of_few_nodes_is_whole(mixed):
    document = json.loads(json_text(mixed))
    schemas.validate("report", document, what="report")
    assert document == json.loads(json.dumps(mixed))
    many = {**mixed, "nodes": [{**mixed["nodes"][0], "name": f"n{number}"} for number in range(33)]}
    assert {"criteria", "figures"} <= json.loads(json_text(many)).keys()


@pytest.mark.parametrize("few", [-1, 32])
@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_report_is_read_as_it_was_written(tmp_path, monkeypatch, nodes, few):
    monkeypatch.setattr(report_file, "MAX_WHOLE_NODES", few)
    run = make_run([f"node-{number}" for number in range(nodes)])
    report = judge(run, healthy(run))
    path = tmp_path / "report.json"
    write_file(path, report_file.lines(report))
    assert path.read_text() == json_text(report)
    document = report_file.read(path)
    schemas.validate("report", document, what="report")
    assert "".join(report_file.lines(document)) == path.read_text()
    assert report_file.unpacked(document) == report
    assert list(report_file.unpacked(document)) == list(report)


def test_report_laid_out_anew_is_read_too(mixed, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(mixed, indent=1))
    assert report_file.unpacked(report_file.read(path)) == mixed


@pytest.mark.usefixtures("with_tables")
def test_texts_and_names_stand_once_in_the_file(mixed):
    """What a reader of the file alone needs: every check by name with its verdict and value, and bad ones whole. Stages
    that the name alone does not tell are there, too."""
    document = json.loads(json_text(mixed))
    for node, whole in zip(document["nodes"], mixed["nodes"], strict=True):
        for check, known in zip(node["checks"], whole["checks"], strict=True):
            always = ("name", "verdict", "value")
            assert {key: check.get(key) for key in always} == {key: known[key] for key in always}
            of_name = [key for key in document["criteria"] if key.endswith(f"/{known['name']}")]
            assert check.get("stage") == known["stage"] or of_name == [f"{known['stage']}/{known['name']}"]
            if known["severity"] == "required" and check["verdict"] in ("fail", "missing"):
                assert check == known
    good = json_text({**mixed, "nodes": [node for node in mixed["nodes"] if node["verdict"] == "PASS"] * 50})
    assert good.count("look at the clocks") < 10
    assert good.count('"training_model_tflops", "unit"') == 1


@pytest.mark.usefixtures("with_tables")
@pytest.mark.parametrize(
    "values", [(0, 0.0, 0), (0.0, 0, 0.0), (None, 1, None), (1, None, 1), ("a", "b", "a"), (2.0, 2.0), (0.1, 0.2, 0.3)]
)
@pytest.mark.parametrize("stages", [["training"], ["training", "facts"], ["", "facts"]])
def test_checks_with_common_values_and_names_are_read_as_they_were_written(mixed, values, stages):
    node = mixed["nodes"][0]
    check = next(check for check in node["checks"] if check["verdict"] == "pass")

    def judged(value, stage):
        reason = f"it is {units.human(value, 'seconds')}" if isinstance(value, (int, float)) else "it is none"
        return {**check, "name": "mine", "stage": stage, "value": value, "reason": reason, "unit": "seconds"}

    nodes = [{**node, "name": str(value), "checks": [judged(value, stage) for stage in stages]} for value in values]
    document = json.loads(json_text({**mixed, "nodes": nodes}))
    schemas.validate("report", document, what="report")
    assert all(("stage" in packed) == (len(stages) > 1) for node in document["nodes"] for packed in node["checks"])
    read = report_file.unpacked(document)["nodes"]
    assert [json.dumps(node["checks"], sort_keys=True) for node in read] == [
        json.dumps(node["checks"], sort_keys=True) for node in nodes
    ]


@pytest.mark.usefixtures("with_tables")
def test_figures_have_seven_digits_and_counts_all():
    run = make_run()
    evidence = healthy(run)
    told = [("a", 1 / 3), ("b", 143881404416), ("c", None), ("d", 2.0)]
    evidence.records["node-1"]["training"]["metrics"] += [metric(name, value) for name, value in told]
    document = json.loads(json_text(judge(run, evidence)))
    training = document["nodes"][0]["metrics"]["training"]
    rows = [row["name"] for row in document["figures"][training["figures"]]]
    assert training["values"][rows.index("a") :] == [0.3333333, 143881404416, None, 2.0]
    whole = report_file.unpacked(document)["nodes"][0]["metrics"]["training"]
    assert [(one["name"], one["value"]) for one in whole[-4:]] == [("a", 0.3333333), *told[1:]]


@pytest.mark.usefixtures("with_tables")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda document: document["criteria"].clear(), "not among the criteria"),
        (lambda document: document["figures"].clear(), "not among the figures"),
        (lambda document: document["properties"].clear(), "not among the properties"),
        (lambda document: document["nodes"][2]["metrics"]["training"]["values"].pop(), "shorter"),
    ],
)
def test_a_file_whose_tables_do_not_fit_is_refused(mixed, change, words):
    document = json.loads(json_text(mixed))
    change(document)
    with pytest.raises(ValueError, match=words):
        report_file.unpacked(document)


@pytest.mark.parametrize("cut", [1, 2, 3, 30, 3000])
def test_report_that_was_cut_off_is_refused(mixed, tmp_path, cut):
    path = tmp_path / "report.json"
    path.write_text(json_text(mixed)[: -cut - 1])
    with pytest.raises(ValueError):
        report_file.read(path)


@pytest.mark.usefixtures("with_tables")
def test_texts_that_stand_often_are_kept_once(mixed, tmp_path):
    path = tmp_path / "report.json"
    write_file(path, report_file.lines(mixed))
    nodes = report_file.unpacked(report_file.read(path))["nodes"]
    found = [check for node in nodes for check in node["checks"] if check["source"] == "measured"]
    assert len({id(check["source"]) for check in found}) == len({check["name"] for check in found}) < len(found)


@pytest.mark.parametrize(
    "change",
    [
        {"severity": "lethal"}, {"kind": "magic"}, {"verdict": True}, {"reason": None}, {"value": [1]}, {"value": True},
        {"name": 3}, {"more": 1},
    ],
)  # fmt: skip
def test_one_wrong_check_among_many_is_seen(mixed, change):
    schemas.validate("report", mixed, what="report.json")
    checks = mixed["nodes"][2]["checks"]
    checks[5] = {**checks[5], **change}
    with pytest.raises(schemas.Invalid) as told:
        schemas.validate("report", mixed, what="report.json")
    assert told.value.path[:4] == ("nodes", 2, "checks", 5)


def test_a_check_that_lacks_a_property_is_seen(mixed):
    del mixed["nodes"][0]["checks"][0]["severity"]
    with pytest.raises(schemas.Invalid, match="severity"):
        schemas.validate("report", mixed, what="report.json")


@pytest.mark.parametrize("change", [{"state": "fine"}, {"attempt": 1.5}, {"flaky": 0}, {"duration_seconds": "1"}])
def test_one_wrong_stage_is_seen(mixed, change):
    mixed["nodes"][1]["stages"][0].update(change)
    with pytest.raises(schemas.Invalid):
        schemas.validate("report", mixed, what="report.json")


@pytest.mark.parametrize(
    "report", [None, [], {}, {"nodes": 3}, {"nodes": [3]}, {"nodes": [{"checks": 1, "stages": 1}]}]
)
def test_what_is_no_report_at_all_is_refused(report):
    with pytest.raises(schemas.Invalid):
        schemas.validate("report", report, what="report.json")
