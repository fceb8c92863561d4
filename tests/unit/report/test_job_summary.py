"""The verdict on the page of a job of GitHub Actions: escaped, bounded, and never a reason to fail."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import markdown
from markdown_it import MarkdownIt

from tests.kit.actions import run_action
from tests.kit.builders import healthy, judge, make_record, make_run, write_report

NASTY = "a | b <script>x</script> @all ![i](http://evil.example)\n::error::x\n## Nodes\n \x1b[2J"


def report_of(bad=1, message="No route to host"):
    names = [f"bad-{number}" for number in range(bad)]
    run = make_run(["good", *names], gpu_count=8)
    evidence = healthy(run)
    for number, name in enumerate(names):
        evidence.records[name] = {"facts": evidence.records[name]["facts"]}
        text = f"{message} {'x' * number}"
        evidence.records[name]["training"] = make_record(name, state="crash", message=text, metrics=[])
    return judge(run, evidence)


def test_it_is_the_report_as_far_as_the_nodes_that_are_not_accepted():
    text = markdown.job_summary(report_of())
    assert text.startswith("# FINAL ACCEPTANCE: FAIL\n\n- Nodes: 2 expected, 1 PASS, 1 FAIL, 0 INCOMPLETE\n")
    assert "### bad-0: FAIL (training_crash)" in text
    assert "- **action** retest (training_crash)" in text
    assert "## Nodes\n" not in text and text.endswith("\n\n")


def test_many_nodes_are_cut(monkeypatch):
    monkeypatch.setattr(markdown, "MAX_JOB_SUMMARY", 2000)
    text = markdown.job_summary(report_of(20))
    assert text.endswith("\n\nand more: see report.html\n\n")
    assert len(text.encode()) < 2100


def test_texts_of_nodes_are_text():
    text = markdown.job_summary(report_of(message=NASTY))
    kinds = {
        child.type for token in MarkdownIt("commonmark").enable("table").parse(text) for child in token.children or ()
    }
    assert kinds <= {"text", "text_special", "code_inline", "strong_open", "strong_close"}
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("::")]
    assert "### bad-0" in text


@pytest.fixture
def announced(tmp_path):
    path = tmp_path / "results/run-1"
    write_report(report_of(), path)
    (path / "run.json").write_text(json.dumps(make_run(["good", "bad-0"], gpu_count=8)))
    return lambda: run_action("report_run", {"run_id": "run-1", "results_dir": str(path.parent), "state": "announced"})


def test_announcing_in_actions_adds_it(announced, tmp_path, monkeypatch):
    file = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    file.write_text("# Another step\n")
    assert announced().result["verdict"] == "FAIL"
    assert file.read_text().startswith("# Another step\n# FINAL ACCEPTANCE: FAIL\n")


def test_a_summary_that_cannot_be_written_is_a_warning(announced, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    outcome = announced()
    assert outcome.result["verdict"] == "FAIL"
    assert "the verdict was not written to the job summary" in outcome.text
