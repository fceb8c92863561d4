"""Node objects by name: few requests, none for the whole cluster, and no node missed for its labels."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import named_nodes


def lists(cluster, monkeypatch):
    """The arguments of each list from now on."""
    asked, original = [], cluster.list

    def listed(*arguments, **named):
        asked.append((*arguments, *named.values()))
        return original(*arguments, **named)

    monkeypatch.setattr(cluster, "list", listed)
    return asked


def test_nodes_are_read_by_one_list_that_leaves_out_all_others(kit, cluster, monkeypatch):
    kit.add_nodes(3, prefix="other-")
    nodes, asked = kit.add_nodes(100), lists(cluster, monkeypatch)
    assert sorted(named_nodes.list_named(cluster, nodes)) == nodes
    ((kind, selector),) = asked
    assert kind == "Node" and selector.startswith("kubernetes.io/hostname in (node-001,node-002,")


def test_a_node_with_another_hostname_label_is_read_by_its_name(kit, cluster, monkeypatch):
    kit.add_node("node-001")
    kit.add_node("node-002", labels={"kubernetes.io/hostname": "elsewhere"})
    kit.add_node("node-003", labels={"kubernetes.io/hostname": "node-004"})
    asked = lists(cluster, monkeypatch)
    expected = ["node-001", "node-002", "node-004", "n" * 64]
    assert sorted(named_nodes.list_named(cluster, expected)) == ["node-001", "node-002"]
    assert [arguments[1] for arguments in asked[1:]] == [
        f"metadata.name={name}" for name in sorted({"node-002", "node-004", "n" * 64})
    ]


def test_where_no_label_is_a_name_all_nodes_are_listed_once(kit, cluster, monkeypatch):
    nodes = [f"node-{number}" for number in range(named_nodes.MAX_SINGLE_LOOKUPS + 1)]
    for name in nodes:
        kit.add_node(name, labels={"kubernetes.io/hostname": f"{name}.example.org"})
    asked = lists(cluster, monkeypatch)
    assert named_nodes.list_named(cluster, nodes).keys() == set(nodes)
    assert [arguments[1:] for arguments in asked[1:]] == [()]


@pytest.mark.parametrize("count", [0, 1, 150, 2000])
def test_selectors_fit_into_a_url_and_hold_each_name_once(count):
    nodes = [f"gke-training-gpu-pool-{number:04}-x7k2" for number in range(count)]
    selectors = list(named_nodes.hostname_selectors([*nodes, *nodes, "no label!"]))
    listed = [name for selector in selectors for name in selector.partition("(")[2].rstrip(")").split(",")]
    assert listed == nodes
    assert all(len(selector.replace(",", "%2C")) < 7000 for selector in selectors)
    assert (len(selectors) <= 1) == (count < 1000)
