"""The four commands of docs/kubernetes.md, as they stand there, on a simulated cluster and with a real registry."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import urllib.request

import pytest
import yaml

from tests.kit.cluster import ClusterKit
from tests.kit.cluster_fleet import WORK, Containers
from tests.kit.container_fleet import needs_docker
from tests.kit.fleet import ROOT, until
from tests.kit.host_image import import_image
from tests.kit.needs import needs_programs
from tests.kit.ports import free_port
from tests.kit.processes import end_all_below

COMMAND_SECONDS = 300
BASE = f"example.org/gpuval-test-base:{os.getpid()}"
DOCKERFILE = "ARG BASE\nFROM $BASE\nCOPY {name}/Dockerfile /Dockerfile\n"
VENDOR = {
    "loading": {"base": BASE, "source": "this test"},
    "training": {"base": "loading", "source": "this test"},
    "inference": {"base": "training", "source": "this test"},
}
#: What a user edits: here stages that need no GPU, one of them in the image of `training`.
SITE = {
    "gpuval_profile": "site",
    "gpuval_profiles": {"site": ["facts", "work"]},
    "work_workload": {**WORK, "image": "{{ gpuval_images.training.reference | default(none) }}"},
    "gpuval_heartbeat_seconds": 1,
    "run_poll_seconds": 0.5,
}
MINE = "# the user's own\nuser_of_this_site: 1 # kept\n"


class LocalRegistry:
    """Debian's registry on the loopback, which docker pushes to without TLS."""

    def __init__(self, folder):
        self.address, self.folder = f"127.0.0.1:{free_port()}", folder

    def __enter__(self):
        needs_programs({"docker-registry": "docker-registry"})
        self.folder.mkdir()
        settings = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "data")}},
            "http": {"addr": self.address},
        }
        (self.folder / "settings.yml").write_text(yaml.safe_dump(settings))
        with (self.folder / "log").open("wb") as log:
            command = ["docker-registry", "serve", self.folder / "settings.yml"]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until(self._answers, "the registry answers")
        return self

    def __exit__(self, *exception):
        self._process.terminate()
        self._process.wait(30)

    def _answers(self):
        with contextlib.suppress(OSError):
            return self.ask("")[0] == {}
        return False

    def ask(self, path):
        """The answer to a request of the API, and its headers."""
        accept = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
        request = urllib.request.Request(f"http://{self.address}/v2/{path}", headers=accept)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer), answer.headers

    @property
    def repositories(self):
        return self.ask("_catalog")[0]["repositories"]


@pytest.fixture
def registry(tmp_path):
    with LocalRegistry(tmp_path / "registry") as registry:
        yield registry


@pytest.fixture
def project(tmp_path):
    """A checkout with small images of its own."""
    needs_docker()
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("requirements", ".venv", ".venv-node"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("Makefile", "ansible.cfg"):
        shutil.copy(ROOT / name, folder)
    for name in ("collections", "tools"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    for name in ("common", *VENDOR):
        (folder / "docker" / name).mkdir(parents=True)
        (folder / "docker" / name / "Dockerfile").write_text(DOCKERFILE.format(name=name))
    bases = {"schema": "gpuval.bases/1", "vendors": {"cpu": VENDOR, "nvidia": VENDOR, "amd": VENDOR}}
    (folder / "docker/bases.yml").write_text(yaml.safe_dump(bases))
    with tarfile.open(tmp_path / "base.tar", "w") as tar:
        tar.add(ROOT / "LICENSE", "LICENSE")
    import_image("docker", BASE, tmp_path / "base.tar")
    yield folder
    end_all_below(folder)
    listed = ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"]
    references = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    mine = [reference for reference in references if "/team/gpuval-" in reference or reference == BASE]
    subprocess.run(["docker", "rmi", "-f", *mine], capture_output=True, check=True)


def make(project, *arguments, code=0):
    # The environments are those of this process, whatever their age.
    command = ["make", "-o", ".venv/.ready", "-o", ".venv-node/.ready", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "ARGS")}
    done = subprocess.run(
        command,
        cwd=project,
        env={**environment, "HOME": str(project), "DOCKER_CONFIG": str(project / "docker-config")},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    output = done.stdout + done.stderr
    assert (done.returncode == 0) == (code == 0), output
    return output


def documented(page, heading, **values):
    """The words of the commands in the first block below a heading, with values of this test."""
    text = (ROOT / page).read_text().split(f"## {heading}\n")[1]
    block = re.search(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1]
    for line in block.splitlines():
        target, *words = shlex.split(line.removeprefix("$ make "), comments=True)
        yield (
            target,
            [f"{name}={values.get(name, value)}" for name, _, value in (word.partition("=") for word in words)],
        )


def test_from_a_kubeconfig_to_a_verdict(project, registry, tmp_path):
    with ClusterKit(tmp_path, namespace=None, on_stage=Containers(tmp_path / "pods")) as kit:
        kit.add_nodes(2, gpus=0)
        values = {"KUBECONFIG": kit.kubeconfig, "REGISTRY": f"{registry.address}/team"}
        commands = dict(documented("docs/kubernetes.md", "From a kubeconfig to a verdict", **values))
        assert list(commands) == ["inventory", "build", "validate", "clean"]
        told = make(project, "inventory", *commands["inventory"], "GPUS=0")
        assert "make build REGISTRY=HOST/PATH INVENTORY=inventories/mine" in told
        path = project / "inventories/mine/group_vars/all.yml"
        settings = yaml.safe_load(path.read_text())
        path.write_text(f"{yaml.safe_dump({**settings, **SITE}, sort_keys=False)}{MINE}")

        told = make(project, "build", *commands["build"])
        assert "gpuval-training:" in told and "pushed as" in told
        assert registry.repositories == ["team/gpuval-training"]
        written = path.read_text()
        assert MINE in written
        (entry,) = yaml.safe_load(written)["gpuval_images"].values()
        name, _, digest = entry["reference"].partition("@")
        (tag,) = registry.ask("team/gpuval-training/tags/list")[0]["tags"]
        assert tag.endswith("-cpu")
        assert digest == registry.ask(f"team/gpuval-training/manifests/{tag}")[1]["Docker-Content-Digest"]
        assert name == f"{registry.address}/team/gpuval-training"
        told = make(project, "build", *commands["build"])
        assert f"is in the registry as {name}@{digest}" in told
        assert path.read_text() == written

        told = make(project, "validate", *commands["validate"])
        assert "namespace gpuval: created" in told
        assert "2 expected, 2 PASS" in told
        images = {
            container["image"]
            for pod in kit.all("Pod")
            for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
        }
        assert images == {entry["reference"]}
        make(project, "clean", *commands["clean"])
        assert [kit.all(kind) for kind in ("Job", "Pod", "Secret", "ConfigMap")] == [[], [], [], []]


def test_nodes_of_two_vendors_get_their_images_by_group(project, registry, tmp_path):
    with ClusterKit(tmp_path) as kit:
        kit.add_node("amd-1", resource="amd.com/gpu", labels={"amd.com/gpu.product-name": "AMD-Instinct-MI300X"})
        kit.add_node("gpu-1", labels={"nvidia.com/gpu.product": "NVIDIA-H200"})
        make(project, "inventory", f"KUBECONFIG={kit.kubeconfig}")
        shared = (project / "inventories/mine/group_vars/all.yml").read_text()
        build = [
            "build",
            f"REGISTRY={registry.address}/team",
            "INVENTORY=inventories/mine",
            "ARGS=-e gpuval_profile=quick",
        ]
        make(project, *build)
        told = make(project, *build)
    assert told.count("is in the registry as") == 2
    assert (project / "inventories/mine/group_vars/all.yml").read_text() == shared
    for group, vendor in (("sku_mi300x", "amd"), ("sku_h200", "nvidia")):
        variables = yaml.safe_load((project / f"inventories/mine/group_vars/{group}.yml").read_text())
        assert variables["gpuval_gpu_count"] == 8
        digest = variables["gpuval_images"]["training"]["reference"].partition("@")[2]
        (tag,) = [tag for tag in registry.ask("team/gpuval-training/tags/list")[0]["tags"] if tag.endswith(vendor)]
        assert digest == registry.ask(f"team/gpuval-training/manifests/{tag}")[1]["Docker-Content-Digest"]


@pytest.mark.parametrize(
    ("registry_name", "images", "told"),
    [
        ("https://r.example", {}, "'https://r.example' is none: write HOST/PATH or HOST:PORT/PATH"),
        ("127.0.0.1:9/team", {}, "docker cannot push 127.0.0.1:9/team/gpuval-training:"),
        (
            "127.0.0.1:9",
            {"training": {"reference": "a:1", "build": True}},
            "gpuval_images.training has build, and gpuval",
        ),
    ],
)
def test_a_push_that_cannot_be_is_one_message_and_changes_no_file(project, tmp_path, registry_name, images, told):
    with ClusterKit(tmp_path) as kit:
        kit.add_node("gpu-1", labels={"nvidia.com/gpu.product": "NVIDIA-H200"})
        make(project, "inventory", f"KUBECONFIG={kit.kubeconfig}")
        path = project / "inventories/mine/group_vars/all.yml"
        path.write_text(f"{path.read_text()}gpuval_images: {json.dumps(images)}\n")
        before = path.read_text()
        output = make(project, "build", f"REGISTRY={registry_name}", "INVENTORY=inventories/mine", code=2)
    assert told in " ".join(output.split())
    assert path.read_text() == before
