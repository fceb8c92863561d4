"""From models to job files and build contexts, and what the jobs do on a node."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import build_context, images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import document, stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import context, jobs, perf, repository, tags
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.errors import MadError

from tests.kit import jobs as job_kit
from tests.kit import mad_repository
from tests.kit.mad_repository import OTHER_SECRET, SECRET, model
from tests.kit.runner import Node

AMD = {"gpu_vendor": "AMD"}
STAGE = jobs.stage_name("tiny_train", "", "--epochs 2")


@pytest.fixture
def make(tmp_path):
    def make(tag, given=None, options=None, **changed):
        found = repository.read(mad_repository.write(tmp_path / "repository", **changed))
        folder = tmp_path / "made"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return jobs.write(
            found, tags.select(found, tag), context.parse({**AMD, **(given or {})}), options or jobs.Options(), folder
        )

    return make


def job(made):
    (path,) = made.jobs
    return document.read(Path(path))


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
    made = jobs.write(found, found.models[:1], context.parse(AMD), jobs.Options(), tmp_path / "again")
    assert names(made).digest("b", {}) != before


def test_an_image_of_the_context_stands_for_the_dockerfile(make):
    made = make("tiny_train", {"MAD_CONTAINER_IMAGE": "team/ready:3"})
    assert names(made).files["Dockerfile"].read_text() == "FROM team/ready:3\nCOPY gpuval_mad/ /opt/gpuval_mad/\n"


def test_each_dockerfile_that_fits_is_a_job(make):
    made = make("tiny_train", **{"docker/tiny.rhel.amd.Dockerfile": "# CONTEXT {'gpu_vendor': 'AMD'}\nFROM x:1\n"})
    assert len(made.jobs) == len(made.images) == 2


def test_models_of_one_dockerfile_share_an_image(make):
    made = make("pyt")
    ((_name, image),) = made.images.items()
    read = [document.read(Path(path)) for path in made.jobs]
    assert len(read) == 2 and {one.image for one in read} == set(made.images)
    files = build_context.gather(Path(), image["folder"], None, None, None).files
    assert sorted(name for name in files if name.startswith("gpuval_mad/")) == [
        f"gpuval_mad/{one.name}/model/{script}"
        for one, script in zip(reversed(read), ["infer.py", "run.sh"], strict=True)
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


def test_data_is_mounted_loaded_or_refused(make):
    models = {"models.json": [model(data="images,generated")]}
    found = job(
        make("tiny_train", **models, **{"data.json": {**mad_repository.DATA, "images": {"local": {"path": "/srv/i"}}}})
    )
    assert found.stage["container"]["volumes"] == ["/srv/i:/data_dlm_0:ro"]
    assert found.steps[0].environment["MAD_DATAHOME"] == "/data_dlm_0,/made_1"
    found = job(make("tiny_train", options=jobs.Options(datasets=["shelf"]), **{"models.json": [model(data="shelf")]}))
    assert found.stage["datasets"] == ["shelf"]
    with pytest.raises(MadError, match=r"'shelf' comes from nas, .*declare shelf in gpuval_datasets"):
        make("tiny_train", **{"models.json": [model(data="shelf")]})


@pytest.mark.parametrize(
    ("tag", "changed", "message"),
    [
        ("tiny_data", {}, "models.json: model tiny_data: cred: needs TINY_HUB of credential.json"),
        ("tiny_gang", {}, "model tiny_gang: distributed: distributed.nnodes: 2 nodes"),
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
    assert made.left_out == (
        "models.json: model disagg: scripts: run.slurm is neither a folder, a .sh nor a .py: select other models",
    )
    with pytest.raises(MadError, match="model disagg: scripts: "):
        make("pyt,disagg", options=jobs.Options(named={"disagg"}), **changed)


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


def git(folder, *arguments):
    subprocess.run(["git", "-C", folder, "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True)


def test_the_code_of_a_model_is_cloned_below_its_scripts(make, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print()")
    (code / "run.sh").write_text("replaced")
    (code / "docs").mkdir()
    (code / "docs/readme").symlink_to("../train.py")
    (code / "keys").symlink_to("/etc/hostname")
    git(code, "init", "--quiet")
    git(code, "add", ".")
    git(code, "commit", "--quiet", "-m", "x")
    made = make("tiny_train", **{"models.json": [model(url=f"file://{code}")]})
    files = names(made).files
    assert files[f"gpuval_mad/{STAGE}/model/train.py"].read_text() == "print()"
    assert files[f"gpuval_mad/{STAGE}/model/run.sh"].read_text() == mad_repository.TRAIN
    assert files[f"gpuval_mad/{STAGE}/model/docs/readme"].read_text() == "print()"
    assert not any(".git" in name or "keys" in name for name in files)
    assert not any(path.is_symlink() for path in files.values())
    columns = json.loads(job(made).environment[perf.VARIABLE])
    assert len(columns["git_commit"]) == 40
    with pytest.raises(MadError, match="model tiny_train: url: git fetch failed"):
        make("tiny_train", **{"models.json": [model(url=f"file://{tmp_path}/none")]})


def test_a_link_in_the_code_of_a_model_is_never_written_through(make, tmp_path):
    code, outside = tmp_path / "code", tmp_path / "outside"
    for folder in (code, outside):
        folder.mkdir()
    (outside / "run.sh").write_text("mine")
    (code / "run.sh").symlink_to(outside / "run.sh")
    (code / "lib").symlink_to(outside)
    git(code, "init", "--quiet")
    git(code, "add", ".")
    git(code, "commit", "--quiet", "-m", "x")
    make("tiny_train", **{"models.json": [model(url=f"file://{code}")], "scripts/tiny_train/lib/tool.sh": "true"})
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"run.sh": "mine"}


@pytest.fixture
def run(make, tmp_path):
    made_nodes = []

    def run(tag, given=None, environment=None, **changed):
        made = make(tag, given, **changed)
        node = Node(tmp_path / "base", f"t{time.monotonic_ns()}")
        made_nodes.append(node)
        ((name, image),) = made.images.items()
        variables = {"GPUVAL_MAD_FILES": f"{image['folder']}/gpuval_mad/{name}", **(environment or {})}
        return job_kit.run(node, made.jobs[0], environment=variables)

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
