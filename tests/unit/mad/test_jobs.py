"""From models to job files and build contexts, and what the jobs do on a node."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import build_context, images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import manifests, pod_settings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import (
    context,
    job_document,
    jobs,
    perf,
    planning,
    repository,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.documents import MadError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

from tests.kit import gang_jobs, mad_repository
from tests.kit import jobs as job_kit
from tests.kit.git_server import GitServer
from tests.kit.kubernetes_schemas import kubernetes_validate
from tests.kit.mad_repository import OTHER_SECRET, SECRET, model
from tests.kit.needs import needs_programs
from tests.kit.planted_secrets import CommandLines, leaks
from tests.kit.ports import free_port
from tests.kit.runner import Node
from tests.kit.s3_service import S3Service

AMD = {"gpu_vendor": "AMD"}
STAGE = planning.stage_name("tiny_train", "", "--epochs 2")


@pytest.fixture
def make(tmp_path):
    def make(tag, given=None, options=None, **changed):
        found = repository.read(mad_repository.write(tmp_path / "repository", **changed))
        folder = tmp_path / "made"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return jobs.write(
            found,
            repository.select(found, tag),
            context.parse({**AMD, **(given or {})}),
            options or planning.MadOptions(),
            folder,
        )

    return make


def job(made):
    (path,) = made.jobs
    return job_kit.read(Path(path))


def names(made):
    """The files of the only build context, without its folder."""
    ((_name, image),) = made.images.items()
    return build_context.gather(Path(), image["folder"], None, None, None)


def test_a_model_is_a_job_in_an_image_of_its_own(make):
    made = make("tiny_train:batch=8")
    ((name, image),) = made.images.items()
    assert image["reference"] == "localhost/ci-tiny_train_tiny.ubuntu.amd:latest"
    assert image["base"] == "rocm/base:1"
    (wanted,) = images.to_make([made.images], Path(), "")
    assert (wanted.way, wanted.base) == ("build", "rocm/base:1")
    declared = stages.workloads(made.jobs, images=made.images)[name]
    assert declared["image"] == image["reference"]
    assert declared["timeout_seconds"] == 7200
    assert declared["retry"] == []
    assert declared["tags"] == ["mad", "pyt", "tiny"]
    assert declared["container"] == {"user": "0:0"}
    assert "MODEL_COMMAND='bash run.sh --epochs 2 --batch 8'" in job(made).steps[0].command[-1]
    assert made.deadline_seconds == 7200 + jobs.IMAGE_SECONDS


def test_the_image_has_the_files_of_the_model_and_no_secret(make):
    changed = {"docker/tool.sh": "true\n", "docker/credential.json": SECRET, "docker/.dockerignore": "*"}
    made = names(make("tiny_train", **changed))
    assert set(made.files) == {
        "Dockerfile",
        ".dockerignore",
        f"gpuval_mad/{STAGE}/model/run.sh",
        "plain.Dockerfile",
        "tiny.centos.nvidia.Dockerfile",
        "tiny.ubuntu.amd.Dockerfile",
        "tool.sh",
    }
    assert made.files["Dockerfile"].read_text().endswith("FROM $BASE_DOCKER\nCOPY gpuval_mad/ /opt/gpuval_mad/\n")
    assert made.files[".dockerignore"].read_text() == "*\n!gpuval_mad\n!gpuval_mad/**\n"


def test_the_same_files_are_the_same_image(make, tmp_path):
    before = names(make("tiny_train")).digest("b", {})
    assert names(make("tiny_train")).digest("b", {}) == before
    (tmp_path / "repository/scripts/tiny_train/run.sh").chmod(0o755)
    found = repository.read(tmp_path / "repository")
    (tmp_path / "again").mkdir()
    made = jobs.write(found, found.models[:1], context.parse(AMD), planning.MadOptions(), tmp_path / "again")
    assert names(made).digest("b", {}) != before


def test_an_image_of_the_context_stands_for_the_dockerfile(make):
    made = make("tiny_train", {"MAD_CONTAINER_IMAGE": "team/ready:3"})
    assert names(made).files["Dockerfile"].read_text() == "FROM team/ready:3\nCOPY gpuval_mad/ /opt/gpuval_mad/\n"


POD_IMAGE = "registry.example/mad:1"
IN_PODS = planning.MadOptions(in_pods=True, images={"tiny_train": POD_IMAGE})


def test_a_model_whose_image_is_given_runs_in_it_as_a_pod(make):
    made = make("tiny_train", {"SHM_SIZE": "1G"}, IN_PODS)
    assert made.images == {STAGE: {"reference": POD_IMAGE}}
    assert images.to_make([made.images], Path(), "") == []
    declared = stages.workloads(made.jobs, images=made.images)
    plan = plans.build(
        plans.PlanSettings("r", "node-1", "2026-11-20T20:00:00Z", 60, 10, "host", "cpu", 0, "python3", None),
        ["facts", STAGE],
        {"facts": {"command": ["{runner}", "facts"], "image": POD_IMAGE}, **declared},
    )
    settings = pod_settings.parse({"image": POD_IMAGE})
    placement = manifests.PodAttempt(manifests.PodTarget("node-1"), settings, manifests.pod_plan(plan, settings), "cpu")
    objects = manifests.everything("r", "gpuval", {"runner": b"r", "workloads": b"w"}, [placement])
    for one in objects:
        kubernetes_validate.validate(one, "1.33", strict=True)
    (spec,) = (one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Job")
    assert spec["containers"][0]["image"] == POD_IMAGE
    assert manifests.security_level(spec) == "baseline"
    ((_stage, columns),) = perf.models([plan]).items()
    assert (columns["docker_image"], columns["base_docker"]) == (POD_IMAGE, POD_IMAGE)
    assert columns["deployment_type"] == "kubernetes"


@pytest.mark.parametrize(
    ("given", "options", "changed", "message"),
    [
        ({}, planning.MadOptions(in_pods=True), {}, "tiny_train: no image for its pods: add one to gpuval_mad_images"),
        ({"docker_cpus": "0-3"}, IN_PODS, {}, "docker_cpus: pods have no set of processors"),
        ({}, planning.MadOptions(images={"tiny_trian": "x"}), {}, "has no model 'tiny_trian'; is it tiny_train?"),
        ({}, IN_PODS, {"scripts/tiny_train/data": random.Random(1).randbytes(90 << 10)}, "90 KiB when packed"),
    ],
)
def test_images_that_pods_cannot_have(make, given, options, changed, message):
    with pytest.raises(MadError, match=re.escape(message)):
        make("tiny_train", given, options, **changed)


def test_each_dockerfile_that_fits_is_a_job(make):
    made = make("tiny_train", **{"docker/tiny.rhel.amd.Dockerfile": "# CONTEXT {'gpu_vendor': 'AMD'}\nFROM x:1\n"})
    assert len(made.jobs) == len(made.images) == 2


def test_models_of_one_dockerfile_share_an_image(make):
    made = make("pyt")
    ((_name, image),) = made.images.items()
    read = [job_kit.read(Path(path)) for path in made.jobs]
    assert len(read) == 2 and {one.image for one in read} == set(made.images)
    files = build_context.gather(Path(), image["folder"], None, None, None).files
    assert sorted(name for name in files if name.startswith("gpuval_mad/")) == [
        f"gpuval_mad/{one.name}/model/{script}"
        for one, script in zip(reversed(read), ["infer.py", "run.sh"], strict=True)
    ]


def test_a_distributed_model_is_a_job_of_several_nodes(make):
    made = make("tiny_gang", {"docker_gpus": "0-3"}, planning.MadOptions(nodes=5, timeout=0))
    found = job(made)
    asked = {"least": 2, "most": 2, "gpus_per_node": 8, "order": "inventory", "join_seconds": 300}
    assert found.gang == {"figures": "first", **asked}
    assert found.stage["timeout_seconds"] == job_document.UNLIMITED_SECONDS, (
        "nodes that wait for each other have a limit"
    )
    assert found.steps[0].environment["MASTER_PORT"] == "29500"
    columns = json.loads(found.environment[perf.VARIABLE])
    assert (columns["nnodes"], columns["launcher"]) == ("2", "torchrun")
    assert list(stages.workloads(made.jobs, images=made.images, together=True)) == [found.name]
    all_of_them = {"distributed": {"launcher": "torchrun", "nnodes": 2}}
    assert job(make("tiny_train", all_of_them, planning.MadOptions(nodes=2))).gang["gpus_per_node"] == 0
    limited = {**all_of_them, "docker_gpus": "0-3"}
    assert job(make("tiny_train", limited, planning.MadOptions(nodes=2))).gang["gpus_per_node"] == 4


RUNNERS = {
    "torchrun": "torchrun --nnodes=2 --node_rank={rank} {where} --nproc_per_node=2",
    "deepspeed": "deepspeed --hostfile={folder}/job/hostfile --no_ssh --node_rank={rank} {where} --num_gpus=2",
    "vllm": "",
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", RUNNERS)
def test_the_script_of_a_distributed_model_runs_on_each_of_its_nodes(make, tmp_path, launcher):
    script = 'echo "runner: $MAD_MULTI_NODE_RUNNER, $NODE_RANK of $NNODES, $NPROC_PER_NODE"\necho performance: 1 x\n'
    port = free_port()
    together = {"launcher": launcher, "nnodes": 2, "nproc_per_node": 2, "master_port": port + 3}
    options = planning.MadOptions(nodes=2, images={"tiny_train": "x:1"})
    made = make("tiny_train", {"distributed": together}, options, **{"scripts/tiny_train/run.sh": script})
    with gang_jobs.Members(tmp_path, port, Path(made.jobs[0]), chosen={"images": made.images}) as members:
        ended = members.end()
    for rank, (code, log, result) in enumerate(ended):
        assert code == 0, log
        where = f"--master_addr=127.0.0.1 --master_port={port + 3}"
        runner = RUNNERS[launcher].format(rank=rank, where=where, folder=tmp_path / str(rank))
        assert f"runner: {runner}, {rank} of 2, 2\n" in log
        assert result["environment"]["gang"]["leader"] == "node-1"


RANK = 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $GPUVAL_NODE: $NOTE, $1, $(basename $(pwd))"\n'
BY_MPIRUN = """
[ -z "$OMPI_COMM_WORLD_RANK" ] || exit 1
export NOTE='a "b"' PYTHONPATH=/nowhere
$MAD_MULTI_NODE_RUNNER bash rank.sh one
cd lib
$MAD_MULTI_NODE_RUNNER bash ../rank.sh two
echo "performance: $NNODES x"
"""


@pytest.mark.slow
def test_a_script_starts_processes_on_all_nodes_by_mpirun(make, tmp_path):
    needs_programs(
        {"mpirun": "openmpi-bin", "orted": "openmpi-bin", "sshd": "openssh-server", "ssh-keygen": "openssh-client"}
    )
    (tmp_path / "keys").mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "keys/id_ed25519"], check=True)
    files = {"run.sh": BY_MPIRUN, "rank.sh": RANK, "lib/note": ""}
    options = planning.MadOptions(nodes=2, images={"tiny_train": "x:1"})
    made = make(
        "tiny_train", {"distributed": {"launcher": "mpirun", "nnodes": 2, "nproc_per_node": 2}}, options,
        **{f"scripts/tiny_train/{name}": text for name, text in files.items()},
    )  # fmt: skip
    with gang_jobs.Members(tmp_path, free_port(), Path(made.jobs[0]), chosen={"images": made.images}) as members:
        (code, log, _result), (second, other, _its) = members.end()
    assert (code, second) == (0, 0), log + other
    for rank in range(4):
        assert f'rank {rank} of 4 on node-{rank // 2 + 1}: a "b", one, job\n' in log
        assert f'rank {rank} of 4 on node-{rank // 2 + 1}: a "b", two, ' in log
    assert "performance: 2 x" in log and "performance" not in other


def test_mpirun_of_one_node_is_a_prefix_and_of_several_a_step_of_its_own(make):
    given = {"distributed": {"launcher": "mpirun", "nproc_per_node": 4}}
    (alone,) = job(make("tiny_train", given)).steps
    assert "MODEL_RUNNER='mpirun --allow-run-as-root --bind-to none -np $NPROC_PER_NODE'" in alone.command[-1]
    given["distributed"]["nnodes"] = 2
    steps = job(make("tiny_train", given, planning.MadOptions(nodes=2))).steps
    assert [(one.name, one.once, one.launcher) for one in steps] == [
        ("prepare", False, "none"),
        ("model", True, "mpirun"),
    ]


def test_the_context_reaches_the_container(make):
    given = {
        "docker_mounts": {"/inside": "/srv/outside"},
        "docker_cpus": "0-3",
        "SHM_SIZE": "1G",
        "docker_env_vars": {"MAD_MODEL_BATCH_SIZE": 4},
        "timeout_multiplier": 2,
    }
    found = job(make("tiny_infer", given))
    assert found.stage["container"] == {
        "user": "0:0",
        "volumes": ["/srv/outside:/inside"],
        "shm_bytes": 1 << 30,
        "arguments": ["--cpuset-cpus", "0-3"],
    }
    assert found.stage["timeout_seconds"] == 120
    assert found.steps[0].environment["MAD_MODEL_BATCH_SIZE"] == "4"


def test_what_a_run_adds_to_each_model(make):
    options = planning.MadOptions(keep_alive_seconds=60, keep_folder="/srv/kept", pipeline="nightly")
    found = job(make("tiny_train", {"docker_cpus": "0-3", "SHM_SIZE": "1K"}, options))
    assert found.stay_alive_seconds == 60
    assert found.stage["container"]["volumes"] == ["/srv/kept:/opt/gpuval_kept"]
    columns = json.loads(found.environment[perf.VARIABLE])
    assert columns["pipeline"] == "nightly"
    added = "--volume=/srv/kept:/opt/gpuval_kept --shm-size=1024 --cpuset-cpus 0-3"
    assert columns["additional_docker_run_options"] == added


def test_data_is_mounted_loaded_or_refused(make):
    models = {"models.json": [model(data="images,generated")]}
    found = job(
        make("tiny_train", **models, **{"data.json": {**mad_repository.DATA, "images": {"local": {"path": "/srv/i"}}}})
    )
    assert found.stage["container"]["volumes"] == ["/srv/i:/data_dlm_0:ro"]
    assert found.steps[0].environment["MAD_DATAHOME"] == "/data_dlm_0,/made_1"
    found = job(
        make("tiny_train", options=planning.MadOptions(datasets=["shelf"]), **{"models.json": [model(data="shelf")]})
    )
    assert found.stage["datasets"] == ["shelf"]
    with pytest.raises(MadError, match=r"'shelf' comes from nas: declare shelf in gpuval_datasets, or mount it"):
        make("tiny_train", **{"models.json": [model(data="shelf")]})
    mounts = {"docker_mounts": {"/data_dlm_0": "/mnt/nas/shelf"}}
    found = job(make("tiny_train", mounts, **{"models.json": [model(data="shelf")]}))
    assert found.stage["container"]["volumes"] == ["/mnt/nas/shelf:/data_dlm_0"]
    assert found.steps[0].environment["MAD_DATAHOME"] == "/data_dlm_0"


def test_data_without_a_data_file_is_left_to_the_script(make):
    changed = {"models.json": [model(data="hub,shelf")], "data.json": None}
    (step,) = job(make("tiny_train", **changed)).steps
    assert step.environment["MAD_DATANAME"] == "hub,shelf" and "MAD_DATAHOME" not in step.environment
    found = job(make("tiny_train", options=planning.MadOptions(datasets=["shelf"]), **changed))
    assert (found.stage["datasets"], found.steps[0].environment["MAD_DATAHOME"]) == (["shelf"], "/data_dlm_1")
    mounted = job(make("tiny_train", {"docker_mounts": {"/data_dlm_0": "/mnt/hub"}}, **changed))
    assert mounted.steps[0].environment["MAD_DATAHOME"] == "/data_dlm_0"


def test_a_malformed_data_set_refuses_the_models_that_need_it(make):
    changed = {"data.json": {"odd": {"ftp": {}}, "hub": {}}}
    changed["models.json"] = [model(data="odd"), model(name="other", data="hub")]
    made = make("pyt", **changed)
    assert len(made.jobs) == 1
    assert made.left_out[0].startswith("models.json: model tiny_train: data: data.json: odd: unknown provider 'ftp'")


MINIO = mad_repository.CREDENTIALS["MAD_MINIO"]


@pytest.mark.parametrize(
    ("providers", "known", "chosen"),
    [
        (("aws", "minio"), {"MAD_MINIO": MINIO, "MAD_AWS_S3": {"USERNAME": "me", "PASSWORD": SECRET}}, "minio"),
        (("minio", "aws"), {"MAD_AWS_S3": {"username": "me", "password": SECRET}}, "aws"),
        (("minio",), {"MAD_MINIO": {**MINIO, "PASSWORD": ""}}, "give MAD_MINIO in credential.json USERNAME, PASSWORD"),
        (("nas", "aws"), {}, "'tables' comes from nas or aws: give MAD_AWS_S3 in credential.json"),
    ],
)
def test_data_comes_from_the_first_provider_that_has_its_account(make, providers, known, chosen):
    changed = {"data.json": {"tables": {kind: {"path": "s3://bucket/tables"} for kind in providers}}}
    changed["models.json"] = [model(data="tables")]
    options = planning.MadOptions(credentials=known)
    if " " in chosen:
        with pytest.raises(MadError, match=re.escape(chosen)):
            make("tiny_train", options=options, **changed)
        return
    found = job(make("tiny_train", options=options, **changed))
    assert json.loads(found.environment[perf.VARIABLE])["data_provider_type"] == chosen
    account = {"minio": "MAD_MINIO", "aws": "MAD_AWS_S3"}[chosen]
    assert set(found.stage["secrets"]) >= {f"{account}_USERNAME", f"{account}_PASSWORD"}
    assert SECRET not in found.path.read_text() and OTHER_SECRET not in found.path.read_text()


@pytest.mark.parametrize(
    ("tag", "changed", "message"),
    [
        (
            "tiny_data",
            {},
            "models.json: model tiny_data: cred: credential.json (or gpuval_secrets_file) has no 'TINY_HUB': add it",
        ),
        ("tiny_gang", {}, "model tiny_gang: distributed.nnodes is 2, and 1 nodes are chosen"),
        ("tiny_train", {"scripts/tiny_train/run.sh": None}, "scripts: no file scripts/tiny_train in the repository"),
        ("x", {"models.json": [model(name="x", scripts="models.json")]}, "models.json is neither a folder, a .sh nor"),
        ("x", {"models.json": [model(name="x", dockercontext="none")]}, "dockercontext: no folder none"),
        ("x", {"models.json": [model(name="x"), model(name="x")]}, "has the name and the arguments of another model"),
    ],
)
def test_what_cannot_run_is_named(make, tag, changed, message):
    with pytest.raises(MadError) as caught:
        make(tag, **changed)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value) and OTHER_SECRET not in str(caught.value)


def test_credentials_are_secrets_of_their_models_job(make):
    options = planning.MadOptions(credentials=mad_repository.CREDENTIALS, secrets=("MAD_SECRETS_HFTOKEN",))
    models = {"models.json": [model(cred="TINY_HUB"), model(name="open")]}
    made = make("all", {"docker_env_vars": {"WANDB_API_KEY": ""}}, options, **models)
    private, public = (job_kit.read(Path(path)).stage["secrets"] for path in made.jobs[:2])
    assert private == ["TINY_HUB_USERNAME", "TINY_HUB_PASSWORD", "WANDB_API_KEY", "MAD_SECRETS_HFTOKEN"]
    assert public == ["WANDB_API_KEY", "MAD_SECRETS_HFTOKEN"]
    assert not [path for path in Path(made.jobs[0]).parents[1].rglob("*") if path.is_file() and holds(path)]


def test_a_file_of_secrets_beside_a_script_is_in_no_image(make, tmp_path):
    name = "scripts/tiny_train/own.yml"
    options = planning.MadOptions(secrets_file=tmp_path / "repository" / name)
    made = make(
        "tiny_train", options=options, **{name: f"HF_TOKEN: {SECRET}", "models.json": [model(dockercontext=".")]}
    )
    copied = [path for path in Path(made.jobs[0]).parents[1].rglob("*") if path.is_file()]
    assert any(path.name == "run.sh" for path in copied)
    assert not [path for path in copied if holds(path)]


def holds(path):
    return SECRET.encode() in path.read_bytes()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"password": "abc"}, "secret TINY_HUB_PASSWORD has fewer than 4 characters"),
        ({}, "has no 'TINY_HUB'"),
        ([{"password": SECRET}], "has no 'TINY_HUB'"),
    ],
)
def test_a_credential_that_cannot_be_used_leaves_its_model_out(make, given, told):
    models = {"models.json": [model(cred="TINY_HUB"), model(name="open")]}
    made = make("all", options=planning.MadOptions(credentials={"TINY_HUB": given}), **models)
    (reason,) = (text for text in made.left_out if "cred" in text)
    assert reason.startswith("models.json: model tiny_train: cred: ")
    assert told in reason
    assert any("mad_open_" in path for path in made.jobs)
    assert SECRET not in reason


def test_all_that_is_wrong_is_named_at_once(make):
    with pytest.raises(MadError, match=r"tiny_data: cred.*; .*tiny_gang: distributed"):
        make("tiny_data,tiny_gang")


def test_a_model_of_a_tag_that_cannot_run_is_left_out(make):
    """Tags of public repositories select models of one node and of batch systems alike."""
    slurm = model(
        name="disagg", scripts="scripts/run.slurm", distributed={"launcher": "slurm_multi", "nnodes": 2}, slurm={}
    )
    changed = {"models.json": [model(), slurm], "scripts/run.slurm": "true\n"}
    made = make("pyt", **changed)
    assert len(made.jobs) == 1
    (reason,) = made.left_out
    assert reason == (
        "models.json: model disagg: scripts: run.slurm is a batch file of Slurm, which starts containers itself: "
        "use an inventory of Slurm, run `sbatch run.slurm` in scripts on a login node, or select other models"
    )
    with pytest.raises(MadError, match="model disagg: scripts: "):
        make("pyt,disagg", options=planning.MadOptions(named={"disagg"}), **changed)


LICENSED = "# CONTEXT {'gpu_vendor': 'AMD', 'guest_os': 'UBUNTU'}\n" + "#" * 79 + "\n#\n# A licence\n#\n" * 20
#: What public repositories have: bases by digest, stages on stages, scripts of Python in the middle, empty arguments.
PUBLIC = {
    "models.json": [model(url=""), model(name="pyt_hub_small-1.5b_fp8", dockerfile="docker/serve", data="hub", url="")],
    "scripts/serve/models.json": [
        {
            "name": "pyt_serve_small-1.5b", "dockerfile": "../../docker/serve", "scripts": "run.sh", "data": "hub",
            "url": "", "n_gpus": "-1", "owner": "", "training_precision": "", "tags": ["pyt", "serve", "ep-internode"],
            "timeout": 432000, "skip_gpu_arch": "gfx942", "multiple_results": "perf_Small-1.5B.csv",
            "args": "--model_repo team/Small-1.5B --num_gpu 1", "additional_docker_run_options": "--shm-size 128g",
            "env_vars": {"PARTS": "1", "EXTRA": "--config '{\"a\":{\"b\":4}}'", "HF_TOKEN": ""},
        },
        {
            "name": "pyt_serve_many", "dockerfile": "../../docker/serve", "scripts": "run_many.slurm",
            "tags": ["pyt", "serve"], "distributed": {"launcher": "slurm_multi"}, "slurm": {"nodes": 2},
        },
    ],
    "scripts/serve/run.sh": "true\n",
    "scripts/serve/run_many.slurm": "#!/bin/bash\n#SBATCH -N 2\nsrun true\n",
    "docker/serve.ubuntu.amd.Dockerfile": LICENSED + """ARG BASE_DOCKER=rocm/serve:7_py3.12@sha256:04ce
FROM ${BASE_DOCKER} AS common
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
FROM common AS builder
ARG COMMIT=
RUN python3 - <<'PY'
from pathlib import Path
PY
FROM common
ARG BASE_DOCKER
COPY --from=builder /opt/lib /opt/lib
""",
    "docker/serve_overlay.ubuntu.amd.Dockerfile": "# CONTEXT {'gpu_vendor': 'AMD'}\nFROM other/base:1\n",
    "docker/serve.ubuntu.nvidia.Dockerfile": "# CONTEXT {'gpu_vendor': 'NVIDIA'}\nFROM cuda/base:1\n",
}  # fmt: skip


@pytest.mark.parametrize("tag", ["serve", "ep-internode", "serve/pyt", "serve/all", "serve/pyt_serve_small-1.5b"])
def test_models_as_public_repositories_have_them(make, tag):
    made = make(tag, **PUBLIC)
    ((_stage, image),) = made.images.items()
    assert (image["base"], image["reference"]) == (
        "rocm/serve:7_py3.12@sha256:04ce",
        "localhost/ci-serve_pyt_serve_small-1.5b_serve.ubuntu.amd:latest",
    )
    (step,) = job(made).steps
    assert {name: step.environment[name] for name in ("MAD_DATANAME", "PARTS", "EXTRA", "MAD_OUTPUT_CSV")} == {
        "MAD_DATANAME": "hub",
        "PARTS": "1",
        "EXTRA": '--config \'{"a":{"b":4}}\'',
        "MAD_OUTPUT_CSV": "perf_Small-1.5B.csv",
    }
    assert job(made).stage["timeout_seconds"] == 432000
    batch = "run `sbatch run_many.slurm` in scripts/serve on"
    assert all(f"{batch} a login node" in reason for reason in made.left_out)
    assert job(make(tag, {"docker_env_vars": {"PARTS": 2}}, **PUBLIC)).steps[0].environment["PARTS"] == "2"


def test_a_shell_script_may_be_a_batch_file_of_slurm(make):
    options = "#!/bin/bash\n# a comment\n\n#SBATCH --nodes=2\n"
    with pytest.raises(MadError, match=r"model tiny_train: scripts: run\.sh is a batch file of Slurm"):
        make("tiny_train", **{"scripts/tiny_train/run.sh": options})
    assert make("tiny_train", **{"scripts/tiny_train/run.sh": f"cat > job <<END\n{options}END\n"}).jobs


BATCH = "#!/bin/bash\n# a comment\n#SBATCH -N2-4 -n 8 --gres gpu:8 # two\n#SBATCH --exclusive --output='a b' -J x\n"
IN_SLURM = planning.MadOptions(in_slurm=True, nodes=3)


def test_a_batch_file_runs_once_on_the_nodes_that_it_asks_for(make):
    made = make("tiny_train", options=IN_SLURM, **{"scripts/tiny_train/run.sh": f"{BATCH}true\n#SBATCH -N 9\n"})
    assert (made.images, made.left_out) == ({}, ())
    (remark,) = made.remarks
    assert remark.startswith("scripts/tiny_train/run.sh: #SBATCH J, exclusive, output: no effect: gpuval_slurm_*, ")
    found = job(made)
    assert (found.image, found.gang["least"], found.gang["most"], found.steps[0].once) == ("", 2, 2, True)
    assert "MODEL_OPTIONS='SLURM_NTASKS=8 SLURM_GRES=gpu:8'" in found.steps[0].command[-1]
    with pytest.raises(MadError, match="nnodes or --nodes is 2, and 1 nodes are chosen"):
        make("tiny_train", options=planning.MadOptions(in_slurm=True), **{"scripts/tiny_train/run.sh": BATCH})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--nodes=many", "#SBATCH: invalid literal for int.*'many'"),
        ("--comment='a", "#SBATCH: no closing quotation: correct the option"),
        ("--gres", "#SBATCH: argument --gres: expected one argument"),
    ],
)
def test_an_option_that_cannot_be_read_is_named(make, line, problem):
    with pytest.raises(MadError, match=problem):
        make("tiny_train", options=IN_SLURM, **{"scripts/tiny_train/run.sh": f"#SBATCH {line}\n"})


def test_scripts_that_need_a_container_are_refused_in_jobs_of_slurm(make):
    with pytest.raises(MadError, match=r"run\.sh runs in a container, and jobs of Slurm run on the host"):
        make("tiny_train", options=IN_SLURM)


def test_models_of_the_root_share_tags_with_those_of_folders(make):
    made = make("pyt", **PUBLIC)
    assert len(made.jobs) == 3 and len(made.left_out) == 1


def test_a_secret_among_the_variables_of_a_model_is_refused(make):
    with pytest.raises(MadError, match="model tiny_train: env_vars: HF_TOKEN reads like a secret") as caught:
        make("tiny_train", **{"models.json": [model(env_vars={"HF_TOKEN": SECRET})]})
    assert SECRET not in str(caught.value)


def test_a_link_out_of_the_repository_does_not_travel(make, tmp_path):
    make("tiny_train")
    (tmp_path / "repository/scripts/tiny_train/keys").symlink_to("/etc/hostname")
    with pytest.raises(MadError, match="scripts/tiny_train/keys: a link leads out"):
        make("tiny_train")


def test_linked_files_travel_and_linked_secrets_do_not(make, tmp_path):
    make("tiny_train")
    scripts = tmp_path / "repository/scripts"
    (scripts / "tiny_train/shared").symlink_to("../data")
    (scripts / "tiny_train/again").symlink_to(".")
    (scripts / "tiny_train/note.txt").symlink_to("../../credential.json")
    files = names(make("tiny_train")).files
    mine = {name.rpartition("/model/")[2] for name in files if "/model/" in name}
    assert mine == {"run.sh", "shared/make.sh"}


@pytest.mark.parametrize(("limit", "most"), [("MAX_FILES", 30), ("MAX_BYTES", 300)])
def test_too_much_is_refused_before_the_first_file_is_copied(make, tmp_path, monkeypatch, limit, most):
    monkeypatch.setattr(jobs, limit, most)
    many = {f"docker/{number % 3}/{number}": "0123456789" for number in range(40)}
    with pytest.raises(MadError, match=r"model tiny_train: more than .* GiB: move data sets out of the repository"):
        make("tiny_train", **many)
    assert [path for path in (tmp_path / "made").rglob("*") if path.is_file()] == []


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The address of a repository with these files."""
    with GitServer(tmp_path / "served") as server:
        for name, text in server.environment.items():
            monkeypatch.setenv(name, text)

        def code(files):
            server.add("net", files)
            return f"{server.url}/net.git"

        yield code


def test_the_code_of_a_model_is_cloned_below_its_scripts(make, code):
    files = {"train.py": "print()", "run.sh": "replaced", "docs/readme": "-> ../train.py", "keys": "-> /etc/hostname"}
    url = code(files)
    made = make("tiny_train", **{"models.json": [model(url=url)]})
    files = names(made).files
    assert files[f"gpuval_mad/{STAGE}/model/train.py"].read_text() == "print()"
    assert files[f"gpuval_mad/{STAGE}/model/run.sh"].read_text() == mad_repository.TRAIN
    assert files[f"gpuval_mad/{STAGE}/model/docs/readme"].read_text() == "print()"
    assert not any(".git" in name or "keys" in name for name in files)
    assert not any(path.is_symlink() for path in files.values())
    columns = json.loads(job(made).environment[perf.VARIABLE])
    assert len(columns["git_commit"]) == 40
    with pytest.raises(MadError, match="model tiny_train: url: git fetch failed"):
        make("tiny_train", **{"models.json": [model(url=url.replace("net", "none"))]})


@pytest.mark.parametrize("first", [True, False])
def test_code_that_cannot_be_cloned_leaves_out_its_model_alone(make, code, first):
    url = code({"train.py": "print()"})
    models = [model(name="tiny_lost", url=url.replace("net", "none")), model(url=url)]
    made = make("tiny", **{"models.json": models if first else models[::-1]})
    assert job(made).name == STAGE and list(made.images) == [STAGE]
    assert not any("tiny_lost" in name for name in names(made).files)
    (reason,) = made.left_out
    assert "model tiny_lost: url: git fetch failed" in reason


def test_a_link_in_the_code_of_a_model_is_never_written_through(make, code, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "run.sh").write_text("mine")
    url = code({"run.sh": f"-> {outside}/run.sh", "lib": f"-> {outside}"})
    make("tiny_train", **{"models.json": [model(url=url)], "scripts/tiny_train/lib/tool.sh": "true"})
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"run.sh": "mine"}


@pytest.fixture
def run(make, tmp_path):
    made_nodes = []

    def run(tag, given=None, environment=None, options=None, secrets=None, **changed):
        made = make(tag, given, options, **changed)
        node = Node(tmp_path / "base", f"t{time.monotonic_ns()}")
        made_nodes.append(node)
        if secrets:
            file = node.files.secrets(job(made).name)
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_text(json.dumps(secrets))
            file.chmod(0o600)
        ((name, image),) = made.images.items()
        built = {"GPUVAL_MAD_FILES": f"{image['folder']}/gpuval_mad/{name}"} if "folder" in image else {}
        variables = {**built, **(environment or {})}
        return job_kit.run(node, made.jobs[0], images=made.images, environment=variables)

    yield run
    for node in made_nodes:
        node.close()


def results(model_name, record, log):
    stage = {
        "name": record["stage"],
        "state": record["state"],
        "message": record["message"],
        "duration_seconds": record["duration_seconds"],
    }
    rows = perf.rows({"model": model_name, "n_gpus": "-1"}, stage, log, record["environment"], "node-1", "run-1")
    return [(row["model"], row["performance"], row["metric"], row["status"]) for row in rows]


def test_a_script_runs_with_its_arguments(run):
    record, log = run("tiny_train:note=a:fp16")
    assert record["state"] == "success", log
    assert "model tiny_train on 0 GPUs: --epochs 2 --note a --fp16" in log
    assert results("tiny_train", record, log) == [("tiny_train", "12.5", "examples/sec", "SUCCESS")]


def test_the_files_of_a_model_come_with_its_job_to_an_image_that_is_given(run):
    changed = {"scripts/tiny_train/lib/tool.sh": "echo 'performance: 2 x'\n"}
    changed["scripts/tiny_train/run.sh"] = (
        "ls -A; bash lib/tool.sh; bash ../gpuval_mad/repository/scripts/data/note.sh\n"
    )
    changed["scripts/data/note.sh"] = "echo note $1\n"
    given = {"pre_scripts": [{"path": "scripts/data/note.sh", "args": "before"}]}
    record, log = run("tiny_train", given, options=planning.MadOptions(images={"tiny_train": "x:1"}), **changed)
    assert record["state"] == "success", log
    assert "note before\nlib\nrun.sh\nperformance: 2 x\nnote\n" in log


#: As far as the AWS command line is used, by boto3.
AWS = f"""#!{sys.executable}
import boto3, os, sys
_option, endpoint, _s3, verb, *words = sys.argv[1:]
bucket, _, key = words[verb != "ls"][5:].partition("/")
client = boto3.client("s3", endpoint_url=endpoint)
found = [one["Key"] for one in client.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", ())]
for name in found if verb != "ls" else ():
    client.download_file(bucket, name, os.path.basename(name))
sys.exit(not found)
"""


def test_data_of_an_s3_service_is_fetched_by_the_credentials_account(run, tmp_path, monkeypatch):
    tool = tmp_path / "bin/aws"
    tool.parent.mkdir()
    tool.write_text(AWS)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    paths, home = {"all": "s3://bucket/tables", "one": "s3://bucket/tables/b.txt"}, str(tmp_path / "home")
    changed = {"data.json": {name: {"minio": {"path": path, "home": home}} for name, path in paths.items()}}
    changed["models.json"] = [model(data="all,one")]
    changed["scripts/tiny_train/run.sh"] = f"ls ${{MAD_DATAHOME/,/ }}; {mad_repository.TRAIN}"
    with S3Service(tmp_path, ("minio", OTHER_SECRET)) as service:
        (service.data / "bucket/tables").mkdir(parents=True)
        for name in ("a.txt", "b.txt"):
            (service.data / "bucket/tables" / name).write_text(name)
        account = {"USERNAME": "minio", "PASSWORD": OTHER_SECRET, "MINIO_ENDPOINT": service.endpoint}
        options = planning.MadOptions(credentials={"MAD_MINIO": account})
        secrets = {f"MAD_MINIO_{name}": value for name, value in account.items()}
        with CommandLines() as lines:
            record, log = run("tiny_train", options=options, secrets=secrets, **changed)
    assert record["state"] == "success", log
    assert f"{home}_0:\na.txt\nb.txt\n\n{home}_1:\nb.txt\nmodel tiny_train" in log
    assert re.search(r"^gpuval data: \d+ s, \d+ bytes$", log, re.MULTILINE)
    planted = {"password": OTHER_SECRET}
    held = b"".join(file.read_bytes() for file in (tmp_path / "base").rglob("*") if file.is_file())
    assert leaks(planted, lines.text + log.encode() + held) == []


def test_a_python_script_and_a_script_without_a_figure(run):
    record, log = run("tiny_infer")
    assert results("tiny_infer", record, log) == [("tiny_infer", "3", "images/s", "SUCCESS")]
    record, log = run("tiny_infer", **{"scripts/tiny_infer/infer.py": "print('no figure')"})
    assert record["state"] == "crash"
    assert results("tiny_infer", record, log) == [("tiny_infer", "", "", "FAILURE")]


def test_a_script_that_fails_has_its_last_line_in_the_record(run):
    record, log = run("tiny_infer", **{"scripts/tiny_infer/infer.py": "import sys; sys.exit('no such tokenizer')"})
    assert (record["state"], record["exit_code"]) == ("crash", 1)
    assert record["message"].endswith("last output: no such tokenizer")
    assert results("tiny_infer", record, log) == [("tiny_infer", "", "", "FAILURE")]


def test_a_script_has_a_time_limit(run):
    changed = {"models.json": [model(timeout=1)], "scripts/tiny_train/run.sh": "sleep 300\n"}
    record, log = run("tiny_train", **changed)
    assert record["state"] == "timeout"
    assert results("tiny_train", record, log) == [("tiny_train", "", "", "FAILURE")]


def test_several_results(run):
    record, log = run("tiny_multi")
    assert record["state"] == "success", log
    assert results("tiny_multi", record, log) == [
        ("tiny_multi_a", "10", "tokens/s", "SUCCESS"),
        ("tiny_multi_b", "", "tokens/s", "FAILURE"),
    ]
    record, log = run("tiny_multi", **{"scripts/tiny_multi/run.sh": mad_repository.MULTI + 'mv "$MAD_OUTPUT_CSV" ..\n'})
    assert record["state"] == "success", log
    assert len(results("tiny_multi", record, log)) == 2
    record, log = run("tiny_multi", **{"scripts/tiny_multi/run.sh": "true"})
    assert "no such file" in record["message"].lower()
    assert results("tiny_multi", record, log) == [("tiny_multi", "", "", "FAILURE")]


def test_an_architecture_that_the_model_skips(run):
    record, log = run("tiny_multi", environment={"MAD_SYSTEM_GPU_PRODUCT_NAME": "NVIDIA H100 80GB"})
    assert (record["state"], record["message"]) == ("success", "skipped: step model (1 of 1): skip_gpu_arch names H100")
    assert results("tiny_multi", record, log) == [("tiny_multi", "", "", "SKIPPED")]
    record, _log = run("tiny_multi", environment={"MAD_SYSTEM_GPU_ARCHITECTURE": "gfx908:sramecc+:xnack-"})
    assert record["message"].startswith("skipped: ")


@pytest.mark.parametrize(
    ("n_gpus", "gpus", "shown"),
    [("-1", "all", "4 0,1,2,3"), ("2", "all", "2 0,1"), ("-1", "1,3", "2 1,3"), ("1", "1,3", "1 1")],
)
def test_a_model_sees_the_gpus_that_it_asks_for(run, n_gpus, gpus, shown):
    script = 'echo "saw $MAD_RUNTIME_NGPUS $HIP_VISIBLE_DEVICES: $MAD_MULTI_NODE_RUNNER"\necho performance: 1 x\n'
    node = {"GPUVAL_GPU_COUNT": "4", "GPUVAL_ACCELERATOR": "amd"}
    changed = {"models.json": [model(n_gpus=n_gpus)], "scripts/tiny_train/run.sh": script}
    _record, log = run("tiny_train", {"docker_gpus": gpus}, node, **changed)
    assert f"saw {shown}: torchrun --standalone --nproc_per_node={shown[0]}" in log


@pytest.mark.parametrize(
    ("n_gpus", "gpus", "message"),
    [("8", "all", "n_gpus is 8, and the node offers 4"), ("-1", "2,5", "docker_gpus names GPU 5, the node has 4")],
)
def test_gpus_that_a_node_lacks(run, n_gpus, gpus, message):
    node = {"GPUVAL_GPU_COUNT": "4", "GPUVAL_ACCELERATOR": "amd"}
    record, _log = run("tiny_train", {"docker_gpus": gpus}, node, **{"models.json": [model(n_gpus=n_gpus)]})
    assert record["state"] == "crash"
    assert message in record["message"]


def test_scripts_and_tools_around_the_model(run, tmp_path):
    given = {
        "pre_scripts": [{"path": "scripts/common/note.sh", "args": "before"}],
        "post_scripts": [{"path": "scripts/common/note.sh", "args": "after"}],
        "tools": [{"name": "profiler", "cmd": "env PROFILED=yes"}],
    }
    changed = {
        "scripts/common/note.sh": 'echo "noted $1"\n',
        "scripts/tiny_train/run.sh": 'echo "profiled $PROFILED"\necho performance: 1 x\n',
    }
    record, log = run("tiny_train", given, **changed)
    assert record["state"] == "success", log
    assert log.index("noted before") < log.index("profiled yes") < log.index("noted after")


@pytest.mark.parametrize("code", [0, 3])
def test_the_folder_of_a_model_is_kept(run, tmp_path, monkeypatch, code):
    monkeypatch.setattr(job_document, "KEPT", str(tmp_path / "kept"))
    changed = {"scripts/tiny_train/run.sh": f"echo seen > out.txt; echo performance: 1 x; exit {code}\n"}
    record, log = run("tiny_train", options=planning.MadOptions(keep_folder="/srv/kept"), **changed)
    assert record["exit_code"] == code, log
    (kept,) = (tmp_path / "kept").glob(f"{STAGE}/*/out.txt")
    assert kept.read_text() == "seen\n"


def test_data_is_made_before_the_model(run, tmp_path):
    data = {"made": {"custom": {"path": "scripts/data/make.sh", "home": str(tmp_path / "home")}}}
    changed = {
        "models.json": [model(data="made")],
        "data.json": data,
        "scripts/tiny_train/run.sh": 'cat "$MAD_DATAHOME/data.txt"\necho performance: 1 x\n',
    }
    record, log = run("tiny_train", **changed)
    assert record["state"] == "success", log
    assert "made" in log.splitlines()
    stage = {"name": STAGE, "state": "success", "message": "", "duration_seconds": 1.0}
    (row,) = perf.rows({"model": "tiny_train", "n_gpus": "-1"}, stage, log, {}, "node-1", "one")
    assert int(row["data_size"]) >= len("made\n") and float(row["data_download_duration"]) >= 0
