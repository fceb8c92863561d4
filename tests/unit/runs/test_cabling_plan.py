"""The declared cabling plan: what a file may look like, and what is refused in one line."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import cabling_plan

NODES = ("node01", "node02", "node03")
HEADER = "node,port,switch,switch_port\n"
CABLES = {
    "node01": [("node01", "eth4", "leaf1", "Ethernet1/1"), ("node01", "mlx5_0", "ib-leaf1", "1")],
    "node02": [("node02", "0000:5e:00.0", "leaf1.dc.example", "Ethernet1/2")],
}


def text_of(separator=",", end="\n", space="", tail=""):
    rows = [cabling_plan.COLUMNS, *(cable for cables in CABLES.values() for cable in cables)]
    return "".join(f"{(space + separator + space).join(row)}{tail}{end}" for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        text_of(),
        "\ufeff" + text_of(),
        text_of(end="\r\n"),
        text_of(separator=";"),
        text_of(separator="\t"),
        text_of(space=" "),
        text_of(tail=","),  # of all rows: a column without a name
        "# the plan of hall 2\n\n" + text_of().replace("\nnode02", "\n\n  # second rack\nnode02"),
    ],
    ids=["plain", "bom", "crlf", "semicolons", "tabs", "spaces", "trailing commas", "comments"],
)
def test_a_plan_as_editors_and_spreadsheets_save_it(tmp_path, text):
    path = tmp_path / "cabling.csv"
    path.write_bytes(text.encode())
    assert cabling_plan.read(path, NODES) == CABLES


def test_columns_in_any_order_beside_others():
    text = "Cable;Switch Port;SWITCH;Node;Port\nC-001;Eth1/1;leaf1;node01;eth4\n"
    assert cabling_plan.parse(text, "c.csv", NODES) == {"node01": [("node01", "eth4", "leaf1", "Eth1/1")]}


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("", 1, "the column node is missing: write node,port,switch,switch_port"),
        ("node01,eth4,leaf1,Ethernet1/1\n", 1, "the column node is missing"),
        ("node,port,switch,switchport\n", 1, "the column switch_port is missing; is it switchport?"),
        ("node,port,port,switch,switch_port\n", 1, "the column port is there twice"),
        ("node|port|switch|switch_port\n", 1, "with commas (or semicolons or tabs)"),
        ("node port switch switch_port\n", 1, "with commas (or semicolons or tabs)"),
        (f"{HEADER}node1,eth4,leaf1,1\n", 2, "the inventory has no node node1; is it node01?"),
        (f"{HEADER}\n# x\nspare-7,eth4,leaf1,1\n", 4, "no node spare-7: write names as the inventory has them"),
        (f"{HEADER}node01,eth4,leaf1,1\nnode01,ETH4,leaf1,2\n", 3, "node01 ETH4 is in line 2, too: keep one"),
        (f"{HEADER}node01,5e:00.0,leaf1,1\nnode01,0000:5E:00.0,leaf1,2\n", 3, "is in line 2, too"),
        (
            f"{HEADER}node01,eth4,leaf1,Eth1/1\nnode02,eth4,LEAF1,Ethernet1/1\n",
            3,
            "has a cable in line 2, too: correct",
        ),
        (f"{HEADER}node01,eth4,leaf1,1,\n", 2, "5 cells, and the header has 4: remove the comma at its end"),
        (f"{HEADER}node01,eth4,leaf1\n", 2, "3 cells, and the header has 4: write one cell for each column"),
        (f"{HEADER}node01;eth4;leaf1;1\n", 2, "1 cells, and the header has 4"),
        (f"{HEADER}node01,eth4,,1\n", 2, "switch is empty: write its name, or remove the row"),
        (f"{HEADER}node01,{'e' * 200},leaf1,1\n", 2, "port is too long"),
        (f'{HEADER}node01,"eth4,leaf1,1\n', 2, "is not CSV"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_number(text, line, told):
    with pytest.raises(SettingError) as error:
        cabling_plan.parse(text, "cabling.csv", NODES)
    assert str(error.value).startswith(f"cabling.csv line {line}")
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_plan_without_rows_or_text_is_refused(tmp_path):
    with pytest.raises(SettingError, match="has no row below its header"):
        cabling_plan.parse(HEADER, "cabling.csv", NODES)
    with pytest.raises(SettingError, match=r"cabling plan, .*cannot be read"):
        cabling_plan.read(tmp_path / "none.csv", NODES)
    (tmp_path / "utf16.csv").write_bytes(HEADER.encode("utf-16"))
    with pytest.raises(SettingError, match="is not UTF-8"):
        cabling_plan.read(tmp_path / "utf16.csv", NODES)


def test_two_switches_of_one_name_in_two_domains_are_two():
    text = f"{HEADER}node01,eth4,leaf1.dc1.example,1\nnode02,eth4,leaf1.dc2.example,1\n"
    assert len(cabling_plan.parse(text, "c.csv", NODES)) == 2


@pytest.mark.parametrize(
    ("planned", "reported", "same"),
    [
        ("leaf1", "LEAF1.dc.example", True),
        ("leaf1.dc.example", "leaf1", True),
        ("leaf1.dc1", "leaf1.dc2", False),
        ("leaf1", "leaf10", False),
        ("7cfe.9011.2233", "7C:FE:90:11:22:33", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_names_of_switches(planned, reported, same):
    assert cabling_plan.is_switch(planned, reported) is same


@pytest.mark.parametrize(
    ("planned", "reported", "same"),
    [
        ("Ethernet1/5", "Eth1/5", True),
        ("1/5", "ethernet 1/5", True),
        ("swp1", "SWP1", True),
        ("Ethernet1/1", "Ethernet1/11", False),
        ("Ethernet1/5", "Ethernet1/5/1", False),
        ("ethos", "os", False),
    ],
)
def test_names_of_switch_ports(planned, reported, same):
    assert (cabling_plan.port_name(planned) == cabling_plan.port_name(reported)) is same


def test_a_host_keeps_its_own_cables_and_an_empty_list_where_the_plan_has_none():
    assert cabling_plan.of_host("node01", {}, CABLES.get) == {}
    hostvars = {cabling_plan.SETTING: "plan.csv"}
    cables = cabling_plan.of_host("node02", hostvars, {"plan.csv": CABLES}.get)
    assert cables == {"cabling": [{"port": "0000:5e:00.0", "switch": "leaf1.dc.example", "switch_port": "Ethernet1/2"}]}
    assert cabling_plan.of_host("node03", hostvars, {"plan.csv": CABLES}.get) == {"cabling": []}
