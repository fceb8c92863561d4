"""The steps clean_scheduler and mark_nodes in a play, against the API server for tests."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import names

from tests.kit.cluster_project import RUN


def put_secret(kit, run_id):
    kit.put(
        {
            "kind": "Secret",
            "metadata": {"name": f"of-{run_id}", "namespace": "gpuval", "labels": names.run_labels(run_id)},
            "data": {"store.json": "c2lnbmVkLXVybA=="},
        }
    )


def test_clean_scheduler_in_check_mode_then_for_real(project):
    for run_id in (RUN, "other"):
        put_secret(project.kit, run_id)
    trial = project.play("clean_scheduler", "--check", "--diff", placement="kubernetes", run_ids=[RUN])
    assert trial.returncode == 0, trial.stdout
    assert f"-Secret of-{RUN}" in trial.stdout and "changed=1" in trial.stdout
    assert len(project.kit.all("Secret")) == 2
    done = project.play("clean_scheduler", "-vvv", placement="kubernetes", run_ids=[RUN])
    assert done.returncode == 0, done.stdout
    assert f"CLEAN: run {RUN} in namespace gpuval: removed: 1 Secret" in done.stdout
    assert "c2lnbmVk" not in done.stdout  # what a Secret holds is not even fetched
    assert [one["metadata"]["name"] for one in project.kit.all("Secret")] == ["of-other"]


@pytest.mark.slow  # its process waits for an API server that may be starting
def test_clean_scheduler_that_lacks_a_rule_fails_with_it(project):
    project.kit.deny("list", "", "secrets")
    done = project.play("clean_scheduler", placement="kubernetes", run_ids=[RUN])
    assert done.returncode != 0
    assert "secrets" in done.stdout and "verbs" in done.stdout


def test_mark_nodes_writes_the_report_on_the_nodes_and_takes_it_off(project):
    def labels():
        return [node["metadata"]["labels"].get("gpuval.io/verdict") for node in project.kit.all("Node")]

    trial = project.play("mark_nodes", "--check", "--diff", taint=True)
    assert trial.returncode == 0, trial.stdout
    assert "+  gpuval.io/verdict: INCOMPLETE" in trial.stdout and labels() == [None, None]
    twice, removed = [("mark_nodes", {"taint": True})] * 2, ("mark_nodes", {"state": "absent", "nodes": ["node-002"]})
    done = project.play_all([*twice, removed])
    assert done.returncode == 0, done.stdout
    assert "changed=2" in done.stdout, "the second changes nothing"
    assert labels() == ["INCOMPLETE", None]
    (node,) = [one for one in project.kit.all("Node") if one["metadata"]["name"] == "node-002"]
    node["metadata"]["labels"]["gpuval.io/verdict"] = "PASS"
    project.kit.put(node)
    assert project.play("mark_nodes", taint=True).returncode == 0
    assert labels() == ["INCOMPLETE", "PASS"]  # a run that says nothing about the node takes no PASS off it


@pytest.mark.slow  # its process waits for an API server that may be starting
def test_marks_that_may_not_be_set_name_the_rights_and_how_to_grant_them(project):
    project.kit.deny("patch", "", "nodes")
    done = project.play("mark_nodes", taint=True)
    assert done.returncode != 0
    for words in ("no verdict is changed", 'resources: ["nodes"]', 'verbs: ["patch"]', "--clusterrole=gpuval-marks"):
        assert words in done.stdout.replace('\\"', '"'), done.stdout
