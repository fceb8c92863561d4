"""The declarations of the stages of a gang, as Ansible makes them: commands that the program takes, in a plan."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

pytest.importorskip("torch")

from gpuval_workloads.gang.config import CollectivesConfig, GangTrainingConfig, parse_arguments
from gpuval_workloads.rdma import between

from tests.kit.ansible_playbook import PROGRAM

ROOT = Path(__file__).resolve().parents[3]
PLAY = """
- hosts: {case}
  gather_facts: false
  connection: local
  vars: {variables}
  tasks:
    - import_role: {{name: gpuval.fleet.gpuval}}
    - import_role: {{name: gpuval.fleet.run, tasks_from: reopen}}
      when: false
    - copy: {{content: "{{{{ run_gang_workloads | to_json }}}}", dest: {folder}/{case}.json, mode: "0600"}}
"""
#: What is set, by case, which has a host of its own.
CASES = {
    "standard": {"gpuval_profile": "standard"},
    "quick": {"gpuval_profile": "quick"},
    "settings": {
        "gpuval_profile": "burnin",
        "gpuval_network": "efa",
        "gpuval_environment": {"FI_PROVIDER": "efa;ofi_rxm"},
        "collective_names": ["all_reduce", "all_gather"],
        "collective_largest_bytes": 1000,
        "collective_launcher": "deepspeed",
        "collective_tool": "nccl-tests",
        "deepspeed_zero_stage": 3,
        "deepspeed_batch_size": 4,
        "deepspeed_sequence_length": 128,
        "deepspeed_arguments": ["--seed", 7],
        "gpuval_images": {"training": {"reference": "training:1"}},
        "fabric_largest_bytes": 2000,
        "rdma_devices": ["mlx5_*"],
    },
}


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """By case the workloads that the roles declare, from one playbook with a play for each case."""
    folder = tmp_path_factory.mktemp("roles")
    plays = [
        PLAY.format(case=case, variables=json.dumps(variables), folder=folder) for case, variables in CASES.items()
    ]
    (folder / "play.yml").write_text("".join(plays))
    (folder / "hosts").write_text("".join(f"{case} ansible_python_interpreter={sys.executable}\n" for case in CASES))
    command = [*PROGRAM, folder / "play.yml", "-i", folder / "hosts"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {case: json.loads((folder / f"{case}.json").read_text()) for case in CASES}


def configuration(workload):
    stage = plans.stage("x", workload, [])
    assert stage["command"][:3] == ["{python}", "-m", "gpuval_workloads.gang"]
    return parse_arguments(stage["command"][3:])


def test_by_default_all_is_measured_by_torchrun_and_nothing_is_set(declared):
    workloads = declared["standard"]
    assert list(workloads) == ["collective", "collective_nvlink", "deepspeed", "fabric", "fabric_nvlink"]
    assert configuration(workloads["collective"]) == CollectivesConfig(seconds=60)
    assert configuration(workloads["deepspeed"]) == GangTrainingConfig(seconds=120)
    assert configuration(workloads["fabric"]) == CollectivesConfig(
        seconds=8, join_seconds=120, only=("all_reduce",), tool="torch"
    )
    for name in ("collective", "fabric"):
        over_nvlink = configuration(workloads[f"{name}_nvlink"])
        assert over_nvlink == replace(configuration(workloads[name]), fabric="nvlink")
    assert {json.dumps(one["environment"]) for one in workloads.values()} == {"{}"}
    settings = plans.PlanSettings(
        "run-1.all", "node-1", "2026-11-20T20:00:00Z", 60, 10, "host", "auto", None, "python3", None
    )
    for name in workloads:
        plan = plans.build(settings, [name], workloads)
        schemas.validate("plan", plan, what="plan")
        assert plan["stages"][0]["retry"] == []


def test_settings_reach_the_programs(declared):
    workloads = declared["settings"]
    assert configuration(workloads["collective"]) == CollectivesConfig(
        launcher="deepspeed", seconds=600, only=("all_reduce", "all_gather"), most_bytes=1000,
        expect_network=("AWS Libfabric", "Libfabric"), tool="nccl-tests",
    )  # fmt: skip
    training = configuration(workloads["deepspeed"])
    assert (training.zero, training.batch_size, training.sequence_length, training.seed) == (3, 4, 128, 7)
    assert configuration(workloads["fabric"]).most_bytes == 2000
    assert configuration(workloads["fabric"]).expect_network == ("AWS Libfabric", "Libfabric", "MNNVL")
    assert configuration(workloads["fabric_nvlink"]).expect_network == ()
    assert configuration(workloads["collective_nvlink"]).tool == "nccl-tests"
    rails = workloads.pop("rdma_rails")
    assert rails["image"] == "training:1" and rails["environment"] == {"FI_PROVIDER": "efa;ofi_rxm"}
    options = between.parse_arguments([str(word) for word in rails["command"][3:]])
    assert vars(options) == {"join_seconds": 300, "seconds": 5, "least": 0.8, "devices": ["mlx5_*"]}
    for workload in workloads.values():
        assert workload["image"] == "training:1"
        assert workload["environment"] == {"FI_PROVIDER": "efa;ofi_rxm", "FI_EFA_USE_DEVICE_RDMA": "1"}


def test_a_profile_without_gangs_declares_none(declared):
    assert declared["quick"] == {}
