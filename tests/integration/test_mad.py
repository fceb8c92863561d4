"""Models of a MAD repository over SSH, in images that are built, stored and brought as gpuval's own."""

import csv
import json
import subprocess

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import perf

from tests.kit.container_fleet import ContainerFleet, Node
from tests.kit.mad_repository import SECRET

#: The context says AMD, and the nodes are CPUs: gpu_vendor of the additional context chooses.
DOCKERFILE = (
    "# CONTEXT {'gpu_vendor': 'AMD', 'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=gpuval-debian:bookworm\nFROM $BASE_DOCKER\n"
)
TRAIN = """
set -e
echo "$MAD_MODEL_NAME on $MAD_GPU_VENDOR ($MAD_GUEST_OS), $MAD_SYSTEM_NGPUS GPUs, $(cat "$MAD_DATAHOME/data.txt"): $*"
test "$(id -u)" = 0
./helper.sh
"""
SEVERAL = (
    'printf "models, performance, metric, batch\\nprefill, 10, tokens/s, 1\\ndecode, , tokens/s, 8\\n" > several.csv\n'
    "mv several.csv ..\n"
)
MODELS = [
    {"name": "train", "scripts": "scripts/train", "args": "--epochs 2", "data": "made", "tags": ["pyt"]},
    {"name": "several", "scripts": "scripts/several.sh", "multiple_results": "several.csv", "tags": "pyt"},
    {"name": "fails", "scripts": "scripts/fails.py", "tags": ["bad"]},
    {"name": "slow", "scripts": "scripts/slow.sh", "timeout": 3, "tags": ["bad"]},
    {"name": "private", "scripts": "scripts/slow.sh", "cred": "HUB"},
]
FILES = {
    "models.json": json.dumps([{"dockerfile": "docker/base", "n_gpus": "-1", **model} for model in MODELS]),
    "data.json": json.dumps({"made": {"custom": {"path": "scripts/data/make.sh"}}}),
    "credential.json": json.dumps({"HUB": {"username": "me", "password": SECRET}}),
    "docker/base.ubuntu.amd.Dockerfile": DOCKERFILE,
    "docker/base.ubuntu.nvidia.Dockerfile": DOCKERFILE.replace("AMD", "NVIDIA"),
    "scripts/train/run.sh": TRAIN,
    "scripts/train/helper.sh": "#!/bin/sh\necho performance: 12.5 examples/sec\n",
    "scripts/several.sh": SEVERAL,
    "scripts/fails.py": "import sys; sys.exit('no such tokenizer')\n",
    "scripts/slow.sh": "sleep 300\n",
    "scripts/data/make.sh": "echo made > data.txt\n",
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    root = tmp_path_factory.mktemp("mad")
    for name, text in FILES.items():
        path = root / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "repository/scripts/train/helper.sh").chmod(0o755)
    settings = {
        "gpuval_mad_repository": str(root / "repository"),
        "gpuval_mad_context": {"gpu_vendor": "AMD"},
        "gpuval_runtime": "docker",
        "container_image_engine": "docker",
        "cleanup_images": True,
    }
    with ContainerFleet(root, [Node("one", engine="docker")], settings) as fleet:
        yield fleet
    subprocess.run(["docker", "rmi", "-f", "localhost/ci-train_base.ubuntu.amd"], capture_output=True, check=False)


def rows(path):
    with path.open() as stream:
        reader = csv.DictReader(stream)
        found = list(reader)
    assert reader.fieldnames == list(perf.COLUMNS)
    return found


def test_models_run_and_each_has_its_rows(fleet):
    done = fleet.play("gpuval.fleet.mad", "-e", '{"gpuval_mad_tags": "pyt,bad"}', seconds=600)
    assert done.code != 0, done
    results = fleet.root / "results/latest"
    assert (results / "perf.html").is_file(), done
    found = rows(results / "perf.csv")
    assert len(found) == 5, done
    assert [(row["model"], row["performance"], row["metric"], row["status"]) for row in found] == [
        ("train", "12.5", "examples/sec", "SUCCESS"),
        ("several_prefill", "10", "tokens/s", "SUCCESS"),
        ("several_decode", "", "tokens/s", "FAILURE"),
        ("fails", "", "", "FAILURE"),
        ("slow", "", "", "FAILURE"),
    ]
    first = found[0]
    assert first["docker_image"] == "ci-train_base.ubuntu.amd"
    assert first["base_docker"] == "gpuval-debian:bookworm"
    assert first["docker_file"] == "docker/base.ubuntu.amd.Dockerfile"
    assert first["docker_sha"].startswith("sha256:")
    assert first["machine_name"] == "one" and first["relative_change"] == "" and float(first["test_duration"]) > 0
    assert (
        "train on CPU (UBUNTU), 0 GPUs, made: --epochs 2" in next(results.glob("nodes/one/mad_train_*.log")).read_text()
    )
    states = {stage["workload"]: stage for stage in fleet.report()["nodes"][0]["stages"]}
    assert "no such tokenizer" in next(s["message"] for name, s in states.items() if "fails" in name)
    assert next(s["state"] for name, s in states.items() if "slow" in name) == "timeout"
    assert '<a href="perf.html">' in (results / "report.html").read_text()
    assert "several_prefill" in (results / "perf.html").read_text()


def test_a_second_run_knows_the_first(fleet):
    done = fleet.play("gpuval.fleet.mad", "-e", "gpuval_mad_tags=train", "-e", "gpuval_run_id=second", seconds=600)
    assert done.code == 0, done
    (row,) = rows(fleet.root / "results/second/perf.csv")
    assert (row["model"], row["relative_change"]) == ("train", "0")
    assert [one["build_number"] for one in rows(fleet.root / "results/perf.csv")][-1] == "second"
    assert len(rows(fleet.root / "results/perf.csv")) == 6


@pytest.mark.parametrize(
    ("tags", "told"),
    [
        ("private", "cred: needs HUB of credential.json"),
        ("trian", "tag 'trian' selects no model; nearest: train"),
    ],
)
def test_what_cannot_run_starts_nothing(fleet, tags, told):
    done = fleet.play("gpuval.fleet.mad", "-e", f"gpuval_mad_tags={tags}")
    assert done.code != 0
    assert told in done.told, done
    assert SECRET not in done.output
