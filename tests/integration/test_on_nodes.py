"""One task on every node, side by side, without a process of Ansible for a node that has nothing to do."""

from tests.kit.fleet import Fleet

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Make what is asked for
      gpuval.fleet.on_nodes:
        tasks: "{{ playbook_dir }}/one.yml"
        seconds: 30
        required: "{{ required | default(false) }}"
      run_once: true
      register: made

    - name: Show it
      ansible.builtin.debug:
        msg: "failed nodes: {{ made.failed_nodes | sort | join(',') }}"
      run_once: true
"""
ONE = """
- name: Make one
  ansible.builtin.file:
    path: "{{ playbook_dir }}/{{ inventory_hostname }}/a"
    state: touch
"""


def played(root, *words, folders=("node-1", "node-2")):
    (root / "play.yml").write_text(PLAY)
    (root / "one.yml").write_text(ONE)
    for folder in folders:
        (root / folder).mkdir()
    fleet = Fleet(root, nodes={"node-1": {}, "node-2": {}})
    return fleet.play(str(root / "play.yml"), *words)


def test_the_task_is_done_on_every_node(tmp_path):
    done = played(tmp_path)
    assert done.code == 0, done
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("node-*/*")} == {"node-1/a", "node-2/a"}


def test_a_node_that_fails_is_named_and_stops_no_other(tmp_path):
    done = played(tmp_path, folders=("node-1",))
    assert done.code == 0, done
    assert "failed nodes: node-2" in done.output
    assert (tmp_path / "node-1/a").exists()


def test_where_it_is_required_one_failure_fails(tmp_path):
    done = played(tmp_path, "-e", "required=true", folders=("node-1",))
    assert done.code != 0
    assert "failed on 1 of 2 node(s): node-2" in done.output
