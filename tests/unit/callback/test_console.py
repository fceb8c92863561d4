"""The quiet console, in plays: what it shows, what only -v shows, and that no failure is lost."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.ansible_playbook import PROGRAM

ROOT = Path(__file__).resolve().parents[3]
PLAY = """
- name: A play
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Succeeds
      ansible.builtin.command: echo hidden-output
    - name: Says what it was asked to
      ansible.builtin.debug: {msg: wanted-output}
    - name: Speaks of the run
      ansible.builtin.debug: {msg: a line of the run}
      run_once: true
    - name: Warns
      ansible.builtin.find: {paths: /nowhere}
    - name: Is left out
      ansible.builtin.command: "true"
      when: false
    - name: Finds no run
      gpuval.fleet.controller: {step: find_run, run_id: absent, results_dir: /nowhere}
      run_once: true
      ignore_errors: true  # an ignored failure is shown, too
    - name: Refuses
      ansible.builtin.fail: {msg: "line one\\nFINAL line two"}
      ignore_errors: true  # so that the play comes to the failure that is not
    - name: Is not met
      ansible.builtin.command: echo printed
      failed_when: true
      ignore_errors: true  # as above
    - name: Keeps a secret
      ansible.builtin.command: planted-secret
      no_log: true
      ignore_errors: true  # as above
    - name: Is made good
      block:
        - name: Writes for the run
          ansible.builtin.file: {path: "/dev/null/{{ item }}", state: "{{ 'touch' if item else 'absent' }}"}
          loop: [a, ""]
          delegate_to: localhost
          run_once: true
      rescue:
        - name: Starts no program
          ansible.builtin.command: "{{ item }}"
          loop: ["true", no-such-program]
          run_once: true
          ignore_errors: true  # as above
    - name: Breaks
      ansible.builtin.command: sh -c 'seq 9 >&2; echo why-it-broke >&2; exit 3'
"""


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    folder = tmp_path_factory.mktemp("console")
    (folder / "play.yml").write_text(PLAY)
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}

    def run(*arguments):
        command = [*PROGRAM, "-i", "localhost,", "-c", "local"]
        command += ["-e", f"ansible_python_interpreter={sys.executable}"]
        return subprocess.run(
            [*command, folder / "play.yml", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=600,
            check=False,
        ).stdout

    return run


def test_only_what_was_asked_for_and_failures_are_shown(play):
    shown = play()
    for noise in ("TASK", "PLAY", "hidden-output", "changed: [", "skipping:", "[ERROR]", "fatal:", "planted-secret"):
        assert noise not in shown, shown
    assert "wanted-output" in shown
    assert "[WARNING]: Skipped '/nowhere'" in shown
    lines = shown.splitlines()
    assert "a line of the run" in lines
    command = "`make validate INVENTORY=localhost,`"
    assert f"ignored: Finds no run: no run in /nowhere/absent: run {command} first, or give -e gpuval_run_id=" in lines
    assert "ignored localhost: Refuses: line one FINAL line two" in lines
    assert "ignored localhost: Is not met: failed_when is true: printed" in lines
    assert any(line.startswith("ignored localhost: Keeps a secret: the output has been hidden") for line in lines)
    (looped,) = [line for line in lines if "Writes for the run" in line]
    assert looped.startswith("FAILED: Writes for the run: ") and "Not a directory" in looped and looped.endswith(" [a]")
    (unknown,) = [line for line in lines if "Starts no program" in line]
    assert re.fullmatch(r"ignored: Starts no program: .*No such file.* \[no-such-program\]", unknown)
    assert lines[-1] == "FAILED localhost: Breaks: non-zero return code (rc 3): 8 / 9 / why-it-broke"


def test_v_shows_what_ansible_shows(play):
    shown = play("-v")
    for wanted in ("PLAY [A play]", "TASK [Succeeds]", "hidden-output", "PLAY RECAP", "fatal: [localhost]: FAILED!"):
        assert wanted in shown, shown
    assert "ignored: Finds no run" not in shown
