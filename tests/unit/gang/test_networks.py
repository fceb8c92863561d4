"""Networks as data: the shipped files are what they should be, and the workloads are told of them."""

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuval.fleet.plugins.filter.fleet import FilterModule
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import networks

FILTERS = FilterModule().filters()
network_environment, network_names = FILTERS["network_environment"], FILTERS["network_names"]

SPECS = yaml.safe_load((COLLECTION / "roles/gpuval/meta/argument_specs.yml").read_text())["argument_specs"]["settings"]


@pytest.mark.parametrize("path", networks.files(), ids=lambda path: path.stem)
def test_the_shipped_files_follow_their_schema(path):
    network = networks.read(path)
    names = [variable["name"] for variable in network["environment"]]
    assert len(names) == len(set(names))
    assert not any(name.startswith("NCCL_DEBUG") for name in names)  # the log is asked for by the workload itself


def test_the_setting_takes_what_is_shipped():
    assert SPECS["options"]["gpuval_network"]["choices"] == [
        "auto", "infiniband", "roce", "efa", "tcpxo", "gib", "tcp",
    ]  # fmt: skip
    assert set(SPECS["options"]["gpuval_network"]["choices"]) == {networks.AUTO, *networks.shipped()}


def test_auto_sets_nothing_and_expects_no_name():
    assert (network_environment("auto"), network_names("auto")) == ({}, [])


@pytest.mark.parametrize(
    ("sku", "variables"),
    [
        ("auto", {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}),
        ("h200", {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}),
        ("amd", {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}),
        ("gaudi3", {"HCCL_OVER_OFI": "1", "FI_PROVIDER": "tcp"}),
        ("cpu", {}),
    ],
)
def test_variables_are_those_of_the_nodes_vendor(sku, variables):
    assert network_environment("tcp", sku) == variables


def test_another_network_is_refused_with_those_that_there_are():
    with pytest.raises(AnsibleFilterError, match="gpuval_network myrinet is unknown: set auto, efa, gib"):
        network_names("myrinet")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "other"}, "rename it to other.yml"),
        ({"names": []}, "names"),
        ({"environment": [{"name": "x", "value": "1", "vendors": ["nvidia"], "reason": "r"}]}, "environment"),
        ({"environment": [{"name": "X", "value": 'a"b', "vendors": ["nvidia"], "reason": "r"}]}, "environment"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path, change, told):
    document = yaml.safe_load((COLLECTION / "networks/tcp.yml").read_text())
    (tmp_path / "tcp.yml").write_text(yaml.safe_dump({**document, **change}))
    with pytest.raises(networks.GangNetworkError, match=told):
        networks.read(tmp_path / "tcp.yml")
