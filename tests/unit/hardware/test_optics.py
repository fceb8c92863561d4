"""Optics of network ports: modules as ethtool and mlxlink print them, what their thresholds say, and hostile output."""

import json
import math
import random
import re

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import optics, tools
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.collect import facts_result
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree

MODULES = (
    "ethtool_m_qsfpdd_400g.txt",
    "ethtool_m_qsfp_one_lane.txt",
    "ethtool_m_sfp_dark.txt",
    "ethtool_m_sfp_unreadable.txt",
)
MLXLINK = "mlxlink_434_400g_dr4.json"
FEC = """FEC parameters for ens1f0np0:
Supported/Configured FEC encodings: Auto RS BaseR
Active FEC encoding: RS
Statistics:
  corrected_blocks: 256
    Lane 0: 255
    Lane 1: 1
  uncorrectable_blocks: 145
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(optics, "AGAIN_SECONDS", 0)
    monkeypatch.setattr(optics, "SECONDS", 10)


def look(machine, **answers):
    """The facts of the machine's ports whose tools print these texts."""

    def run(tool, *arguments, timeout):
        assert timeout <= optics.CALL_SECONDS
        key = "fec" if "--show-fec" in arguments else tool
        answer = answers.get(key, tools.ToolResult(tool, missing=True))
        return tools.ToolResult(tool, answer, returncode=0) if isinstance(answer, str) else answer

    return optics.facts(Tree(str(machine)), run)


def figures(ports):
    return {(metric["name"], metric["scope"]): metric["value"] for metric in optics.metrics(ports)}


def changed(text, name, value):
    text, times = re.subn(rf"(\t{re.escape(name)} +: ).*", rf"\g<1>{value}", text)
    assert times == 1, name
    return text


def test_a_real_cmis_module_is_read_with_its_lanes(machine, golden):
    machine.network_port()
    [port] = look(machine, ethtool=golden(MODULES[0]), fec=FEC)
    assert (port["vendor"], port["part_number"]) == ("Arista Networks", "QDD-400G-XDR4")
    assert port["type"].startswith("0x18 (QSFP-DD")
    assert (port["temperature_celsius"], port["voltage_volts"]) == (70.49, 3.2186)
    assert port["rx_power_watts"] == pytest.approx([2.2489e-3, 1.8629e-3, 1.8427e-3, 1.8215e-3, 0, 0, 0, 0])
    assert port["tx_bias_amperes"][3] == pytest.approx(0.1101)
    assert (port["fec"], port["fec_corrected_count"], port["fec_uncorrectable_count"]) == ("RS", 256, 145)
    assert port["problem"] is None and port["alarms"] == []
    assert port["warnings"] == ["temperature 70.49 C, high warning threshold 70.00 C"]
    assert figures([port])["optics_warning_count", "link:ens1f0np0"] == 1
    assert figures([port])["optics_alarm_count", "link:ens1f0np0"] == 0


@pytest.mark.parametrize(
    ("name", "value", "alarm"),
    [
        (
            "Rcvr signal avg optical power (Channel 3)",
            "0.0912 mW / -10.40 dBm",
            "RX power of lane 3 -10.40 dBm, low alarm threshold -8.90 dBm",
        ),
        (
            "Transmit avg optical power (Channel 1)",
            "0.4000 mW / -3.98 dBm",
            "TX power of lane 1 -3.98 dBm, low alarm threshold -3.90 dBm",
        ),
        (
            "Laser tx bias current (Channel 2)",
            "131.500 mA",
            "laser bias of lane 2 131.50 mA, high alarm threshold 130.00 mA",
        ),
        ("Module temperature", "75.01 degrees C", "temperature 75.01 C, high alarm threshold 75.00 C"),
        ("Module temperature", "-6.00 degrees C", "temperature -6.00 C, low alarm threshold -5.00 C"),
        ("Module voltage", "3.0400 V", "voltage 3.04 V, low alarm threshold 3.05 V"),
    ],
)
def test_a_reading_beyond_an_alarm_threshold_is_named(machine, golden, name, value, alarm):
    machine.network_port()
    machine.tool("ethtool", f"cat '{machine.root}/module.txt'")
    machine.write("module.txt", changed(golden(MODULES[0]), name, value))
    result = facts_result(str(machine), "cpu")
    [port] = result["environment"]["network_ports"]
    assert port["alarms"] == [alarm]
    assert f"ens1f0np0: {alarm}" in result["message"]
    assert {m["value"] for m in result["metrics"] if m["name"] == "optics_alarm_count"} == {1}


def test_flags_that_a_module_kept_from_the_time_without_a_link_are_no_finding(machine, golden):
    machine.network_port()
    [port] = look(machine, ethtool=re.sub(r"(alarm|warning)( *\(.*\))? +: Off", r"\1\2 : On", golden(MODULES[1])))
    assert (port["alarms"], port["warnings"]) == ([], [])


def test_an_alarm_must_show_twice(machine, golden):
    machine.network_port()
    bad = changed(golden(MODULES[0]), "Module voltage", "3.0400 V")
    answers = iter([bad, golden(MODULES[0])])

    def run(tool, *arguments, timeout):
        return tools.ToolResult(tool, next(answers, ""), returncode=0)

    assert optics._by_ethtool("ens1f0np0", run)[0].lanes["voltage_volts"] == {0: 3.2186}


def test_lanes_that_the_link_does_not_use_are_not_judged(machine, golden):
    machine.network_port()
    [port] = look(machine, ethtool=golden(MODULES[1]))
    assert (port["alarms"], port["warnings"]) == ([], [])
    noise = changed(golden(MODULES[1]), "Rcvr signal avg optical power(Channel 2)", "0.0012 mW / -29.20 dBm")
    [port] = look(machine, ethtool=noise)
    assert port["alarms"] == [], "its laser is off"
    dim = changed(golden(MODULES[1]), "Rcvr signal avg optical power(Channel 1)", "0.0440 mW / -13.57 dBm")
    [port] = look(machine, ethtool=dim)
    assert port["alarms"] == ["RX power of lane 1 -13.57 dBm, low alarm threshold -13.51 dBm"]


def test_a_port_without_a_link_is_not_judged_by_the_light_that_it_lacks(machine, golden):
    machine.network_port(is_up=False)
    ports = look(machine, ethtool=golden(MODULES[2]).replace("0.0001 mW", "0.0400 mW"))
    assert ports[0]["alarms"] == [] and figures(ports) == {}
    assert optics.untested(ports)["optics of ens1f0np0"] == "the port has no link"
    assert ports[0]["part_number"] == "TN-SFP-10G-LR"


def test_thresholds_that_nobody_filled_in_judge_nothing(machine, golden):
    machine.network_port()
    [port] = look(machine, ethtool=golden(MODULES[3]))
    assert (port["alarms"], port["warnings"], port["problem"]) == ([], [], optics.COPPER)


def test_thresholds_that_exclude_what_is_usual_are_noise(machine, golden):
    machine.network_port()
    text = golden(MODULES[0])
    for quantity, names in (("voltage", {"high alarm": 2.2, "high warning": 2.1}), ("temperature", {"low alarm": 60})):
        for name, value in {**names, "low warning": 2 if quantity == "voltage" else 60}.items():
            text, count = re.subn(rf"(Module {quantity} {name} threshold\s*: )[-\d.]+", rf"\g<1>{value}", text)
            assert count == 1
    [port] = look(machine, ethtool=text)
    assert (port["alarms"], port["warnings"], port["problem"]) == ([], [], None)


def test_copper_has_no_diagnostics_and_is_not_tested(machine, golden):
    machine.network_port(driver="bnxt_en")
    ports = look(machine, ethtool=golden("ethtool_m_sfp_dac.txt"))
    assert optics.untested(ports) == {"optics of ens1f0np0": optics.COPPER}
    assert ports[0]["serial"] == "SG0000000001"
    assert "optics_alarm_count" not in {name for name, _scope in figures(ports)}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (tools.ToolResult("ethtool", missing=True), "ethtool is not installed"),
        (tools.ToolResult("ethtool", timeout_seconds=8), "ethtool did not answer within 8 s"),
        (tools.ToolResult("ethtool", stderr="netlink error: Operation not permitted\n", returncode=1), "not permitted"),
        (tools.ToolResult("ethtool", stderr="netlink error: Operation not supported\n", returncode=1), "not supported"),
    ],
)
def test_a_module_that_cannot_be_read_is_not_tested(machine, answer, reason):
    machine.network_port("a", driver="bnxt_en")
    machine.network_port("b", driver="ionic")
    ports = look(machine, ethtool=answer)
    [(what, why)] = optics.untested(ports).items()
    assert what == "optics of a, b" and reason in why
    assert figures(ports) == {("network_ports_count", "node"): 2}


def test_a_tool_that_hangs_costs_its_time_once_for_all_ports(machine, monkeypatch):
    for name in ("a", "b", "c"):
        machine.network_port(name, driver="bnxt_en")
    monkeypatch.setattr(optics, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(optics, "SECONDS", 20)
    machine.tool("ethtool", "sleep 60")
    ports = optics.facts(Tree(str(machine)), tools.toolbox(str(machine)))
    assert optics.untested(ports) == {"optics of a, b, c": "ethtool did not answer within 0.3 s"}
    monkeypatch.setattr(optics, "SECONDS", 0.1)
    ports = optics.facts(Tree(str(machine)), tools.toolbox(str(machine)))
    assert {port["problem"] for port in ports} == {optics.LATE}
    assert figures(ports) == {("network_ports_count", "node"): 3, **dict.fromkeys(
        [("link_excess_downs_count", f"link:{name}") for name in "abc"], 0
    )}  # fmt: skip


def test_mlxlink_gives_the_ratios_and_the_module_of_a_port_without_an_interface(machine, golden):
    machine.infiniband_port()
    [port] = look(machine, mlxlink=golden(MLXLINK))
    assert (port["name"], port["interface"], port["serial"]) == ("mlx5_1:1", None, "S00XXX000000")
    assert port["rx_power_watts"] == pytest.approx([2.282e-3, 2.115e-3, 2.105e-3, 1.844e-3], rel=1e-3)
    assert (port["temperature_celsius"], port["voltage_volts"]) == (61, pytest.approx(3.2355))
    assert (port["raw_error_ratio"], port["effective_error_ratio"]) == (5e-10, 1.5e-254)
    assert port["fec"] == "Standard_RS-FEC - (544,514)" and port["recommendation"] == "No issue was observed"
    assert (port["problem"], port["alarms"], port["warnings"]) == (None, [], [])
    assert figures([port])["link_bit_error_ratio", "link:mlx5_1:1"] == 1.5e-254
    [port] = look(machine, mlxlink=golden(MLXLINK).replace("3.233", "-12.1"))
    assert port["warnings"] == ["RX power of lane 3 -12.10 dBm, low warning threshold -9.91 dBm"]


def test_mlxlink_is_asked_only_for_nvidia_ports_and_only_to_read(machine, golden):
    calls = []

    def run(tool, *arguments, timeout):
        calls.append((tool, *arguments))
        return tools.ToolResult(tool, missing=tool == "mlxlink", returncode=None if tool == "mlxlink" else 0)

    machine.network_port("a")
    machine.network_port("b", driver="ionic")
    ports = optics.facts(Tree(str(machine)), run)
    assert sorted(set(calls)) == [
        ("ethtool", "-I", "--show-fec", "a"), ("ethtool", "-I", "--show-fec", "b"), ("ethtool", "-m", "a"),
        ("ethtool", "-m", "b"), ("mlxlink", "-d", "0000:e0:00.0", "-m", "-c", "--json"),
        ("mstlink", "-d", "0000:e0:00.0", "-m", "-c", "--json"),
    ]  # fmt: skip
    assert optics.untested(ports)["bit errors of a"] == "mstlink printed nothing that can be read"


@pytest.mark.parametrize(("minutes", "judged"), [(2718.1, True), (126, True), (124, False)])
def test_a_ratio_of_too_few_bits_is_not_judged(machine, golden, minutes, judged):
    machine.infiniband_port()
    output = golden(MLXLINK).replace("2718.1", str(minutes)).replace("15E-255", "4E-15")
    ports = look(machine, mlxlink=output)
    assert figures(ports).get(("link_bit_error_ratio", "link:mlx5_1:1")) == (4e-15 if judged else None)
    symbols = output.replace('"Raw Physical BER":', '"Symbol BER": "1E-16",\n"Raw Physical BER":')
    assert figures(look(machine, mlxlink=symbols)).get(("link_bit_error_ratio", "link:mlx5_1:1")) == (
        1e-16 if judged else None
    )


def test_a_port_that_lost_its_link_more_often_than_its_peers_stands_out(machine):
    for number, downs in enumerate((2, 2, 2, 9, 1)):
        machine.network_port(f"ens{number}", downs=downs)
    machine.network_port("uplink", driver="bnxt_en", downs=50)
    excess = {
        scope: value for (name, scope), value in figures(look(machine)).items() if name == "link_excess_downs_count"
    }
    assert excess == {"link:ens0": 0, "link:ens1": 0, "link:ens2": 0, "link:ens3": 7, "link:ens4": 0}


def test_ports_that_the_node_does_not_need_give_a_warning_at_most(machine, golden):
    hot = changed(golden(MODULES[0]), "Module temperature", "80.00 degrees C / 176.00 degrees F")
    for name, rdma, driver in (
        ("storage", None, "ice"),
        ("rail", "mlx5_0", "mlx5_core"),
        ("gaudi", None, "habanalabs"),
    ):
        machine.network_port(name, rdma=rdma, driver=driver)
    found = figures(look(machine, ethtool=hot))
    assert {s: v for (n, s), v in found.items() if n == "optics_alarm_count"} == {
        "link:gaudi": 1,
        "link:rail": 1,
        "link:storage": 0,
    }
    assert found["optics_warning_count", "link:storage"] == 1


def test_which_ports_count(machine):
    machine.network_port("slow", rdma=None, speed=10_000)
    machine.network_port("fast", rdma=None, speed=25_000)
    machine.network_port("down", rdma=None, speed=-1, is_up=False)
    machine.network_port("rdma_down", speed=-1, is_up=False)
    machine.network_port("function")
    (machine.root / "sys/class/net/function/device/physfn").symlink_to("../0000:00:00.0")
    machine.write("sys/class/net/ib0/type", "32\n")
    machine.write("sys/class/net/veth1/type", "1\n")
    machine.infiniband_port("mlx5_8", "ib0")
    machine.infiniband_port("mlx5_9", phys_state="2: Polling")
    ports = {port["name"]: (port["interface"], port["has_link"]) for port in look(machine)}
    assert ports == {
        "fast": ("fast", True), "rdma_down": ("rdma_down", False), "mlx5_8:1": ("ib0", True), "mlx5_9:1": (None, False),
    }  # fmt: skip


def hostile_texts(golden, seed):
    """Outputs as broken tools could print them, each other than the last."""
    chance = random.Random(seed)
    text = golden(chance.choice([*MODULES, MLXLINK]))
    words = [
        "-inf",
        "nan",
        "N/A",
        "1" * 400,
        "1e999",
        "-1e308",
        "38,00",
        "\0",
        "\ufffd",
        "٣",
        "",
        "[",
        "..",
        "{}",
        "null",
        "0x7f",
    ]
    for _ in range(chance.randrange(1, 9)):
        kind = chance.randrange(4)
        if kind == 0:
            text = text[: chance.randrange(len(text) + 1)]
        elif kind == 1:
            lines = text.splitlines(keepends=True)
            text = "".join(chance.sample(lines, chance.randrange(len(lines) + 1)))
        elif kind == 2:
            numbers = list(re.finditer(r"-?\d+(\.\d+)?", text)) or [re.match("", text)]
            number = chance.choice(numbers)
            text = text[: number.start()] + chance.choice(words) + text[number.end() :]
        else:
            place = chance.randrange(len(text) + 1)
            text = text[:place] + chance.choice(words) * chance.randrange(1, 50) + text[place:]
    return text


@pytest.mark.parametrize("seed", range(30))
def test_hostile_output_never_raises_and_gives_plain_facts(machine, golden, seed):
    machine.network_port()
    machine.infiniband_port()
    for number in range(20):
        text = hostile_texts(golden, 20 * seed + number)
        ports = look(machine, ethtool=text, mlxlink=text, fec=text.replace("Module", "corrected_blocks: "))
        assert all(port["problem"] != optics.LATE for port in ports), "a task raised"
        assert len(json.dumps([ports, optics.metrics(ports), optics.untested(ports)], allow_nan=False)) < 16_000
        assert all(len(words) < 200 for words in optics.in_words(ports))


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", '{"result": 1}', '{"result": {"output": []}, "status": {"code": 0}}', "[" * 100_000,
     '{"result": {"output": {"Module Info": 1}}, "status": {"code": 0}}', '{"status": {"code": 1}, "result": {}}',
     '{"result": {"output": {"a": {"Temperature [C]": "9"}}}, "status": {"code": 1, "message": "no permission"}}'],
)  # fmt: skip
def test_an_answer_of_mlxlink_without_fields_is_none(text):
    assert optics.mlxlink_fields(text) == {}


def test_powers_in_decibels_stay_finite():
    quantity = optics.QUANTITIES["rx_power_watts"]
    for text in ("99999", "-99999", "nan", "N/A", "1e308"):
        value = optics._of_mlxlink(quantity, text)
        assert value is None or math.isfinite(value)
