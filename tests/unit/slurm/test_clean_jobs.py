"""A clean names what jobs that were killed may have left on their nodes, which it cannot see."""

import json
import os

from tests.kit.actions import run_action
from tests.kit.builders import make_run

STARTED = {"node": "gpu-1", "state": "started", "message": "", "attempt": 1}
KILLED = {"class": "slurm_time_limit", "message": "job 7 ended: TIMEOUT", "remedy": "raise it"}


def test_folders_of_killed_jobs_are_named_until_the_run_is_clean(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = tmp_path / "results/run-1"
    (folder / ".state/launches").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**make_run(["gpu-1", "gpu-2"]), "run_id": "run-1"}))
    for name, contact in (("gpu-1", {"contact": KILLED}), ("gpu-2", {})):
        launch = {**STARTED, "node": name, **contact}
        (folder / f".state/launches/{name}.json").write_text(json.dumps(launch))
    options = {"run_ids": ["run-1"], "results_dir": str(tmp_path / "results"), "node_dir": "/scratch/gpuval"}
    options["placement"] = "slurm"
    done = run_action("clean_scheduler", options)
    assert not done.failed, done.text
    assert "jobs that were killed may have left /scratch/gpuval/run-1: remove it on gpu-1" in done.text
    assert "gpu-2" not in done.text
    assert "may have left" not in run_action("clean_scheduler", options).text
    assert "may have left" not in run_action("clean_scheduler", {**options, "run_ids": []}).text
