"""A round is given the time that its stages may take, and a round of the search that of the search's stage."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder, settings

from tests.kit.ansible_playbook import PROGRAM

ROOT = Path(__file__).resolve().parents[3]
NAMES = (
    "run_gang_round_seconds", "run_gang_search_round_seconds", "run_gang_stages", "run_gang_workloads",
    "fabric_timeout_seconds", "collective_join_seconds", "fabric_join_seconds", "run_launch_seconds",
    "run_pod_start_seconds", "gpuval_gang_search_seconds", "run_gang_nvlink_seconds", "opened_as",
)  # fmt: skip
PLAY = """
- hosts: {hosts}
  gather_facts: false
  connection: local
  vars: {variables}
  tasks:
    - import_role: {{name: gpuval.fleet.gpuval}}
    - import_role: {{name: gpuval.fleet.run, tasks_from: reopen}}
      when: false
      run_once: true
    - import_role: {{name: gpuval.fleet.collective}}
      when: false
      run_once: true
    - import_role: {{name: gpuval.fleet.deepspeed}}
      when: false
      run_once: true
    - import_role: {{name: gpuval.fleet.rdma_rails}}
      when: false
      run_once: true
    - import_role: {{name: gpuval.fleet.fabric}}
      when: false
      run_once: true
    - set_fact:
        {case}: "{{{{ query('ansible.builtin.vars', *names) | to_json }}}}"
      run_once: true
      vars: {{names: {names}}}
"""
SAVE = """
- hosts: node-0
  gather_facts: false
  connection: local
  tasks:
    - copy: {{content: "{{{{ dict({cases} | zip(query('vars', *{cases}))) | to_json }}}}", dest: {file}, mode: "0600"}}
"""
PROFILE = yaml.safe_load((settings.ROLES / "run/tasks/open.yml").read_text())[-1]["gpuval.fleet.controller"]["profile"]
#: Name of a case: the play's hosts and what is set. `few` are two nodes, `all` 180.
CASES = {
    **{f"ssh_{profile}": ("few", {"gpuval_profile": profile}) for profile in ("quick", "standard", "burnin")},
    "kubernetes_standard": ("few", {"gpuval_profile": "standard", "gpuval_placement": "kubernetes"}),
    "asked": ("few", {"gpuval_profile": "standard", "deepspeed_seconds": 36000, "fabric_seconds": 600}),
    "no_limit": ("few", {"gpuval_profile": "standard", "collective_workload": {"command": ["true"]}}),
    "many_nodes": ("all", {"gpuval_profile": "standard"}),
    "no_gangs": ("few", {"gpuval_profile": "standard", "run_gang_stages": []}),
    "other_gangs": ("few", {"gpuval_profile": "standard", "run_gang_stages": ["collective"]}),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By case the values of NAMES, from one playbook with a play for each case."""
    folder = tmp_path_factory.mktemp("times")
    plays = [
        PLAY.format(
            case=case,
            hosts=hosts,
            variables=json.dumps({"opened_as": PROFILE, **variables}),
            names=json.dumps(NAMES),
        )
        for case, (hosts, variables) in CASES.items()
    ]
    save = SAVE.format(cases=list(CASES), file=folder / "found.json")
    (folder / "play.yml").write_text("".join([*plays, save]))
    names = [f"node-{number} ansible_python_interpreter={sys.executable}" for number in range(180)]
    (folder / "hosts").write_text("\n".join([*names, "[few]", "node-0", "node-1", ""]))
    command = [*PROGRAM, folder / "play.yml", "-i", folder / "hosts"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return {
        case: dict(zip(NAMES, json.loads(values), strict=True))
        for case, values in json.loads((folder / "found.json").read_text()).items()
    }


@pytest.mark.parametrize(
    ("placement", "profile"),
    [("ssh", "quick"), ("ssh", "standard"), ("ssh", "burnin"), ("kubernetes", "standard")],
)
def test_a_round_holds_its_stages(found, placement, profile):
    values = found[f"{placement}_{profile}"]
    apart = ("fabric", "collective_nvlink", "fabric_nvlink")
    stages = [stage for stage in values["run_gang_stages"] if stage not in apart]
    assert bool(stages) == (profile != "quick")
    needed = sum(float(values["run_gang_workloads"][stage]["timeout_seconds"]) for stage in stages)
    start = "run_pod_start_seconds" if placement == "kubernetes" else "run_launch_seconds"
    assert float(values["run_gang_round_seconds"]) >= needed + float(values[start])
    assert float(values["run_gang_search_round_seconds"]) >= float(values["fabric_timeout_seconds"]) + float(
        values["run_launch_seconds"]
    )
    # A round is begun only where its whole deadline is left.
    assert not stages or float(values["gpuval_gang_search_seconds"]) >= 3 * float(
        values["run_gang_search_round_seconds"]
    )
    for stage in stages:
        workload = values["run_gang_workloads"][stage]
        assert float(workload["timeout_seconds"]) > float(workload["expected_seconds"])


def test_what_a_stage_asks_for_reaches_its_round(found):
    values = found["asked"]
    assert float(values["run_gang_round_seconds"]) > 3 * 36000
    assert float(values["run_gang_search_round_seconds"]) > 3 * 600
    assert float(values["gpuval_gang_search_seconds"]) == 6 * float(values["run_gang_search_round_seconds"])


def test_a_declaration_without_a_limit_has_the_usual_one_over_nvlink_too(found):
    assert [float(found[case]["run_gang_nvlink_seconds"]) for case in ("no_limit", "no_gangs")] == [3600, 0]
    stage = found["ssh_standard"]["run_gang_workloads"]["collective_nvlink"]
    assert float(found["ssh_standard"]["run_gang_nvlink_seconds"]) == float(stage["timeout_seconds"])


def test_many_nodes_have_longer_to_come_together(found):
    few, many = found["ssh_standard"], found["many_nodes"]
    assert (float(few["collective_join_seconds"]), float(few["fabric_join_seconds"])) == (300, 120)
    assert (float(many["collective_join_seconds"]), float(many["fabric_join_seconds"])) == (340, 140)
    for values, hosts in ((few, 2), (many, 180)):
        assert float(values["gpuval_gang_search_seconds"]) == folder.usual_search_seconds(hosts)
    assert float(many["run_gang_round_seconds"]) >= float(few["run_gang_round_seconds"]) + 2 * 40 + 100


def test_a_run_with_other_stages_of_gangs_is_none_of_the_profile(found):
    """Without what the profile asks of gangs no node is accepted in its name, and no mark of it is removed."""
    assert found["ssh_standard"]["opened_as"] == "standard"
    assert found["no_gangs"]["opened_as"] == found["other_gangs"]["opened_as"] == "custom"
