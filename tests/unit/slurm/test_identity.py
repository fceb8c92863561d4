"""A run belongs to its Slurm cluster, whichever configuration leads to that."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.run_commands import clean_run, lay_out, open_run

SLURM = {"placement": "slurm"}


@pytest.fixture
def results(tmp_path):
    return lay_out(tmp_path)


@pytest.fixture
def use_cluster(tmp_path, monkeypatch):
    """Make commands reach the Slurm cluster of this name; an empty name: none."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")

    def use(name):
        answer = f"echo 'ClusterName             = {name}'" if name else "echo 'Invalid user' >&2; exit 1"
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)

    return use


def test_a_run_is_neither_resumed_nor_cleaned_on_another_cluster(results, use_cluster):
    use_cluster("alpha")
    assert not open_run(results, "r1", **SLURM).failed
    run_folder.find(results, "r1").advance("working")
    use_cluster("beta")
    refused = open_run(results, "r1", **SLURM)
    assert refused.failed and "run r1 is placed in Slurm cluster alpha, not Slurm cluster beta" in refused.text
    assert clean_run(results, run_id="r1", **SLURM).failed
    assert "in Slurm cluster alpha stay r1" in clean_run(results, **SLURM).text
    assert open_run(results, "r1").failed, "its nodes are other machines over SSH"
    use_cluster("alpha")
    assert not open_run(results, "r1", **SLURM).failed
    assert clean_run(results, **SLURM).result["run_ids"] == ["r1"]


def test_a_cluster_whose_name_cannot_be_read_is_said(results, use_cluster):
    use_cluster("")
    done = open_run(results, "r1", **SLURM)
    assert "its name cannot be read: scontrol: Invalid user" in done.text
    use_cluster("alpha")
    assert clean_run(results, run_id="r1", **SLURM).result["run_ids"] == ["r1"]
