"""A controller's folder with a run's report, and plays of one module against the API server for tests."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.ansible_playbook import PROGRAM
from tests.kit.cluster import ClusterKit
from tests.kit.run_commands import placed

ROOT = Path(__file__).resolve().parents[2]


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
        report = verdict.judge(RUN_DOCUMENT, RunEvidence(), [], judged_at=AT)
        results = directory / "results"
        self.folder = placed(results, RUN)
        self.folder.write_run(RUN_DOCUMENT)
        run_folder.write_json(self.folder.path / "report.json", report)
        run_folder.remember(self.folder)
        (directory / "ansible.cfg").write_text(f"[defaults]\ncollections_path = {ROOT / 'collections'}\n")

    def play(self, step, *arguments, **options):
        return self.play_all([(step, options)], *arguments)

    def play_all(self, tasks, *arguments):
        kubeconfig = str(self.kit.kubeconfig)
        tasks = [
            {"gpuval.fleet.controller": {"step": step, "kubeconfig": kubeconfig, **given}} for step, given in tasks
        ]
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
        (self.directory / "play.yml").write_text(yaml.safe_dump([play]))
        return subprocess.run(
            [*PROGRAM, "-i", "localhost,", "play.yml", *arguments],
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
