"""The module in a real play: no connection, relative folder, check mode, unknown host."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.builders import healthy, judge, make_run, write_report

COLLECTIONS = Path(__file__).resolve().parents[3] / "collections"
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - gpuval.fleet.metrics_facts: {{}}
    - ansible.builtin.copy:
        content: "{{{{ ansible_facts.gpuval.metrics.training_tokens_per_second }}}}
          {{{{ ansible_facts.gpuval.parts.training_model_tflops['gpu:3'] }}}} {{{{ ansible_facts.gpuval.verdict }}}}"
        dest: {out}/{{{{ inventory_hostname }}}}
      delegate_to: localhost
      check_mode: false
"""


@pytest.fixture
def project(tmp_path):
    run = make_run(["node-1", "node-2"], gpu_count=8)
    write_report(judge(run, healthy(run)), tmp_path / "results" / "run-1")
    (tmp_path / "results" / "latest").symlink_to("run-1")
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "ansible.cfg").write_text(f"[defaults]\ncollections_path = {COLLECTIONS}\n")
    (tmp_path / "playbooks" / "play.yml").write_text(PLAY.format(out=tmp_path))
    return tmp_path


def play(project, hosts, *arguments):
    inventory = project / "hosts.json"
    names = {name: {"ansible_host": "192.0.2.1"} for name in hosts}
    names["localhost"] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory.write_text(json.dumps({"all": {"hosts": names}}))
    return subprocess.run(
        ["ansible-playbook", "-i", str(inventory), "play.yml", "--limit", ",".join(hosts), *arguments],
        cwd=project / "playbooks",
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(project / "ansible.cfg"),
            "ANSIBLE_HOME": str(project / "home"),
            "ANSIBLE_NOCOLOR": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_facts_of_hosts_that_cannot_be_reached(project):
    done = play(project, ["node-1", "node-2"], "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "node-1").read_text() == "56000.0 703.0 PASS"
    assert (project / "node-2").exists()


def test_host_outside_the_run_is_advised(project):
    done = play(project, ["node-3"])
    assert done.returncode != 0
    assert "node-3 is not in" in done.stdout
    assert "validate it first" in done.stdout.replace("\n", " ")
