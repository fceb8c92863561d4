"""The modules clean_cluster and mark_nodes in a play, against the API server for tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils import runs, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence import Evidence
from cluster_kit import ClusterKit

ROOT = Path(__file__).resolve().parents[3]
RUN, AT = "20261120-201500-3f2a", "2026-11-20T21:40:00Z"
EXPECTED = {"stages": ["facts"], "sku": "h100", "gpu_count": 8}
RUN_DOCUMENT = {
    "schema": "gpuval.run/1",
    "run_id": RUN,
    "folder": RUN,
    "bucket": "gpuval",
    "profile": "quick",
    "created_at": AT,
    "finished_at": AT,
    "deadline_seconds": 600,
    "narrowed_by": [],
    "nodes": {"node-001": EXPECTED, "node-002": EXPECTED},
}


class Project:
    def __init__(self, directory, kit):
        self.directory, self.kit = directory, kit
        report = verdict.judge(RUN_DOCUMENT, Evidence(), [], judged_at=AT)
        folder = directory / "results" / RUN
        folder.mkdir(parents=True)
        runs.write_json(folder / "run.json", RUN_DOCUMENT)
        runs.write_json(folder / "report.json", report)
        (directory / "results" / "latest").symlink_to(RUN)
        (directory / "ansible.cfg").write_text(f"[defaults]\ncollections_path = {ROOT / 'collections'}\n")

    def play(self, module, *arguments, **options):
        task = {f"gpuval.fleet.{module}": {"kubeconfig": str(self.kit.kubeconfig), **options}}
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [task]}
        (self.directory / "play.yml").write_text(yaml.safe_dump([play]))
        return subprocess.run(
            [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "play.yml", *arguments],
            cwd=self.directory,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(self.directory / "ansible.cfg"),
                "ANSIBLE_HOME": str(self.directory / "home"),
                "ANSIBLE_NOCOLOR": "1",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def project(tmp_path):
    with ClusterKit(tmp_path) as kit:
        kit.add_nodes(2)
        yield Project(tmp_path, kit)


def put_secret(kit, run_id):
    kit.put(
        {
            "kind": "Secret",
            "metadata": {"name": f"of-{run_id}", "namespace": "gpuval", "labels": names.run_labels(run_id)},
            "data": {"store.json": "c2lnbmVkLXVybA=="},
        }
    )


def test_clean_cluster_in_check_mode_then_for_real(project):
    for run_id in (RUN, "other"):
        put_secret(project.kit, run_id)
    trial = project.play("clean_cluster", "--check", "--diff", run_ids=[RUN])
    assert trial.returncode == 0, trial.stdout
    assert f"-Secret of-{RUN}" in trial.stdout and "changed=1" in trial.stdout
    assert len(project.kit.all("Secret")) == 2
    done = project.play("clean_cluster", "-vvv", run_ids=[RUN])
    assert done.returncode == 0, done.stdout
    assert f"CLEAN: run {RUN} in namespace gpuval: removed: 1 Secret" in done.stdout
    assert "c2lnbmVk" not in done.stdout  # what a Secret holds is not even fetched
    assert [one["metadata"]["name"] for one in project.kit.all("Secret")] == ["of-other"]


def test_clean_cluster_that_lacks_a_rule_fails_with_it(project):
    project.kit.deny("list", "", "secrets")
    done = project.play("clean_cluster", run_ids=[RUN])
    assert done.returncode != 0
    assert "secrets" in done.stdout and "verbs" in done.stdout


def test_mark_nodes_writes_the_report_on_the_nodes_and_takes_it_off(project):
    def labels():
        return [node["metadata"]["labels"].get("gpuval.io/verdict") for node in project.kit.all("Node")]

    trial = project.play("mark_nodes", "--check", "--diff", taint=True)
    assert trial.returncode == 0, trial.stdout
    assert "+  gpuval.io/verdict: INCOMPLETE" in trial.stdout and labels() == [None, None]
    assert project.play("mark_nodes", taint=True).returncode == 0
    assert labels() == ["INCOMPLETE", "INCOMPLETE"]
    assert "changed=0" in project.play("mark_nodes", taint=True).stdout
    removed = project.play("mark_nodes", state="absent", nodes=["node-002"])
    assert removed.returncode == 0, removed.stdout
    assert labels() == ["INCOMPLETE", None]
