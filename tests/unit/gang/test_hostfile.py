"""The hostfile of a run, by the playbook's own task."""

import os
import subprocess
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder

from tests.kit.ansible_playbook import PROGRAM
from tests.kit.builders import facts_record, metric
from tests.kit.gang_bed import Bed, Fault, build

ROOT = Path(__file__).resolve().parents[3]
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  run_once: true
  tasks:
    - gpuval.fleet.controller:
        step: write_hostfile
        run_id: run-1
        results_dir: {results}
"""


def hostfile_of(tmp_path, hosts, *options):
    (tmp_path / "inventory").write_text(
        "".join(f"{node} ansible_host=10.0.0.{place}\n" for place, node in hosts.items())
    )
    (tmp_path / "play.yml").write_text(PLAY.format(results=tmp_path / "results"))
    command = [*PROGRAM, "-i", "inventory", "play.yml", *options]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return (tmp_path / "results/run-1/hostfile").read_text(), " ".join((done.stdout + done.stderr).split())


def declared_cpu(bed):
    run = bed.folder.read_run()
    for node, expected in run["nodes"].items():
        expected.update(sku="cpu", gpu_count=0)
        facts = facts_record(node, vendor="cpu", gpus=0, run_id="run-1")
        facts["metrics"].append(metric("gpu_without_driver_count", 0))
        folder.write_json(bed.folder.evidence_file(node, "facts"), facts)
    bed.folder.write_run(run)


def test_one_that_the_inventory_lost_or_not_asked_for_is_left_out(tmp_path):
    bed = Bed(tmp_path, build(4, 1, rack=0, noise=0.0), stages=["fabric"])
    declared_cpu(bed)
    bed.go()
    hosts = {1: "node-001", 2: "node-002", 4: "node-004"}
    text, told = hostfile_of(tmp_path, hosts)
    assert text == "10.0.0.1 slots=1\n10.0.0.2 slots=1\n10.0.0.4 slots=1\n"
    assert "node-003 is left out: not a host of this command (inventory, gpuval_hosts, --limit)" in told
    text, told = hostfile_of(tmp_path, hosts, "--limit", "node-001,node-004")
    assert text == "10.0.0.1 slots=1\n10.0.0.4 slots=1\n"
    assert "node-002 is left out: not a host of this command" in told


def test_whom_the_search_found_bad_is_not_in_it(tmp_path):
    gang = build(4, 1, rack=0, noise=0.0)
    gang.bad["node-002"] = Fault("slow", 0.5)
    bed = Bed(tmp_path, gang, stages=["fabric"])
    declared_cpu(bed)
    bed.go()
    assert bed.verdicts()["node-002"] == "FAIL"
    text, told = hostfile_of(tmp_path, dict(enumerate(gang.nodes, 1)))
    assert text == "".join(f"10.0.0.{place} slots=1\n" for place in (1, 3, 4))
    assert "node-002 is left out: the search for the bad node found it" in told
