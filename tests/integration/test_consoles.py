"""Consoles of a run: Ctrl-C in each phase ends it there and the same command resumes it; two at once share a run."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.interrupt import EXIT_CODE
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import known_runs

from tests.kit.ansible_playbook import SETTINGS

RUN = ("gpuval.fleet.validate", "-e", json.dumps({"gpuval_stages": ["facts"], "gpuval_run_id": "phases"}))
#: By the task that begins a phase, what the console says of the run.
PHASES = {
    "Open the run": "",
    "Probe the nodes": "run phases is interrupted, no node has begun: the same command, with RUN=phases, resumes it",
    "Make the store usable": "run phases is interrupted, no node has begun",
    "Launch the nodes' plans and watch them": "run phases is interrupted, no node has begun",
    "Collect records, logs and series": "run phases is interrupted, its nodes go on working",
    "Judge the run": "run phases is interrupted, its nodes are done",
    "Write the report": "run phases is interrupted, its nodes are done",
}


def test_ctrl_c_at_the_start_of_each_phase_ends_the_run_though_its_exception_would_be_lost(new_fleet):
    callbacks = SETTINGS["ANSIBLE_CALLBACKS_ENABLED"] + ",interrupt"
    with new_fleet("phases", nodes={"node-1": {}, "node-2": {}}) as fleet:
        for task, line in PHASES.items():
            fleet.more_environment = {"ANSIBLE_CALLBACKS_ENABLED": callbacks, "GPUVAL_TESTS_INTERRUPT": task}
            done = fleet.play(*RUN)
            assert done.code == EXIT_CODE, (task, done)
            assert "User interrupted execution" in done.output and line in done.output, (task, done)
            assert "Exception ignored" not in done.output and "FINAL ACCEPTANCE" not in done.output, (task, done)
        fleet.more_environment = {}
        done = fleet.play(*RUN)
        assert "FINAL ACCEPTANCE: PARTIAL" in done.output, done


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_the_controller_says_what_resumes_the_run(new_fleet, name):
    settings = {"GPUVAL_TESTS_INTERRUPT": "Probe the nodes", "GPUVAL_TESTS_SIGNAL": name}
    with new_fleet("signals", nodes={"node-1": {}}) as fleet:
        callbacks = SETTINGS["ANSIBLE_CALLBACKS_ENABLED"] + ",interrupt"
        fleet.more_environment = {"ANSIBLE_CALLBACKS_ENABLED": callbacks, **settings}
        done = fleet.play(*RUN)
        assert done.code == EXIT_CODE, done
        assert f"{name} interrupted execution" in done.output and PHASES["Probe the nodes"] in done.output, done


def test_two_consoles_that_start_at_once_share_one_run_and_each_reports_it(new_fleet):
    with new_fleet("twice", nodes={"node-1": {}, "node-2": {}}) as fleet:
        command = ("gpuval.fleet.validate", "-e", json.dumps({"gpuval_stages": ["facts"]}))
        consoles = [fleet.start(*command), fleet.start(*command)]
        ended = [console.wait() for console in consoles]
        assert len(known_runs(fleet.results)) == 1, ended
        assert sum("this console attaches to it" in done.output for done in ended) == 1, ended
        for done in ended:
            assert done.code == 0 and "FINAL ACCEPTANCE: PARTIAL" in done.output, done
            assert "the store cannot be used" not in done.output, done
