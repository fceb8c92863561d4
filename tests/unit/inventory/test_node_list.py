"""Lists of nodes become hosts, groups and variables; every mistake in them names its line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory import source
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory.node_list import parse

ROOT = Path(__file__).resolve().parents[3]
HEADER = "name,address,user,port,sku,rack,unique_id,host_key\n"
PRINT = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"


def csv(text):
    return {node.name: node for node in parse(text, "nodes.csv")}


def plain(text):
    return {node.name: node.variables for node in parse(text, "nodes.txt")}


def test_a_row_of_csv():
    nodes = csv(f"\ufeff{HEADER}# no node\n\nn1,192.0.2.1,ubuntu,2222,H200 SXM,r-1,S1,{PRINT}\nn2,192.0.2.2,,,,,,\n")
    assert nodes["n1"].variables == {
        "ansible_host": "192.0.2.1",
        "ansible_user": "ubuntu",
        "ansible_port": 2222,
        "gpuval_sku": "H200 SXM",
        "rack": "r-1",
        "gpuval_node_ids": {"n1": "S1"},
        "gpuval_host_keys": [PRINT],
    }
    assert nodes["n1"].groups == ("sku_h200_sxm", "rack_r_1")
    assert nodes["n2"].variables == {"ansible_host": "192.0.2.2"} and nodes["n2"].groups == ()


def test_semicolons_further_columns_and_values():
    nodes = csv("Address;gpu_count;zone;level;serial;ansible_become\nn1;8;a, b;3;007;true\n")
    assert nodes["n1"].variables == {
        "gpuval_gpu_count": 8,
        "zone": "a, b",
        "level": 3,
        "serial": "007",
        "ansible_become": True,
    }


def test_ranges():
    nodes = csv("name,address,unique_id,rack\nnode-[008:011],192.0.2.[8:11],S[8:11],r1\nx,y,,\n")
    assert list(nodes) == ["node-008", "node-009", "node-010", "node-011", "x"]
    assert nodes["node-010"].variables["ansible_host"] == "192.0.2.10"
    assert nodes["node-010"].variables["gpuval_node_ids"] == {"node-010": "S10"}
    assert plain("10.0.0.[1:3]\n") == {f"10.0.0.{number}": {} for number in (1, 2, 3)}


def test_both_notations_of_a_range_are_one():
    with_colons = "name,address,unique_id,rack\nnode-[008:011],192.0.2.[8:11],S[8:11],r[1:4]\n"
    assert csv(with_colons.replace(":", "-")) == csv(with_colons)
    assert list(plain("n[0-6:2]a[b-c]\n")) == [f"n{number}a{letter}" for number in (0, 2, 4, 6) for letter in "bc"]


def test_brackets_in_a_column_of_a_sites_own_are_text():
    assert csv("name,note\nn1,see [a-b]\n")["n1"].variables == {"note": "see [a-b]"}


def test_plain_text():
    assert plain("# nodes\nn1 192.0.2.1 # first\nn2,192.0.2.2\nn3.example.org\nn4 2001:db8::4\nn5 [2001:db8::5]\n") == {
        "n1": {"ansible_host": "192.0.2.1"},
        "n2": {"ansible_host": "192.0.2.2"},
        "n3.example.org": {},
        "n4": {"ansible_host": "2001:db8::4"},
        "n5": {"ansible_host": "2001:db8::5"},
    }


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("nodes.txt", "", "lists no node"),
        ("nodes.csv", HEADER, "lists no node"),
        ("nodes.txt", "a 192.0.2.1\n\nb 192.0.2.1\n", "lines 1 and 3 have the same address 192.0.2.1"),
        ("nodes.txt", "a 192.0.2.1\na 192.0.2.2\n", "lines 1 and 2 have the same name a"),
        ("nodes.txt", "A.example.org\nb a.EXAMPLE.org\n", "same address a.example.org"),
        ("nodes.txt", "a b c\n", "line 1: 3 words"),
        ("nodes.txt", "2001:db8::4\n", "IPv6 address cannot be a name"),
        ("nodes.txt", "ok\na/b\n", "line 2: 'a/b': not a name"),
        ("nodes.txt", "n 192.0.2.1:22\n", "a port has its own column"),
        ("nodes.txt", "n[1:3] 192.0.2.[1:2]\n", "ranges must agree"),
        ("nodes.txt", "n[1:3] 192.0.2.1\n", "one address for 3 nodes"),
        ("nodes.txt", "n[5:2]\n", "line 1: the range"),
        ("nodes.csv", "n1,192.0.2.1\n", "the first line names the columns"),
        ("nodes.csv", "name,name\n", "the column name is there twice"),
        ("nodes.csv", "name,ra-ck\n", "the column 'ra-ck' cannot be a variable"),
        ("nodes.csv", "name,port\na,22\nb,ssh\n", "line 3: the port 'ssh'"),
        ("nodes.csv", "name,gpu_count\na,many\n", "line 2: gpu_count 'many'"),
        ("nodes.csv", "name,rack\na,1,2\n", "line 2: 3 cells, but the header has 2 columns"),
        ("nodes.csv", "name,rack\n,1\n", "line 2: neither name nor address"),
        ("nodes.csv", "name,host_key\na,xyz\n", "line 2: host_key"),
        ("nodes.csv", "name,unique_id\na,S\nb,S\n", "lines 2 and 3 have the same unique_id S"),
        ("nodes.csv", 'name,x\na,"b\n', "not CSV"),
        ("nodes.csv", "name,address,port\na,192.0.2.1,22\nb,192.0.2.1,\n", "lines 2 and 3 have the same address"),
    ],
)
def test_mistakes_name_their_line(name, text, told):
    with pytest.raises(SettingError) as raised:
        parse(text, name)
    assert told in str(raised.value) and str(raised.value).startswith(name)


def test_one_address_with_two_ports_is_two_machines():
    assert len(csv("name,address,port\na,192.0.2.1,2201\nb,192.0.2.1,2202\n")) == 2


def plainly(document):
    """What ansible-inventory lists, without its mark on text that is never a template."""
    return json.loads(document, object_hook=lambda value: value.get("__ansible_unsafe", value))


def listed(folder, *arguments):
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    program = Path(sys.executable).with_name("ansible-inventory")
    command = [str(program), "-i", str(folder), *(arguments or ("--list",))]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_ansible_reads_the_list_beside_its_group_vars(tmp_path):
    (tmp_path / "hosts.yml").write_text("plugin: gpuval.fleet.node_list\npath: nodes.csv\n")
    (tmp_path / "nodes.csv").write_text(f"{HEADER}n1,192.0.2.1,,,h200,r1,,\nn2,192.0.2.2,,,h100,r1,,\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "sku_h200.yml").write_text("gpuval_gpu_count: 8\n")
    done = listed(tmp_path)
    assert done.returncode == 0, done.stderr
    found = plainly(done.stdout)
    assert set(found["_meta"]["hostvars"]) == {"n1", "n2"}  # and no host made of the cells of the list
    assert found["rack_r1"]["hosts"] == ["n1", "n2"] and found["sku_h100"]["hosts"] == ["n2"]
    assert found["nodes"]["hosts"] == ["n1", "n2"]
    assert found["_meta"]["hostvars"]["n1"]["gpuval_gpu_count"] == 8
    assert "gpuval_gpu_count" not in found["_meta"]["hostvars"]["n2"]


INI = "[g]\nn[01-03]:2222 ansible_connection=local\n"
YAML = "all:\n  children:\n    g:\n      hosts:\n        n[01-03]:2222: {ansible_connection: local}\n"


@pytest.mark.parametrize(("name", "text"), [("hosts", INI), ("hosts.ini", INI), ("hosts.yml", YAML), ("hosts", YAML)])
@pytest.mark.parametrize("between", "-:")
def test_ansibles_own_inventories_take_both_notations(tmp_path, name, text, between):
    (tmp_path / name).write_text(text.replace("01-03", f"01{between}03"))
    done = listed(tmp_path / name)
    assert done.returncode == 0, done.stderr
    found = plainly(done.stdout)
    assert found["g"]["hosts"] == ["n01", "n02", "n03"]
    assert {values["ansible_port"] for values in found["_meta"]["hostvars"].values()} == {2222}


@pytest.mark.parametrize("between", "-:")
def test_a_list_of_hosts_takes_both_notations(between):
    done = listed(f"n[01{between}02],x,")
    assert plainly(done.stdout)["ungrouped"]["hosts"] == ["n01", "n02", "x"], done.stderr
    done = listed("n[02-01],")
    assert done.stderr == "[ERROR]: n[02-01],: -i line 1: the range 'n[02-01]' is empty\n"
    assert plainly(listed("::1,n1,").stdout)["ungrouped"]["hosts"] == ["::1", "n1"]


@pytest.mark.parametrize(
    ("limit", "hosts"),
    [
        ("n[01-02]", ["n01", "n02"]),
        ("n[01:02],x", ["n01", "n02", "x"]),
        ("all:!n[02-03]", ["n01", "x"]),
        ("g[0:1]", ["n01", "n02"]),  # the first two of the group, as Ansible has it
        ("g[0-1]", ["n01", "n02"]),
        ("~n0[1-2]", ["n01", "n02"]),
    ],
)
def test_limit_takes_both_notations_of_names(tmp_path, limit, hosts):
    (tmp_path / "hosts").write_text("x\n[g]\nn[01:03]\n")
    done = listed(tmp_path / "hosts", "--list", "--limit", limit)
    assert done.returncode == 0, done.stderr
    found = plainly(done.stdout)
    assert sorted({host for group in ("g", "ungrouped") for host in found.get(group, {}).get("hosts", ())}) == hosts


def test_a_limit_that_is_no_range_is_named(tmp_path):
    (tmp_path / "hosts").write_text("n[01:03]\n")
    done = listed(tmp_path / "hosts", "--list", "--limit", "n[01-100]")
    assert done.returncode != 0
    assert done.stderr.startswith("[ERROR]: --limit: 'n[01-100]' is no range such as [001:100]: ")


def test_text_in_a_list_is_never_a_template(tmp_path):
    (tmp_path / "hosts.yml").write_text("plugin: gpuval.fleet.node_list\npath: nodes.csv\n")
    (tmp_path / "nodes.csv").write_text('name,note\nn1,"{{ 6 * 7 }}"\n')
    done = listed(tmp_path, "--host", "n1")
    assert plainly(done.stdout)["note"] == "{{ 6 * 7 }}"


@pytest.mark.parametrize("text", [None, "n1 192.0.2.1\nn2 192.0.2.1\n"])
def test_a_broken_list_stops_everything(tmp_path, text):
    """Half an inventory would be validated, and pass."""
    (tmp_path / "hosts.yml").write_text("plugin: gpuval.fleet.node_list\npath: nodes.txt\n")
    (tmp_path / "more.yml").write_text("all: {hosts: {other: {}}}\n")
    if text:
        (tmp_path / "nodes.txt").write_text(text)
    done = listed(tmp_path)
    assert done.returncode != 0
    assert ("lines 1 and 2 have the same address" if text else "cannot be read") in " ".join(done.stderr.split())


def test_the_example_is_what_it_says():
    done = listed(ROOT / "inventories" / "baremetal")
    assert done.returncode == 0, done.stderr
    hosts = plainly(done.stdout)["_meta"]["hostvars"]
    assert len(hosts) == 12
    assert {variables["gpuval_sku"] for variables in hosts.values()} == {"h200", "mi300x"}
    assert all(variables["gpuval_gpu_count"] == 8 for variables in hosts.values())
    assert all(variables["ansible_host"].startswith(("192.0.2.", "198.51.100.")) for variables in hosts.values())
    behind = [name for name, variables in hosts.items() if "ProxyJump" in str(variables.get("ansible_ssh_common_args"))]
    assert behind and all(hosts[name]["rack"] == "r2" for name in behind)


def test_a_list_is_an_inventory_itself(tmp_path):
    (tmp_path / "fleet.csv").write_text("name,address,rack\nn[1:2],192.0.2.[1:2],r1\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "rack_r1.yml").write_text("gpuval_gpu_count: 8\n")
    done = listed(tmp_path / "fleet.csv")
    hosts = plainly(done.stdout)["_meta"]["hostvars"]
    assert {name: values["ansible_host"] for name, values in hosts.items()} == {"n1": "192.0.2.1", "n2": "192.0.2.2"}
    assert hosts["n1"]["gpuval_gpu_count"] == 8


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("n1 ansible_connection = local", "ansible_connection=local"),
        ("n1 ansible_port=22 ansible_user= root # mine", "ansible_user=root"),
        ("n1 ansible_user =root", "ansible_user=root"),
        ("ansible_connection = local", "HOST ansible_connection=local, or move it under [GROUP:vars]"),
        ("n1 note='a = b' ansible_port=22", ""),
        ("n1 192.0.2.1", ""),
        ("[nodes:vars]\nansible_connection = local", ""),
        ("; n1 a = b\n# n1 a = b", ""),
    ],
)
def test_spaces_in_a_variable_of_an_ini_host_are_shown_with_the_right_form(tmp_path, text, wanted):
    path = tmp_path / "hosts"
    path.write_text(f"[nodes]\n{text}\n")
    problem = source.problem_of(str(path))
    assert problem == (f"{path}:2: a variable of a host has no spaces around its =: write {wanted}" if wanted else "")


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ("", ""),
        ("gpu-1,site:!gpu-2,all,localhost", ""),
        ("gpu-*:site[0:1]:!site[-1],&site[0],site[1:],@file,~none.*", ""),
        # places in a group, which gpu- is not; Ansible would only warn, and test gpu-1 alone
        ("gpu-1,gpu-[1:9]", "--limit gpu-[1:9]: the inventory has no such host or group; is it gpu-2?"),
        ("gpu-1:&gpu-[01-02]", "--limit gpu-[01-02]: the inventory has no such host or group; is it gpu-2?"),
        ("gpu-1,gp-2", "--limit gp-2: the inventory has no such host or group; is it gpu-2?"),
        ("!zz", "--limit zz: the inventory has no such host or group. It has gpu-1, gpu-2, and the groups site"),
    ],
)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hosts.yml", "site:\n  hosts:\n    gpu-1:\n    gpu-2:\n"),
        ("hosts.ini", "[site]\ngpu-1\ngpu-2\n"),
        ("hosts", "[site]\ngpu-1\ngpu-2\n"),
    ],
)
def test_a_name_in_limit_that_the_inventory_does_not_have_is_named(tmp_path, monkeypatch, name, text, limit, problem):
    path = tmp_path / name
    path.write_text(text)
    options = {"subset": limit.replace("site:", "site,"), "inventory": [str(path)]}
    monkeypatch.setattr(source.context, "CLIARGS", options)
    assert source.problem_of(str(path)) == problem


def test_a_missing_inventory_is_told_from_none_that_was_given(monkeypatch):
    assert source.problem_of("/none/hosts").startswith("/none/hosts: there is no such inventory")
    monkeypatch.setattr(source.constants.config, "get_config_value_and_origin", lambda _: (["/none/hosts"], "default"))
    assert source.problem_of("/none/hosts").startswith("no inventory was given: name one with -i")
    assert source.problem_of("/none/nodes.csv").startswith("/none/nodes.csv: there is no such inventory")
