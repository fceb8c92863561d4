"""The shipped jobs of several nodes, with programs that stand for those that these machines cannot run."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages

from tests.kit import jobs
from tests.kit.gang_jobs import Members
from tests.kit.needs import needs_deepspeed, needs_programs
from tests.kit.ports import free_port

pytestmark = pytest.mark.slow
PYTHON = Path(__file__).resolve().parents[3] / ".venv-node/bin/python"

#: Prints on the last rank, as Megatron-LM does, what it was given.
PRETRAIN = """
import os, sys
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank == world - 1:
    given = dict(zip(sys.argv[1:], [*sys.argv[2:], ""]))
    print("options:", *sys.argv[1:])
    for step in range(1, int(given["--train-iters"]) + 1):
        print(f" iteration {step:8d}/{given['--train-iters']:>8} | elapsed time per iteration (ms): {1000 + step} |",
              f"throughput per GPU (TFLOP/s/GPU): 400.5 | lm loss: {9 / step:.6E} |")
"""
CONVERT = """
import os, sys
given = dict(zip(sys.argv[1:], [*sys.argv[2:], ""]))
assert os.path.isfile(os.path.join(given["--load-dir"], "config.json"))
os.makedirs(given["--save-dir"])
"""
ALL_REDUCE = """#!/bin/sh
test "$OMPI_COMM_WORLD_RANK" = 0 || exit 0
echo "# nThread 1 nGpus 1 given $*"
echo "# Out of bounds values : 0 OK"
echo "# Avg bus bandwidth    : 369.518"
"""


@pytest.fixture
def keys(tmp_path):
    needs_programs({"sshd": "openssh-server", "ssh-keygen": "openssh-client"})
    (tmp_path / "keys").mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "keys/id_ed25519"], check=True)


@pytest.fixture
def megatron(tmp_path):
    """A repository that stands for Megatron-LM's."""
    repository = tmp_path / "repository"
    (repository / "tools/checkpoint").mkdir(parents=True)
    (repository / "pretrain_gpt.py").write_text(PRETRAIN)
    (repository / "tools/checkpoint/convert.py").write_text(CONVERT)
    git = ["git", "-C", repository, "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", "core_v0.13.0"]):
        subprocess.run([*git, *command], check=True)
    return repository


def ended(folder, name, changes=(), **options):
    """A shipped job on two nodes, which both succeed; their logs."""
    text = (jobs.SHIPPED / f"{name}.yml").read_text()
    for one, other in changes:
        assert one in text
        text = text.replace(one, other)
    path = jobs.write_text(folder, text, f"{name}.yml")
    for beside in jobs.read(jobs.SHIPPED / f"{name}.yml").files:
        shutil.copy(jobs.SHIPPED / beside, folder)
    with Members(folder, free_port(), path, **options) as members:
        found = members.end()
    for code, log, _result in found:
        assert code == 0, log
    return [(log, result["state"]) for _code, log, result in found]


def figures(name, log):
    """What a runner finds by the job's patterns."""
    (declared,) = stages.workloads([jobs.SHIPPED / f"{name}.yml"], together=True).values()
    found = [re.search(one["pattern"], line) for one in declared["patterns"][:-2] for line in log.splitlines()]
    return [float(match["value"]) for match in found if match]


def test_megatron_pretrain_reads_the_log_of_the_last_node(tmp_path, megatron):
    pytest.importorskip("torch")
    changes = [("https://github.com/NVIDIA/Megatron-LM", f"file://{megatron}"), ("TRAIN_STEPS: 50", "TRAIN_STEPS: 3")]
    (first, first_state), (last, last_state) = ended(tmp_path, "megatron_pretrain", changes)
    assert (first_state, last_state) == ("success", "running")  # figures are the last node's, and the runner finds them
    assert "iteration" not in first
    assert "--mock-data --tokenizer-type NullTokenizer --vocab-size 128256" in last
    assert last.count("elapsed time per iteration (ms)") == 3


def test_megatron_sft_converts_the_model_and_trains_on_the_data(tmp_path, megatron):
    pytest.importorskip("torch")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    changes = [("https://github.com/NVIDIA/Megatron-LM", f"file://{megatron}"), ("TRAIN_STEPS: 50", "TRAIN_STEPS: 2")]
    places = {"GPUVAL_DATASET_SFT_MODEL": str(model), "GPUVAL_DATASET_SFT_DATA": "/data/sft"}
    _first, (last, _state) = ended(tmp_path, "megatron_sft", changes, **places)
    assert f"--load {tmp_path}/1/job/checkpoint --use-checkpoint-args" in last
    assert "--data-path /data/sft/train.jsonl" in last
    assert last.count("elapsed time per iteration (ms)") == 2


@pytest.mark.usefixtures("keys")
def test_nccl_tests_runs_over_all_processes_and_its_figures_are_read(tmp_path):
    needs_programs({"mpirun": "openmpi-bin", "orted": "openmpi-bin"})
    program = tmp_path / "all_reduce_perf"
    program.write_text(ALL_REDUCE)
    program.chmod(0o755)
    (first, state), _second = ended(tmp_path, "nccl_tests", [("[all_reduce_perf,", f"[{program},")])
    assert state == "running"
    assert "given -b 2M -e 16G -f 2 -n 1 -g 1 -w 10" in first
    assert figures("nccl_tests", first) == [369.518, 0]


@pytest.mark.usefixtures("keys")
def test_deepspeed_script_trains_over_all_nodes(tmp_path):
    needs_deepspeed()
    needs_programs({"pdsh": "pdsh"})
    changes = [("DEEPSPEED_STEPS: 50", "DEEPSPEED_STEPS: 5")]
    (first, state), (second, _state) = ended(tmp_path, "deepspeed_script", changes, python=PYTHON)
    assert state == "running"
    speed, loss = figures("deepspeed_script", first)
    assert speed > 0
    assert 0 < loss < 2
    assert "performance" not in second
