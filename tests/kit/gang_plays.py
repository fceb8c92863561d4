"""Plays that open a run of gangs alone and write its hostfile."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


OPEN = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - gpuval.fleet.open_run:
        run_id: {run_id}
        results_dir: {results}
        bucket: b
        profile: custom
        profile_stages: [facts]
        gang_stages: [fabric]
        gangs_alone: {alone}
        workloads: {{facts: {{command: ["true"]}}, fabric: {{command: ["true"], needs: [facts]}}}}
        deadline_seconds: 60
      run_once: true
"""


HOSTFILE = """
- hosts: all
  connection: local
  gather_facts: false
  run_once: true
  tasks:
    - gpuval.fleet.write_hostfile:
        run_id: run-1
        results_dir: {results}
"""


def play(tmp_path, text, hosts):
    (tmp_path / "inventory").write_text("".join(f"{host} ansible_host=10.0.0.{i}\n" for i, host in enumerate(hosts, 1)))
    (tmp_path / "play.yml").write_text(text)
    command = [Path(sys.executable).with_name("ansible-playbook"), "-i", tmp_path / "inventory", tmp_path / "play.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())
