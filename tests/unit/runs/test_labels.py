"""Labels of the inventory, and those of a cluster."""

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import labels, opening

from tests.kit.builders import make_run


def test_texts_are_labels_and_empty_ones_none():
    told = labels.of_host({"gpuval_labels": {"rack": "r12", "pdu": "3", "row": "", "hall": None}})
    assert told == {"rack": "r12", "pdu": "3"}
    run = make_run()
    run["nodes"]["node-1"]["labels"] = told
    schemas.validate("run", run, what="run")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("rack r1", "is a dictionary"),
        ({"row": True}, "write it in quotes"),
        ({"row": 1.10}, "write it in quotes"),
        *(
            (yaml.safe_load(text), "write it in quotes")
            for text in ("{row: 010}", "{row: 1:20}", "{row: 0x1F}", "{row: 3}")
        ),
        ({"row": ["a"]}, "row is no text"),
        ({"my rack": "a"}, "is not letters"),
        ({"": "a"}, "is not letters"),
        ({str(number): "a" for number in range(33)}, "32 are possible"),
    ],
)
def test_what_cannot_be_used_says_why(value, words):
    with pytest.raises(SettingError, match=words):
        labels.declared(value)


def test_the_rack_of_a_list_is_a_label_and_gpuval_labels_win():
    assert labels.of_host({"rack": 7}) == {"rack": "7"}
    assert labels.of_host({"rack": {"a": 1}}) == {}
    assert labels.of_host({"rack": "r1", "gpuval_labels": {"rack": "r2"}}) == {"rack": "r2"}
    told = {"rack": "r1", "kubernetes_labels": {"zone": "a", "pool": "b"}, "gpuval_labels": {"zone": "c"}}
    assert labels.of_host(told) == {"rack": "r1", "zone": "c", "pool": "b"}


def test_texts_are_cleaned_and_short():
    told = labels.declared({"rack": "\x1b[31mr1\u202e\n b" + "x" * 500})
    assert told["rack"].startswith("r1 b")
    assert len(told["rack"]) <= 120


def test_labels_of_a_cluster_by_our_names():
    wanted = {"eks.amazonaws.com/nodegroup": "pool", "karpenter.sh/nodepool": "pool", "rack": "rack"}
    assert labels.of_cluster({"karpenter.sh/nodepool": "p", "rack": ""}, wanted) == {"pool": "p"}
    told = labels.of_cluster({"a": "x", "b": "y"}, {"a": "my pool", "b": "--"})
    assert labels.declared(told) == {"my_pool": "x"}


def test_other_labels_are_no_other_run(tmp_path):
    run = make_run()
    run["created_at"] = run_folder.now()
    run["nodes"]["node-1"]["labels"] = {"rack": "r1"}
    folder = run_folder.RunFolder(tmp_path / run["run_id"])
    folder.path.mkdir()
    folder.write_run(run)
    run_folder.remember(run_folder.find(tmp_path, run["run_id"]))
    nodes = {"node-1": {**run["nodes"]["node-1"], "labels": {"rack": "r2"}}}
    assert opening.choose_run_id(tmp_path, "", nodes, run["profile"], []) == run["run_id"]
