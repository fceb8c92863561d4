import json
import os

from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tools import ToolResult
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.users import accelerator_users, foreign_runs

BOX = "a" * 64


class Tools:
    """Answers by tool; what is not there is missing."""

    def __init__(self, **answers):
        self.answers = answers

    def __call__(self, tool, *arguments, timeout=0):
        answer = self.answers.get(tool.replace("-", "_"))
        if answer is None:
            return ToolResult(tool, missing=True)
        text = answer(arguments) if callable(answer) else answer
        return ToolResult(tool, stdout=text, returncode=0 if text is not None else 1)


def process(root, pid, name, environ=b"", cgroup=""):
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "environ").write_bytes(environ)
    (folder / "cgroup").write_text(cgroup)


def test_a_process_on_a_gpu_is_named_with_its_container(tmp_path):
    process(tmp_path, 7, "python3", cgroup=f"0::/system.slice/docker-{BOX}.scope\n")
    process(tmp_path, 8, "nvidia-persiste")
    answers = {
        "--query-compute-apps=pid,process_name": "7, /usr/bin/python3\n8, /usr/bin/nvidia-persistenced\n",
        "--query-compute-apps=pid,gpu_uuid": "7, GPU-b\n7, GPU-a\n7, GPU-that-left\n8, GPU-a\n",
        "--query-gpu=uuid,index": "GPU-a, 0\nGPU-b, 3\nUnable to determine the device handle\n",
    }
    tools = Tools(
        nvidia_smi=lambda arguments: answers[arguments[0]],
        docker=lambda arguments: "/trainer <no value>\n" if BOX in arguments else "",
    )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(f"root:x:99999:0\nbob:x:{os.getuid()}:100:Bob:/home/bob:/bin/sh\n")
    (user,) = accelerator_users(Tree(str(tmp_path)), tools, "r1")
    assert str(user) == "python3 (pid 7) of user bob on gpu:3, gpu:0 in container trainer"


def test_what_is_of_this_run_is_not_in_its_way(tmp_path):
    process(tmp_path, 7, "python3", b"A=b\0GPUVAL_STAGE_ID=r1/n1/training/1\0")
    process(tmp_path, 8, "python3", b"GPUVAL_STAGE_ID=r2/n1/training/1\0")
    process(tmp_path, 9, "python3", cgroup=f"12:devices:/docker/{BOX}\n")
    tools = Tools(nvidia_smi="7, a\n8, b\n9, c\n", docker=lambda _: "/gpuval-r1-n1 r1")
    (user,) = accelerator_users(Tree(str(tmp_path)), tools, "r1")
    assert str(user) == f"python3 (pid 8) of user {os.getuid()} of gpuval run r2"


def test_amd_and_gaudi_are_seen_without_their_tools(tmp_path):
    (tmp_path / "sys/class/kfd/kfd/proc/41").mkdir(parents=True)
    process(tmp_path, 41, "rocm_job")
    (tmp_path / "dev/accel").mkdir(parents=True)
    (tmp_path / "dev/accel/accel0").touch()
    process(tmp_path, 42, "hpu_job")
    (tmp_path / "proc/42/fd").mkdir()
    (tmp_path / "proc/42/fd/3").symlink_to("/dev/accel/accel0")
    process(tmp_path, 43, "bystander")
    (tmp_path / "proc/43/fd").mkdir()
    (tmp_path / "proc/43/fd/3").symlink_to("/dev/null")
    users = accelerator_users(Tree(str(tmp_path)), Tools())
    assert [user.name for user in users] == ["rocm_job", "hpu_job"]


def test_a_daemon_is_known_by_what_the_kernel_keeps_of_its_name(tmp_path):
    for pid, name in ((41, "device-metrics-"), (42, "device-metrics2")):
        (tmp_path / f"sys/class/kfd/kfd/proc/{pid}").mkdir(parents=True)
        process(tmp_path, pid, name)
    users = accelerator_users(Tree(str(tmp_path)), Tools())
    assert [user.name for user in users] == ["device-metrics2"]


def test_nothing_known_is_no_node(tmp_path):
    assert accelerator_users(Tree(str(tmp_path)), Tools()) == []
    assert accelerator_users(Tree(str(tmp_path)), Tools(nvidia_smi="No devices were found\n")) == []
    assert foreign_runs(Tools(), "r1") == []


def test_containers_of_other_runs_are_named():
    docker = "\n".join(
        json.dumps({"Names": name, "Labels": f"a=b,gpuval.run={run},gpuval.node=n"})
        for name, run in (("x", "r1"), ("y", "r2"))
    )
    gone = {"Names": ["lost"], "Labels": {"gpuval.run": "r4"}, "Pid": 1 << 30, "Status": "Up 3 hours"}
    podman = json.dumps([{"Names": ["z"], "Labels": {"gpuval.run": "r3"}, "Pid": os.getpid()}, gone])
    assert foreign_runs(Tools(docker=docker, podman=podman), "r1") == [
        "container y of gpuval run r2",
        "container z of gpuval run r3",
    ]
