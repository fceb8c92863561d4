import json
from dataclasses import replace
from pathlib import Path

import pytest
from gpuval_node.engines._engine import Ending, EngineFacts, labels, parse_ending, parse_image
from gpuval_node.engines.docker import Docker
from gpuval_node.engines.podman import Podman
from gpuval_runner import plan as plans
from gpuval_runner.containers.command import (
    PLACES,
    ContainerRequest,
    create_argv,
    dropped_option,
    explain,
    explain_init,
    inherited_names,
)
from gpuval_runner.containers.stage import container_name, out_of_memory
from gpuval_runner.errors import NodePlanError
from gpuval_runner.plan import StageContainer

from tests.kit.runner import PLAN_SCHEMA, plan, stage

DOCKER = Docker("docker", EngineFacts("28.0", architecture="amd64", storage=Path("/var/lib/docker")))
PODMAN = Podman("podman", EngineFacts("5.0", cdi=True))
WANTED = ContainerRequest(
    name="gpuval-r-n-s",
    reference="train:1",
    image="sha256:abc",
    argv=["python3", "-m", "x"],
    labels=labels("r", "n", "s"),
    environment={"A": "b", "https_proxy": "own"},
    inherited=["http_proxy", "https_proxy"],
    mounts=[(Path("/d,e"), PLACES.work, False), (Path("/r"), PLACES.runner, True)],
    user="0:0",
    container=StageContainer(),
    access=DOCKER.access("cpu"),
)


def asking(**changes):
    return replace(WANTED, container=StageContainer(**changes))


def test_a_container_is_as_gpu_work_needs_it_and_no_more():
    argv = create_argv(DOCKER, WANTED)
    assert argv[:3] == ["docker", "create", "--pull=never"]
    assert {
        *("--network=host", "--ipc=host", "--init", "--label=gpuval.run=r", "--label=gpuval.node=n"),
        *("--label=gpuval.stage=s", "--ulimit=memlock=-1:-1", "--ulimit=stack=67108864:67108864"),
        *("--env=A=b", "--env=http_proxy", "--env=https_proxy=own", "--user=0:0"),
        '--mount=type=bind,"source=/d,e",target=/opt/gpuval/work',
        "--mount=type=bind,source=/r,target=/opt/gpuval/runner.pyz,readonly",
    } <= set(argv)
    assert "--env=https_proxy" not in argv, "what the stage declares wins"
    assert argv[-4:] == ["--entrypoint=python3", "sha256:abc", "-m", "x"]
    assert not [word for word in argv if "privileged" in word or "cap-add" in word or "device" in word]


def test_what_a_stage_asks_of_its_container_is_given():
    argv = create_argv(
        DOCKER,
        asking(
            shm_bytes=1 << 30,
            memory_bytes=1 << 31,
            cpus=1.5,
            ulimits={"nofile": "5:6"},
            privileged=True,
            capabilities=("SYS_PTRACE",),
            devices=("/dev/x",),
            volumes=("/a:/b:ro",),
            network="none",
            arguments=("--gpus=2",),
        ),
    )
    assert {
        *("--shm-size=1073741824", "--ipc=private", f"--memory={1 << 31}", f"--memory-swap={1 << 31}", "--cpus=1.5"),
        *("--ulimit=nofile=5:6", "--privileged", "--cap-add=SYS_PTRACE", "--device=/dev/x", "--volume=/a:/b:ro"),
        *("--network=none", "--gpus=2"),
    } <= set(argv)
    assert "--shm-size=1073741824" not in create_argv(DOCKER, asking(shm_bytes=1 << 30, ipc="host"))


@pytest.mark.parametrize("text", ["error setting rlimit type 8: operation not permitted", "setrlimit `RLIMIT_MEMLOCK`"])
def test_a_limit_that_the_engine_refuses_is_lowered_and_then_left_out(text):
    assert dropped_option(text, WANTED) == "memlock"
    lowered = replace(WANTED, refused=frozenset({"memlock"}))
    (limit,) = [word for word in create_argv(DOCKER, lowered) if "memlock" in word]
    assert limit != "--ulimit=memlock=-1:-1" or dropped_option(text, lowered) == "memlock!"
    bare = replace(WANTED, refused=frozenset({"memlock", "memlock!"}))
    assert not [word for word in create_argv(DOCKER, bare) if "memlock" in word]
    assert dropped_option(text, bare) is None


def test_a_limit_that_was_asked_for_is_never_given_up():
    assert dropped_option("error setting rlimit type 8", asking(ulimits={"memlock": "-1:-1"})) is None
    assert dropped_option("something else", WANTED) is None


def test_an_engine_without_an_init_goes_on_without():
    text = 'exec: "docker-init": executable file not found in $PATH'
    assert dropped_option(text, WANTED) == "init"
    assert "--init" not in create_argv(DOCKER, replace(WANTED, refused=frozenset({"init"})))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exec /usr/bin/python3: exec format error", "another processor architecture"),
        ('exec: "python3": executable file not found in $PATH: unknown', "s_workload.container.python"),
        ('could not select device driver "" with capabilities: [[gpu]]', "container toolkit"),
        ("unknown or invalid runtime name: habana", "container toolkit"),
        ("write /var/lib/docker/x: no space left on device", "/var/lib/docker"),
        ("error setting rlimit type 7: operation not permitted", "container.ulimits"),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "check its service"),
        ("Error response from daemon: something new", "something new"),
    ],
)
def test_a_refusal_says_what_to_do(text, said):
    assert said in explain(text, WANTED, DOCKER)


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        (127, "[FATAL tini (7)] exec python9 failed: No such file or directory", "exec: No such file or directory"),
        (1, "ERROR (catatonit:6): failed to exec pid1: Permission denied", "exec: Permission denied"),
        (127, "sh: 1: x: not found", ""),
        (0, "[FATAL tini (7)] exec python9 failed: No such file or directory", ""),
    ],
)
def test_what_the_init_could_not_start_is_distinguished(code, line, said):
    assert explain_init(code, line) == said


def machine(root, *files, **texts):
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def docker(**changes):
    return replace(DOCKER, facts=replace(DOCKER.facts, **changes))


def test_no_device_is_handed_on_that_is_not_there(tmp_path):
    for vendor in ("auto", "nvidia", "amd", "gaudi", "cpu"):
        assert DOCKER.access(vendor, tmp_path) == DOCKER.access("cpu", tmp_path)
    assert DOCKER.access("auto", tmp_path).arguments == ()


def test_nvidia_by_docker(tmp_path):
    root = machine(tmp_path, "dev/nvidiactl", "dev/nvidia0", "dev/infiniband/uverbs0")
    assert "nvidia-container-toolkit" in DOCKER.access("nvidia", root).problem
    found = docker(runtimes=frozenset({"runc", "nvidia"})).access("auto", root)
    assert found.arguments == ("--gpus=all", "--device=/dev/infiniband")
    (root / "etc/cdi").mkdir(parents=True)
    (root / "etc/cdi/nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    assert docker(cdi=True).access("nvidia", root).arguments[0] == "--device=nvidia.com/gpu=all"
    assert docker(cdi=False).access("nvidia", root).problem, "a docker that knows no CDI"


def test_containers_have_the_imex_channels_of_a_tray(tmp_path):
    root = machine(tmp_path, "dev/nvidiactl", "dev/nvidia0", "etc/cdi/x.json")
    (root / "etc/cdi/x.json").write_text('{"kind": "nvidia.com/gpu"}')
    (root / "dev/nvidia-caps-imex-channels").mkdir()
    assert PODMAN.access("nvidia", root).arguments == ("--device=nvidia.com/gpu=all",), "the folder is empty"
    machine(root, "dev/nvidia-caps-imex-channels/channel0")
    by_docker = docker(runtimes=frozenset({"nvidia"})).access("nvidia", root).arguments
    for arguments in (by_docker, PODMAN.access("nvidia", root).arguments):
        assert arguments[1:] == ("--device=/dev/nvidia-caps-imex-channels",)


def test_nvidia_by_podman(tmp_path):
    root = machine(tmp_path, "dev/nvidiactl")
    assert "nvidia-ctk cdi generate" in PODMAN.access("nvidia", root).problem
    machine(root, "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json")
    assert PODMAN.access("nvidia", root).environment == (("NVIDIA_VISIBLE_DEVICES", "all"),)
    machine(root, "etc/cdi/x.json").joinpath("etc/cdi/x.json").write_text('{"kind": "nvidia.com/gpu"}')
    assert PODMAN.access("nvidia", root).arguments == ("--device=nvidia.com/gpu=all",)


def test_amd_has_its_devices_and_their_groups_by_number(tmp_path):
    root = machine(tmp_path, "dev/kfd", "dev/dri/renderD128", etc__group="video:x:44:\nrender:x:109:ann\nother:x:7:\n")
    found = DOCKER.access("auto", root).arguments
    assert {"--device=/dev/kfd", "--device=/dev/dri", "--group-add=44", "--group-add=109"} <= set(found)
    assert "--security-opt=seccomp=unconfined" in found
    assert "--group-add=7" not in found
    rootless = replace(PODMAN, facts=replace(PODMAN.facts, rootless=True)).access("amd", root).arguments
    assert "--group-add=keep-groups" in rootless


def test_gaudi_by_its_runtime_or_its_devices(tmp_path):
    root = machine(tmp_path, "dev/accel/accel0", "dev/accel/accel_controlD0")
    found = docker(runtimes=frozenset({"habana"})).access("auto", root)
    assert "--runtime=habana" in found.arguments
    assert ("HABANA_VISIBLE_DEVICES", "all") in found.environment
    assert "--device=/dev/accel" in DOCKER.access("gaudi", root).arguments


def test_what_docker_and_podman_say_of_themselves():
    docker = Docker.parse_info(
        {
            "ServerVersion": "28.3.0",
            "Architecture": "aarch64",
            "Runtimes": {"runc": {}, "nvidia": {}},
            "DockerRootDir": "/data/docker",
            "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"],
            "CDISpecDirs": ["/etc/cdi"],
            "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
        }
    )
    assert docker == EngineFacts(
        "28.3.0", True, frozenset({"runc", "nvidia"}), True, "arm64", Path("/data/docker"), True
    )
    podman = Podman.parse_info(
        {
            "host": {"arch": "amd64", "security": {"rootless": True}},
            "store": {"graphRoot": "/home/ann/.local"},
            "version": {"Version": "5.1"},
        }
    )
    assert (podman.version, podman.rootless, podman.architecture) == ("5.1", True, "amd64")
    assert all(engine.parse_info({"ServerErrors": ["Cannot connect"]}) is None for engine in (Docker, Podman))


def test_ends_and_images_are_read():
    assert parse_ending({"StartedAt": "0001-01-01T00:00:00Z", "ExitCode": 127, "Error": "no"}) == Ending(
        False, False, 127, False, "no"
    )
    ended = parse_ending({"StartedAt": "2026-01-01T00:00:00Z", "ExitCode": 137, "OOMKilled": True})
    for status in ("paused", "stopping"):  # as podman says it
        assert parse_ending({"StartedAt": "2026", "Running": False, "Status": status, "ExitCode": 0}).running
    assert (ended.started, ended.oom_killed) == (True, True)
    assert "container.memory_bytes" in out_of_memory(ended, 1 << 20)
    assert out_of_memory(replace(ended, oom_killed=False), 1 << 20) == ""
    image = parse_image({"Id": "a" * 64, "Architecture": "x86_64", "Config": {"Env": ["PYTHONPATH=/x"]}})
    assert (image.id, image.architecture, image.environment) == (f"sha256:{'a' * 64}", "amd64", {"PYTHONPATH": "/x"})


def test_only_what_fits_any_image_is_inherited():
    host = {
        "PATH": "/x",
        "HOME": "/h",
        "LD_LIBRARY_PATH": "/l",
        "NCCL_DEBUG": "1",
        "https_proxy": "u:p@h",
        "CUDA_HOME": "/c",
    }
    assert inherited_names(host) == ["NCCL_DEBUG", "https_proxy"]


def test_names_of_containers_are_unique_and_fit_the_engines():
    parsed = plans.parse(plan(stage("a")))
    names = {container_name(parsed, "a") for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("gpuval-r1-n1-a-") for name in names)
    long = replace(parsed, run_id="r" * 60, node="n" * 250)
    assert len(container_name(long, "a")) < 130


def test_a_plan_says_what_its_containers_and_images_are():
    digest = "0" * 64
    images = {
        "train:1": {"id": f"sha256:{digest}", "archive": {"key": "images/t.tar", "sha256": digest, "bytes": 5}},
        "vllm:1": {"id": None, "archive": None},
    }
    asked = {"python": "python", "shm_bytes": 1024, "user": None, "ulimits": {"memlock": "-1:-1"}}
    parsed = plans.parse(plan(stage("a", image="train:1", container=asked), runtime="auto", images=images))
    assert parsed.stages[0].container == StageContainer(python="python", shm_bytes=1024, ulimits={"memlock": "-1:-1"})
    assert parsed.images["train:1"].archive.bytes == 5
    assert parsed.images["vllm:1"].archive is None
    assert parsed.containers
    assert not replace(parsed, runtime="host").containers
    assert not plans.parse(plan(stage("facts", image="x"), runtime="docker")).containers


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"container": {"pythn": "x"}}, "pythn"),
        ({"container": {"memory_bytes": "1"}}, "memory_bytes"),
        ({"container": {"ulimits": {"nofile": "many"}}}, "nofile"),
        ({"container": {"volumes": ["/a"]}}, "volumes"),
        ({"container": {"privileged": "yes"}}, "privileged"),
    ],
)
def test_what_is_wrong_with_a_container_is_named(changes, said):
    document = plan(stage("a"))
    document["stages"][0].update(changes)
    assert list(PLAN_SCHEMA.iter_errors(document)), "the schema and the runner agree"
    with pytest.raises(NodePlanError, match=said):
        plans.parse(document)


def test_an_image_that_the_runner_cannot_trust_is_refused():
    for bad in ({"id": "abc", "archive": None}, {"id": None, "archive": {"key": "k", "sha256": "x", "bytes": 1}}):
        document = {**plan(stage("a")), "images": {"x": bad}}
        assert list(PLAN_SCHEMA.iter_errors(json.loads(json.dumps(document))))
        with pytest.raises(NodePlanError):
            plans.parse(document)
