"""The checkout as its users have it: thin playbooks, the local inventory, results in one place, plays of their own."""

import json
import os
import urllib.error
import urllib.request

import pytest

from tests.kit.fleet import ROOT
from tests.kit.project import Project

pytestmark = pytest.mark.quick
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: What the latest run measured
      gpuval.fleet.metrics_facts: {}
    - ansible.builtin.assert:
        that:
          - ansible_facts.gpuval.verdict == 'PASS'
          - ansible_facts.gpuval.metrics.cpu_logical_count >= 1
          - ansible_facts.gpuval.metrics.memory_bytes > 100000000
          - ansible_facts.gpuval.stages.facts.state == 'success'
    - ansible.builtin.debug:
        msg: "it has {{ gpuval.metrics.cpu_logical_count }} of {{ gpuval.units.cpu_logical_count }}"
      vars:
        gpuval: "{{ ansible_facts.gpuval }}"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The project after `ansible-playbook validate.yml -i ../inventories/local` in playbooks/, and how that ended."""
    project = Project(tmp_path_factory.mktemp("project"), nodes={"localhost": {}})
    project.lay_out()
    try:
        yield project, project.play("validate.yml", cwd="playbooks")
    finally:
        project.close()


def test_validate_from_inside_playbooks(run):
    _, done = run
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PARTIAL (no GPU was tested)" in done.output
    assert not [word for word in ("TASK [", "PLAY [", "PLAY RECAP", "ok: [", "changed: [") if word in done.output]
    assert done.output.rstrip().endswith("=" * 50), "the block is the last thing to be read"


def test_results_and_store_stand_beside_ansible_cfg(run):
    project, _ = run
    assert project.report()["verdict"] == "PARTIAL"
    assert (project.root / ".gpuval/store/store.json").exists()
    inside = {path.name for path in (project.root / "playbooks").iterdir()}
    assert inside == {path.name for path in (ROOT / "playbooks").iterdir()}
    names = {path.name for path in project.run_folder.iterdir()}
    assert {"report.json", "report.md", "junit.xml", "ctrf-report.json", "gpuval.prom", "perf.csv"} <= names
    assert {"failed_nodes.txt", "nodes", "run.json"} <= names


def test_the_urls_of_its_nodes_ended_with_the_run(run):
    project, _ = run
    (file,) = project.node_base("localhost").rglob("store.json")
    url = json.loads(file.read_text())["put"]["records/facts"]
    request = urllib.request.Request(url, data=b"{}", method="PUT")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 403


def test_the_root_folder_sees_the_same_run(run):
    project, _ = run
    done = project.play("gpuval.fleet.status")
    assert done.code == 0, done
    assert f"run {project.run_id}, profile custom" in done.output
    assert "facts 1 success" in done.output


def test_a_play_of_ones_own_reads_metrics(run):
    project, _ = run
    (project.root / "own.yml").write_text(PLAY)
    done = project.play("own.yml")
    assert done.code == 0, done
    assert f"it has {os.cpu_count()} of count" in done.told


def test_clean_from_inside_playbooks(run):
    project, _ = run
    done = project.play("clean.yml", cwd="playbooks")
    assert done.code == 0, done
    assert not project.node_base("localhost").exists()
    assert project.report()["verdict"] == "PARTIAL", "results are kept"
