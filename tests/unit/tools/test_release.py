"""The steps of a release: the cheap ones as they are, and how a rehearsal goes on after one that fails."""

import contextlib
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import release as release_tool  # noqa: E402


@pytest.fixture
def rehearsal(tmp_path):
    return release_tool.Release(is_rehearsal=True, folder=tmp_path / "release")


def run_tool(*words, **environment):
    left_out = ("GITHUB_ACTIONS", "GITHUB_REF_NAME", "GITHUB_OUTPUT")
    clean = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, ROOT / "tools/release.py", *words]
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_cheap_steps_are_good(rehearsal, capsys):
    steps = [step for step in release_tool.STEPS if step.cheap]
    assert [step.name for step in steps] == ["versions", "archive", "signatures", "publication"]
    assert release_tool.perform(rehearsal, steps) == [], capsys.readouterr().out
    assert rehearsal.files["archive"].is_file()
    log = (rehearsal.folder / "logs/archive.log").read_text()
    assert "collection build" in log and "gpuval-fleet-" in log


def test_what_an_earlier_rehearsal_made_does_not_count(rehearsal, tmp_path, monkeypatch, capsys):
    archive = [release_tool.BY_NAME["archive"]]
    assert release_tool.perform(rehearsal, archive) == []
    source = tmp_path / "fleet"
    source.mkdir()
    (source / "galaxy.yml").write_text((release_tool.SOURCE / "galaxy.yml").read_text().replace("gpuval", "Gpu Val"))
    monkeypatch.setattr(release_tool, "SOURCE", source)
    again = release_tool.Release(is_rehearsal=True, folder=rehearsal.folder)
    assert release_tool.perform(again, archive) == ["archive"], capsys.readouterr().out
    (source / "galaxy.yml").write_text("version:\n")
    assert release_tool.perform(again, [release_tool.BY_NAME["versions"]]) == ["versions"]
    assert "galaxy.yml has no line `version: 1.2.3`" in capsys.readouterr().out


def test_steps_that_are_commented_out_do_not_count(rehearsal, tmp_path, monkeypatch, capsys):
    workflow = tmp_path / "workflows/release.yml"
    workflow.parent.mkdir()
    text = release_tool.WORKFLOW.read_text().replace(
        "ansible-galaxy collection publish", "# ansible-galaxy collection publish"
    )
    workflow.write_text(text)
    monkeypatch.setattr(release_tool, "WORKFLOW", workflow)
    monkeypatch.setattr(release_tool, "ROOT", tmp_path)
    assert release_tool.perform(rehearsal, [release_tool.BY_NAME["publication"]]) == ["publication"]
    assert "lacks 'ansible-galaxy collection publish'" in capsys.readouterr().out


def test_a_release_is_made_by_the_forge_alone():
    refused = run_tool()
    assert refused.returncode == 2 and "rehearse it here with `make release DRY_RUN=1`" in refused.stderr
    assert "only in a rehearsal: install" in run_tool("install", GITHUB_ACTIONS="true").stderr
    assert "no such step: instal; there are versions, " in run_tool("--dry-run", "instal").stderr


def test_a_tag_of_another_version_and_fragments_are_refused_by_the_forge():
    done = run_tool("versions", GITHUB_ACTIONS="true", GITHUB_REF_NAME="v0.9.0")
    assert done.returncode == 1 and "the tag is v0.9.0" in done.stdout
    fragments = [*(release_tool.SOURCE / "changelogs/fragments").glob("*.yml")]
    assert not fragments or f"{len(fragments)} changelog fragment(s) are left" in done.stdout


def test_steps_that_need_a_failed_one_are_left_out_and_others_go_on(rehearsal, capsys):
    def fail(release):
        release.run("sh", "-c", "echo the disk is full >&2; exit 3")

    step, done = release_tool.Step, []
    steps = [
        step("first", fail, 60),
        step("second", lambda _release: done.append("second") or "", 60, ("first",)),
        step("third", lambda _release: done.append("third") or "made", 60, ("second",)),
        step("alone", lambda _release: done.append("alone") or "made", 60),
    ]
    assert release_tool.perform(rehearsal, steps) == ["first", "second", "third"]
    assert done == ["alone"]
    printed = capsys.readouterr().out
    assert "ended with 3: the disk is full: see " in printed
    assert "LEFT OUT third        needs second" in printed


def test_a_step_ends_at_its_deadline_with_all_that_it_started(rehearsal):
    def hang(release):
        release.run("sh", "-c", f"sleep 600 & echo $! >{rehearsal.folder}/pid; wait")

    for seconds in (1, 4, 16, 64):  # until the shell has come so far on a busy machine
        assert release_tool.perform(rehearsal, [release_tool.Step("slow", hang, seconds)]) == ["slow"]
        if (rehearsal.folder / "pid").exists() and (pid := (rehearsal.folder / "pid").read_text().strip()):
            break
    with contextlib.suppress(ProcessLookupError):
        assert select.select([os.pidfd_open(int(pid))], [], [], 60)[0], "it was killed with the shell"


def test_steps_are_chosen_with_what_they_need():
    names = [step.name for step in release_tool.chosen_steps(["upgrade"], with_needs=True)]
    assert names == ["versions", "archive", "upgrade"]
    assert [step.name for step in release_tool.chosen_steps([], with_needs=True)] == list(release_tool.BY_NAME)


def test_the_workflow_runs_these_steps_and_publishes_on_tags_alone():
    workflow = yaml.safe_load(release_tool.WORKFLOW.read_text())
    runs = [step.get("run", "") for job in workflow["jobs"].values() for step in job.get("steps", ())]
    used = {name for run in runs for line in re.findall(r"tools/release\.py (.*)", run) for name in line.split()}
    assert used == {step.name for step in release_tool.STEPS if step.forge}
    assert list(workflow[True]) == ["push"] and list(workflow[True]["push"]) == ["tags"], "`on` is true in YAML 1.1"
    assert workflow["jobs"]["galaxy"]["needs"] == ["check", "release"]
    assert not any("GALAXY_TOKEN" in run for run in runs), "no token in an argument"
