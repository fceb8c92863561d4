"""What the NVLink fabric of a node means for its verdict, by its SKU; facts are from real logs of nvidia-smi."""

import re
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import collect
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import sku_catalogue
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, judge, make_record, make_run
from tests.unit.hardware.test_fabric import STATES, with_fabric

DATA = Path(__file__).parents[1] / "hardware/data"
GB200, H200 = ((DATA / f"nvidia_smi_v13_{name}.xml").read_text() for name in ("gb200", "h200x4"))
FABRIC = [check for check in SHIPPED if "_fabric" in check.name or "_nvlinks_" in check.name]


@pytest.fixture
def node_of(tmp_path):
    """The judged node whose nvidia-smi prints a log."""

    def judged(log, gpu_count=None, sku="auto"):
        tool = tmp_path / "usr/bin/nvidia-smi"
        tool.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "log.xml").write_text(log)
        tool.write_text(f"#!/bin/sh\n[ $1 = -q ] && exec cat {tmp_path}/log.xml\nexit 1\n")
        tool.chmod(0o755)
        facts = collect.facts_result(str(tmp_path), "auto")
        record = make_record("node-1", "facts", **{key: facts[key] for key in ("metrics", "environment", "message")})
        evidence = RunEvidence(records={"node-1": {"facts": record}}, launches={"node-1": {"state": "started"}})
        run = make_run(stages=["facts"], gpu_count=gpu_count, sku=sku, profile="standard", workloads={"facts": "facts"})
        return judge(run, evidence, FABRIC)["nodes"][0]

    return judged


def failed(node):
    return {check["name"] for check in node["checks"] if check["verdict"] == "fail"}


@pytest.mark.parametrize("state", STATES)
def test_a_tray_passes_only_if_all_of_its_gpus_joined(node_of, state):
    node = node_of(with_fabric(GB200, STATES[state][0]))
    assert node["catalogue_sku"] == "gb200"
    joined, has_clique, not_ready = STATES[state][2]
    expected = {
        name
        for name, is_bad in (
            ("facts_gpu_fabric_joined_gb200", not joined),
            ("facts_gpu_fabric_clique_gb200", not has_clique),
            ("facts_gpu_fabric", not_ready),
        )
        if is_bad
    }
    assert failed(node) == expected
    if state == "joined":
        assert node["verdict"] == "PASS"
    else:
        assert node["verdict"] == "FAIL"
        assert (node["class"].startswith("facts_gpu_fabric"), node["action"]["name"]) == (True, "reboot")
        assert all(check["remedy"] for check in node["checks"] if check["verdict"] == "fail")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("log", "model"),
    [
        (GB200, "NVIDIA GH200 480GB"),
        *((H200, f"NVIDIA {model}") for model in ("H100 80GB HBM3", "H200", "B200")),
    ],
)
def test_a_node_of_its_own_needs_no_clique(node_of, log, model, state):
    log = re.sub("<product_name>[^<]*<", f"<product_name>{model}<", log)
    node = node_of(with_fabric(log, STATES[state][0]), gpu_count=4)
    assert failed(node) == ({"facts_gpu_fabric"} if STATES[state][2][2] else set())


@pytest.mark.parametrize("state", [state for state in STATES if state != "joined"])
@pytest.mark.parametrize("log", [GB200, H200])
def test_a_gpu_that_differs_from_the_others_fails_on_any_sku(node_of, log, state):
    node = node_of(with_fabric(log, STATES[state][0], count=1))
    differing = [check for check in node["checks"] if check["name"] == "facts_gpu_fabric_differs"]
    assert [(check["part"], check["verdict"]) for check in differing] == [("gpu:0", "fail")]
    assert "NVLink fabric of gpu:0: " in differing[0]["reason"]
    assert node["verdict"] == "FAIL"


@pytest.mark.parametrize(("driver", "verdict"), [("535.54.03", "INCOMPLETE"), ("580.173.02", "FAIL")])
def test_a_driver_that_is_too_old_to_report_the_fabric_is_missing_evidence(node_of, driver, verdict):
    log = re.sub("<fabric>.*?</fabric>", "", GB200, flags=re.DOTALL).replace("580.173.02", driver)
    assert node_of(log)["verdict"] == verdict
    assert failed(node_of(log.replace("GB200", "H200"), gpu_count=4)) == set()


def test_one_gpu_of_a_tray_in_a_virtual_machine_reports_no_fabric(node_of):
    log = re.sub(r"(</gpu>\s*)<gpu id.*</gpu>", r"\1", GB200, flags=re.DOTALL)
    node = node_of(with_fabric(log, STATES["not supported"][0], count=1), gpu_count=1)
    assert (node["verdict"], failed(node)) == ("PASS", set())


def test_an_nvl4_has_no_domain_to_join(node_of):
    node = node_of(with_fabric(GB200, STATES["not supported"][0]).replace("Switch Connected", "Direct Connected"))
    assert (node["catalogue_sku"], failed(node)) == ("gb200nvl4", set())
    declared = node_of(with_fabric(GB200, STATES["not supported"][0]), sku="gb200nvl4")
    assert (declared["catalogue_sku"], declared["verdict"]) == ("gb200", "FAIL"), "a tray of a rack was delivered"


def test_a_gb300_of_a_rack_is_in_the_catalogue(node_of):
    node = node_of((DATA / "nvidia_smi_v13_gb300.xml").read_text())
    assert (node["catalogue_sku"], node["verdict"], failed(node)) == ("gb300", "PASS", set())


def test_skus_of_a_domain_ask_for_its_fabric():
    for sku in sku_catalogue.shipped():
        names = {check.name for check in sku.checks}
        asked = {f"facts_gpu_fabric_{what}_{sku.name}" for what in ("joined", "clique")} & names
        assert len(asked) == (2 if "domain_gpus" in sku.links else 0), sku.name
        assert sku.links.get("domain_gpus", 1e9) > (sku.node_gpus or 0)
