"""Which Dockerfiles fit a node."""

import dataclasses

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import dockerfiles, repository
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.documents import MadError

from tests.kit import mad_repository


@pytest.fixture
def found(tmp_path):
    return repository.read(mad_repository.write(tmp_path / "mad"))


def fitting(found, facts, prefix="docker/tiny"):
    model = dataclasses.replace(found.models[0], dockerfile=prefix)
    return [one.path for one in dockerfiles.fitting(found.root, model, facts)]


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({"gpu_vendor": "AMD"}, ["docker/tiny.ubuntu.amd.Dockerfile"]),
        ({"gpu_vendor": "NVIDIA"}, ["docker/tiny.centos.nvidia.Dockerfile"]),
        ({"guest_os": "UBUNTU"}, ["docker/tiny.ubuntu.amd.Dockerfile"]),
        ({"unrelated": 1, "gpu_vendor": "AMD"}, ["docker/tiny.ubuntu.amd.Dockerfile"]),
    ],
)
def test_a_file_fits_when_keys_on_both_sides_are_equal(found, facts, names):
    assert fitting(found, facts) == names


def test_a_file_without_context_fits_every_node(found):
    assert fitting(found, {"gpu_vendor": "CPU"}, "docker/plain") == ["docker/plain.Dockerfile"]


def test_a_whole_name_and_a_pattern(found):
    whole = "docker/tiny.ubuntu.amd.Dockerfile"
    assert fitting(found, {"gpu_vendor": "AMD"}, whole) == [whole]
    assert fitting(found, {"gpu_vendor": "AMD"}, "docker/t*") == [whole]


def test_files_of_two_vendors_need_a_choice(found):
    with pytest.raises(MadError, match="Dockerfiles for AMD and NVIDIA fit: set gpu_vendor in gpuval_mad_context"):
        fitting(found, {})


@pytest.mark.parametrize(
    ("text", "arguments", "base"),
    [
        ("ARG BASE_DOCKER=rocm/base:1\nFROM $BASE_DOCKER", {}, "rocm/base:1"),
        ("ARG BASE_DOCKER=rocm/base:1\nFROM $BASE_DOCKER", {"BASE_DOCKER": "rocm/base:2"}, "rocm/base:2"),
        ("FROM ubuntu:${VERSION:-22.04}", {}, "ubuntu:22.04"),
        ("FROM --platform=linux/amd64 a:1 AS one\nARG X=y\nFROM b:1\nFROM one", {}, "a:1"),
        ("from c:1 as two", {}, "c:1"),
        ("FROM d:1 AS Build\nFROM build", {}, "d:1"),
        ("ARG HUB=h.example\nARG BASE=${HUB}/e:1\nFROM $BASE", {}, "h.example/e:1"),
        ("FROM f:1\nRUN python3 - <<'END'\nfrom importlib.metadata import version\nEND\n", {}, "f:1"),
        (
            "FROM g:1\nRUN python3 -c '\\\nfrom torch import cuda\n# a remark\\\n'\nRUN cat <<<x && echo $((1 <<2))",
            {},
            "g:1",
        ),
        ("FROM h:1 AS one\nRUN cat <<A <<-B\nfrom x\nA\nfrom y\nB\nFROM i:1", {}, "i:1"),
    ],
)
def test_the_base_of_the_last_stage(text, arguments, base):
    assert dockerfiles.Dockerfile("docker/x", text).base(arguments) == base


@pytest.mark.parametrize("text", ["", "FROM scratch", "ARG BASE\nFROM $BASE"])
def test_a_file_without_a_base_is_refused(text):
    with pytest.raises(MadError, match="docker/x: no FROM with an image"):
        dockerfiles.Dockerfile("docker/x", text).base({})


def test_no_fit_names_what_was_tried(found):
    with pytest.raises(MadError) as caught:
        fitting(found, {"gpu_vendor": "CPU"})
    assert str(caught.value) == (
        "models.json: model tiny_train: no Dockerfile fits: add one, or set gpuval_mad_context; "
        "tried docker/tiny.centos.nvidia.Dockerfile (gpu_vendor is CPU, not NVIDIA); "
        "docker/tiny.ubuntu.amd.Dockerfile (gpu_vendor is CPU, not AMD)"
    )


def test_no_file_names_the_nearest(found):
    with pytest.raises(MadError, match=r"dockerfile: no file docker/tinny\.\*; the folder has tiny\.centos"):
        fitting(found, {}, "docker/tinny")
    with pytest.raises(MadError, match=r"no file dokcer/tiny\.\*$"):
        fitting(found, {}, "dokcer/tiny")


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ("__import__('os').system('id')", "is no Python literal"),
        ("{'gpu_vendor': open('/etc/passwd')}", "is no Python literal"),
        ("{'gpu_vendor': 'AMD'", "is no Python literal"),
        ("{'a': {'b': 1}}", "is no dict of names and plain values"),
        ("{1: 'a'}", "is no dict of names and plain values"),
        ("{[]: 1}", "is no Python literal"),
        ("['AMD']", "is no dict of names and plain values"),
        ("(" * 900, "is no Python literal"),
        ("{" + "'a': 1, " * 200 + "}", "# CONTEXT is longer than 1024 characters"),
    ],
)
def test_a_context_is_a_bounded_literal(found, context, message):
    (found.root / "docker/odd.Dockerfile").write_text(f"# CONTEXT {context}\nFROM x\n")
    with pytest.raises(MadError) as caught:
        fitting(found, {}, "docker/odd")
    assert "docker/odd.Dockerfile: # CONTEXT" in str(caught.value)
    assert message in str(caught.value)


def test_a_context_below_the_first_lines_does_not_count(found):
    (found.root / "docker/late.Dockerfile").write_text("\n" * 5 + "# CONTEXT {'gpu_vendor': 'AMD'}\n")
    assert fitting(found, {"gpu_vendor": "CPU"}, "docker/late") == ["docker/late.Dockerfile"]


def test_a_link_out_of_the_repository_is_not_read(found):
    (found.root / "docker/out.Dockerfile").symlink_to("/etc/hostname")
    with pytest.raises(MadError, match=r"docker/out\.Dockerfile: a link leads out"):
        fitting(found, {}, "docker/out")
