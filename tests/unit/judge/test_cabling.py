"""The cabling that nodes report against the declared plan."""

import itertools

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas

from tests.kit.builders import SHIPPED, facts_record, healthy, judge, make_run

PORTS = ("eth4", "eth5", "mlx5_0", "mlx5_1")
SWITCHES = ("leaf1", "leaf2", "ib1", "ib2")


def plan_of(count=4, ports=PORTS, switches=SWITCHES):
    """For each node its cables by port: node-N is on port N of a switch for each of its ports."""
    return {
        f"node-{number}": {
            port: (switch, str(number) if port.startswith("mlx") else f"Ethernet1/{number}")
            for port, switch in zip(ports, switches)
        }
        for number in range(1, count + 1)
    }


def seen_as_planned(plan):
    """For each node and port the neighbour: name, id, names of the switch's port."""
    return {
        node: {port: [(f"{switch}.dc.example", "00:11:22:33:44:55", place.replace("Ethernet", "Eth"))]
               for port, (switch, place) in ports.items()}
        for node, ports in plan.items()
    }  # fmt: skip


def swap(seen, first, second):
    (node, port), (other_node, other_port) = first, second
    seen[node][port], seen[other_node][other_port] = seen[other_node][other_port], seen[node][port]


def judged(plan, seen, *, problems=None, names=None):
    """The checks of each node, and the nodes. ``problems``: why a node's port has no neighbour, by (node, port);
    ``names``: the port's names."""
    problems, names = problems or {}, names or {}
    run = make_run(nodes=tuple(plan), stages=["facts"])
    evidence = healthy(run)
    for node, ports in plan.items():
        cables = [{"port": port, "switch": switch, "switch_port": place} for port, (switch, place) in ports.items()]
        run["nodes"][node]["declared"] = {"cabling": cables}
        facts = facts_record(node)
        if seen.get(node) is not None:
            facts["environment"]["cabling"] = [
                {
                    "names": names.get((node, port), [port]),
                    "neighbours": [{"name": name, "id": key, "ports": names} for name, key, *names in neighbours],
                    "problem": problems.get((node, port)),
                }
                for port, neighbours in seen[node].items()
            ]
        evidence.records[node] = {"facts": facts}
    schemas.validate("run", run, what="run.json")
    report = judge(run, evidence, SHIPPED)
    schemas.validate("report", report, what="report")
    nodes = {node["name"]: node for node in report["nodes"]}
    return {
        name: [check for check in node["checks"] if check["name"] == "cabling"] for name, node in nodes.items()
    }, nodes


def outcome(checks):
    return [(check["verdict"], check["severity"], check["part"], check["reason"]) for check in checks]


def test_a_fleet_that_is_cabled_as_planned_passes():
    plan = plan_of()
    checks, nodes = judged(plan, seen_as_planned(plan))
    for name in plan:
        assert outcome(checks[name]) == [("pass", "required", "node", "4 of 4 ports of the plan lead where it says")]
        assert nodes[name]["class"] != "cabling"


def test_without_a_plan_there_is_no_check():
    run = make_run(stages=["facts"])
    report = judge(run, healthy(run), SHIPPED)
    assert not any(check["name"] == "cabling" for check in report["nodes"][0]["checks"])
    assert not any(gap["what"] == "cabling" for gap in report["fleet"]["not_tested"])


def test_swapped_cables_are_named_with_both_ends():
    plan, seen = plan_of(), seen_as_planned(plan_of())
    swap(seen, ("node-1", "eth4"), ("node-2", "eth4"))
    checks, nodes = judged(plan, seen)
    reason = (
        "node-1 eth4: plan leaf1 Ethernet1/1, found leaf1.dc.example Eth1/2; "
        "the cables of node-1 eth4 and node-2 eth4 are swapped"
    )
    assert outcome(checks["node-1"]) == [("fail", "required", "link:eth4", reason)]
    assert "the cables of node-2 eth4 and node-1 eth4 are swapped" in checks["node-2"][0]["reason"]
    for name in ("node-1", "node-2"):
        assert (
            nodes[name]["verdict"],
            nodes[name]["class"],
            nodes[name]["action"]["name"] if "action" in nodes[name] else "inspect",
        ) == ("FAIL", "cabling", "inspect")
    assert [check["verdict"] for check in checks["node-3"]] == ["pass"]


def test_swapped_cables_within_a_node():
    plan, seen = plan_of(), seen_as_planned(plan_of())
    swap(seen, ("node-1", "mlx5_0"), ("node-1", "mlx5_1"))
    checks, _ = judged(plan, seen)
    assert [check["part"] for check in checks["node-1"]] == ["link:mlx5_0", "link:mlx5_1"]
    assert (
        "plan ib1 1, found ib2.dc.example 1; the cables of node-1 mlx5_0 and node-1 mlx5_1 are swapped"
        in checks["node-1"][0]["reason"]
    )


def test_three_cables_in_a_ring_are_named_each_with_the_place_it_took():
    plan, seen = plan_of(), seen_as_planned(plan_of())
    swap(seen, ("node-1", "eth4"), ("node-2", "eth4"))
    swap(seen, ("node-2", "eth4"), ("node-1", "eth5"))
    checks, _ = judged(plan, seen)
    reasons = [check["reason"] for name in ("node-1", "node-2") for check in checks[name]]
    assert len(reasons) == 3 and not any("swapped" in reason for reason in reasons)
    assert "found leaf1.dc.example Eth1/2, where the plan has node-2 eth4" in reasons[0]


def test_a_cable_on_a_switch_that_the_plan_does_not_have():
    plan, seen = plan_of(), seen_as_planned(plan_of())
    seen["node-1"]["eth4"] = [("mgmt-3", None, "12")]
    checks, _ = judged(plan, seen)
    assert outcome(checks["node-1"])[0][3] == "node-1 eth4: plan leaf1 Ethernet1/1, found mgmt-3 12"


def test_two_nodes_in_each_others_place_are_one_finding():
    plan, seen = plan_of(8), seen_as_planned(plan_of(8))
    seen["node-1"], seen["node-2"] = seen["node-2"], seen["node-1"]
    checks, nodes = judged(plan, seen)
    ((verdict, _, part, reason),) = outcome(checks["node-1"])
    assert (verdict, part, nodes["node-1"]["verdict"]) == ("fail", "node", "FAIL")
    assert reason.startswith("all 4 compared ports of node-1 lead where the plan has node-2: node-1 eth4: plan leaf1")
    assert "names or all cables of node-1 and node-2 are exchanged" in checks["node-1"][0]["remedy"]


def test_a_plan_that_most_ports_contradict_fails_no_node():
    plan, seen = plan_of(), seen_as_planned(plan_of())
    for first, second in (("node-1", "node-2"), ("node-3", "node-4")):
        seen[first], seen[second] = seen[second], seen[first]
    swap(seen, ("node-1", "eth4"), ("node-2", "eth4"))
    swap(seen, ("node-1", "eth4"), ("node-3", "eth5"))
    checks, nodes = judged(plan, seen)
    found = [check for name in plan for check in checks[name] if check["verdict"] != "pass"]
    assert {(check["verdict"], check["severity"]) for check in found} == {("missing", "required")}
    assert "the plan and the fleet disagree for" in found[0]["reason"] and "; node-" in found[0]["reason"]
    assert {node["verdict"] for node in nodes.values()} == {"INCOMPLETE"}
    assert all("correct gpuval_cabling_plan" in check["remedy"] for check in found)


def test_a_switch_whose_ports_are_shifted_is_in_doubt_itself():
    plan, seen = plan_of(8), seen_as_planned(plan_of(8))
    for number in range(1, 9):
        seen[f"node-{number}"]["eth4"] = [("leaf1", None, f"Ethernet1/{number - 1}")]
    swap(seen, ("node-1", "eth5"), ("node-2", "eth5"))
    checks, nodes = judged(plan, seen)
    assert (
        "the plan and switch leaf1 disagree for 8 of 8 ports, all shifted by -1: node-1 eth4"
        in checks["node-3"][0]["reason"]
    )
    assert [nodes[f"node-{number}"]["verdict"] for number in (1, 2)] == ["FAIL", "FAIL"]  # of the swap on leaf2
    assert {nodes[f"node-{number}"]["verdict"] for number in range(3, 9)} == {"INCOMPLETE"}


@pytest.mark.parametrize(
    ("neighbours", "told"),
    [
        ([], "eth4: no LLDP neighbour"),
        ([(None, "00:11:22:33:44:56", "Ethernet1/1")], "eth4: the switch sends no name"),
        (
            [("leaf1", None, "516", "to node-1")],
            "eth4: leaf1 calls the port 516 or to node-1: write names of this form",
        ),
        ([("leaf1", None, "00:11:22:33:44:56")], "eth4: leaf1 calls the port 00:11:22:33:44:56"),
        ([("leaf1", None)], "eth4: leaf1 calls the port nothing"),
        ([("leaf9", None, "Ethernet1/1"), (None, "00:11:22:33:44:56", "7")], "eth4: the switch sends no name"),
    ],
)
def test_a_port_that_cannot_be_compared_is_not_tested(neighbours, told):
    plan, seen = plan_of(), seen_as_planned(plan_of())
    seen["node-1"]["eth4"] = neighbours
    checks, nodes = judged(plan, seen, problems={("node-1", "eth4"): "no LLDP neighbour"})
    assert [check["verdict"] for check in checks["node-1"]] == ["pass", "missing"]
    assert checks["node-1"][1]["severity"] == "required"  # the plan declares the cable
    assert told in checks["node-1"][1]["reason"]
    assert (nodes["node-1"]["verdict"], nodes["node-1"]["class"]) == ("INCOMPLETE", "cabling")


@pytest.mark.parametrize(
    ("neighbours", "told"),
    [
        # lldpd of a node with containers or routes calls itself bridge and router
        ([("node-3.dc.example", "00:11:22:33:44:99", "00:11:22:33:44:99", "eth4")], "its neighbour is the node node-3"),
        ([("leaf7", None, "Ethernet1/9"), ("leaf8", None, "Ethernet1/9")], "several switches in sight"),
        ([("leaf7", None, f"Ethernet1/{number}") for number in (8, 9)], None),  # one switch, which is not the plan's
    ],
)
def test_a_switch_that_passes_on_the_frames_of_others_is_no_wrong_cable(neighbours, told):
    plan, seen = plan_of(), seen_as_planned(plan_of())
    seen["node-1"]["eth4"] = neighbours
    checks, nodes = judged(plan, seen)
    assert nodes["node-1"]["verdict"] == ("INCOMPLETE" if told else "FAIL")
    assert (told or "found leaf7") in checks["node-1"][-1]["reason"]


@pytest.mark.parametrize(
    ("places", "verdict"),
    [
        (["leaf01 Ethernet1/1", "leaf01 Ethernet1/2"], "INCOMPLETE"),  # the plan's leaf1 has another name
        (["leaf01 Ethernet1/1", "leaf02 Ethernet1/2"], "FAIL"),
        (["leaf01 Ethernet1/1", "leaf01 Ethernet1/7"], "FAIL"),
        (["leaf01 Ethernet1/1", "leaf1 Ethernet1/2"], "FAIL"),  # leaf1 is there
        (["leaf2 Ethernet1/1", "leaf2 Ethernet1/2"], "FAIL"),  # the plan has leaf2
    ],
)
def test_a_switch_of_few_ports_whose_name_the_plan_may_have_wrong(places, verdict):
    plan, seen = plan_of(2), seen_as_planned(plan_of(2))
    for name, place in zip(plan, places):
        seen[name]["eth4"] = [(place.split()[0], None, place.split()[1])]
    checks, nodes = judged(plan, seen)
    assert nodes["node-1"]["verdict"] == verdict
    assert f"found {places[0]}" in checks["node-1"][0]["reason"]


@pytest.mark.parametrize(
    ("switch", "neighbour", "verdict"),
    [
        ("b83f:d203:00a1:b2c0", ("leaf1", "0xb83fd20300a1b2c0"), "pass"),
        ("B83FD20300A1B2C0", ("leaf1", "0xb83fd20300a1b2c0"), "pass"),
        ("0xb83fd20300a1b2c0", ("leaf1", "0xb83fd20300a1b2c1"), "fail"),
        ("0xb83fd20300a1b2c0", ("leaf1", "00:11:22:33:44:55"), "missing"),
        ("00:11:22:33:44:55", ("leaf1", None), "missing"),
        ("10.1.2.3", ("leaf1", "00:11:22:33:44:55"), "missing"),  # its address of management, which LLDP rarely tells
        ("10.1.2.3", ("leaf1", "10.1.2.3"), "pass"),
    ],
)
def test_names_of_different_kinds_are_not_compared(switch, neighbour, verdict):
    plan = {f"node-{number}": {"eth4": (switch, str(number))} for number in range(1, 4)}
    seen = {name: {"eth4": [(*neighbour, str(number))]} for number, name in enumerate(plan, 1)}
    if verdict == "fail":  # one cable of three
        seen |= {name: {"eth4": [("leaf1", switch, name[-1])]} for name in ("node-2", "node-3")}
    assert [check["verdict"] for check in judged(plan, seen)[0]["node-1"]] == [verdict]


def test_one_of_several_neighbours_is_enough():
    plan, seen = plan_of(), seen_as_planned(plan_of())
    seen["node-1"]["eth4"] = [(None, "00:11:22:33:44:56", "7"), ("other", None, "9"), ("LEAF1", None, "x", "Eth 1/1")]
    assert [check["verdict"] for check in judged(plan, seen)[0]["node-1"]] == ["pass"]


def test_a_switch_without_a_name_is_known_by_its_chassis():
    plan = {
        name: {"eth4": ("0011.2233.4455", f"swp{index}")}
        for index, name in enumerate(("node-1", "node-2", "node-3", "node-4", "node-5"), 1)
    }
    seen = {name: {"eth4": [(None, "00:11:22:33:44:55", ports["eth4"][1])]} for name, ports in plan.items()}
    assert {outcome(checks)[0][0] for checks in judged(plan, seen)[0].values()} == {"pass"}
    swap(seen, ("node-1", "eth4"), ("node-2", "eth4"))
    assert "found 00:11:22:33:44:55 swp2; the cables of" in judged(plan, seen)[0]["node-1"][0]["reason"]
    seen["node-1"]["eth4"] = [(None, "00:11:22:33:44:99", "swp1")]
    assert judged(plan, seen)[0]["node-1"][0]["verdict"] == "fail"


NO_TEXTS = {"names": ["eth4"], "neighbours": [{"name": {}, "ports": [[]]}], "problem": 5}


@pytest.mark.parametrize(
    "reported",
    [None, [], [5], [{"names": 5}], [{"names": [5, "eth4"], "neighbours": "x"}], "x", [NO_TEXTS]],
)
def test_facts_that_do_not_tell_are_not_tested(reported):
    run = make_run(stages=["facts"])
    run["nodes"]["node-1"]["declared"] = {"cabling": [{"port": "eth4", "switch": "leaf1", "switch_port": "1"}]}
    evidence, facts = healthy(run), facts_record()
    facts["environment"] |= {} if reported is None else {"cabling": reported}
    evidence.records["node-1"] = {"facts": facts}
    report = judge(run, evidence, SHIPPED)
    (check,) = [check for check in report["nodes"][0]["checks"] if check["name"] == "cabling"]
    assert (check["verdict"], check["severity"]) == ("missing", "required")  # nothing of a declared plan is proven
    assert check["reason"].startswith("not tested: eth4: ")
    assert any(gap["what"] == "cabling" for gap in report["fleet"]["not_tested"])


def test_two_rows_of_one_port_are_not_tested():
    plan, seen = plan_of(), seen_as_planned(plan_of())
    plan["node-1"]["mlx5_4"] = ("leaf1", "Ethernet1/9")
    checks, nodes = judged(plan, seen, names={("node-1", "eth4"): ["eth4", "0000:5e:00.0", "mlx5_4"]})
    assert outcome(checks["node-1"])[1][3] == (
        "not tested: eth4: mlx5_4 is the same port: keep one row of it in the plan; "
        "mlx5_4: eth4 is the same port: keep one row of it in the plan"
    )
    assert nodes["node-1"]["verdict"] == "INCOMPLETE"


def test_reasons_are_said_once_for_all_their_ports():
    plan, seen = plan_of(), seen_as_planned(plan_of())
    seen["node-1"] |= {"mlx5_0": [], "mlx5_1": [], "eth5": []}
    problem = "smpquery is not installed"
    problems = {("node-1", "mlx5_0"): problem, ("node-1", "mlx5_1"): problem, ("node-1", "eth5"): "no link"}
    del seen["node-1"]["eth4"]
    (check,) = judged(plan, seen, problems=problems)[0]["node-1"]
    assert check["reason"] == f"not tested: eth4: the node has no such port; eth5: no link; mlx5_0, mlx5_1: {problem}"


def test_a_node_without_a_row_is_not_tested():
    plan = {**plan_of(), "node-5": {}}
    checks, nodes = judged(plan, {**seen_as_planned(plan_of()), "node-5": {}})
    assert outcome(checks["node-5"]) == [
        ("missing", "advisory", "node", "not tested: the plan has no cable of this node")
    ]
    assert nodes["node-5"]["class"] != "cabling"


def test_port_names_as_operators_write_them():
    for planned, reported in itertools.product(("Ethernet1/1", "eth1/1", "1/1"), ("Ethernet1/1", "Et1/1", "ETH 1/1")):
        plan = {"node-1": {"ETH4": ("Leaf1.DC.example", planned)}}
        seen = {"node-1": {"ETH4": [("leaf1", None, reported)]}}
        assert judged(plan, seen)[0]["node-1"][0]["verdict"] == "pass"
