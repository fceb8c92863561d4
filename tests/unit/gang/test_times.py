"""A round is given the time that its stages may take, and a round of the search that of the search's stage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder, settings

ROOT = Path(__file__).resolve().parents[3]
NAMES = (
    "run_gang_round_seconds", "run_gang_search_round_seconds", "run_gang_stages", "run_gang_workloads",
    "fabric_timeout_seconds", "collective_join_seconds", "fabric_join_seconds", "run_launch_seconds",
    "run_pod_start_seconds", "gpuval_gang_search_seconds", "opened_as",
)  # fmt: skip
PLAYBOOK = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - import_role: {name: gpuval.fleet.run, tasks_from: reopen}
      when: false
      run_once: true
IMPORTS    - copy:
        content: "{{ query('ansible.builtin.vars', *names) | to_json }}"
        dest: "{{ playbook_dir }}/found.json"
        mode: "0600"
      run_once: true
      vars: {names: NAMES}
"""


PROFILE = yaml.safe_load((settings.ROLES / "run/tasks/open.yml").read_text())[0]["gpuval.fleet.open_run"]["profile"]


@pytest.fixture
def found(tmp_path):
    def ask(hosts=2, **variables):
        roles = ("collective", "deepspeed", "fabric")
        variables = {"opened_as": PROFILE, **variables}
        task = "    - import_role: {{name: gpuval.fleet.{}}}\n      when: false\n      run_once: true\n"
        imports = "".join(task.format(role) for role in roles)
        playbook = PLAYBOOK.replace("IMPORTS", imports).replace("NAMES", json.dumps(NAMES))
        (tmp_path / "play.yml").write_text(playbook)
        (tmp_path / "hosts").write_text(
            "".join(f"node-{number} ansible_python_interpreter={sys.executable}\n" for number in range(hosts))
        )
        command = [
            str(Path(sys.executable).parent / "ansible-playbook"), str(tmp_path / "play.yml"),
            "-i", str(tmp_path / "hosts"), "-e", json.dumps(variables),
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False, env=dict(os.environ)
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return dict(zip(NAMES, json.loads((tmp_path / "found.json").read_text()), strict=True))

    return ask


@pytest.mark.parametrize("profile", ["quick", "standard", "burnin"])
@pytest.mark.parametrize("placement", ["ssh", "kubernetes"])
def test_a_round_holds_its_stages(found, profile, placement):
    told = found(gpuval_profile=profile, gpuval_placement=placement)
    stages = [stage for stage in told["run_gang_stages"] if stage != "fabric"]
    assert bool(stages) == (profile != "quick")
    needed = sum(float(told["run_gang_workloads"][stage]["timeout_seconds"]) for stage in stages)
    start = "run_pod_start_seconds" if placement == "kubernetes" else "run_launch_seconds"
    assert float(told["run_gang_round_seconds"]) >= needed + float(told[start])
    assert float(told["run_gang_search_round_seconds"]) >= float(told["fabric_timeout_seconds"]) + float(
        told["run_launch_seconds"]
    )
    # A round is begun only where its whole deadline is left.
    assert not stages or float(told["gpuval_gang_search_seconds"]) >= 3 * float(told["run_gang_search_round_seconds"])
    for stage in stages:
        workload = told["run_gang_workloads"][stage]
        assert float(workload["timeout_seconds"]) > float(workload["expected_seconds"])


def test_what_a_stage_asks_for_reaches_its_round(found):
    told = found(gpuval_profile="standard", deepspeed_seconds=36000, fabric_seconds=600)
    assert float(told["run_gang_round_seconds"]) > 3 * 36000
    assert float(told["run_gang_search_round_seconds"]) > 3 * 600
    assert float(told["gpuval_gang_search_seconds"]) == 6 * float(told["run_gang_search_round_seconds"])


def test_many_nodes_have_longer_to_come_together(found):
    few, many = found(gpuval_profile="standard"), found(hosts=180, gpuval_profile="standard")
    assert (float(few["collective_join_seconds"]), float(few["fabric_join_seconds"])) == (300, 120)
    assert (float(many["collective_join_seconds"]), float(many["fabric_join_seconds"])) == (340, 140)
    for told, hosts in ((few, 2), (many, 180)):
        assert float(told["gpuval_gang_search_seconds"]) == folder.usual_search_seconds(hosts)
    assert float(many["run_gang_round_seconds"]) >= float(few["run_gang_round_seconds"]) + 2 * 40 + 100


def test_a_run_with_other_stages_of_gangs_is_none_of_the_profile(found):
    """Without what the profile asks of gangs nobody is accepted in its name, and no mark of it is taken off."""
    assert found(gpuval_profile="standard")["opened_as"] == "standard"
    for others in ([], ["collective"]):
        assert found(gpuval_profile="standard", run_gang_stages=others)["opened_as"] == "custom"
