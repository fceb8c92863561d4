"""A run belongs to its cluster, and not to the kubeconfig by which that is reached."""

import shutil

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.cluster import ClusterKit
from tests.kit.run_commands import clean_run, lay_out, open_run, started


@pytest.fixture
def results(tmp_path):
    return lay_out(tmp_path)


@pytest.fixture
def other_kit(tmp_path):
    (tmp_path / "other").mkdir()
    with ClusterKit(tmp_path / "other") as kit:
        yield kit


def at(kubeconfig):
    """The settings of a cluster as playbooks pass them."""
    return {"placement": "kubernetes", "kubeconfig": str(kubeconfig), "namespace": f"gpuval of {kubeconfig}"}


def begun(results, run_id, kubeconfig):
    assert not open_run(results, run_id, **at(kubeconfig)).failed
    folder = run_folder.find(results, run_id)
    folder.advance("working")
    return folder


def place_of(results, run_id):
    return run_folder.find(results, run_id).read_run()["origin"]["namespace"]


def test_two_kubeconfigs_of_one_cluster_are_one(kit, results, tmp_path):
    copy = shutil.copy(kit.kubeconfig, tmp_path / "copy")
    begun(results, "r1", kit.kubeconfig)
    assert place_of(results, "r1") == f"gpuval of cluster {kit.get('Namespace', 'kube-system', '')['metadata']['uid']}"
    assert not open_run(results, "r1", **at(copy)).failed
    assert clean_run(results, **at(copy)).result["run_ids"] == ["r1"]


def test_one_path_whose_cluster_was_exchanged_is_another(kit, other_kit, results, tmp_path):
    path = shutil.copy(kit.kubeconfig, tmp_path / "moved")
    first = begun(results, "r1", path)
    shutil.copy(other_kit.kubeconfig, path)
    refused = open_run(results, "r1", **at(path))
    assert refused.failed and f"run r1 is placed in {place_of(results, 'r1')}, not gpuval of cluster" in refused.text
    unnamed = open_run(results, **at(path))
    assert not unnamed.failed and unnamed.result["run"]["run_id"] != "r1"
    named = clean_run(results, run_id="r1", **at(path))
    assert named.failed and "clean with the settings that it had" in named.text
    assert "r1" not in clean_run(results, **at(path)).result["run_ids"]
    assert first.read_run()["finished_at"] is None
    shutil.copy(kit.kubeconfig, path)
    assert not open_run(results, "r1", **at(path)).failed


def test_without_the_right_a_run_belongs_to_its_kubeconfig_which_is_said(kit, results, tmp_path):
    kit.deny("get", "", "namespaces")
    done = open_run(results, "r1", **at(kit.kubeconfig))
    assert f"the run belongs to gpuval of {kit.kubeconfig}, since the cluster's own identity" in done.text
    assert 'resources: ["namespaces"]' in done.text
    assert place_of(results, "r1") == f"gpuval of {kit.kubeconfig}"
    assert clean_run(results, run_id="r1", **at(tmp_path / "elsewhere")).failed
    kit.permit()
    assert clean_run(results, run_id="r1", **at(kit.kubeconfig)).result["run_ids"] == ["r1"]


def test_a_run_of_an_earlier_version_is_resumed_and_cleaned_by_its_kubeconfig(kit, results):
    folder = started(results, "r1")
    run = folder.read_run()
    folder.write_run({**run, "origin": {**run["origin"], "namespace": f"gpuval of {kit.kubeconfig}"}})
    assert not open_run(results, "r1", **at(kit.kubeconfig)).failed
    assert clean_run(results, **at(kit.kubeconfig)).result["run_ids"] == ["r1"]


def test_a_run_over_ssh_asks_no_cluster(kit, results):
    started(results, "r1")
    assert place_of(results, "r1") == "" and not kit.requests
    assert open_run(results, "r1", **at(kit.kubeconfig)).failed, "its nodes are other machines"
