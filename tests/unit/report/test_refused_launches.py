"""A node that refused its launch: the message says what is wrong, the remedy alone what to do, with whole commands."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import node_directory, node_launch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import final_block, markdown_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.html import html_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import reasons

from tests.kit.builders import healthy, judge, make_run

RUN = "20261123-100000-3f2a-acceptance-of-hall-3"
HOLDER = f" since 2026-11-23T10:00:00Z, started by {'operator' * 4}@{'controller-of-the-site' * 3}"
USERS = ", ".join(f"python3 (pid {pid}) of user root on gpu:{pid} in container {'0af1' * 16}" for pid in range(8))
PYTHON = f"/opt/{'site/' * 8}bin/python3"
LACKS = (
    f"training needs torch (not installed: {PYTHON} -m pip install torch); loading needs rclone (not found: install it)"
)


def own_message(monkeypatch, version=(3, 12), platform="linux"):
    monkeypatch.setattr(node_launch.sys, "version_info", version)
    monkeypatch.setattr(node_launch.sys, "platform", platform)
    with pytest.raises(node_directory.NodeError) as raised:
        node_launch.check_python()
    monkeypatch.undo()
    return str(raised.value)


#: By class: the message, and what of its remedy must be there whole and once.
CASES = {
    "foreign_work": (
        node_launch.IN_THE_WAY.format(named=USERS),
        ("end the work", "(`make clean` for runs of gpuval)", "-e gpuval_force=true runs anyway"),
    ),
    "other_run": (
        node_launch.BUSY.format(run=RUN, holder=HOLDER[: node_directory.MOST_OF_HOLDER]),
        (
            "-e gpuval_wait_for_node=SECONDS queues",
            f"`make clean RUN={RUN}`",
            "-e gpuval_force=true runs anyway",
        ),
    ),
    "same_machine_twice": (node_launch.TWICE.format(name="good"), ("fix the inventory", "machine id")),
    "no_space": (
        node_launch.NO_SPACE.format(needed=140, place="/var/lib/gpuval/models", spare=0.27, free=8),
        ("free space on the node", "set gpuval_models_dir"),
    ),
    "no_package": (
        node_launch.LACKING.format(lacks=LACKS),
        (f"{PYTHON} -m pip install torch", "install them (`make environment` does on hosts over SSH)", "--skip-tags"),
    ),
    "old_python": (lambda patch: own_message(patch, version=(3, 6)), ("install", "set ansible_python_interpreter")),
    "not_linux": (lambda patch: own_message(patch, platform="darwin"), ("remove the node from the inventory",)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_to_do_is_said_once_and_its_commands_are_whole(name, monkeypatch):
    message, words = CASES[name]
    message = message if isinstance(message, str) else message(monkeypatch)
    run = make_run(["good", "bad"])
    evidence = healthy(run)
    del evidence.records["bad"]
    twin = {"class": name, "twin": "good"} if name == "same_machine_twice" else {}
    evidence.launches["bad"] = {"state": "refused", "message": message, **twin}
    report = judge(run, evidence)
    (node,) = [node for node in report["nodes"] if node["name"] == "bad"]
    assert node["class"] == name
    (line,) = [line for line in final_block(report).splitlines() if line.startswith("- bad ")]
    assert line.endswith("then validate again with --limit bad")
    details = " ".join(f"{check['reason']} {remedy}" for check, _parts, remedy in reasons(node))
    markdown = markdown_report(report).partition("## Nodes that are not accepted")[2].replace("\\", "")
    for word in words:
        assert line.count(word) == 1, line
        assert details.count(word) == 1, details
        assert word.replace("`", "") in markdown.replace("`", ""), markdown
    assert html_report(report).count("<b>Remedy</b>") == len(reasons(node))
