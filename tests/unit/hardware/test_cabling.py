"""Where a node's ports lead, as lldpd, systemd-networkd and smpquery tell it.

lldpctl-1.0.16*.json: printed by Debian's lldpd between two network namespaces. The forms of `networkctl --json` and
`smpquery` are those of their sources (systemd, src/network/networkctl-lldp.c; rdma-core, infiniband-diags/smpquery.c);
the directed query is that of https://github.com/MrBr-github/lshca/issues/100.
"""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import cabling, collect, tools
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree

NODE_INFO = """# Node info: DR path slid 65535; dlid 65535; 0,1
BaseVers:........................1
ClassVers:.......................1
NodeType:........................Switch
NumPorts:........................65
SystemGuid:......................0xb83fd20300a1b2c0
Guid:............................0xb83fd20300a1b2c0
PortGuid:........................0xb83fd20300a1b2c0
PartCap:.........................32
DevId:...........................0xd2f2
Revision:........................0x000000a0
LocalPort:.......................31
VendorId:........................0x0002c9
"""


@pytest.fixture
def answers():
    """Answers of tools by name (smpquery: by query), and the calls that asked for them."""
    texts, calls = {}, []

    def run(tool, *arguments, timeout=20.0):
        calls.append((tool, *arguments))
        answer = texts.get(arguments[arguments.index("-D") + 1] if tool == "smpquery" else tool)
        if isinstance(answer, tools.ToolResult):
            return answer
        return tools.ToolResult(tool, missing=True) if answer is None else tools.ToolResult(tool, answer, returncode=0)

    run.texts, run.calls = texts, calls
    return run


def link(machine, path, target):
    file = machine.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)


def interface(machine, name, address=None, *, kind=1, state="up"):
    machine.write(f"/sys/class/net/{name}/type", str(kind))
    machine.write(f"/sys/class/net/{name}/operstate", state)
    if address:
        link(machine, f"sys/class/net/{name}/device", f"../../../{address}")


def rdma(machine, name, address, *, layer="InfiniBand", state="5: LinkUp", port=1):
    machine.write(f"/sys/class/infiniband/{name}/ports/{port}/link_layer", layer)
    machine.write(f"/sys/class/infiniband/{name}/ports/{port}/phys_state", state)
    if not (machine.root / f"sys/class/infiniband/{name}/device").is_symlink():
        link(machine, f"sys/class/infiniband/{name}/device", f"../../../{address}")


@pytest.mark.parametrize("name", ["lldpctl-1.0.16.json", "lldpctl-1.0.16-json0.json"])
def test_both_forms_of_lldpd_say_the_same(answers, golden, name):
    answers.texts["lldpctl"] = golden(name)
    neighbours, complaint = cabling.lldp_neighbours(answers)
    assert complaint == ""
    assert {port: [(peer["name"], peer["ports"]) for peer in peers] for port, peers in neighbours.items()} == {
        f"eth{number}": [("leaf1.dc.example", [f"swp{number}", f"swp{number}"])] for number in (1, 2, 3)
    }
    assert all(len(peers[0]["id"]) == 17 for peers in neighbours.values())


def test_several_neighbours_one_without_a_name_and_a_host(answers):
    def port(chassis, port_id, enabled="Bridge"):
        capability = [{"type": kind, "enabled": kind == enabled} for kind in ("Bridge", "Router", "Station")]
        inner = {"id": {"type": "mac", "value": "00:1c:0f:5f:c7:c0"}, "capability": capability}
        return {"eth0": {"chassis": {chassis: inner} if chassis else inner, "port": {"id": {"value": port_id}}}}

    peers = [port("leaf1", "Eth1/5"), port("", "Eth1/6"), port("node07", "eth0", enabled="Station")]
    answers.texts["lldpctl"] = json.dumps({"lldp": {"interface": peers}})
    assert cabling.lldp_neighbours(answers)[0] == {
        "eth0": [
            {"name": "leaf1", "id": "00:1c:0f:5f:c7:c0", "ports": ["Eth1/5"]},
            {"name": None, "id": "00:1c:0f:5f:c7:c0", "ports": ["Eth1/6"]},
        ]
    }
    answers.texts["lldpctl"] = json.dumps({"lldp": {"interface": peers[0]}})  # of one neighbour no list
    assert [*cabling.lldp_neighbours(answers)[0]] == ["eth0"]


def test_networkd_answers_where_lldpd_does_not(answers):
    peer = {"ChassisID": "18:a6:f7:05:19:21", "SystemName": "leaf1", "PortID": "516", "PortDescription": "xe-0/0/4"}
    host = {"SystemName": "node07", "PortID": "eth0", "EnabledCapabilities": 128}
    interfaces = [{"InterfaceName": "eth0", "Neighbors": [{**peer, "EnabledCapabilities": 20}, host]}]
    answers.texts["networkctl"] = json.dumps({"Neighbors": interfaces})
    found = {"eth0": [{"name": "leaf1", "id": "18:a6:f7:05:19:21", "ports": ["516", "xe-0/0/4"]}]}
    assert cabling.lldp_neighbours(answers) == (found, "")
    answers.texts["lldpctl"] = '{"lldp": {}}'
    assert cabling.lldp_neighbours(answers) == (found, "")


REFUSED = tools.ToolResult(
    "lldpctl", "", "2026-11-30T09:52:54 [WARN/control] unable to connect to socket: Permission denied", 1
)


@pytest.mark.parametrize(
    ("lldpctl", "networkctl", "complaint"),
    [
        (None, None, "lldpctl is not installed; networkctl is not installed"),
        (None, "LINK CHASSIS ID\neth0 leaf1\n", "lldpctl is not installed; networkctl of this version prints no JSON"),
        (REFUSED, None, "unable to connect to socket: Permission denied; networkctl is not installed"),
        (tools.ToolResult("lldpctl", timeout_seconds=5.0), None, "lldpctl did not answer within 5 s"),
        ('{"lldp": {}}', None, "no LLDP neighbour"),
        ("[1]", '{"Neighbors": 5}', "no LLDP neighbour"),
        ('{"lldp": {"interface": {"eth0": {"chassis": {"id": {}, "capability": {"type": []}}}}}}', None, ""),
        (
            '{"lldp": {"interface": {"eth0": {"chassis": {"id": {}, "capability": {"type": {}, "enabled": true}}}}}}',
            None,
            "",
        ),
        ('{"lldp": {"interface": [{"name": 5}, 3, {"eth0": "x"}]}}', None, ""),
        ("[" * 100_000, None, "lldpctl of this version prints no JSON"),
    ],
)
def test_why_no_neighbour_is_known(machine, answers, lldpctl, networkctl, complaint):
    answers.texts |= {"lldpctl": lldpctl, "networkctl": networkctl}
    interface(machine, "eth0", "0000:01:00.0")
    interface(machine, "eth1", "0000:02:00.0", state="down")
    up, down = cabling.facts(Tree(str(machine)), answers)
    assert complaint in (up["problem"] or "") and "2026" not in (up["problem"] or "")
    assert down["problem"] == "no link"


def test_a_port_has_the_names_of_its_pci_device(machine, answers, golden):
    answers.texts["lldpctl"] = golden("lldpctl-1.0.16.json")
    interface(machine, "eth1", "0000:5e:00.0")
    interface(machine, "eth2")  # a veth has no device
    interface(machine, "br0")
    rdma(machine, "mlx5_4", "0000:5e:00.0", layer="Ethernet")
    ports = cabling.facts(Tree(str(machine)), answers)
    assert [port["names"] for port in ports] == [["eth1", "0000:5e:00.0", "mlx5_4"], ["eth2"]]
    assert [port["problem"] for port in ports] == [None, None]
    assert not any(call[0] == "smpquery" for call in answers.calls)


def test_virtual_functions_do_not_displace_ports(machine, answers):
    for number in range(200):
        address = f"0000:01:{number // 8:02x}.{number % 8}"
        interface(machine, f"enp1s0v{number}", address)
        machine.write(f"/sys/{address}/physfn", "")
    interface(machine, "ens1", "0000:02:00.0")
    assert [port["names"] for port in cabling.facts(Tree(str(machine)), answers)] == [["ens1", "0000:02:00.0"]]


def test_an_infiniband_port_asks_its_peer_and_nothing_else(machine, answers):
    answers.texts |= {"nodeinfo": NODE_INFO, "nodedesc": "Node Description:.........MF0;leaf1:MQM9700/U1\n"}
    interface(machine, "ib0", "0000:18:00.0", kind=32)
    rdma(machine, "mlx5_0", "0000:18:00.0")
    rdma(machine, "mlx5_1", "0000:3b:00.0", state="3: Disabled")
    rdma(machine, "mlx5_1", "0000:3b:00.0", port=2)
    ports = cabling.facts(Tree(str(machine)), answers)
    leaf = {"name": "leaf1", "id": "0xb83fd20300a1b2c0", "ports": ["31"]}
    assert [(port["names"], port["neighbours"], port["problem"]) for port in ports] == [
        (["mlx5_0:1", "mlx5_0", "0000:18:00.0", "ib0"], [leaf], None),
        (["mlx5_1:1", "mlx5_1", "0000:3b:00.0"], [], "no link"),
        (["mlx5_1:2"], [leaf], None),
    ]
    queries = [call for call in answers.calls if call[0] == "smpquery"]
    assert queries[0] == ("smpquery", "-C", "mlx5_0", "-P", "1", "-t", "500", "-D", "nodeinfo", "0,1")
    assert queries[3] == ("smpquery", "-C", "mlx5_1", "-P", "2", "-t", "500", "-D", "nodedesc", "0,2")
    assert len(queries) == 4


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("Quantum Mellanox Technologies", None),  # of all switches that nobody named
        ("MF0;rack-3 leaf:MSB7800/U1", "rack-3 leaf"),
        ("ibswitch-7", "ibswitch-7"),
    ],
)
def test_the_name_of_an_infiniband_switch(answers, description, name):
    answers.texts |= {"nodeinfo": NODE_INFO, "nodedesc": f"Node Description:...{description}\n"}
    assert cabling.infiniband_peer(answers, "mlx5_0", "1")[0][0]["name"] == name


def test_infiniband_without_rights_or_tools_is_not_tested(machine, answers):
    rdma(machine, "mlx5_0", "0000:18:00.0")
    assert cabling.facts(Tree(str(machine)), answers)[0]["problem"] == "smpquery is not installed"
    stderr = "ibwarn: [23292] mad_rpc_open_port: can't open UMAD port (mlx5_0:1)\n"
    answers.texts["nodeinfo"] = tools.ToolResult("smpquery", "", stderr, 255)
    problem = cabling.facts(Tree(str(machine)), answers)[0]["problem"]
    assert problem == "smpquery ended with status 255: ibwarn: mad_rpc_open_port: can't open UMAD port (DEVICE:PORT)"
    answers.texts |= {"nodeinfo": "nonsense", "nodedesc": "nonsense"}
    assert cabling.facts(Tree(str(machine)), answers)[0]["problem"] == "smpquery prints no LocalPort"


def test_ports_after_the_deadline_are_not_asked(machine, answers, monkeypatch):
    monkeypatch.setattr(cabling, "INFINIBAND_SECONDS", -1.0)
    rdma(machine, "mlx5_0", "0000:18:00.0")
    assert "no answer to smpquery" in cabling.facts(Tree(str(machine)), answers)[0]["problem"]
    assert not any(call[0] == "smpquery" for call in answers.calls)


def test_facts_have_the_cabling_only_where_it_is_asked_for(machine, answers):
    assert "cabling" not in collect.collect(str(machine), answers)
    assert collect.collect(str(machine), answers, with_cabling=True)["cabling"] == []
