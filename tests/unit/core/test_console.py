"""What nodes write reaches the console, and the log of a CI job, as text of one line and nothing else."""

import json
import re
from pathlib import Path

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.action import Console, ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import console_line
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import final_block
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.actions import Outcome
from tests.kit.builders import healthy, judge, make_record, make_run, write_report

FORGED = "x\nFINAL ACCEPTANCE: PASS\r\n::error file=a::b\u2028::add-mask::c ##vso[task.complete]\x1b[2J ##[error]d"
COMMANDS = re.compile(r"^\s*::[a-z-]+[^\n]*::|##(?:vso|teamcity)?\[", re.IGNORECASE | re.MULTILINE)
ACTIONS = Path(__file__).parents[3] / "collections/ansible_collections/gpuval/fleet/plugins/action"


def is_harmless(text):
    lines = text.split("\n")
    return not COMMANDS.search(text) and "\x1b" not in text and "FINAL ACCEPTANCE: PASS" not in lines


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a std::vector of ::1 and fe80::2", "a std::vector of ::1 and fe80::2"),
        ("::error::x", ": :error::x"),
        ("::warning file=a,line=1::x", ": :warning file=a,line=1::x"),
        ("##vso[task.setvariable]x ##[error]y ##teamcity[z]", "# #vso[task.setvariable]x # #[error]y # #teamcity[z]"),
        ("## a heading", "## a heading"),
        ("    indented\tas it was", "    indented\tas it was"),
        ("two\nlines\r\n", "two lines "),
    ],
)
def test_a_line_is_one_line_and_no_command(text, line):
    assert console_line(text) == line


def test_the_display_of_actions_takes_lines(monkeypatch):
    outcome = Outcome()
    console = Console(outcome)
    console.display(FORGED, "second")
    console.warning(FORGED)
    assert len(outcome.lines) == 3
    assert all(is_harmless(line) and "\n" not in line for line in outcome.lines)
    assert "FINAL ACCEPTANCE" not in outcome.lines[2], "Ansible folds warnings: any word may begin a line"


@pytest.fixture
def hostile(tmp_path):
    """A judged run with a node that puts lines into the message of its record."""
    run = make_run(["node-1", "node-2"], gpu_count=8)
    evidence = healthy(run)
    evidence.records["node-1"]["training"] = make_record(state="crash", message=FORGED)
    report = judge(run, evidence)
    report["summary"].append(FORGED)
    folder = run_folder.RunFolder(tmp_path / run["run_id"])
    folder.write_run(run)
    write_report(report, folder.path)
    return folder


def test_no_message_of_a_node_forges_a_line_of_the_final_block(hostile):
    report = json.loads((hostile.path / "report.json").read_text())
    block = final_block(report)
    assert is_harmless(block)
    assert block.split("\n")[1] == "FINAL ACCEPTANCE: FAIL"
    assert len(block.split("\n")) == 3 + len(report["summary"])


@pytest.mark.parametrize("name", ["report.md", "junit.xml", "perf.csv"])
def test_no_form_that_a_ci_may_print_has_a_command(hostile, name):
    assert not re.search(r"^\s*::[a-z]", (hostile.path / name).read_text(), re.MULTILINE)


class Asking(ControllerAction):
    """An action that fails as a node likes it."""

    failure = None

    def work(self, options, task_vars):
        if isinstance(self.failure, Exception):
            raise self.failure
        return self.failure


@pytest.mark.parametrize(
    "failure",
    [GpuvalError(FORGED), AnsibleConnectionFailure(FORGED), {"failed": True, "msg": FORGED, "more": [{"a": FORGED}]},
     {"msg": FORGED}],
    ids=["error", "connection", "failed", "message"],
)  # fmt: skip
def test_what_ansible_prints_of_a_task_is_lines_too(failure, monkeypatch):
    monkeypatch.setattr(Asking, "failure", failure)
    monkeypatch.setattr(Asking, "validate_argument_spec", lambda self, spec: (None, {}))
    monkeypatch.setattr("ansible.plugins.action.ActionBase.run", lambda *_: {})
    monkeypatch.setattr(Asking, "name", "find_run")
    action = object.__new__(Asking)
    action._display, action._discovered_interpreter_key = Outcome(), None
    try:
        printed = json.dumps(action.run(task_vars={}))
    except Exception as error:
        printed = json.dumps(str(error))
    assert is_harmless(json.loads(printed) if printed.startswith('"') else printed)
    assert "\\n" not in printed


def test_actions_print_lines_one_by_one():
    """Text that was joined before it is printed would lose its lines."""
    for path in ACTIONS.glob("*.py"):
        assert not re.search(r"_display\.\w+\([^)]*\\n", path.read_text().replace('split("\\n")', "")), path.name
