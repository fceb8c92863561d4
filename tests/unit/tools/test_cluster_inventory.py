"""`make inventory` asks a cluster for its nodes, and writes an inventory that Ansible reads."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kit.cluster import ClusterKit

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("make_inventory_of_cluster", ROOT / "tools/inventory.py")
inventory = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(inventory)
H200 = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H200"}
CONTROL_PLANE = {"node-role.kubernetes.io/control-plane": ""}
DEDICATED = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
TYPE = "node.kubernetes.io/instance-type"
NODE = (
    "NodeName={name} Arch=x86_64 CPUAlloc=0 ActiveFeatures={features} Gres={gres} NodeAddr=127.0.0.2 Version=22.05.8 "
    "State={state} Partitions={partitions} BootTime=None\n"
)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    with ClusterKit(tmp_path_factory.mktemp("kit"), namespace=None) as kit:
        kit.add_node("cp-1", gpus=0, labels=CONTROL_PLANE)
        kit.add_node("sys-1", gpus=0)
        for name, gpus in {"gpu-1": 8, "gpu-2": 8, "gpu-10": 7}.items():
            kit.add_node(name, gpus=gpus, labels=H200, taints=[DEDICATED], unschedulable=name == "gpu-2")
        yield kit


def ask(folder, **given):
    return inventory.main([f"--output={folder}", *(f"--{name}={value}" for name, value in given.items())])


def hosts_of(folder):
    """What Ansible makes of an inventory: variables by host, and the warnings."""
    program = Path(sys.executable).with_name("ansible-inventory")
    done = subprocess.run([program, "-i", folder, "--list"], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["_meta"]["hostvars"], done.stderr


def variables_of(folder, name="all"):
    return yaml.safe_load((folder / f"group_vars/{name}.yml").read_text())


def test_the_nodes_with_gpus_are_expected_with_the_number_that_most_of_them_offer(kit, tmp_path, capsys):
    folder = tmp_path / "mine"
    assert ask(folder, kubeconfig=kit.kubeconfig) == 0
    hosts, warnings = hosts_of(folder)
    assert sorted(hosts) == ["gpu-1", "gpu-10", "gpu-2"]
    assert "expected" not in warnings, "nodes without GPUs are no news"
    assert {host["gpuval_gpu_count"] for host in hosts.values()} == {8}
    assert {host["gpuval_kube_context"] for host in hosts.values()} == {"kit"}
    source = yaml.safe_load((folder / "hosts.yml").read_text())
    assert source["selector"] == "nvidia.com/gpu.present=true"
    assert (folder / "nodes.csv").read_text() == "name\ngpu-1\ngpu-2\ngpu-10\n"
    pods = variables_of(folder)["gpuval_pods"]
    assert pods["tolerations"] == [{**DEDICATED, "operator": "Equal"}]
    told = capsys.readouterr().out
    assert f"{kit.url}, context kit: 5 node(s), 3 chosen" in told
    assert "sku_h200: 8 GPUs expected, as 2 of 3 node(s) offer, 1 offer another number: correct it in" in told
    assert "not usable now: gpu-2 (cordoned)" in told
    commands = ["build REGISTRY=HOST/PATH", "validate", "clean"]
    assert re.findall(r"^  make (.*)$", told, re.MULTILINE) == [f"{name} INVENTORY={folder}" for name in commands]
    assert "# 2 of 3 node(s) offer this number of GPUs" in (folder / "group_vars/sku_h200.yml").read_text()


@pytest.mark.parametrize(
    ("store", "settings", "has_profiles"),
    [
        ("", {}, True),
        ("https://s3.example.org", {"gpuval_s3_endpoint": "https://s3.example.org"}, False),
        ("192.0.2.9", {"gpuval_store_address": "192.0.2.9", "gpuval_store_port": 9000}, False),
    ],
)
def test_without_a_store_the_stages_that_need_one_are_left_out(kit, tmp_path, store, settings, has_profiles):
    folder = tmp_path / "mine"
    assert ask(folder, kubeconfig=kit.kubeconfig, **({"store": store} if store else {})) == 0
    variables = variables_of(folder)
    assert settings.items() <= variables.items()
    assert ("gpuval_s3_endpoint" in variables, "gpuval_store_address" in variables) == (
        "gpuval_s3_endpoint" in settings,
        "gpuval_store_address" in settings,
    )
    assert ("gpuval_profiles" in variables) == has_profiles
    for stages in variables.get("gpuval_profiles", {}).values():
        assert {"facts", "training"} <= set(stages) and not {"image", "loading", "inference"} & set(stages)


@pytest.mark.parametrize(
    ("given", "nodes", "variables"),
    [
        ({"gpus": "0"}, ["sys-1"], {"gpuval_sku": "cpu"}),
        ({"gpus": "8"}, ["gpu-1", "gpu-2", "gpu-10"], {"gpuval_gpu_count": 8}),
        ({"gpus": "0", "selector": "kubernetes.io/hostname in (cp-1,sys-1)"}, ["cp-1", "sys-1"], {"gpuval_sku": "cpu"}),
        ({"selector": "kubernetes.io/hostname in (gpu-1,sys-1)"}, ["gpu-1", "sys-1"], {}),
    ],
)
def test_declared_gpus_and_a_selector_choose_nodes(kit, tmp_path, given, nodes, variables):
    folder = tmp_path / "mine"
    assert ask(folder, kubeconfig=kit.kubeconfig, **given) == 0
    hosts, _warnings = hosts_of(folder)
    assert sorted(hosts) == sorted(nodes)
    assert all(variables.items() <= host.items() for host in hosts.values())
    assert (folder / "group_vars/sku_h200.yml").exists() == ("gpus" not in given)


@pytest.mark.parametrize(
    ("labels", "selector"),
    [
        (
            {
                "a": {"doks.digitalocean.com/gpu-brand": "amd"},
                "b": {"doks.digitalocean.com/gpu-brand": "nvidia"},
                "c": {},
            },
            "",
        ),
        (
            {"a": {"karpenter.sh/nodepool": "x"}, "b": {"karpenter.sh/nodepool": "y"}, "c": {}},
            "karpenter.sh/nodepool in (x,y)",
        ),
        ({"a": {TYPE: "p5"}, "b": {TYPE: "p5"}, "c": {TYPE: "m5"}}, f"{TYPE} in (p5)"),
        ({"a": {TYPE: "p5"}, "b": {TYPE: "p5"}, "c": {TYPE: "p5"}}, ""),
        ({"a": {TYPE: "p5"}, "b": {}, "c": {}}, ""),
    ],
)
def test_the_selector_matches_the_chosen_nodes_alone(labels, selector):
    made = importlib.import_module("cluster_inventory")
    nodes = [made.ClusterNode(name, {"labels": of_node}, "", 8, has_gpus=True) for name, of_node in labels.items()]
    assert made._selector_of(nodes[:2], nodes) == selector


@pytest.fixture
def changed(kit, tmp_path):
    """Writes a kubeconfig of the kit with other text in a place."""

    def change(old, new):
        path = tmp_path / f"without-{len(old)}"
        path.write_text(kit.kubeconfig.read_text().replace(old, new))
        return path

    return change


def test_each_way_not_to_reach_a_cluster_is_one_line_with_a_remedy(kit, tmp_path, changed, monkeypatch, capsys):
    monkeypatch.setattr(importlib.import_module("cluster_inventory"), "ANSWER_SECONDS", 1.0)
    path = kit.kubeconfig
    for given, told in (
        ({"kubeconfig": "/nowhere"}, "no kubeconfig /nowhere: give its path, KUBECONFIG=PATH"),
        ({"kubeconfig": f"{path}:{path}"}, "KUBECONFIG names several files: merge them"),
        ({"kubeconfig": path, "context": "mine"}, f"{path} has no context mine; it has kit: correct CONTEXT="),
        ({"kubeconfig": changed(kit.token, "expired")}, "the credentials are wrong or have expired: log in again"),
        ({"kubeconfig": changed(kit.url, "http://127.0.0.1:9")}, "http://127.0.0.1:9 does not answer: "),
        ({"kubeconfig": changed("current-context", "no-context")}, "is not a valid kubeconfig (Invalid kube-config"),
        ({"kubeconfig": path, "selector": "a=b"}, "the cluster has no node that matches 'a=b'"),
        (
            {"kubeconfig": path, "selector": "kubernetes.io/hostname=sys-1"},
            "none of 1 node(s) offers nvidia.com/gpu or ",
        ),
        ({"kubeconfig": path, "gpus": "many"}, "GPUS 'many' is not a whole number"),
        ({"kubeconfig": path, "nodes": "a"}, "NODES= and KUBECONFIG= exclude each other"),
    ):
        assert ask(tmp_path / "mine", **given) == 1, given
        captured = capsys.readouterr()
        assert told in captured.err and captured.err.startswith("make inventory: "), captured.err
        assert captured.err.count("\n") == 1 and captured.out == ""
        assert not (tmp_path / "mine").exists()


def test_a_folder_that_is_there_stays_as_it_is(kit, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    assert ask(tmp_path / "mine", kubeconfig=kit.kubeconfig) == 1
    assert "is there already: choose another one with OUTPUT=, or remove it" in capsys.readouterr().err
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_user_who_may_not_list_nodes_gets_the_role(tmp_path, monkeypatch, capsys):
    settings = (ROOT / "ansible.cfg").read_text().replace("collections_path = ", f"collections_path = {ROOT}/")
    (tmp_path / "ansible.cfg").write_text(settings)
    monkeypatch.setattr(importlib.import_module("cluster_inventory"), "ROOT", tmp_path)  # where the Role is written
    with ClusterKit(tmp_path) as kit:
        kit.add_node("gpu-1")
        kit.deny("list", "", "nodes")
        assert ask(tmp_path / "mine", kubeconfig=kit.kubeconfig) == 1
    told = capsys.readouterr().err
    assert "this user may not list nodes" in told and "a ClusterRole needs this rule" in told
    assert f"kubectl apply -f {tmp_path}/.gpuval/role.yml" in told
    assert "kind: ClusterRole" in (tmp_path / ".gpuval/role.yml").read_text()


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A Slurm whose scontrol prints these nodes: name, gres, features, partitions, state."""

    def write(*nodes):
        lines = [dict(zip(("name", "gres", "features", "partitions", "state"), node, strict=True)) for node in nodes]
        program = tmp_path / "bin/scontrol"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\ncat <<'X'\n{''.join(NODE.format(**line) for line in lines)}X\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")

    return write


def test_slurm_is_asked_for_partition_gres_and_nodes(scontrol, tmp_path, capsys):
    scontrol(
        ("gpu-2", "gpu:h200:8(S:0-1)", "ib", "all,gpu,short", "IDLE"),
        ("gpu-10", "gpu:h200:8", "ib", "all,gpu", "DOWN"),
        ("cpu-1", "(null)", "(null)", "all", "IDLE"),
        ("big-1", "gpu:h200:4", "ib", "all,gpu", "IDLE"),
    )
    folder = tmp_path / "mine"
    assert ask(folder, slurm="1") == 0
    hosts, _warnings = hosts_of(folder)
    assert (folder / "nodes.csv").read_text() == "name\nbig-1\ngpu-2\ngpu-10\n"
    assert {host["gpuval_gpu_count"] for host in hosts.values()} == {8}
    assert {host["gpuval_slurm_partition"] for host in hosts.values()} == {"gpu"}
    assert yaml.safe_load((folder / "hosts.yml").read_text())["partitions"] == ["gpu"]
    assert variables_of(folder)["gpuval_store_address"]  # the address of this machine towards the nodes
    told = capsys.readouterr().out
    assert "Slurm: 4 node(s), 3 chosen, partition gpu" in told
    assert "not usable now: gpu-10 (slurm_node_down)" in told


@pytest.mark.parametrize(
    ("partition", "nodes", "chosen"),
    [("", ["a", "b"], ["left", "right"]), ("left", ["a"], ["left"]), ("left,right", ["a", "b"], ["left", "right"])],
)
def test_partitions_of_slurm(scontrol, tmp_path, partition, nodes, chosen):
    scontrol(("a", "gpu:8", "(null)", "left", "IDLE"), ("b", "gpu:8", "(null)", "right", "IDLE"))
    folder = tmp_path / "mine"
    assert ask(folder, slurm="1", **({"partition": partition} if partition else {})) == 0
    assert sorted(hosts_of(folder)[0]) == nodes
    assert yaml.safe_load((folder / "hosts.yml").read_text())["partitions"] == chosen
    assert variables_of(folder)["gpuval_slurm_partition"] == ",".join(chosen)
    assert variables_of(folder, "gres_gpu") == {"gpuval_gpu_count": 8}


def test_a_slurm_without_gpus_and_no_slurm_at_all(scontrol, tmp_path, capsys, monkeypatch):
    scontrol(("a", "(null)", "(null)", "all", "IDLE"))
    assert ask(tmp_path / "mine", slurm="1") == 1
    assert "none of 1 node(s) offers a gres gpu: declare it in slurm.conf, or validate them" in capsys.readouterr().err
    assert ask(tmp_path / "mine", slurm="1", gpus="0") == 0
    assert variables_of(tmp_path / "mine")["gpuval_sku"] == "cpu"
    (tmp_path / "bin/scontrol").unlink()
    assert ask(tmp_path / "other", slurm="1") == 1
    assert "scontrol is not installed here: run gpuval on a login node" in capsys.readouterr().err
