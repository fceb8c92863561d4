"""A node whose Python answers every module with facts named as settings: none becomes a variable."""

import json
import os
import subprocess
import sys

import pytest

from tests.kit.ansible_playbook import PROGRAM
from tests.kit.fleet import ROOT

POISON = {
    "gpuval_model": "/root/.docker",
    "gpuval_results_dir": "/tmp/poisoned",
    "gpuval_images": {"training": {"reference": "evil.example/x:1"}},
    "gpuval_s3_endpoint": "https://evil.example",
}
ANSWER = {"changed": False, "ansible_facts": POISON, "ansible_facts_cacheable": True, **POISON}
TASKS = [
    "gpu_facts: {}",
    "node: {step: host_network}",
    "node: {step: peer_probe, node: hostile}",
    "node: {step: clean_node}",
    "node: {step: host_evidence, run_id: r1, results_dir: '{{ gpuval_results_dir }}'}",
    "store_upload: {src: [/etc/hostname], prefix: x, bucket: b}",
]
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
{tasks}
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.copy:
        dest: "{seen}/{{{{ inventory_hostname }}}}.json"
        content: "{{{{ [gpuval_model, gpuval_results_dir, gpuval_images, gpuval_s3_endpoint] | to_json }}}}"
      delegate_to: localhost
      vars:
        ansible_python_interpreter: "{python}"
"""
FOREIGN = """
- hosts: hostile
  gather_facts: true
  tasks:
    - gpuval.fleet.node:
        step: build_image
        images: ["{{ gpuval_images }}"]
        store: {bucket: gpuval}
"""
CHECK = """
- hosts: hostile
  gather_facts: true
- hosts: "honest,hostile"
  order: sorted
  gather_facts: false
  tasks:
    - gpuval.fleet.controller: {step: check_settings}
      run_once: true
"""
SETTINGS = {"gpuval_model": "tiny", "gpuval_images": {}, "gpuval_s3_endpoint": ""}


@pytest.fixture
def play(tmp_path):
    """Run a play against an honest host and one whose Python is hostile."""
    (tmp_path / "ansible.cfg").touch()  # none of the project, nor of the machine
    liar = tmp_path / "python"
    liar.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(ANSWER)}'\n")
    liar.chmod(0o755)
    hosts = {"hostile": {"ansible_python_interpreter": str(liar)}, "honest": {}}
    common = {**SETTINGS, "gpuval_results_dir": str(tmp_path / "results"), "ansible_connection": "local"}
    (tmp_path / "results" / "r1").mkdir(parents=True)
    inventory = {"all": {"hosts": hosts, "vars": {"ansible_python_interpreter": sys.executable, **common}}}
    (tmp_path / "inventory.json").write_text(json.dumps(inventory))

    def run(text, **environment):
        (tmp_path / "play.yml").write_text(text)
        where = {"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        return subprocess.run(
            [*PROGRAM, "-i", "inventory.json", "play.yml"],
            cwd=tmp_path,
            env={**kept, **where, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def test_no_module_of_the_collection_lets_a_node_set_variables(play, tmp_path):
    # a refused answer fails its task; what counts are the variables after all of them
    tasks = "".join(f"    - gpuval.fleet.{task}\n      ignore_errors: true\n" for task in TASKS)
    done = play(PLAY.format(tasks=tasks, seen=tmp_path, python=sys.executable))
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("honest", "hostile"):
        model, results, images, endpoint = json.loads((tmp_path / f"{name}.json").read_text())
        assert (model, images, endpoint) == ("tiny", {}, "")
        assert results == str(tmp_path / "results")


def test_settings_that_came_as_gathered_facts_are_refused(play):
    done = play(FOREIGN)
    assert done.returncode != 0
    assert "facts of hostile have names of settings" in done.stdout
    assert "gpuval_images" in done.stdout


def test_the_check_of_settings_looks_at_the_facts_of_every_node(play):
    done = play(CHECK)
    assert done.returncode != 0
    assert "gpuval_images comes from the node's own facts: set inject_facts_as_vars = false (hostile)" in " ".join(
        done.stdout.split()
    )


def test_without_injected_facts_there_is_nothing_to_refuse(play):
    done = play(FOREIGN, ANSIBLE_INJECT_FACT_VARS="false")
    assert done.returncode == 0, done.stdout + done.stderr
