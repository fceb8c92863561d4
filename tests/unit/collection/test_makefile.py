"""`make help` shows the main targets by group; every target runs playbooks and sets variables that exist."""

import re
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import settings

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOKS = ROOT / "collections" / "ansible_collections" / "gpuval" / "fleet" / "playbooks"
ALL = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def make(*arguments):
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


def listed(target):
    return re.findall(r"^  ([a-z-]+) ", make(target), re.MULTILINE)


def test_help_shows_the_main_targets_in_four_groups():
    assert re.findall(r"^([A-Z][a-z]+)$", make("help"), re.MULTILINE) == ["Use", "Look", "Develop", "Release"]
    assert len(listed("help")) <= 16
    assert set(listed("help")) < set(listed("help-all")) == set(ALL)


@pytest.mark.parametrize("target", ALL)
def test_a_target_runs_playbooks_and_sets_variables_that_exist(target):
    commands = make("-n", target, "NODE=n", "STAGE=s", "WATCH=1", "ALL=1", "LINES=1", "NAME=n", "BEFORE=b", "AFTER=a",
                    "IDS=i", "FILE=f", "N=2", "TRANSFERS=2")  # fmt: skip
    for playbook in re.findall(r"\bgpuval\.fleet\.(\w+)", commands):
        assert (PLAYBOOKS / f"{playbook}.yml").is_file()
    variables = re.findall(r"""-e '?(\w+)=|"(\w+)": """, commands)
    assert {first or second for first, second in variables} <= set(settings.declared().options)
