"""Wrong settings end a run before anything is started, for whichever node they were made."""

import pytest

from tests.kit.fleet import Fleet


@pytest.mark.quick
def test_a_wrong_setting_of_one_node_is_named_with_it_and_nothing_is_started(tmp_path):
    fleet = Fleet(tmp_path, nodes={"node-1": {}, "node-2": {"gpuval_runtime": "dokcer"}})
    done = fleet.play()
    assert done.code != 0
    assert "gpuval_runtime dokcer: must be one of docker, podman, host, auto; is it docker? (node-2)" in done.told
    assert not fleet.results.exists()


@pytest.mark.quick
@pytest.mark.parametrize("arguments", [["-e", "gpuval_hosts=gpus"], ["-e", "gpuval_hosts=node-1", "--limit", "node-2"]])
def test_a_pattern_that_matches_no_host_is_an_error_that_names_the_hosts(tmp_path, arguments):
    done = Fleet(tmp_path, nodes={"node-1": {}, "node-2": {}}).play("gpuval.fleet.prepare", *arguments)
    assert done.code != 0
    assert f"no host for the pattern {arguments[1].partition('=')[2]}" in done.told
    assert "Hosts of the inventory: node-1, node-2." in done.told


@pytest.mark.quick
def test_an_inventory_without_hosts_is_named_with_its_path(tmp_path):
    done = Fleet(tmp_path, nodes={}).play("gpuval.fleet.doctor")
    assert done.code != 0
    (line,) = [line for line in done.output.splitlines() if "ok=" not in line and line]
    assert line.endswith(f": {tmp_path}/hosts.json has no host: list the nodes there, or correct -i")


@pytest.mark.quick
def test_both_notations_of_a_range_name_nodes(tmp_path):
    fleet = Fleet(tmp_path, nodes={"node-[01-02]": {}, "gpu[001:003]": {}})
    done = fleet.play("gpuval.fleet.probe", "--limit", "node-[01-02],gpu[002-003]")
    assert "probe: 4 of 4 node(s) reachable" in done.output, done


def test_a_misspelled_connection_variable_ends_doctor_and_validate_alike(tmp_path):
    fleet = Fleet(tmp_path, nodes={"node-1": {}, "node-2": {"ansible_usr": "root"}})
    words = "ansible_usr: Ansible reads no such variable; is it ansible_user?"
    for playbook in ("doctor", "validate", "probe"):
        done = fleet.play(f"gpuval.fleet.{playbook}")
        assert done.code != 0 and words in done.told, done
    assert not fleet.results.exists()


def test_the_playbook_of_jobs_needs_a_job(tmp_path):
    done = Fleet(tmp_path, nodes={"node-1": {}}).play("gpuval.fleet.job")
    assert done.code != 0, done
    assert "no job is named: add -e gpuval_jobs=FILE" in done.told


def test_what_stands_on_facts_or_on_other_roles_is_left_to_them(tmp_path):
    node = {
        "training_timeout_seconds": "{{ loading_timeout_seconds | int * 4 }}",
        "ssh_keys_addresses": ["{{ ansible_facts.default_ipv4.address }}"],
        "loading_timeout_seconds": "{{ omit }}",
    }
    done = Fleet(tmp_path, nodes={"node-1": node}).play("gpuval.fleet.probe")
    assert done.code == 0, done


def test_a_clean_does_its_work_all_the_same(tmp_path):
    fleet = Fleet(tmp_path, nodes={"node-1": {"gpuval_retries": "many"}})
    done = fleet.play("gpuval.fleet.clean")
    assert done.code == 0, done
    assert "gpuval_retries many: must be one of 0, 1" in done.told


def test_a_template_that_cannot_be_made_out_is_named(tmp_path):
    fleet = Fleet(tmp_path, nodes={"node-1": {"gpuval_retries": "{{ none_such }}"}})
    done = fleet.play()
    assert done.code != 0
    assert "gpuval_retries: its template fails" in done.told


def test_a_play_of_ones_own_gets_the_ssh_arguments_of_the_collection(tmp_path):
    play = tmp_path / "read_facts.yml"
    play.write_text("""\
- hosts: all
  gather_facts: false
  roles:
    - gpuval.fleet.gpuval
  tasks:
    - ansible.builtin.debug:
        msg: "{{ ansible_ssh_args }}"
""")
    done = Fleet(tmp_path, nodes={"node-1": {}}).play(str(play))
    assert done.code == 0, done
    assert "-o StrictHostKeyChecking=yes" in done.told
