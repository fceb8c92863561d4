"""docker/: the bases, and what a build is made of."""

import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import build_context, images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts.images import ImagesError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas

DOCKER = Path(__file__).resolve().parents[3] / "docker"
NAMES = ["loading", "training", "inference", "validate"]
#: What tools/publish_images.py adds to the context of `validate`.
OF_THE_CHECKOUT = {"validate/controller.txt", "validate/gpuval-fleet.tar.gz"}
BASES = yaml.safe_load((DOCKER / "bases.yml").read_text())


def test_the_bases_follow_their_schema_and_every_vendor_has_every_image():
    schemas.validate("bases", BASES, what="bases.yml")
    assert set(BASES["vendors"]) == set(images.VENDORS)
    for vendor, known in BASES["vendors"].items():
        names = set(NAMES) - ({"validate"} if vendor == "gaudi" else set())  # its base has Python 3.10
        assert set(known) == names
        wanted = images.merge([{name: {"reference": f"{name}:{vendor}", "build": True} for name in names}])
        made = images.with_bases(wanted, BASES, vendor)
        assert {item.name for item in made} == names
        assert all(
            item.base in {other.reference for other in made[:at]} or "/" in item.base for at, item in enumerate(made)
        )


@pytest.mark.parametrize(
    "base",
    [
        *("docker.io/library/debian:latest", "docker.io/library/debian", "../x", "docker.io/library/debian: 1"),
        *("mirror:5000/debian:latest", "mirror:5000/debian"),
    ],
)
def test_a_base_that_may_change_is_refused(base):
    document = {"schema": "gpuval.bases/1", "vendors": {"cpu": {"loading": {"base": base, "source": "x"}}}}
    with pytest.raises(schemas.Invalid):
        schemas.validate("bases", document, what="bases")


@pytest.mark.parametrize("registry", ["mirror:5000", "docker.io", "mirror.example.org:443"])
def test_a_registry_may_have_a_port(registry):
    base = {"base": f"{registry}/library/debian:bookworm", "source": "x"}
    schemas.validate("bases", {"schema": "gpuval.bases/1", "vendors": {"cpu": {"loading": base}}}, what="bases")


@pytest.mark.parametrize("name", ["debian:1", f"debian:1@sha256:{'0' * 64}", f"debian@sha256:{'0' * 64}"])
def test_a_base_may_be_named_by_digest(name):
    bases = {"loading": {"base": f"docker.io/library/{name}", "source": "x"}}
    schemas.validate("bases", {"schema": "gpuval.bases/1", "vendors": {"cpu": bases}}, what="bases")


@pytest.mark.parametrize("name", NAMES)
def test_a_context_has_what_its_dockerfile_copies(name):
    context = build_context.gather(DOCKER, name, None, None, None)
    for line in (DOCKER / context.dockerfile).read_text().replace("\\\n", "").splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            for source in words[1:-1]:
                assert source == "local/" or source in context.files or source in OF_THE_CHECKOUT, line


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_the_labels_of_a_release(name):
    text = (DOCKER / name / "Dockerfile").read_text()
    galaxy = DOCKER.parent / "collections/ansible_collections/gpuval/fleet/galaxy.yml"
    assert f"ARG VERSION={yaml.safe_load(galaxy.read_text())['version']}\n" in text
    labels = set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", text))
    assert labels == {"title", "description", "licenses", "source", "version", "revision", "base.name"}


def test_sources_that_are_built_are_pinned_by_commit():
    pinned = re.findall(r"https://github.com/[\w/-]+@(\w+)", (DOCKER / "common/install-vendor").read_text())
    assert [len(commit) for commit in pinned] == [40, 40]


@pytest.fixture
def docker(tmp_path):
    folder = tmp_path / "docker"
    for name, text in {
        "mine/Dockerfile": "FROM x",
        "mine/README.md": "told",
        "common/tool": "tool",
        "bases.yml": "no part",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_archive_is_the_same_for_the_same_files_and_has_local_always(docker, tmp_path):
    context = build_context.gather(docker, "mine", None, None, None)
    context.write(tmp_path / "one.tar")
    (docker / "common/tool").touch()
    (docker / "common/tool").chmod(0o755)
    build_context.gather(docker, "mine", None, None, None).write(tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as tar:
        assert sorted(tar.getnames()) == ["common/tool", "local/.keep", "mine/Dockerfile"]


def test_all_that_goes_into_an_image_counts(docker, tmp_path):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/a-1.whl").write_text("a")
    (tmp_path / "ca.pem").write_text("ca")

    def digest(base="x", arguments=(), wheels=None, certificate=None):
        return build_context.gather(docker, "mine", wheels, certificate, None).digest(base, dict(arguments))

    first = digest()
    others = [
        digest("y"),
        digest(arguments=[("A", "1")]),
        digest(wheels=tmp_path / "wheels"),
        digest(certificate=tmp_path / "ca.pem"),
    ]
    (docker / "mine/README.md").write_text("told better")
    assert digest() == first
    (docker / "common/tool").write_text("better tool")
    others.append(digest())
    assert len({first, *others}) == 6


def test_what_is_not_there_is_named(docker, tmp_path):
    with pytest.raises(ImagesError, match="container_image_folder"):
        build_context.gather(docker, "yours", None, None, None)
    with pytest.raises(ImagesError, match="container_image_wheels"):
        build_context.gather(docker, "mine", tmp_path / "none", None, None)
    with pytest.raises(ImagesError, match="container_image_ca_file"):
        build_context.gather(docker, "mine", None, tmp_path / "none", None)


@pytest.mark.parametrize("script", ["install-system", "install-python"])
def test_the_scripts_are_plain_shell(script):
    subprocess.run(["sh", "-n", str(DOCKER / "common" / script)], check=True, timeout=10)


def test_nothing_local_is_part_of_the_project():
    done = subprocess.run(
        ["git", "check-ignore", "docker/local/ca.pem"], cwd=DOCKER.parent, check=False, capture_output=True, timeout=10
    )
    assert done.returncode == 0
