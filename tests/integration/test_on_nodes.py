"""One task on every node, side by side, without a process of Ansible for a node that has nothing to do."""

from tests.kit.fleet import Fleet

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Make what is asked for
      gpuval.fleet.on_nodes:
        tasks: "{{ playbook_dir }}/one.yml"
        seconds: 240
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


def played(root, *words):
    (root / "play.yml").write_text(PLAY)
    (root / "one.yml").write_text(ONE)
    (root / "node-1").mkdir()
    return Fleet(root, nodes={"node-1": {}, "node-2": {}}).play(str(root / "play.yml"), *words)


def test_a_node_that_fails_is_named_and_stops_no_other(tmp_path):
    done = played(tmp_path)
    assert done.code == 0, done
    assert "failed nodes: node-2" in done.output
    assert (tmp_path / "node-1/a").exists()


def test_where_it_is_required_one_failure_fails(tmp_path):
    done = played(tmp_path, "-e", "required=true")
    assert done.code != 0
    assert "failed on 1 of 2 node(s): node-2" in done.output
