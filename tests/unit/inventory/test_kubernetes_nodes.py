"""Nodes of a cluster become hosts: ansible-inventory and ansible-playbook against an API server for tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ansible.inventory.data import InventoryData
from ansible.inventory.helpers import get_group_vars
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import inventory_loader
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import api, permissions

from tests.kit.cluster import Asked, ClusterKit
from tests.kit.dra_objects import device_class, gpus, slice_of
from tests.kit.node_objects import BARE_H200, DOKS_MI300X, h200, node

ROOT = Path(__file__).resolve().parents[3]
LIST_NODES = Asked("list", "", "nodes")


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "kit").mkdir()
    with ClusterKit(tmp_path / "kit") as running:
        yield running


def put(kit, *objects):
    for one in objects:
        kit.put({"kind": "Node", **one})


def inventory(folder, kit, **options):
    folder.mkdir(exist_ok=True)
    document = {"plugin": "gpuval.fleet.kubernetes_nodes", "kubeconfig": str(kit.kubeconfig), **options}
    (folder / "hosts.yml").write_text(yaml.safe_dump(document))
    return folder


def ran(program, *arguments, **environment):
    settings = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
    return subprocess.run(
        [str(Path(sys.executable).with_name(program)), *map(str, arguments)],
        env={**os.environ, **settings, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class Read:
    """An inventory that is read in this process: hosts with their variables, warnings, or the error."""

    def __init__(self, folder, **extra_variables):
        self.hosts, self.error, warnings, errors = {}, "", [], []
        inventory, path = InventoryData(), folder / "hosts.yml"
        plugin = inventory_loader.get("gpuval.fleet.kubernetes_nodes")
        plugin._vars = extra_variables
        plugin.display = SimpleNamespace(
            warning=warnings.append, error=lambda text, **_: errors.append(text), vvv=lambda *_: None
        )
        try:
            plugin.parse(inventory, DataLoader(), str(path), cache=False)
            self.hosts = {
                name: {**get_group_vars(host.get_groups()), **host.vars} for name, host in inventory.hosts.items()
            }
        except SystemExit:
            self.error = " ".join(errors)
        self.warnings = " ".join(warnings)


def listed(folder, *arguments, **environment):
    """What ansible-inventory lists, without its mark on text that is never a template."""
    done = ran("ansible-inventory", "-i", folder, "--list", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, object_hook=lambda value: value.get("__ansible_unsafe", value)), done.stderr


def words(text):
    """Ansible breaks its messages into lines."""
    return " ".join(text.split())


def test_nodes_become_hosts_with_their_state_and_groups(tmp_path, kit):
    put(kit, h200("gpu-2"), h200("gpu-10", gpus=7), node("mi-1", labels=DOKS_MI300X, resources={"amd.com/gpu": "8"}))
    put(kit, node("cp", labels={"node-role.kubernetes.io/control-plane": ""}))
    folder = inventory(tmp_path / "inventory", kit)
    found, _ = listed(folder)
    hosts = found["_meta"]["hostvars"]
    assert found["nodes"]["hosts"] == ["gpu-2", "gpu-10", "mi-1"]
    assert found["sku_h200"]["hosts"] == ["gpu-2", "gpu-10"] and found["pool_mi300x"]["hosts"] == ["mi-1"]
    assert {variables["gpuval_placement"] for variables in hosts.values()} == {"kubernetes"}
    assert {variables["ansible_connection"] for variables in hosts.values()} == {"local"}
    assert hosts["gpu-10"]["gpuval_gpu_count"] == 8 and hosts["gpu-10"]["gpuval_sku"] == "h200"
    assert hosts["gpu-10"]["kubernetes_node"]["capacity"]["nvidia.com/gpu"] == "7"
    assert hosts["mi-1"]["gpuval_sku"] == "mi300x"
    assert hosts["mi-1"]["kubernetes_labels"] == {"pool": "mi300x"}
    assert hosts["mi-1"]["kubernetes_node"]["conditions"]["Ready"]["status"] == "True"
    assert hosts["mi-1"]["gpuval_kubeconfig"] == str(kit.kubeconfig)
    assert kit.requests == [LIST_NODES]


def test_what_was_ordered_wins_over_what_is_found(tmp_path, kit):
    put(kit, h200("gpu-1", gpus=7))
    folder = inventory(tmp_path / "inventory", kit)
    (folder / "group_vars").mkdir()
    (folder / "group_vars" / "sku_h200.yml").write_text("gpuval_gpu_count: 8\n")
    (folder / "group_vars" / "all.yml").write_text("gpuval_kube_context: other\n")
    found, _ = listed(folder)
    assert found["_meta"]["hostvars"]["gpu-1"]["gpuval_gpu_count"] == 8
    assert found["_meta"]["hostvars"]["gpu-1"]["gpuval_kube_context"] == "other"


def test_the_selector_and_rules_for_skus(tmp_path, kit):
    put(kit, h200("gpu-1"), node("cpu-1"))
    folder = inventory(
        tmp_path / "inventory", kit, selector="nvidia.com/gpu.present=true", skus={"ordered": {"product": "*H200*"}}
    )
    hosts = Read(folder).hosts
    assert list(hosts) == ["gpu-1"]
    assert hosts["gpu-1"]["gpuval_sku"] == "ordered"


def test_expected_nodes_that_are_not_there_are_hosts_too(tmp_path, kit):
    put(kit, h200("gpu-1"), node("gpu-2"), h200("gpu-9"))
    folder = inventory(tmp_path / "inventory", kit, expected=["gpu-[1:3]"], selector="nvidia.com/gpu.present=true")
    read = Read(folder)
    hosts = read.hosts
    assert list(hosts) == ["gpu-1", "gpu-2", "gpu-3"]  # gpu-2 has not the label: a list needs none
    assert hosts["gpu-3"]["kubernetes_node"] == {"exists": False, "reason": "the cluster has no node gpu-3"}
    assert "left out" in read.warnings and "gpu-9" in read.warnings
    assert "lacks 1 expected node(s): gpu-3" in read.warnings
    assert kit.requests == [LIST_NODES] * 3, "by the selector, and gpu-3 by label and name"
    folder = inventory(tmp_path / "inventory", kit, expected=["gpu-1"], selector="nvidia.com/gpu.present", others=True)
    assert list(Read(folder).hosts) == ["gpu-1", "gpu-9"]


def test_a_list_in_a_file(tmp_path, kit):
    put(kit, h200("gpu-1"))
    folder = inventory(tmp_path / "inventory", kit, expected="nodes.csv")
    (folder / "nodes.csv").write_text("name,sku,unique_id\ngpu-1,h200,SN-1\ngpu-2,h200,SN-2\n")
    hosts = Read(folder).hosts
    assert hosts["gpu-2"]["gpuval_sku"] == "h200" and hosts["gpu-2"]["gpuval_node_ids"] == {"gpu-2": "SN-2"}
    assert hosts["gpu-2"]["gpuval_gpu_count"] == 8  # as its like


def test_nodes_that_publish_their_gpus_have_model_and_count_and_a_missing_right_is_named(tmp_path, kit):
    put(kit, node("gpu-1"), node("gpu-2"))
    kit.install_dra(device_class(resource="nvidia.com/gpu"))
    for name, count in (("gpu-1", 8), ("gpu-2", 7)):
        kit.put(slice_of(name, gpus(count)))
    folder = inventory(tmp_path / "inventory", kit)
    read = Read(folder)
    assert {(one["gpuval_sku"], one["gpuval_gpu_count"]) for one in read.hosts.values()} == {("h200", 8)}
    assert (read.hosts["gpu-2"]["kubernetes_node"]["dra"]["count"], read.warnings.strip()) == (7, "")
    kit.deny("list", "resource.k8s.io", "resourceslices")
    denied = Read(folder)
    assert "this user may not list resourceslices: apply role.yml" in denied.warnings
    assert "gpuval_gpu_count" not in denied.hosts["gpu-1"]


def test_text_of_the_cluster_is_never_a_template(tmp_path, kit):
    bad = {"Ready": {"status": "False", "reason": "X", "message": "{{ lookup('pipe', 'id') }}"}}
    put(kit, node("n1", labels={"rack": "r1"}, conditions=bad))
    folder = inventory(tmp_path / "inventory", kit)
    message = listed(folder)[0]["_meta"]["hostvars"]["n1"]["kubernetes_node"]["conditions"]["Ready"]["message"]
    assert message == "{{ lookup('pipe', 'id') }}"


def test_extra_variables_choose_the_cluster(tmp_path, kit):
    put(kit, h200("gpu-1"))
    folder = inventory(tmp_path / "inventory", kit, kubeconfig="nowhere")
    found, _ = listed(folder, "-e", f"gpuval_kubeconfig={kit.kubeconfig}")
    assert list(found["_meta"]["hostvars"]) == ["gpu-1"]


def test_an_empty_kubeconfig_of_the_command_wins_over_that_of_a_file(tmp_path, kit, monkeypatch):
    """As in the pod of a controller, which has its own account and no kubeconfig."""
    put(kit, h200("gpu-1"))
    folder = inventory(tmp_path / "inventory", kit, kubeconfig="nowhere", context="laptop")
    monkeypatch.setenv("KUBECONFIG", str(kit.kubeconfig))
    found, _ = listed(folder, "-e", "gpuval_kubeconfig= gpuval_kube_context=")
    assert list(found["_meta"]["hostvars"]) == ["gpu-1"]


def test_kubeconfig_of_the_environment(tmp_path, kit, monkeypatch):
    put(kit, h200("gpu-1"))
    folder = inventory(tmp_path / "inventory", kit, kubeconfig="")
    monkeypatch.setenv("KUBECONFIG", str(kit.kubeconfig))
    assert "gpuval_kubeconfig" not in Read(folder).hosts["gpu-1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selector": "no=such"}, "no node that matches 'no=such'"),
        ({"kubeconfig": "/no/such/file"}, "/no/such/file"),
        ({"context": "other"}, "other"),
        ({"expected": ["a b c"]}, "3 words"),
        ({"expected": "missing.csv"}, "cannot be read"),
        ({"expected": {"a": 1}}, "a list of names"),
        ({"skus": {"h200": "H200"}}, "skus.h200 maps"),
    ],
)
def test_what_cannot_be_read_stops_everything(tmp_path, kit, options, message):
    put(kit, h200("gpu-1"))
    assert message in Read(inventory(tmp_path / "inventory", kit, **options)).error


def test_a_missing_rule_is_named(tmp_path, kit, monkeypatch):
    put(kit, h200("gpu-1"))
    monkeypatch.setattr(api, "DENIED_SECONDS", 0.0)
    kit.deny("list", "", "nodes")
    folder, state = inventory(tmp_path / "inventory", kit), tmp_path / "state"
    (folder / "group_vars").mkdir()
    (folder / "group_vars/all.yml").write_text(f"gpuval_namespace: checks\ngpuval_state_dir: {state}\n")
    error = words(Read(folder).error)
    assert 'resources: ["nodes"] verbs: ["list"]' in error
    assert f"kubectl apply -f {state}/role.yml" in error and "kubectl create namespace checks" in error
    assert (state / "role.yml").read_text() == permissions.printed("checks")


def test_an_api_server_that_has_just_started_is_asked_again(tmp_path, kit):
    put(kit, h200("gpu-1"))
    kit.deny("list", "", "nodes", times=2)
    assert list(Read(inventory(tmp_path / "inventory", kit)).hosts) == ["gpu-1"]


def test_a_thousand_nodes(tmp_path, kit):
    put(kit, *(h200(f"gpu-{number:04}") for number in range(1000)))
    assert len(Read(inventory(tmp_path / "inventory", kit)).hosts) == 1000
    assert len(kit.requests) == 2  # two pages


def test_the_example_is_what_it_says(tmp_path, kit):
    put(kit, h200("gpu-1"), h200("gpu-2", gpus=7), node("mi-1", labels=DOKS_MI300X, resources={"amd.com/gpu": "8"}))
    found, _ = listed(ROOT / "inventories" / "kubernetes", KUBECONFIG=str(kit.kubeconfig))
    hosts = found["_meta"]["hostvars"]
    assert set(hosts) == {"gpu-1", "gpu-2", "mi-1"}
    assert hosts["gpu-2"]["gpuval_gpu_count"] == 8 and hosts["gpu-2"]["gpuval_environment"] == {"NCCL_DEBUG": "WARN"}
    assert hosts["mi-1"]["gpuval_gpu_count"] == 8 and "gpuval_environment" not in hosts["mi-1"]


# --- the probe -------------------------------------------------------------------------------------------------------


PLAYBOOK = [
    {
        "name": "Probe",
        "hosts": "all",
        "gather_facts": False,
        "tasks": [
            {
                "name": "See which nodes can be worked on",
                "gpuval.fleet.controller": {
                    "step": "probe_nodes",
                    "placement": "kubernetes",
                    "required": "{{ wanted | default(false) | bool }}",
                },
                "run_once": True,
                "register": "probed",
            },
            {
                "name": "Write what was found",
                "ansible.builtin.copy": {"content": "{{ probed | to_json }}", "dest": "{{ out }}", "mode": "0600"},
                "run_once": True,
            },
        ],
    }
]


def probed(folder, tmp_path, *arguments):
    playbook, out = tmp_path / "probe.yml", tmp_path / "probed.json"
    playbook.write_text(yaml.safe_dump(PLAYBOOK))
    given = ["-e", f"out={out}", "-e", f"ansible_python_interpreter={sys.executable}", *arguments]
    done = ran("ansible-playbook", "-i", folder, playbook, *given)
    return (json.loads(out.read_text()) if done.returncode == 0 else None), done


def test_the_probe_tells_each_node_s_class_and_asks_once(tmp_path, kit):
    put(kit, h200("gpu-1"), h200("gpu-2", gpus=7), h200("gpu-3", unschedulable=True), node("gpu-4", labels=BARE_H200))
    put(kit, h200("gpu-5", taints=[{"key": "maintenance", "effect": "NoSchedule"}]))
    folder = inventory(tmp_path / "inventory", kit, expected=["gpu-[1:6]"])
    kit.set_node("gpu-1", ready=False)
    kit.forget_requests()
    result, done = probed(folder, tmp_path)
    assert result is not None, done.stdout + done.stderr
    states = {name: found["state"] for name, found in result["nodes"].items()}
    assert states == {
        "gpu-1": "node_not_ready",
        "gpu-2": "reachable",
        "gpu-3": "cordoned",
        "gpu-4": "no_gpu_resource",
        "gpu-5": "tainted",
        "gpu-6": "node_missing",
    }
    assert result["short"] == ["gpu-2"] and len(result["away"]) == 5
    assert "cluster: 1 of 6 node(s) can be worked on" in done.stdout and "kubectl uncordon gpu-3" in done.stdout
    # the inventory by its selector, and it and the probe by the names, where gpu-6 is looked up by itself
    assert kit.requests == [LIST_NODES] * 5


def test_tolerations_of_the_inventory_count_and_an_operator_may_insist(tmp_path, kit):
    put(kit, h200("gpu-1", taints=[{"key": "maintenance", "effect": "NoSchedule"}]))
    folder = inventory(tmp_path / "inventory", kit)
    _, done = probed(folder, tmp_path, "-e", "wanted=true")
    assert done.returncode != 0 and "1 of 1 node(s) cannot run work: gpu-1" in words(done.stdout + done.stderr)
    (folder / "group_vars").mkdir()
    pods = "gpuval_pods: {tolerations: [{key: \"{{ 'main' ~ 'tenance' }}\", operator: Exists}]}\n"
    (folder / "group_vars" / "nodes.yml").write_text(pods)
    result, done = probed(folder, tmp_path, "-e", "wanted=true")
    assert result is not None and result["away"] == [], done.stdout
