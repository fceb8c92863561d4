"""What the launches of a run share."""

import base64

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils import launching, payload


def test_the_archives_are_those_of_the_payload():
    assert base64.b64decode(launching.archives()["runner"]) == payload.runner_pyz()
    assert base64.b64decode(launching.archives()["workloads"]) == payload.workloads_zip()


@pytest.mark.parametrize("probed", [{}, {"nodes": {}}, {"nodes": {"n1": {"state": "reachable"}}}])
def test_a_node_that_answers_or_was_not_probed_is_not_away(probed):
    assert launching.away(probed, "n1") is None


def test_a_node_that_is_away_keeps_the_probes_words():
    found = {"state": "wrong_host_key", "message": "it shows another key", "remedy": "find out why"}
    assert launching.away({"nodes": {"n1": found}}, "n1") == {
        "state": "unreachable",
        "class": "wrong_host_key",
        "message": "it shows another key",
        "remedy": "find out why",
    }


def test_a_late_node_has_what_is_left_of_the_runs_time():
    assert launching.remaining_seconds({"deadline_seconds": 7200}, 3600.0) == 3600.0
    assert launching.remaining_seconds({"deadline_seconds": 7200}, -5.0) == 7200.0
