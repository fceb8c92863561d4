"""What images are wanted, in which order they are made, and what a plan says of them."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts.images import ImagesError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

ID, SHA256 = f"sha256:{'a' * 64}", "b" * 64
DIGEST = f"registry.example/vllm@sha256:{'c' * 64}"
BUILT = {"reference": "gpuval-training:1", "build": True, "base": "debian:12"}
ENTRY = {
    "name": "training",
    "reference": "gpuval-training:1",
    "id": ID,
    "sha256": SHA256,
    "bytes": 5,
    "key": "images/training-aaaaaaaaaaaa.tar",
    "architecture": "amd64",
}
ARCHIVE = {"key": ENTRY["key"], "sha256": SHA256, "bytes": 5}
BASES = {
    "vendors": {
        "cpu": {
            "loading": {"base": "docker.io/library/debian:12", "source": "Debian"},
            "training": {"base": "loading", "source": "above", "arguments": {"TORCH_OPTIONS": "--x", "KEPT": "1"}},
            "inference": {"base": "training", "source": "above"},
        }
    }
}


def built(*names):
    return {name: {"reference": f"gpuval-{name}:1", "build": True} for name in names}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("debian:12", "must describe the image"),
        ({}, "reference"),
        ({"reference": "--privileged"}, "is no image"),
        ({"reference": "a b"}, "is no image"),
        ({"reference": "a:1", "buidl": True}, "unknown keys buidl"),
        ({"reference": "a:1", "build": True, "archive": "x.tar"}, "exclude each other"),
        ({"reference": DIGEST, "build": True}, "name a tag"),
        ({"reference": "a:1", "id": "1234"}, "is no image id"),
        ({"reference": "a:1", "build": True, "vendor": "voodoo"}, "must be one of nvidia, amd, gaudi, cpu"),
        ({"reference": "a:1", "build": True, "arguments": ["x"]}, "build arguments by name"),
    ],
)
def test_what_cannot_be_meant_is_named(said, told):
    with pytest.raises(ImagesError, match=r"gpuval_images\.training") as caught:
        images.parse({"training": said})
    assert told in str(caught.value)


def test_a_false_build_is_none():
    (wanted,) = images.parse({"training": {"reference": "a:1", "build": "false"}})
    assert wanted.way == "registry"


def test_nodes_that_agree_are_one_and_nodes_that_do_not_are_an_error():
    assert len(images.merge([{"training": BUILT}, {"training": dict(BUILT)}, {}])) == 1
    with pytest.raises(ImagesError, match="two declarations"):
        images.merge([{"training": BUILT}, {"training": {**BUILT, "base": "ubuntu:24.04"}}])


def test_one_image_may_serve_under_several_names():
    given = {"reference": "all:1", "archive": "all.tar"}
    (wanted,) = images.merge([{"training": given, "loading": given}, {"inference": given}])
    assert wanted.name == "training"


def test_each_image_comes_after_the_one_it_is_built_on():
    wanted = images.merge([built("inference", "training", "loading")])
    made = images.with_bases(wanted, BASES, "cpu")
    assert [(item.name, item.base) for item in made] == [
        ("loading", "docker.io/library/debian:12"),
        ("training", "gpuval-loading:1"),
        ("inference", "gpuval-training:1"),
    ]


def test_a_base_that_is_not_built_gives_way_to_its_own_base():
    (made,) = images.with_bases(images.merge([built("inference")]), BASES, "cpu")
    assert made.base == "docker.io/library/debian:12"


def test_arguments_of_the_image_win_over_those_of_the_base():
    wanted = images.merge([{"training": {**built("training")["training"], "arguments": {"TORCH_OPTIONS": "--mine"}}}])
    (made,) = images.with_bases(wanted, BASES, "cpu")
    assert made.arguments == {"TORCH_OPTIONS": "--mine", "KEPT": "1"}


def test_an_image_of_another_vendor_is_no_base():
    wanted = images.merge(
        [built("training"), {"loading": {"reference": "l:amd", "build": True, "vendor": "amd", "base": "x:1"}}]
    )
    made = {item.name: item for item in images.with_bases(wanted, BASES, "cpu")}
    assert made["training"].base == "docker.io/library/debian:12"


def test_a_circle_is_named():
    circle = {
        "one": {"reference": "one:1", "build": True, "base": "two:1"},
        "two": {"reference": "two:1", "build": True, "base": "one:1"},
    }
    with pytest.raises(ImagesError, match="built on each other"):
        images.with_bases(images.merge([circle]), BASES, "cpu")


def test_no_vendor_is_guessed():
    with pytest.raises(ImagesError, match="vendor of the accelerators is missing"):
        images.with_bases(images.merge([built("training")]), BASES, "")
    (made,) = images.with_bases(images.merge([{"training": BUILT}]), BASES, "")
    assert made.base == "debian:12"


def test_an_unknown_folder_needs_a_base():
    with pytest.raises(ImagesError, match=r"gpuval_images\.mine\.base"):
        images.with_bases(images.merge([built("mine")]), BASES, "cpu")


def test_what_a_registry_has_is_not_made():
    assert images.with_bases(images.merge([{"inference": {"reference": DIGEST}}]), BASES, "cpu") == []


def test_the_plan_has_what_its_stages_use():
    declared = {"training": BUILT, "inference": {"reference": DIGEST, "id": ID}}
    catalogue = {"gpuval-training:1": ENTRY}
    assert images.image_plan(declared, "docker", catalogue, ["gpuval-training:1", None, "gpuval-training:1"]) == {
        "gpuval-training:1": {"id": ID, "archive": ARCHIVE}
    }
    assert images.image_plan(declared, "auto", catalogue) == {
        "gpuval-training:1": {"id": ID, "archive": ARCHIVE},
        DIGEST: {"id": ID, "archive": None},
    }
    assert images.image_plan({}, "podman", {}, ["upstream:1"]) == {"upstream:1": {"id": None, "archive": None}}


def test_the_host_has_no_images():
    assert images.image_plan({"training": BUILT}, "host", {}, ["gpuval-training:1"]) == {}
    assert images.image_plan({}, "auto", {}, [None]) == {}


def test_an_image_that_was_never_made_stops_the_launch():
    with pytest.raises(ImagesError, match="make build"):
        images.image_plan({"training": BUILT}, "docker", {})


def test_another_image_than_the_declared_one_stops_the_launch():
    with pytest.raises(ImagesError, match="build or take in the right one"):
        images.image_plan({"training": {**BUILT, "id": f"sha256:{'9' * 64}"}}, "docker", {"gpuval-training:1": ENTRY})


def test_what_each_node_built_has_no_archive_and_no_id():
    own = {**ENTRY, "id": None, "sha256": None, "bytes": None, "key": None, "architecture": None}
    planned = images.image_plan({"training": BUILT}, "docker", {"gpuval-training:1": own})
    assert planned == {"gpuval-training:1": {"id": None, "archive": None, "pull": False}}


def test_what_the_plan_gets_follows_its_schema():
    settings = plans.PlanSettings("run", "node", "2026-01-01T00:00:00Z", 60, 10, "docker", "cpu", None, "python3", None)
    planned = images.image_plan(
        {"training": BUILT, "inference": {"reference": DIGEST}}, "docker", {"gpuval-training:1": ENTRY}
    )
    plan = plans.build(settings, ["image"], {"image": {"command": ["{runner}", "image"]}}, images=planned)
    schemas.validate("plan", plan, what="plan")


def test_one_archive_of_several_references_is_signed_once():
    class Signing:
        def __init__(self):
            self.signed = []

        def sign_get(self, key, seconds):
            self.signed.append((key, seconds))
            return f"https://store/{key}"

    planned = {name: {"id": ID, "archive": ARCHIVE} for name in ("a:1", "b:1")} | {"c:1": {"id": None, "archive": None}}
    store = Signing()
    assert images.signed_downloads(store, planned, 60.9) == {ENTRY["key"]: f"https://store/{ENTRY['key']}"}
    assert store.signed == [(ENTRY["key"], 60)]
    images.signed_downloads(store, planned, 10**9)
    assert store.signed[-1][1] == 7 * 24 * 3600


def test_the_catalogue_comes_back_and_says_what_is_new(tmp_path):
    assert images.read_catalogue(tmp_path) == {}
    assert images.remember(tmp_path, ENTRY)
    assert not images.remember(tmp_path, ENTRY)
    assert images.remember(tmp_path, {**ENTRY, "reference": "other:1"})
    assert set(images.read_catalogue(tmp_path)) == {"gpuval-training:1", "other:1"}


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "gpuval.images/1", "images": {"a": {}}}'])
def test_a_damaged_catalogue_is_an_error(tmp_path, text):
    (tmp_path / "images.json").write_text(text)
    with pytest.raises(ImagesError, match="Remove it and run"):
        images.read_catalogue(tmp_path)


def test_an_archive_without_an_id_is_no_catalogue(tmp_path):
    with pytest.raises(schemas.Invalid):
        images.remember(tmp_path, {**ENTRY, "id": None})
