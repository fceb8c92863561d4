"""Racks: to which one a tray belongs, and what its verdict is; each check with the fault that it names."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import acceptance, racks, sku_catalogue
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.labels import CLIQUE_LABEL

from tests.kit.builders import metric
from tests.kit.rack_fleet import NO_UUID, RackFleet, chassis_of, uuid_of


def check_of(rack, name):
    return next(check for check in rack["checks"] if check["name"] == name)


def wrong(rack):
    """By check that did not pass its verdict and the nodes that it names."""
    return {
        check["name"]: (check["verdict"], check["nodes"])
        for check in rack["checks"]
        if check["verdict"] not in ("pass", "skipped")
    }


def nodes_of(rack):
    return {tray["node"]: tray["by"] for tray in rack["trays"]}


def verdicts(report):
    return {node["name"]: node["verdict"] for node in report["nodes"]}


@pytest.mark.parametrize("model", ["NVIDIA GB200", "NVIDIA GB300", "NVIDIA VR200"])
def test_whole_racks_pass_each_with_its_own_facts(model):
    report = RackFleet(2, model=model).judged()
    first, second = report["racks"]
    assert [rack["name"] for rack in report["racks"]] == ["r00", "r01"]
    assert (first["verdict"], first["class"], wrong(first), wrong(second)) == ("PASS", None, {}, {})
    assert (first["gpus"], first["expected_gpus"], first["expected_trays"]) == (72, 72, 18)
    assert (first["domain_uuid"], second["chassis_serial"], first["cliques"]) == (uuid_of(0), chassis_of(1), ["1"])
    assert nodes_of(first) == {f"r00-t{number:02}": "cluster_uuid" for number in range(18)}
    assert first["trays"][3]["place"] == "slot 3, tray 3, host 1"
    assert {node["rack"] for node in report["nodes"]} == {"r00", "r01"}
    assert all(check["expected"] and check["source"] for check in first["checks"])
    assert list(report_file.lines(report, what="the report"))


@pytest.mark.parametrize(
    ("model", "sku"), [("NVIDIA H200", "auto"), ("NVIDIA B200", "auto"), ("NVIDIA GH200 480GB", "auto"),
                       ("NVIDIA GB200", "gb200nvl4")]
)  # fmt: skip
def test_nodes_with_a_fabric_of_their_own_are_no_rack(model, sku):
    fleet = RackFleet(1, 8, model=model, sku=sku)
    for name in fleet.run["nodes"]:
        fleet.set(name, peer_type="Direct Connected")
    report = fleet.judged()
    assert "racks" not in report
    assert not any("rack" in node for node in report["nodes"])


def test_a_tray_with_a_dead_fabric_stays_in_its_rack_and_fails_it():
    fleet = RackFleet(2)
    fleet.break_fabric("r01-t05")
    del fleet.run["nodes"]["r01-t05"]["labels"]
    report = fleet.judged()
    good, bad = report["racks"]
    assert (good["verdict"], bad["verdict"], report["verdict"]) == ("PASS", "FAIL", "FAIL")
    assert nodes_of(bad)["r01-t05"] == "chassis_serial"
    assert len(bad["trays"]) == 18
    assert wrong(bad) == {
        name: (word, ["r01-t05"])
        for name, word in (("rack_domain", "missing"), ("rack_cliques", "missing"), ("rack_nodes", "fail"))
    }
    assert "slot 5, tray 5" in check_of(bad, "rack_nodes")["reason"]
    for gpu in fleet.gpus("r01-t05"):
        gpu["chassis_serial"] = None
    fleet.run["nodes"]["r01-t05"]["labels"] = {"rack": "r01"}
    assert nodes_of(fleet.judged()["racks"][1])["r01-t05"] == "label"


def test_a_silent_tray_is_in_the_rack_of_its_label():
    fleet = RackFleet(2)
    fleet.lose("r00-t07")
    rack = fleet.judged()["racks"][0]
    assert (rack["verdict"], rack["class"], nodes_of(rack)["r00-t07"]) == ("INCOMPLETE", "rack_nodes", "label")
    assert wrong(rack) == {"rack_nodes": ("missing", ["r00-t07"])}
    del fleet.run["nodes"]["r00-t07"]["labels"]
    report = fleet.judged()
    assert wrong(report["racks"][0]) == {"rack_trays": ("missing", [])}
    assert "rack" not in next(node for node in report["nodes"] if node["name"] == "r00-t07")


def test_the_label_of_kubernetes_names_the_domain_of_a_silent_tray():
    fleet = RackFleet(2)
    fleet.lose("r01-t02")
    fleet.run["nodes"]["r01-t02"]["labels"] = {CLIQUE_LABEL: f"{uuid_of(1).upper()}.1"}
    assert nodes_of(fleet.judged()["racks"][1])["r01-t02"] == "label"


def test_the_chassis_of_a_tray_counts_more_than_an_old_label_of_kubernetes():
    fleet = RackFleet(2)
    fleet.break_fabric("r00-t05")
    fleet.run["nodes"]["r00-t05"]["labels"][CLIQUE_LABEL] = f"{uuid_of(1)}.1"
    first, second = fleet.judged()["racks"]
    assert (nodes_of(first)["r00-t05"], second["verdict"]) == ("chassis_serial", "PASS")


def test_a_tray_that_was_left_out_makes_its_rack_incomplete_and_no_node():
    fleet = RackFleet(2)
    fleet.drop("r00-t09")
    report = fleet.judged()
    assert set(verdicts(report).values()) == {"PASS"}
    rack = report["racks"][0]
    assert (rack["verdict"], rack["class"], wrong(rack)) == (
        "INCOMPLETE",
        "rack_trays",
        {"rack_trays": ("missing", [])},
    )
    assert check_of(rack, "rack_trays")["reason"] == "17 of 18 trays"
    assert (report["racks"][1]["verdict"], report["verdict"]) == ("PASS", "INCOMPLETE")
    assert any(line.startswith("rack r00 INCOMPLETE rack_trays: 17 of 18 trays: ") for line in report["summary"])


def test_a_limited_run_has_no_whole_rack_and_is_partial():
    fleet = RackFleet(1, 3, narrowed_by=["limit"])
    report = fleet.judged()
    assert (report["racks"][0]["verdict"], report["verdict"]) == ("INCOMPLETE", "PARTIAL")
    fleet.set("r00-t01", firmware_version="97.00.00.00.00")
    report = fleet.judged()
    assert (report["racks"][0]["verdict"], report["verdict"]) == ("FAIL", "FAIL")


def test_the_site_declares_how_many_trays_it_has():
    fleet = RackFleet(1, 9)
    assert fleet.judged()["racks"][0]["verdict"] == "INCOMPLETE"
    fleet.declare(fleet.run["nodes"], trays=9)
    rack = fleet.judged()["racks"][0]
    assert (rack["verdict"], rack["expected_trays"], rack["expected_gpus"]) == ("PASS", 9, 36)


def test_a_tray_of_another_rack_in_the_domain_fails_that_rack_and_is_missed_in_its_own():
    fleet = RackFleet(2)
    fleet.drop("r00-t03")
    fleet.set("r01-t03", fabric_cluster_uuid=uuid_of(0))
    fleet.run["nodes"]["r01-t03"]["labels"] = {"rack": "r01"}
    report = fleet.judged()
    first, second = report["racks"]
    assert wrong(first) == {"rack_chassis": ("fail", ["r01-t03"]), "rack_labels": ("warn", ["r01-t03"])}
    assert first["verdict"] == "FAIL"
    assert wrong(second) == {"rack_trays": ("missing", [])}
    assert "r01-t03 (slot 3, tray 3, host 1) has its chassis serial" in check_of(second, "rack_trays")["reason"]
    assert set(verdicts(report).values()) == {"PASS"}


@pytest.mark.parametrize(
    ("moved", "verdict", "named"), [(1, "fail", 1), (6, "fail", 6), (7, "missing", 0), (9, "missing", 0)]
)
def test_a_rack_in_two_domains_is_one_rack_that_does_not_pass(moved, verdict, named):
    fleet = RackFleet(1)
    names = [*fleet.run["nodes"]][:moved]
    for name in names:
        fleet.set(name, fabric_cluster_uuid=uuid_of(7))
    (rack,) = fleet.judged()["racks"]
    assert wrong(rack) == {"rack_domain": (verdict, names[:named])}
    assert rack["verdict"] == ("FAIL" if verdict == "fail" else "INCOMPLETE")
    assert uuid_of(7) in check_of(rack, "rack_domain")["reason"]


def test_two_domains_of_one_label_are_two_racks():
    fleet = RackFleet(2)
    for name in fleet.run["nodes"]:
        fleet.run["nodes"][name]["labels"] = {"rack": "row-b"}
    report = fleet.judged()
    assert [rack["name"] for rack in report["racks"]] == [f"row-b {chassis_of(number)}" for number in (0, 1)]
    assert report["counts"]["PASS"] == 36
    assert {rack["verdict"] for rack in report["racks"]} == {"PASS"}


def test_racks_with_one_label_and_one_serial_have_names_of_their_own():
    fleet = RackFleet(2)
    for name in fleet.run["nodes"]:
        fleet.run["nodes"][name]["labels"] = {"rack": "row-b"}
        fleet.set(name, chassis_serial="X")
    first, second = fleet.judged()["racks"]
    assert [first["name"], second["name"]] == [f"row-b X {uuid_of(number)}" for number in (0, 1)]
    assert check_of(first, "rack_chassis")["reason"] == f"row-b and {uuid_of(1)} report one chassis serial, X"


def test_one_gpu_in_another_clique_is_named_with_its_tray_and_slot():
    fleet = RackFleet(1)
    fleet.set("r00-t06", gpus=[2], fabric_clique=7)
    (rack,) = fleet.judged()["racks"]
    assert wrong(rack) == {"rack_cliques": ("fail", ["r00-t06"])}
    assert "r00-t06 (gpu:2, slot 6, tray 6, host 1) has 7" in check_of(rack, "rack_cliques")["reason"]


def test_cliques_are_those_of_the_declared_partitions():
    fleet = RackFleet(1)
    first, second = [*fleet.run["nodes"]][:9], [*fleet.run["nodes"]][9:]
    for name in second:
        fleet.set(name, fabric_clique=2)
    (rack,) = fleet.judged()["racks"]
    assert wrong(rack) == {"rack_cliques": ("missing", [])}, "partitions that the site did not declare fail nothing"
    fleet.declare(first, partition="a")
    fleet.declare(second, partition="b")
    assert wrong(fleet.judged()["racks"][0]) == {}
    fleet.set(second[4], fabric_clique=1)
    assert wrong(fleet.judged()["racks"][0]) == {"rack_cliques": ("fail", [second[4]])}
    for name in second:
        fleet.set(name, fabric_clique=1)
    assert wrong(fleet.judged()["racks"][0]) == {"rack_cliques": ("missing", [])}, "two partitions in one clique"
    del fleet.run["nodes"][first[0]]["declared"]
    reason = check_of(fleet.judged()["racks"][0], "rack_cliques")["reason"]
    assert reason == "partitions (undeclared) and a and b have one clique"


def test_silent_trays_of_two_partitions_have_no_clique_in_common():
    fleet = RackFleet(1)
    first, second = [*fleet.run["nodes"]][:9], [*fleet.run["nodes"]][9:]
    fleet.declare(first, partition="a")
    fleet.declare(second, partition="b")
    for name in second:
        fleet.set(name, fabric_clique=2)
    fleet.lose(first[0])
    fleet.lose(second[0])
    assert wrong(fleet.judged()["racks"][0]) == {"rack_nodes": ("missing", [first[0], second[0]])}


def test_two_chassis_in_one_domain_are_declared():
    fleet = RackFleet(1)
    for name in [*fleet.run["nodes"]][9:]:
        fleet.set(name, chassis_serial=chassis_of(5))
    assert wrong(fleet.judged()["racks"][0]) == {"rack_chassis": ("missing", [])}
    fleet.declare(fleet.run["nodes"], chassis=2)
    assert wrong(fleet.judged()["racks"][0]) == {}


def test_racks_that_report_one_chassis_do_not_pass():
    fleet = RackFleet(3)
    for number in range(18):
        fleet.set(f"r02-t{number:02}", chassis_serial=chassis_of(0))
    first, second, third = fleet.judged()["racks"]
    assert [rack["verdict"] for rack in (first, second, third)] == ["INCOMPLETE", "PASS", "INCOMPLETE"]
    assert check_of(first, "rack_chassis")["reason"] == f"r00 and r02 report one chassis serial, {chassis_of(0)}"
    assert check_of(third, "rack_chassis")["verdict"] == "missing"


def test_a_tray_of_another_rack_is_compared_with_its_own():
    fleet = RackFleet(2)
    for number in range(18):
        fleet.set(f"r01-t{number:02}", firmware_version="97.00.99.00.00")
    fleet.drop("r00-t03")
    fleet.set("r01-t03", fabric_cluster_uuid=uuid_of(0))
    first, _ = fleet.judged()["racks"]
    assert [name for name, (word, _) in wrong(first).items() if word == "fail"] == ["rack_chassis"]


@pytest.mark.parametrize(("trays", "word"), [(18, "warn"), (10, "warn"), (9, "pass"), (1, "pass")])
def test_a_link_that_is_bad_on_most_gpus_names_its_plane(trays, word):
    fleet = RackFleet(1)
    for number, name in enumerate(fleet.run["nodes"]):
        for gpu in fleet.gpus(name):
            gpu["nvlinks"] = [{"link": link, "is_up": True, "errors": 4000 if link == 9 and number < trays else 2}
                              for link in range(18)]  # fmt: skip
    (rack,) = fleet.judged()["racks"]
    found = check_of(rack, "rack_links")
    assert (rack["verdict"], found["verdict"]) == ("PASS", word)
    assert word == "pass" or f"link 9 is down or has many errors on {4 * trays} of 72 GPUs" in found["reason"]


def test_two_trays_in_one_place_are_both_named():
    fleet = RackFleet(1)
    fleet.set("r00-t04", chassis_slot=11, tray_index=11)
    (rack,) = fleet.judged()["racks"]
    assert wrong(rack) == {"rack_slots": ("fail", ["r00-t04", "r00-t11"])}
    fleet.set("r00-t04", host_id=2)
    assert wrong(fleet.judged()["racks"][0]) == {}, "a slot may have several hosts"
    for name in fleet.run["nodes"]:
        fleet.set(name, chassis_slot=0, tray_index=0, host_id=0)
    assert wrong(fleet.judged()["racks"][0]) == {"rack_slots": ("missing", [])}


def test_platforms_that_hide_chassis_and_slot_are_no_fault():
    fleet = RackFleet(1)
    for name in fleet.run["nodes"]:
        fleet.set(name, chassis_serial=None, chassis_slot=None, tray_index=None, host_id=None)
    (rack,) = fleet.judged()["racks"]
    assert (rack["verdict"], rack["chassis_serial"], wrong(rack)) == ("PASS", None, {})


@pytest.mark.parametrize(
    ("field", "check", "word"),
    [("driver_version", "rack_driver", "fail"), ("firmware_version", "rack_vbios", "fail")],
)
def test_a_tray_with_other_software_is_named(field, check, word):
    fleet = RackFleet(1)
    fleet.set("r00-t08", **{field: "1.2.3"})
    (rack,) = fleet.judged()["racks"]
    assert wrong(rack) == {check: (word, ["r00-t08"])}
    assert "r00-t08 (slot 8, tray 8, host 1) has 1.2.3" in check_of(rack, check)["reason"]
    for name in [*fleet.run["nodes"]][:9]:
        fleet.set(name, **{field: "1.2.3"})
    assert wrong(fleet.judged()["racks"][0]) == {check: ("missing", [])}


@pytest.mark.parametrize(("field", "check"), [("bios_version", "rack_bios"), ("bmc_version", "rack_bmc")])
def test_other_firmware_of_the_board_is_advice(field, check):
    fleet = RackFleet(1)
    fleet.evidence.records["r00-t08"]["facts"]["environment"]["firmware"][field] = "0.1"
    (rack,) = fleet.judged()["racks"]
    assert (rack["verdict"], wrong(rack)) == ("PASS", {check: ("warn", ["r00-t08"])})


def test_imex_is_ready_where_a_domain_is_configured():
    fleet, addresses = RackFleet(1), [f"10.0.0.{number}" for number in range(18)]
    assert check_of(fleet.judged()["racks"][0], "rack_imex")["verdict"] == "skipped", "idle IMEX is no fault"
    nodes = [{"node": number, "address": address, "state": "READY"} for number, address in enumerate(addresses)]
    for name in fleet.run["nodes"]:
        fleet.imex(name, service="active", configured=addresses, domain="UP", nodes=[dict(node) for node in nodes])
    assert check_of(fleet.judged()["racks"][0], "rack_imex")["verdict"] == "pass"
    fleet.evidence.records["r00-t02"]["facts"]["environment"]["imex"]["nodes"][5]["state"] = "UNAVAILABLE"
    fleet.imex("r00-t05", nodes=[], problem="it lists no node")
    (rack,) = fleet.judged()["racks"]
    assert wrong(rack) == {"rack_imex": ("missing", ["r00-t05"])}
    reason = check_of(rack, "rack_imex")["reason"]
    assert "10.0.0.5 UNAVAILABLE, seen by r00-t02" in reason
    assert "r00-t05 (slot 5, tray 5, host 1): it lists no node" in reason


def test_a_tray_in_an_imex_domain_of_its_own_is_named():
    fleet = RackFleet(1)

    def configure(names):
        addresses = [f"10.0.0.{name[-2:]}" for name in names]
        for name in names:
            fleet.imex(name, configured=addresses, nodes=[{"address": each, "state": "READY"} for each in addresses])

    names = [*fleet.run["nodes"]]
    configure(names[:9])
    configure(names[9:])
    assert wrong(fleet.judged()["racks"][0]) == {}, "a rack may have several IMEX domains"
    configure([name for name in names if name != "r00-t04"])
    configure(["r00-t04"])
    (rack,) = fleet.judged()["racks"]
    assert wrong(rack) == {"rack_imex": ("missing", ["r00-t04"])}
    assert check_of(rack, "rack_imex")["reason"] == (
        "IMEX domains differ: r00-t04 (slot 4, tray 4, host 1) is in a domain of 10.0.0.04"
    )


def test_a_tray_with_three_gpus_is_named():
    fleet = RackFleet(1)
    record = fleet.evidence.records["r00-t10"]["facts"]
    record["metrics"][0]["value"] = record["metrics"][1]["value"] = record["environment"]["accelerator"]["count"] = 3
    del record["environment"]["gpus"][3]
    (rack,) = fleet.judged()["racks"]
    assert (rack["gpus"], rack["verdict"]) == (71, "FAIL"), "the node fails by its own checks"
    assert wrong(rack) == {"rack_gpus": ("missing", ["r00-t10"]), "rack_nodes": ("fail", ["r00-t10"])}
    assert check_of(rack, "rack_gpus")["reason"] == "71 of 72 GPUs: r00-t10 (slot 10, tray 10, host 1) has 3"


def test_wrong_labels_are_advice():
    fleet = RackFleet(2)
    fleet.run["nodes"]["r00-t03"]["labels"] = {"rack": "r01"}
    fleet.run["nodes"]["r01-t04"]["labels"][CLIQUE_LABEL] = f"{uuid_of(0)}.1"
    report = fleet.judged()
    assert [wrong(rack) for rack in report["racks"]] == [
        {"rack_labels": ("warn", ["r00-t03"])}, {"rack_labels": ("warn", ["r01-t04"])}
    ]  # fmt: skip
    assert {rack["verdict"] for rack in report["racks"]} == {"PASS"}


def test_trays_that_nothing_attributes_are_an_unknown_rack():
    fleet = RackFleet(1, 2)
    for name in fleet.run["nodes"]:
        fleet.set(name, fabric_cluster_uuid=NO_UUID, fabric_clique=0, chassis_serial=None)
        del fleet.run["nodes"][name]["labels"]
    (rack,) = fleet.judged()["racks"]
    assert (rack["name"], rack["verdict"], rack["class"]) == ("unknown", "INCOMPLETE", "rack_trays")


def test_other_nodes_of_the_rack_are_no_trays():
    fleet = RackFleet(1)
    fleet.run["nodes"] |= {"login": {"stages": ["facts"], "sku": "cpu", "gpu_count": None, "labels": {"rack": "r00"}}}
    (rack,) = fleet.judged()["racks"]
    assert "login" not in nodes_of(rack)
    assert rack["verdict"] == "PASS"
    fleet.drop("r00-t04")
    fleet.run["nodes"] |= {"hgx": {"stages": ["facts"], "sku": "h200", "gpu_count": None, "labels": {"rack": "r00"}}}
    (rack,) = fleet.judged()["racks"]
    assert nodes_of(rack).keys().isdisjoint({"login", "hgx"})
    assert check_of(rack, "rack_trays")["reason"] == "17 of 18 trays", "which are in no other domain either"


def without_gpus(fleet, name, *, expected):
    record = fleet.evidence.records[name]["facts"]
    record["environment"] |= {"gpus": [], "accelerator": {"vendor": "cpu", "count": 0}}
    record["metrics"] = [metric("gpu_count", 0)]
    fleet.run["nodes"][name]["gpu_count"] = expected


@pytest.mark.parametrize(("sku", "expected"), [("auto", 4), ("auto", None), ("gb200", None)])
def test_a_tray_that_lost_all_gpus_stays_in_the_rack_of_its_label(sku, expected):
    fleet = RackFleet(1)
    without_gpus(fleet, "r00-t04", expected=expected)
    fleet.run["nodes"]["r00-t04"]["sku"] = sku
    (rack,) = fleet.judged()["racks"]
    assert wrong(rack)["rack_gpus"] == ("missing", ["r00-t04"])
    assert wrong(rack)["rack_nodes"][1] == ["r00-t04"]
    assert "rack_trays" not in wrong(rack)


def test_a_tray_of_a_model_that_is_not_known_is_in_the_rack_of_its_domain():
    fleet = RackFleet(1)
    for gpu in fleet.gpus("r00-t04"):
        gpu["name"] = "NVIDIA Graphics Device"
    (rack,) = fleet.judged()["racks"]
    assert nodes_of(rack)["r00-t04"] == "cluster_uuid"
    assert wrong(rack)["rack_model"] == ("fail", ["r00-t04"])


def test_virtual_machines_with_one_gpu_are_no_trays_whatever_their_label():
    fleet = RackFleet(1, 4)
    for name in fleet.run["nodes"]:
        del fleet.gpus(name)[1:]
        fleet.set(name, [0], fabric_cluster_uuid=None, fabric_clique=None, chassis_serial=None)
        fleet.run["nodes"][name]["gpu_count"] = 1
    assert "racks" not in fleet.judged()


def test_two_trays_whose_platform_tells_no_place_are_not_named():
    fleet = RackFleet(1, 2)
    for name in fleet.run["nodes"]:
        fleet.set(name, chassis_slot=0, tray_index=0)
    assert check_of(fleet.judged()["racks"][0], "rack_slots")["verdict"] == "missing"


def test_small_racks_with_one_label_and_no_serial_share_no_place():
    fleet = RackFleet(2, 9)
    for name in fleet.run["nodes"]:
        fleet.run["nodes"][name]["labels"] = {"rack": "row-b"}
        fleet.set(name, chassis_serial=None)
    assert [wrong(rack) for rack in fleet.judged()["racks"]] == [{"rack_domain": ("missing", [])}]
    fleet.declare(fleet.run["nodes"], trays=9)
    assert [rack["verdict"] for rack in fleet.judged()["racks"]] == ["PASS", "PASS"]


def test_labels_of_which_none_is_usual_are_described():
    fleet = RackFleet(1)
    for name in fleet.run["nodes"]:
        fleet.run["nodes"][name]["labels"] = {"rack": name}
    (rack,) = fleet.judged()["racks"]
    assert "is labelled r00-t00, the others differently" in check_of(rack, "rack_labels")["reason"]


def test_more_trays_than_a_rack_has_are_counted():
    fleet = RackFleet(2)
    for name in fleet.run["nodes"]:
        fleet.set(name, fabric_cluster_uuid=uuid_of(0))
    (rack,) = fleet.judged()["racks"]
    assert check_of(rack, "rack_trays")["reason"] == "36 trays instead of 18"


def test_the_order_of_nodes_does_not_count():
    fleet = RackFleet(3)
    fleet.set("r01-t03", fabric_cluster_uuid=uuid_of(0))
    fleet.break_fabric("r02-t05")
    before = fleet.judged()["racks"]
    fleet.run["nodes"] = dict(reversed(fleet.run["nodes"].items()))
    assert fleet.judged()["racks"] == before


@pytest.mark.parametrize("text", [None, 7, [], {}, "", "x" * 4000, "<b>&\x1b[31m", {"gpus": "none"}, -1])
def test_facts_of_any_form_are_judged(text):
    fleet = RackFleet(1, 4)
    fleet.set("r00-t01", chassis_serial=text, fabric_cluster_uuid=text, fabric_clique=text, chassis_slot=text)
    fleet.imex("r00-t02", configured=text, nodes=text, problem=text)
    fleet.set("r00-t03", nvlinks=[{"link": text, "is_up": text, "errors": text}] if text != -1 else text)
    report = fleet.judged()
    assert list(report_file.lines(report, what="the report"))
    assert report["racks"][0]["verdict"] != "PASS"


@pytest.mark.parametrize("count", [1e300, 2**62, -5, 3.5])
def test_a_tray_may_report_any_number_of_gpus(count):
    fleet = RackFleet(1)
    metrics = fleet.evidence.records["r00-t05"]["facts"]["metrics"]
    metrics[0]["value"] = metrics[1]["value"] = count
    report = fleet.judged()
    assert list(report_file.lines(report, what="the report"))
    assert report["racks"][0]["verdict"] != "PASS"
    assert report["racks"][0]["gpus"] <= 17 * 4 + acceptance.MAX_GPUS


def test_every_rack_of_the_catalogue_is_whole_trays():
    shapes = {sku.name: sku.rack_trays for sku in sku_catalogue.shipped() if sku.rack_trays}
    assert shapes == {"gb200": 18, "gb300": 18, "vr200": 18}
    for sku in sku_catalogue.shipped():
        assert sku.links.get("domain_gpus", 0) == sku.rack_trays * (sku.node_gpus or 0)


def put_down(fleet, tray, *links):
    """Links that are down on all four GPUs of a tray, as the facts report them."""
    fleet.set(tray, nvlinks=[{"link": link, "is_up": link not in links, "errors": 0} for link in range(18)])
    scopes = ("gpu:0", "gpu:1", "gpu:2", "gpu:3")
    metrics = fleet.evidence.records[tray]["facts"]["metrics"]
    metrics[:] = [metric for metric in metrics if metric["name"] != "gpu_nvlinks_up_count"]
    for scope in scopes:
        row = {"name": "gpu_nvlinks_up_count", "value": 18 - len(links), "unit": "count", "scope": scope}
        metrics.append(row)


def test_a_dead_switch_plane_fails_the_rack_and_no_tray():
    """But a tray with a further link that is down, and one whose link alone is down."""
    fleet = RackFleet(2)
    for number in range(18):
        put_down(fleet, f"r00-t{number:02}", 9)
    put_down(fleet, "r00-t05", 9, 3)
    put_down(fleet, "r01-t02", 9)
    report = fleet.judged()
    first, second = report["racks"]
    assert (first["verdict"], first["class"]) == ("FAIL", "rack_planes")
    assert check_of(first, "rack_planes")["reason"] == "link 9 is down on 72 of 72 GPUs"
    assert check_of(second, "rack_planes")["verdict"] == "pass"
    verdicts = {node["name"]: (node["verdict"], node["class"]) for node in report["nodes"]}
    failed = {name for name, (verdict, _) in verdicts.items() if verdict == "FAIL"}
    assert failed == {"r00-t05", "r01-t02"}
    assert {verdicts[f"r00-t{number:02}"] for number in range(18) if number != 5} == {("INCOMPLETE", "nvlink_plane")}


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_trays_whose_links_are_down_do_not_blame_a_switch(count):
    fleet = RackFleet(1, count, narrowed_by=["limit"])
    for name in fleet.run["nodes"]:
        put_down(fleet, name, 9)
    report = fleet.judged()
    assert set(verdicts(report).values()) == {"FAIL"}
    assert check_of(report["racks"][0], "rack_planes")["verdict"] == "pass"


def test_a_tray_that_lists_its_links_over_and_over_blames_no_switch():
    fleet = RackFleet(1)
    for gpu in fleet.gpus("r00-t04"):
        gpu["nvlinks"] = [{"link": 9, "is_up": False}] * 99
    assert check_of(fleet.judged()["racks"][0], "rack_planes")["verdict"] == "pass"


def lacking(fleet, field):
    for name in fleet.run["nodes"]:
        fleet.set(name, **{field: None})


DECIDING = {
    "rack_trays": lambda fleet: fleet.drop("r00-t02"),
    "rack_chassis": lambda fleet: fleet.set("r00-t02", chassis_serial=chassis_of(4)),
    "rack_slots": lambda fleet: fleet.set("r00-t02", chassis_slot=1, tray_index=1),
    "rack_domain": lambda fleet: fleet.set("r00-t02", fabric_cluster_uuid=uuid_of(4)),
    "rack_cliques": lambda fleet: fleet.set("r00-t02", fabric_clique=4),
    "rack_gpus": lambda fleet: fleet.evidence.records["r00-t02"]["facts"]["metrics"].pop(0),
    "rack_planes": lambda fleet: [put_down(fleet, f"r00-t{number:02}", 9) for number in range(18)],
    "rack_model": lambda fleet: fleet.gpus("r00-t02")[0].update(name="NVIDIA GB300"),
    "rack_driver": lambda fleet: lacking(fleet, "driver_version"),
    "rack_vbios": lambda fleet: lacking(fleet, "firmware_version"),
    "rack_imex": lambda fleet: fleet.imex("r00-t02", configured=["10.0.0.1"], problem="timed out"),
    "rack_nodes": lambda fleet: fleet.lose("r00-t02"),
}


@pytest.mark.parametrize("name", [check.name for check in racks.CHECKS if check.severity == "required"])
def test_each_check_can_decide_against_a_rack(name):
    fleet = RackFleet(1)
    DECIDING[name](fleet)
    (rack,) = fleet.judged()["racks"]
    assert (rack["class"], rack["verdict"] == "PASS") == (name, False)
    assert check_of(rack, name)["remedy"]
