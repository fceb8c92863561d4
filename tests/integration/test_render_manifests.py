"""All manifests of a run in one file, from an inventory alone: no cluster is asked."""

import base64
import json
import stat

import pytest
import yaml

from tests.kit.fleet import Fleet
from tests.kit.kubernetes_schemas import kubernetes_validate

PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: gpuval.fleet.gpuval}
    - ansible.builtin.import_role: {name: gpuval.fleet.facts}
    - ansible.builtin.import_role: {name: gpuval.fleet.training}
    - ansible.builtin.import_role: {name: gpuval.fleet.loading}
    - ansible.builtin.import_role: {name: gpuval.fleet.run, tasks_from: open}
    - gpuval.fleet.controller:
        step: render_manifests
        run_id: "{{ run_opened.run.run_id }}"
        run: "{{ run_opened.run if ansible_check_mode else {} }}"
        results_dir: "{{ gpuval_results_dir }}"
        store: "{{ gpuval_store }}"
        namespace: "{{ gpuval_namespace }}"
      run_once: true
"""
SECRET = "5ecret-key-of-the-writer"
SETTINGS = {
    "gpuval_stages": ["facts", "training", "loading"],
    "gpuval_placement": "kubernetes",
    "gpuval_namespace": "acceptance",
    "gpuval_sku": "nvidia",
    "gpuval_pods": {"image": "registry.example/python:3", "shm_bytes": "{{ 64 * 1024 }}"},
    "gpuval_images": {"training": {"reference": "registry.example/train:1"}},
    "gpuval_s3_endpoint": "https://s3.example:9000",
    "gpuval_s3_access_key": "writer",
    "gpuval_s3_secret_key": SECRET,
    "gpuval_s3_read_access_key": "reader",
    "gpuval_s3_read_secret_key": "5ecret-key-of-the-reader",
}


def node(name, **more):
    known = {"exists": True, "name": name, "hostname": f"{name}.example", "machine_id": "a" * 32}
    return {"kubernetes_node": {**known, "allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}, **more}}


NODES = {
    "node-1": node("node-1"),
    "node-2": {**node("node-2"), "gpuval_images": {"training": {"reference": "registry.example/other:2"}}},
    "node-3": {"kubernetes_node": {"exists": False, "reason": "the cluster has no node node-3"}},
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("render"), nodes=NODES, settings=SETTINGS)
    (fleet.root / "render.yml").write_text(PLAYBOOK)
    return fleet


@pytest.fixture(scope="module")
def rendered(fleet):
    checked = fleet.play(str(fleet.root / "render.yml"), "--check", "--diff")
    assert checked.code == 0, str(checked)
    assert "Job gpuval-" in checked.output
    assert not list(fleet.root.rglob("manifests.yml"))
    done = fleet.play(str(fleet.root / "render.yml"), "-vvv")
    assert done.code == 0, str(done)
    return done, fleet.run_folder / "manifests.yml"


def test_the_file_has_all_objects_and_is_private(fleet, rendered):
    done, path = rendered
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    objects = list(yaml.safe_load_all(path.read_text()))
    kinds = [item["kind"] for item in objects]
    assert kinds == ["Namespace", "ConfigMap", "ConfigMap", "Secret", "Secret", "Job", "Job"]
    for item in objects:
        kubernetes_validate.validate(item, "1.36", strict=True)
    images = [[made["image"] for made in item["spec"]["template"]["spec"]["initContainers"]] for item in objects[-2:]]
    assert images == [
        ["registry.example/python:3", "registry.example/train:1"],
        ["registry.example/python:3", "registry.example/other:2"],
    ], "each node by its own variables"
    assert "node-3" in done.told
    assert {item["metadata"].get("namespace") for item in objects[1:]} == {"acceptance"}
    (container,) = objects[-1]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}


def test_signed_urls_are_in_the_file_and_nowhere_else(fleet, rendered):
    done, path = rendered
    secrets = [item for item in yaml.safe_load_all(path.read_text()) if item["kind"] == "Secret"]
    store = json.loads(base64.b64decode(secrets[0]["data"]["store.json"]))
    assert len(store["put"]) == 9
    assert all("X-Amz-Signature=" in url and "/node-1." in url for url in store["put"].values())
    assert "reader" in base64.b64decode(secrets[0]["data"]["rclone.conf"]).decode()
    signature = store["put"]["records/facts"].rpartition("=")[2]
    assert SECRET not in path.read_text()
    others = [file.read_bytes() for file in fleet.results.rglob("*") if file.is_file() and file != path]
    for text in (done.output.encode(), *others):
        assert signature.encode() not in text
        assert b"5ecret" not in text


def test_rendered_again_it_is_the_same_but_for_the_signatures(fleet, rendered):
    _done, path = rendered
    first = list(yaml.safe_load_all(path.read_text()))
    again = fleet.play(str(fleet.root / "render.yml"))
    assert again.code == 0, str(again)
    second = list(yaml.safe_load_all(path.read_text()))
    for item in (*first, *second):
        if item["kind"] == "Secret":
            item["data"].pop("store.json")
    assert first == second
