"""Models of a MAD repository over SSH, in images that are built, stored and brought as gpuval's own."""

import csv
import json
import subprocess

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import perf

from tests.kit.cluster import ClusterKit
from tests.kit.cluster_fleet import ClusterFleet, Containers
from tests.kit.container_fleet import NODE_DIR, ContainerFleet, Node
from tests.kit.fleet import NODE_PYTHON
from tests.kit.mad_repository import SECRET
from tests.kit.planted_secrets import CommandLines, forms, leaks

#: The context says AMD, and the nodes are CPUs: gpu_vendor of the additional context chooses.
DOCKERFILE = (
    "# CONTEXT {'gpu_vendor': 'AMD', 'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=gpuval-debian:bookworm\nFROM $BASE_DOCKER\n"
)
TRAIN = """
set -e
! env | grep HUB_
echo "$MAD_MODEL_NAME on $MAD_GPU_VENDOR ($MAD_GUEST_OS), $MAD_SYSTEM_NGPUS GPUs, $(cat "$MAD_DATAHOME/data.txt"): $*"
test "$(id -u)" = 0
./helper.sh
"""
SEVERAL = (
    'printf "models, performance, metric, batch\\nprefill, 10, tokens/s, 1\\ndecode, , tokens/s, 8\\n" > several.csv\n'
    "mv several.csv ..\n"
)
#: Says its credential in many ways, and fails where it has none or another stage's is there.
PRIVATE = """
set -ex
test "$HUB_USERNAME" = me
echo "password: $HUB_PASSWORD"
printf 'me:%s' "$HUB_PASSWORD" | base64
printf '{"state": "success", "message": "used %s", "environment": {"key": "%s"}}' "$HUB_PASSWORD" "$HUB_PASSWORD" \
    > "$GPUVAL_RESULT_FILE"
! test -e "$GPUVAL_WORK_DIR/secrets.json"
echo "performance: 3 $HUB_PASSWORD"
"""
MODELS = [
    {"name": "train", "scripts": "scripts/train", "args": "--epochs 2", "data": "made", "tags": ["pyt"]},
    {"name": "several", "scripts": "scripts/several.sh", "multiple_results": "several.csv", "tags": "pyt"},
    {"name": "fails", "scripts": "scripts/fails.py", "tags": ["bad"]},
    {"name": "slow", "scripts": "scripts/slow.sh", "timeout": 3, "tags": ["bad"]},
    {"name": "private", "scripts": "scripts/private.sh", "cred": "HUB", "tags": ["pyt"]},
    {"name": "keyless", "scripts": "scripts/slow.sh", "cred": "NONE", "tags": ["pyt"]},
]
FILES = {
    "models.json": json.dumps([{"dockerfile": "docker/base", "n_gpus": "-1", **model} for model in MODELS]),
    "data.json": json.dumps({"made": {"custom": {"path": "scripts/data/make.sh"}}}),
    "credential.json": json.dumps({"HUB": {"username": "me", "password": SECRET}}),
    "docker/base.ubuntu.amd.Dockerfile": DOCKERFILE,
    "docker/base.ubuntu.nvidia.Dockerfile": DOCKERFILE.replace("AMD", "NVIDIA"),
    "scripts/private.sh": PRIVATE,
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


def assert_nothing_leaked(fleet, said):
    """No file of the controller or its store but credential.json has the credential, no file of the node at all."""
    planted = {"password of HUB": SECRET}
    assert leaks(planted, said) == []
    held = [path for path in fleet.root.rglob("*") if path.is_file() and leaks(planted, path.read_bytes())]
    assert held == [fleet.root / "repository/credential.json"]
    patterns = " ".join(f"-e {form.decode()}" for form in forms(SECRET))
    found = fleet.bed.execute("one", "sh", "-c", f"grep -rlF {patterns} {NODE_DIR} /tmp /var/tmp || true")
    assert found.strip() == ""
    assert "secrets/" in fleet.bed.execute("one", "sh", "-c", f"find {NODE_DIR} -name secrets -printf '%P/\n'")
    assert fleet.bed.execute("one", "sh", "-c", f"find {NODE_DIR} -path '*/secrets/*'").strip() == ""


def test_models_run_and_each_has_its_rows(fleet):
    with CommandLines() as lines:
        done = fleet.play("gpuval.fleet.mad", "-vvv", "-e", '{"gpuval_mad_tags": "pyt,bad"}', seconds=600)
    assert done.code != 0, done
    assert (
        "left out: models.json: model keyless: cred: credential.json (or gpuval_secrets_file) has no 'NONE'"
        in done.told
    )
    assert_nothing_leaked(fleet, lines.text + done.output.encode())
    results = fleet.root / "results/latest"
    assert (results / "perf.html").is_file(), done
    found = rows(results / "perf.csv")
    assert len(found) == 6, done
    assert [(row["model"], row["performance"], row["metric"], row["status"]) for row in found] == [
        ("train", "12.5", "examples/sec", "SUCCESS"),
        ("several_prefill", "10", "tokens/s", "SUCCESS"),
        ("several_decode", "", "tokens/s", "FAILURE"),
        ("private", "3", "***", "SUCCESS"),
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
    (row,) = rows(fleet.folder_of("second") / "perf.csv")
    assert (row["model"], row["relative_change"]) == ("train", "0")
    assert [one["build_number"] for one in rows(fleet.root / "results/perf.csv")][-1] == "second"
    assert len(rows(fleet.root / "results/perf.csv")) == 7


@pytest.mark.parametrize(
    ("tags", "told"),
    [
        ("keyless", "cred: credential.json (or gpuval_secrets_file) has no 'NONE'"),
        ("trian", "tag 'trian' selects no model; nearest: train"),
    ],
)
def test_what_cannot_run_starts_nothing(fleet, tags, told):
    done = fleet.play("gpuval.fleet.mad", "-e", f"gpuval_mad_tags={tags}")
    assert done.code != 0
    assert told in done.told, done
    assert SECRET not in done.output


def test_models_run_as_pods_alone_and_together(tmp_path):
    """On a simulated cluster whose containers run the real runner: there is no engine, and so images are given."""
    (tmp_path / "scripts").mkdir()
    script = 'echo "$MAD_MODEL_NAME: $NODE_RANK of $NNODES: $*"\necho performance: 12.5 examples/sec\n'
    (tmp_path / "scripts/run.sh").write_text(script)
    alone = {"name": "podded", "dockerfile": "docker/none", "scripts": "scripts", "args": "--epochs 2"}
    distributed = {"launcher": "torchrun", "nnodes": 2}
    (tmp_path / "models.json").write_text(json.dumps([alone, {**alone, "name": "two", "distributed": distributed}]))
    image = "registry.example/podded:1"
    with ClusterKit(tmp_path, on_stage=Containers(tmp_path / "pods")) as kit:
        kit.install_job_sets()
        for number, name in enumerate(kit.add_nodes(2, gpus=0), 2):  # the nodes' own network is the loopback's
            addresses = [{"type": "InternalIP", "address": f"127.0.0.{number}"}]
            kit.change("Node", name, {"status": {"addresses": addresses}}, namespace="")
        fleet = ClusterFleet(
            tmp_path / "fleet",
            kit=kit,
            settings={
                "gpuval_mad_repository": str(tmp_path),
                "gpuval_mad_images": {"podded": image, "two": image},
                "gpuval_pods": {"image": "x/facts:1", "python": str(NODE_PYTHON), "gang": {"host_network": True}},
                "gpuval_sku": "cpu",
            },
        )
        done = fleet.play("gpuval.fleet.mad")
        fleet.end()
        assert done.code == 0, str(done)
        found = rows(fleet.run_folder / "perf.csv")
        assert [(row["model"], row["nnodes"], row["machine_name"]) for row in found] == [
            ("podded", "1", "node-001"),
            ("podded", "1", "node-002"),
            ("two", "2", "node-001"),
        ]
        for row in found:
            assert (row["performance"], row["status"]) == ("12.5", "SUCCESS")
            assert (row["docker_image"], row["deployment_type"]) == (image, "kubernetes")
        assert (
            "podded: 0 of 1: --epochs 2" in next(fleet.run_folder.glob("nodes/node-001/mad_podded_*.log")).read_text()
        )
        of_gang = [pod for pod in kit.all("Pod") if names.GANG_LABEL in pod["metadata"]["labels"]]
        assert len(kit.all("Pod")) == 4 and len(of_gang) == 2
        for pod in of_gang:
            assert [container["image"] for container in pod["spec"]["containers"]] == [image]
            assert pod["spec"]["hostNetwork"] is True
        (job_set,) = kit.all("JobSet")
        assert len(job_set["spec"]["replicatedJobs"]) == 2
