import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.forming import Candidate, form
from hypothesis import given
from hypothesis import strategies as st

DRIVER = {"driver": "580.159.04"}


def node(number, **more):
    given_ = {
        "verdict": "PASS",
        "address": f"10.0.0.{number}",
        "slots": 8,
        "labels": {"sku": "h200"},
        "software": DRIVER,
    }
    return Candidate(**{"node": f"node-{number}", **given_, **more})


def names(formation):
    return {name: [member.node for member in members] for name, members in formation.gangs.items()}


def test_all_that_passed_are_one_gang_in_the_inventorys_order():
    formation = form(
        [node(3), node(1), node(2, verdict="FAIL", reason="training: too slow"), node(4, verdict="INCOMPLETE")]
    )
    assert names(formation) == {"all": ["node-3", "node-1"]}
    assert formation.left_out == {
        "node-2": "its own stages ended FAIL: training: too slow",
        "node-4": "its own stages ended INCOMPLETE",
    }


def test_by_size_and_what_is_left_over_joins_the_last():
    assert names(form([node(i) for i in range(1, 6)], size=2)) == {
        "1": ["node-1", "node-2"],
        "2": ["node-3", "node-4", "node-5"],
    }
    assert names(form([node(1), node(2)], size=4)) == {"all": ["node-1", "node-2"]}


def test_by_rack_and_sku():
    racks = [node(i, labels={"sku": "h200", "rack": f"R {i % 2}"}) for i in range(4)] + [
        node(9, labels={"sku": "h100", "rack": "R 0"})
    ]
    formation = form(racks, group_by=("sku", "rack"))
    assert names(formation) == {"h200-r-0": ["node-0", "node-2"], "h200-r-1": ["node-1", "node-3"]}
    labels = "sku h100, rack R 0; gpuval_gang_group_by selects the labels"
    assert formation.left_out == {"node-9": f"no other node to form a gang with ({labels})"}


def test_names_that_fold_together_stay_apart():
    labels = [{"rack": "r_1"}, {"rack": "r_1"}, {"rack": "R-1"}, {"rack": "R-1"}]
    formation = form([node(i, labels=one) for i, one in enumerate(labels)], group_by=("rack",))
    assert list(names(formation)) == ["r-1", "r-1-2"]


def test_most_decide():
    formation = form([node(1), node(2), node(3), node(4, software={"driver": "550.1"}), node(5, software={})])
    assert names(formation) == {"all": ["node-1", "node-2", "node-3"]}
    assert formation.left_out == {
        "node-4": "its driver is 550.1, 3 others have 580.159.04",
        "node-5": "its driver is an unknown one, 3 others have 580.159.04",
    }


def test_without_a_majority_no_node_works():
    formation = form([node(1), node(2, software={"driver": "550.1"})])
    assert not formation.gangs
    assert formation.left_out["node-1"] == (
        "no driver is on more than half of the nodes (here: 580.159.04); install the same on all nodes"
    )


def test_without_an_address_or_alone():
    formation = form([node(1, address=""), node(2)])
    assert formation.left_out == {
        "node-1": "it has no address for the others: set gpuval_gang_address",
        "node-2": "no other node to form a gang with (sku h200)",
    }


def test_a_node_whose_image_lacks_a_package_is_left_out():
    formation = form([node(1), node(2, missing="deepspeed"), node(3)])
    assert names(formation) == {"all": ["node-1", "node-3"]}
    reason = "multi-node stages need Python packages that the node's image lacks: deepspeed"
    assert formation.left_out == {"node-2": reason}


@pytest.mark.parametrize("size", [-1, 1])
def test_a_gang_of_one_is_none(size):
    with pytest.raises(ValueError, match="2 nodes or more"):
        form([node(1)], size=size)


candidates = st.lists(
    st.builds(
        lambda number, verdict, rack, driver, slots: node(
            number, verdict=verdict, labels={"rack": rack}, software={"driver": driver}, slots=slots
        ),
        st.integers(1, 40),
        st.sampled_from(["PASS", "PASS", "PASS", "FAIL", "INCOMPLETE"]),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(["1", "1", "2", ""]),
        st.integers(0, 8),
    ),
    unique_by=lambda candidate: candidate.node,
    max_size=20,
)


@given(candidates, st.sampled_from([0, 2, 3, 5]), st.sampled_from([(), ("rack",)]))
def test_everybody_is_in_one_gang_or_has_a_reason(nodes, size, group_by):
    formation = form(nodes, size, group_by)
    members = [member for gang in formation.gangs.values() for member in gang]
    assert sorted([m.node for m in members] + list(formation.left_out)) == sorted(n.node for n in nodes)
    assert all(member.verdict == "PASS" and member.slots for member in members)
    assert all(formation.left_out.values())
    for gang in formation.gangs.values():
        assert len(gang) >= 2
        assert len({member.software["driver"] for member in gang}) == 1
        assert len({member.labels["rack"] for member in gang}) == 1 or not group_by
