"""The controller's side of build_image: what the store and the catalogue hold afterwards."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gpuval.fleet.plugins.action import node
from ansible_collections.gpuval.fleet.plugins.module_utils import image_archive
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.node_steps.build_image import MADE

from tests.kit.actions import run_action
from tests.kit.host_image import write_archive

REFERENCE = "registry.example/given:1"
LOOKED = {"needed": True, "engine": "docker", "image_id": "", "base_id": "", "base_digest": ""}


@pytest.fixture
def given(tmp_path):
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"x" * 1000)
    write_archive(tmp_path / "given.tar", REFERENCE, layer, "amd64")
    return tmp_path / "given.tar"


def made(state, *, check_mode=False, given=None, **options):
    declared = {"reference": REFERENCE, "archive": given} if given else {"reference": REFERENCE, "copy": True}
    options = {"images": [{"given": declared}], "store": {"bucket": "gpuval", "state_dir": str(state)}, **options}
    return run_action("build_image", options, check_mode=check_mode)


def test_an_archive_is_put_into_the_store_once_and_again_when_it_is_lost(embedded, given):
    state, store = embedded.directory.parent, embedded.store()
    assert made(state, given=str(given), check_mode=True).result["changed"]
    assert images.read_catalogue(state) == {}

    first = made(state, given=str(given)).result
    assert first["changed"]
    entry = images.read_catalogue(state)[REFERENCE]
    assert first["made"] == {REFERENCE: entry}
    assert entry["sha256"] == image_archive.sha256_of(given)
    assert {found.key: found.size for found in store.list("images/")}[entry["key"]] == given.stat().st_size

    again = made(state, given=str(given))
    assert not again.result["changed"]
    assert f"{REFERENCE}: is up to date" in again.text

    store.delete_prefix(entry["key"])
    assert made(state, given=str(given)).result["changed"]
    assert {found.key for found in store.list(entry["key"])} == {entry["key"]}
    assert images.read_catalogue(state)[REFERENCE] == entry


@pytest.mark.parametrize("required", [True, False])
def test_nothing_to_build_is_reported_where_that_is_what_the_play_is_about(tmp_path, required):
    pulled = [{"training": {"reference": REFERENCE}}]
    done = made(tmp_path, images=pulled, required=required)
    assert not done.failed
    assert ("nothing to build: gpuval_images names no image to build, copy or" in done.text) is required


def test_an_archive_that_cannot_be_read_is_named(tmp_path):
    done = made(tmp_path, given="/nonexistent.tar")
    assert done.failed
    assert "/nonexistent.tar" in done.text


def test_a_builder_out_of_reach_fails_the_task_and_a_node_is_unreachable(tmp_path, monkeypatch):
    """A play that ignores unreachable hosts does not go on without the image."""

    def away(*_):
        raise AnsibleConnectionFailure("no route to builder")

    monkeypatch.setattr(node.ActionModule, "ask_node", away)
    done = made(tmp_path)
    assert done.failed
    assert f"{REFERENCE} was not made, the builder cannot be reached: no route to builder" in done.text
    with pytest.raises(AnsibleConnectionFailure):
        made(tmp_path, publish=False)
    assert images.read_catalogue(tmp_path) == {}


def test_an_image_that_a_node_built_for_itself_has_no_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(node.ActionModule, "ask_node", lambda *_: {**LOOKED, "changed": False, "needed": False})
    assert made(tmp_path, publish=False).result["changed"]
    (entry,) = images.read_catalogue(tmp_path).values()
    assert {key for key, value in entry.items() if value is not None} == {"name", "reference"}
    assert not made(tmp_path, publish=False).result["changed"]


def test_images_for_a_cluster_are_pushed_and_named_by_digest(tmp_path, monkeypatch):
    asked = []

    def answer(_action, _step, arguments):
        asked.append((bool(arguments.get("context")), arguments.get("push", False)))
        needed = len(asked) <= 2
        return {**LOOKED, "changed": True, "needed": needed, "pushed": f"sha256:{'1' * 64}"}

    monkeypatch.setattr(node.ActionModule, "ask_node", answer)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/Dockerfile").write_text("FROM scratch\n")
    build = {"reference": "r.example:5000/mad/ci-net:latest", "build": True, "folder": str(tmp_path / "model")}
    declared = {"net": {**build, "base": "alpine:3"}, "given": {"reference": "x:1"}}
    done = made(tmp_path, images=[declared], push=True).result
    assert done["pushed"]["net"]["reference"] == f"r.example:5000/mad/ci-net@sha256:{'1' * 64}"
    assert done["pushed"]["given"] == {"reference": "x:1"}
    assert asked == [(False, False), (True, True)]
    made(tmp_path, images=[declared], push=True)
    assert asked[2:] == [(False, False), (False, True)], "what is built is pushed again: the registry may have lost it"
    ((pushed, entry),) = images.read_catalogue(tmp_path).items()
    assert (pushed, entry["build_seconds"]) == (done["pushed"]["net"]["reference"], None)


@pytest.mark.parametrize("no_cache", [False, True])
def test_an_image_is_built_again_without_the_cache(tmp_path, monkeypatch, no_cache):
    asked = []

    def answer(_action, _step, arguments):
        asked.append((bool(arguments.get("context")), arguments["no_cache"]))
        built = {"build_duration_seconds": 2.5} if arguments.get("context") else {}
        return {**LOOKED, "changed": True, "needed": no_cache, "pushed": f"sha256:{'1' * 64}", **built}

    monkeypatch.setattr(node.ActionModule, "ask_node", answer)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/Dockerfile").write_text("FROM scratch\n")
    declared = {"net": {"reference": "r/net:1", "build": True, "folder": str(tmp_path / "model"), "base": "alpine:3"}}
    made(tmp_path, images=[declared], push=True, no_cache=no_cache)
    assert asked == [(False, no_cache), (no_cache, no_cache)]
    (entry,) = images.read_catalogue(tmp_path).values()
    assert entry["build_seconds"] == (2.5 if no_cache else None)


def test_each_image_is_made_after_its_base_and_a_failure_leaves_the_others_out(tmp_path, monkeypatch):
    asked = []

    def answer(_action, _step, arguments):
        asked.append((arguments["reference"], arguments["base"]))
        failed = {"failed": True, "msg": "no room"} if arguments["reference"] == "base:1" else {}
        return {**LOOKED, "changed": False, "needed": False, **failed}

    monkeypatch.setattr(node.ActionModule, "ask_node", answer)
    for name in ("docker/common", "docker/top", "docker/low"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "docker/bases.yml").write_text("schema: gpuval.bases/1\nvendors: {}\n")
    declared = {
        "top": {"reference": "top:1", "build": True, "base": "low", "vendor": "cpu"},
        "low": {"reference": "low:1", "build": True, "base": "alpine:3", "vendor": "cpu"},
    }
    options = {"images": [declared, {}], "folder": str(tmp_path / "docker"), "publish": False}
    assert not made(tmp_path, **options).failed
    assert asked == [("low:1", "alpine:3"), ("top:1", "low:1")]

    declared["low"]["reference"] = "base:1"
    asked.clear()
    done = made(tmp_path, **options)
    assert done.failed
    assert "no room" in done.text
    assert asked == [("base:1", "alpine:3")]

    left = made(tmp_path, **options, ways=["copy", "archive"]).result
    assert (left["changed"], left["left"]) == (False, ["base:1", "top:1"])


def test_nodes_that_build_side_by_side_forget_nothing_of_each_other(tmp_path):
    entries = [{"name": "given", "reference": f"x:{number}", **dict.fromkeys(MADE)} for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda entry: images.remember(tmp_path, entry), entries))
    assert len(images.read_catalogue(tmp_path)) == 40
