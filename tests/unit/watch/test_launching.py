"""What the launches of a run share."""

import base64
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.module_utils import node_directory, placement
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launching


def test_the_archives_are_those_of_the_payload():
    for archives in (launching.archives(), {k: base64.b64decode(v) for k, v in launching.encoded_archives().items()}):
        assert archives == {"runner": payload.runner_pyz(), "workloads": payload.workloads_zip()}


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


def test_a_node_ends_a_launch_that_hangs_well_before_the_controller_does():
    """Otherwise its own word of what hangs is lost."""
    role = Path(launching.__file__).parents[3] / "roles/run/defaults/main.yml"
    of_the_controller = yaml.safe_load(role.read_text())["run_launch_seconds"]
    assert node_directory.RUNNER_SECONDS < placement.LAUNCH_SECONDS <= of_the_controller - 30
    assert node_directory.ONE_AT_ONCE_SECONDS < placement.LAUNCH_SECONDS


def test_a_late_node_has_what_is_left_of_the_runs_time():
    assert launching.remaining_seconds({"deadline_seconds": 7200}, 3600.0) == 3600.0
    assert launching.remaining_seconds({"deadline_seconds": 7200}, -5.0) == 7200.0
