"""Archives of images: what is in them, and saving one."""

import hashlib
import io
import json
import sys
import tarfile

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import image_archive
from ansible_collections.gpuval.fleet.plugins.module_utils.image_archive import ArchiveError
from ansible_collections.gpuval.fleet.plugins.module_utils.image_builder import Builder, BuildError, BuiltImage


def archive(path, *images, manifest=True):
    """As `docker save` writes it; images are (references, configuration)."""
    with tarfile.open(path, "w") as tar:

        def add(name, data):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        entries = []
        for references, config in images:
            data = json.dumps(config).encode()
            name = f"{hashlib.sha256(data).hexdigest()}.json"
            add(name, data)
            entries.append({"Config": name, "RepoTags": references, "Layers": []})
        if manifest:
            add("manifest.json", json.dumps(entries).encode())
    return path


AMD64 = {"architecture": "amd64", "os": "linux"}
ARM64 = {"architecture": "arm64", "os": "linux"}


def test_the_id_is_that_of_the_configuration(tmp_path):
    path = archive(tmp_path / "a.tar", (["a:1"], AMD64))
    (image,) = image_archive.contents(path)
    identity = "sha256:" + hashlib.sha256(json.dumps(AMD64).encode()).hexdigest()
    assert image == {"id": identity, "architecture": "amd64", "os": "linux", "references": ["a:1"]}


def test_the_image_meant_is_the_one_that_carries_the_reference(tmp_path):
    path = archive(tmp_path / "a.tar", (["localhost/a:1"], AMD64), (["docker.io/library/b:latest"], ARM64))
    assert image_archive.image_of(path, "a:1")["architecture"] == "amd64"
    assert image_archive.image_of(path, "b")["architecture"] == "arm64"
    with pytest.raises(ArchiveError, match=r"has no image c:1; it has localhost/a:1, docker.io/library/b:latest"):
        image_archive.image_of(path, "c:1")


def test_a_single_image_may_be_called_anything(tmp_path):
    path = archive(tmp_path / "a.tar", (None, AMD64))
    assert image_archive.image_of(path, "registry.example:5000/team/a:1")["architecture"] == "amd64"


def test_what_is_no_archive_of_images_is_named(tmp_path):
    (tmp_path / "text").write_text("text")
    with pytest.raises(ArchiveError, match="is no archive"):
        image_archive.contents(tmp_path / "text")
    with pytest.raises(ArchiveError, match=r"none cannot be read \(No such file or directory\): give"):
        image_archive.contents(tmp_path / "none")
    with pytest.raises(ArchiveError, match="docker save"):
        image_archive.contents(archive(tmp_path / "other.tar", manifest=False))


@pytest.mark.parametrize(
    ("reference", "plain"),
    [
        ("debian", "debian:latest"),
        ("docker.io/library/debian:12", "debian:12"),
        ("docker.io/vllm/vllm-openai:v1", "vllm/vllm-openai:v1"),
        ("localhost/a:1", "a:1"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
    ],
)
def test_references_are_compared_without_what_engines_add(reference, plain):
    assert image_archive.plain(reference) == plain


def command(code):
    return [sys.executable, "-c", code]


def test_saving_tells_what_was_written(tmp_path):
    path = tmp_path / "out"
    sha256, count = image_archive.save(command("import sys; sys.stdout.write('x' * 9_000_000)"), str(path), 30)
    assert count == path.stat().st_size == 9_000_000
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest() == image_archive.sha256_of(path)


def test_saving_that_fails_says_why(tmp_path):
    with pytest.raises(ArchiveError, match="no such image"):
        image_archive.save(command("import sys; sys.exit('no such image')"), str(tmp_path / "out"), 30)


def test_saving_has_a_deadline(tmp_path):
    with pytest.raises(ArchiveError, match="not done after 1 s"):
        image_archive.save(command("import time; time.sleep(60)"), str(tmp_path / "out"), 1)


BASE, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


@pytest.mark.parametrize(
    ("here", "base", "built_base", "outdated"),
    [
        (("new", BASE), BASE, "", False),
        (("new", BASE), None, "", False),  # the base was removed: nothing speaks against the image
        (("new", BASE), OTHER, "", True),
        (("old", BASE), BASE, "", True),
        (None, BASE, "", True),
        (None, BASE, BASE, False),  # the store has it
        (None, None, BASE, False),
        (None, OTHER, BASE, True),
    ],
)
def test_when_an_image_is_built_again(here, base, built_base, outdated):
    image = BuiltImage("id", {"gpuval.context": here[0], "gpuval.base": here[1]}) if here else None
    assert Builder.outdated(image, BuiltImage(base, {}) if base else None, "new", built_base) is outdated


def test_without_an_engine_a_remedy_is_given(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"docker is not installed; podman is not installed.*container_image_build_on"):
        Builder()


ENGINE = """#!/bin/sh
case "$1 $2" in
  "version --format") echo 27.0 ;;
  "image inspect") [ "$3" = made:1 ] && name=made || name=base
    [ -e {folder}/$name ] && cat {folder}/$name || exit 1 ;;
  "push "*) echo "The push refers to repository"; [ "$2" = made:1 ] || exit 1
    echo "1: digest: sha256:2222222222222222222222222222222222222222222222222222222222222222 size: 1024" ;;
  "pull "*) cp {folder}/registry {folder}/base ;;
  "build "*) echo "$@" > {folder}/arguments; echo '[{{"Id": "sha256:made", "RepoDigests": []}}]' > {folder}/made ;;
esac
"""


@pytest.fixture
def builder(tmp_path, monkeypatch):
    """An engine that pulls what the registry has, and the archive of a build."""
    engine = tmp_path / "docker"
    engine.write_text(ENGINE.format(folder=tmp_path))
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with tarfile.open(tmp_path / "context.tar", "w"):
        pass

    def build(digests, expected, **labels):
        names = [f"docker.io/library/debian@{one}" for one in digests]
        document = [{"Id": "sha256:base", "RepoDigests": names, "Labels": labels}]
        (tmp_path / "registry").write_text(json.dumps(document))
        (tmp_path / "base").unlink(missing_ok=True)
        made = Builder("docker")
        context = str(tmp_path / "context.tar")
        return made.build(context, "Dockerfile", "made:1", "debian:1", {}, "x", base_digest=expected)[1].digest

    return build


OLD, NEW = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


def test_a_base_whose_tag_moved_is_not_built_on(builder):
    assert builder([OLD], "") == OLD  # the first build remembers it
    assert builder([OLD], OLD) == OLD
    assert builder([NEW, OLD], OLD) == NEW  # podman lists those of the index and of the platform
    with pytest.raises(BuildError, match=f"debian:1 has moved: it is {NEW} now, and was {OLD} when made:1 was built"):
        builder([NEW], OLD)


def test_a_pushed_image_has_the_digest_of_its_registry(builder):
    builder([OLD], "")
    made = Builder("docker")
    assert made.push("made:1") == NEW
    with pytest.raises(BuildError, match=r"docker cannot push other:1: The push .*docker login"):
        made.push("other:1")


def test_a_build_without_the_cache_says_so_to_the_engine(builder, tmp_path):
    builder([OLD], "")
    assert "--no-cache" not in (tmp_path / "arguments").read_text()
    Builder("docker").build(str(tmp_path / "context.tar"), "Dockerfile", "made:1", "debian:1", {}, "x", no_cache=True)
    assert "--no-cache" in (tmp_path / "arguments").read_text().split()


def test_a_base_that_was_made_here_has_no_digest_to_compare(builder):
    assert builder([], OLD) == ""
    assert builder([NEW], OLD, **{"gpuval.context": "x"}) == ""  # podman's, and docker's with containerd
