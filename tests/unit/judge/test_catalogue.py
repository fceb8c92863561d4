"""The SKU catalogue as it ships, and what a node's SKU means for its verdict."""

import dataclasses
import json
import re
from pathlib import Path
from string import ascii_lowercase

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import amd_gpus, gaudi_gpus, nvidia_gpus
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.stage_traits import traits_of_stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria, plausible, sku_catalogue
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, facts_record, healthy, judge, make_run
from tests.kit.builders import check as make_check

GPU_SKUS = [sku for sku in sku_catalogue.shipped() if sku.name != "cpu"]
TITLES = {
    "a100", "a100pcie", "a100pcie40", "a100sxm40", "a800", "a800pcie", "h20", "h100", "h100nvl", "h100pcie",
    "h200", "h200nvl", "h800", "gh200", "b200", "b300", "gb200", "gb200nvl4", "gb300", "vr200", "l4", "l40", "l40s",
    "rtxpro6000", "mi300a", "mi300x", "mi308x", "mi325x", "mi350x", "mi355x", "gaudi2", "gaudi3", "gaudi3pcie", "cpu",
}  # fmt: skip
#: What every SKU says how fast it has to be, whether as a demand or as advice.
SPEEDS = {
    "diagnostics_matmul_bf16_tflops", "diagnostics_memory_bytes_per_second",
    "diagnostics_host_to_device_bytes_per_second", "diagnostics_device_to_host_bytes_per_second",
    "diagnostics_host_to_device_together_bytes_per_second", "diagnostics_device_to_host_together_bytes_per_second",
    "diagnostics_peer_bytes_per_second", "training_model_tflops", "gpu_memory_bytes",
    *(f"diagnostics_{name}_bus_bytes_per_second"
      for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")),
}  # fmt: skip

OF_ONE_GPU = {
    "diagnostics_matmul_bf16_tflops",
    "diagnostics_memory_bytes_per_second",
    "training_model_tflops",
    "gpu_memory_bytes",
}


def test_all_skus_ship():
    assert {sku.name for sku in sku_catalogue.shipped()} == TITLES


@pytest.mark.parametrize("sku", GPU_SKUS, ids=lambda sku: sku.name)
def test_every_speed_has_a_criterion(sku):
    # Where the GPUs of a node are not all joined alike, nothing is expected of their links.
    speeds = SPEEDS if sku.node_gpus == 8 else OF_ONE_GPU
    if not sku.gpu["peak_tflops"]:  # a model without a public data sheet
        speeds = speeds - {"diagnostics_matmul_bf16_tflops", "training_model_tflops"}
    assert {check.metric for check in sku.checks} >= speeds
    precisions = set(sku.gpu["peak_tflops"]) - {"gaudi": {"fp8"}, "amd": {"tf32"}}.get(sku.vendor, set())
    judged = {
        match[1] for check in sku.checks if (match := re.fullmatch(r"diagnostics_matmul_(\w+)_tflops", check.metric))
    }
    assert judged == precisions


@pytest.mark.parametrize("sku", GPU_SKUS, ids=lambda sku: sku.name)
def test_no_floor_is_above_what_the_maker_says(sku):
    one_way = sku.links["bytes_per_second"] / 2
    for check in sku.checks:
        precision = re.fullmatch(r"diagnostics_matmul_(\w+)_tflops", check.metric)
        if precision:
            assert 0.3 < check.value / sku.gpu["peak_tflops"][precision[1]] < 0.85, check.name
        elif check.metric == "diagnostics_memory_bytes_per_second":
            assert 0.5 < check.value / sku.gpu["memory_bytes_per_second"] < 0.95, check.name
        elif check.metric == "gpu_memory_bytes":
            assert check.value == sku.gpu["memory_bytes"]
        elif check.metric == "gpu_power_limit_watts":
            assert check.value == sku.gpu["power_limit_watts"]
        elif check.metric.endswith("_bus_bytes_per_second") and "nvls" not in check.name:
            # NVLS adds in the switch, so that its bus bandwidth may exceed a link's.
            assert 0.1 < check.value / one_way < 1, check.name
        elif check.metric == "diagnostics_peer_bytes_per_second":
            assert check.value < one_way
        if check.unit:
            assert units.compatible(check.unit, check.unit)


@pytest.mark.parametrize("sku", GPU_SKUS, ids=lambda sku: sku.name)
def test_every_figure_with_a_limit_may_be_as_good_as_the_data_sheet(sku):
    """A range that is lower than the peak, or than a criterion, would fail good nodes."""
    for row in (row for traits in traits_of_stages().values() for row in traits.ranges):
        allowed = plausible.Range(**row)
        highest, anywhere = allowed.highest(sku), allowed.highest(None)
        if highest is not None and anywhere is not None:
            assert highest <= anywhere, allowed
    for check in sku.checks:
        if check.unit and check.kind == "min":
            allowed = plausible.range_of(check.metric)
            limit = units.to_float(units.convert(check.value, check.unit, allowed.unit))
            assert allowed.highest(sku) is None or limit <= allowed.highest(sku) / 1.1, check.name
    peak, products = sku.gpu["peak_tflops"].get("bf16"), plausible.range_of("diagnostics_matmul_bf16_tflops")
    assert products.highest(sku) == (1.25 * peak if peak else products.high)
    assert plausible.range_of("diagnostics_host_to_device_bytes_per_second").highest(sku) > 1.5e10


@pytest.mark.parametrize("sku", GPU_SKUS, ids=lambda sku: sku.name)
def test_what_no_node_measured_is_advice(sku):
    for check in sku.checks:
        if re.search(r"not measured", check.source, re.IGNORECASE):
            assert check.severity == "advisory", check.name
        if check.of_gang:
            assert check.severity == "advisory", check.name
            assert dict(check.applies.fingerprints).keys() == {"gang_shape", "gang_network"}, check.name
        elif check.metric.endswith("_bus_bytes_per_second"):
            assert check.applies.gpu_count == (8,), check.name
            assert "diagnostics_processes" in check.requires, check.name
            assert check.retry


def test_measured_figures_of_the_h200_are_required():
    required = {check.metric for sku in GPU_SKUS if sku.name == "h200" for check in sku.checks if check.required}
    assert required >= {
        "diagnostics_matmul_bf16_tflops", "diagnostics_matmul_fp8_tflops", "diagnostics_memory_bytes_per_second",
        "diagnostics_all_reduce_bus_bytes_per_second", "diagnostics_all_to_all_bus_bytes_per_second",
        "diagnostics_transport", "gpu_memory_bytes",
    }  # fmt: skip


def test_names_do_not_collide_and_requirements_exist():
    checks = SHIPPED
    files = [criteria.read_file(path) for path in criteria.shipped_files()]
    assert len(checks) == sum(map(len, files))
    names = {check.name for check in checks}
    assert all(set(check.requires) <= names for check in checks)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("nvidia  h200", "h200"),
        ("H200 SXM5 141GB", "h200"),
        ("NVIDIA H200 NVL", "h200nvl"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100pcie"),
        ("NVIDIA H100 NVL", "h100nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100sxm40"),
        ("NVIDIA A100 80GB PCIe", "a100pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100pcie40"),
        # Drivers before 470 leave out NVIDIA, and the first ones of the 80 GB model its generation.
        ("A100-SXM4-40GB", "a100sxm40"),
        ("A100-SXM-40GB", "a100sxm40"),
        ("A100-PCIE-40GB", "a100pcie40"),
        ("A100-SXM-80GB", "a100"),
        ("A100-PCIE-80GB", "a100pcie"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("NVIDIA A800 80GB PCIe", "a800pcie"),
        ("NVIDIA H800", "h800"),
        ("NVIDIA H800 PCIe", None),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H20-3e", "h20"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40G", None),
        ("NVIDIA L4", "l4"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", None),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA GB300 NVL", "gb300"),
        ("NVIDIA GB300-WS", None),
        ("NVIDIA VR200", "vr200"),
        ("NVIDIA Graphics Device", None),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("AMD Instinct MI300A", "mi300a"),
        ("AMD Instinct MI308X", "mi308x"),
        ("AMD Instinct MI325X", "mi325x"),
        ("AMD Instinct MI350X", "mi350x"),
        ("AMD Instinct MI355X", "mi355x"),
        ("HL-225", "gaudi2"),
        ("HL-325L", "gaudi3"),
        ("HL-338", "gaudi3pcie"),
        ("", None),
    ],
)
def test_models_as_the_tools_tell_them(model, name):
    found = sku_catalogue.of_model(model)
    assert (found.name if found else None) == name


OUTPUTS = Path(__file__).resolve().parents[1] / "hardware" / "data"


def _gpus_of(file):
    text = (OUTPUTS / file).read_text()
    if file.endswith(".xml"):
        return nvidia_gpus.parse(text)[0]
    if file.endswith(".csv"):
        return gaudi_gpus.parse(text, gaudi_gpus.FULL_QUERY)
    return amd_gpus.parse_amd_smi(json.loads(text), None, None)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("nvidia_smi_v13_h200.xml", "h200"),
        ("amd_smi_24_static.json", "mi300x"),
        ("amd_smi_26_static.json", "mi350x"),
        ("hl_smi_gaudi2.csv", "gaudi2"),
    ],
)
def test_what_real_tools_tell_is_in_the_catalogue(file, name):
    """Names, and memory that is no less than the data sheet's."""
    gpus = _gpus_of(file)
    sku = sku_catalogue.of_models([gpu.name for gpu in gpus])
    assert sku.name == name
    assert gpus[0].vendor == sku.vendor
    assert all(gpu.memory_bytes is None or gpu.memory_bytes >= sku.gpu["memory_bytes"] for gpu in gpus)
    for actual, wanted in ((gpus[0].pcie_generation_max, "pcie_generation"), (gpus[0].pcie_width_max, "pcie_width")):
        assert actual in (None, sku.gpu[wanted])
    assert gpus[0].power_limit_watts in (None, sku.gpu["power_limit_watts"])


#: GPU models that the catalogue lacks, and which resemble names in it.
REAL = ["a100x", "a10", "a30", "a40", "b100", "gb10", "l2", "l20", "l40g", "mi210", "mi250", "t4", "v100"]


NAMES = ["NVIDIA A40", "hgx-h200", "8xh100", "auto", "cpu", "nvidia", "mixed", "site-7"]


@pytest.mark.parametrize("name", [*REAL, *NAMES])
def test_no_other_model_and_no_name_of_a_site_is_a_mistyped_sku(name):
    assert sku_catalogue.misspelled(name) == ""


@pytest.mark.parametrize(
    ("name", "meant"), [("gpu", "auto"), ("GPUs", "auto"), ("hpu", "auto"), ("cpus", "cpu"), ("cpu", "")]
)
def test_nobody_who_writes_gpu_is_asked_for_cpu(name, meant):
    assert sku_catalogue.misspelled(name) == meant


def test_every_sku_with_one_wrong_letter_is_named():
    """A letter wrong, missing or doubled, and o for 0: all of each name but those that are other models."""
    words = set()
    for sku in sku_catalogue.shipped():
        for position, letter in enumerate(sku.name):
            head, tail = sku.name[:position], sku.name[position + 1 :]
            if letter.isalpha():
                words |= {
                    head + tail,
                    head + letter + letter + tail,
                    *(head + other + tail for other in ascii_lowercase),
                }
            elif letter == "0":
                words.add(f"{head}o{tail}")
    mistyped = {word for word in words if not sku_catalogue.named(word)} - sku_catalogue._RESEMBLING
    count = len(mistyped)
    assert count > 1400
    assert [word for word in sorted(mistyped) if not sku_catalogue.misspelled(word)] == []


def test_a_node_of_several_models_is_of_none():
    assert sku_catalogue.of_models([]) is None
    assert sku_catalogue.of_models(["NVIDIA H200", "NVIDIA H200"]).name == "h200"
    assert sku_catalogue.of_models(["NVIDIA H200", "NVIDIA B200"]) is None
    assert sku_catalogue.of_models(["NVIDIA H200", "Tesla T4"]) is None


def test_a_file_of_another_name_or_a_check_of_another_sku_is_refused(tmp_path):
    text = (criteria.COLLECTION / "skus" / "h200.yml").read_text()
    path = tmp_path / "h201.yml"
    path.write_text(text)
    with pytest.raises(criteria.CriteriaError, match="belongs into h200"):
        sku_catalogue.Sku(path)
    path = tmp_path / "h200.yml"
    path.write_text(text.replace("like: facts_gpu_memory", "like: facts_gpu_memory\n    name: facts_gpu_memory"))
    with pytest.raises(criteria.CriteriaError, match="must end with _h200"):
        sku_catalogue.Sku(path)
    path.write_text(text.replace("vendor: nvidia", "vendor: somebody"))
    with pytest.raises(criteria.CriteriaError, match="vendor"):
        sku_catalogue.Sku(path)


def test_a_check_like_a_shared_one_has_its_fields_and_the_figures_of_the_sku():
    sku = next(one for one in sku_catalogue.shipped() if one.name == "h200")
    checks = {check.name: check for check in sku.checks}
    assert checks["facts_gpu_memory_h200"].value == sku.gpu["memory_bytes"]
    assert checks["diagnostics_matmul_fp8_speed_h200"].metric == "diagnostics_matmul_fp8_tflops"
    assert checks["diagnostics_all_reduce_speed_h200"].requires == (
        "diagnostics_processes", "diagnostics_transport_h200",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("like: facts_gpu_memory", "like: facts_gpu_memories", "like: facts_gpu_memories: there is no such check"),
        ("like: facts_gpu_memory", "like: [facts]", "like"),
        ("    value: 617\n", "", "check 'diagnostics_matmul_bf16_speed_h200': \"value\" is a required"),
    ],
)
def test_a_check_like_none_or_without_a_figure_is_refused(tmp_path, old, new, message):
    path = tmp_path / "h200.yml"
    text = (criteria.COLLECTION / "skus" / "h200.yml").read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(criteria.CriteriaError, match=message):
        sku_catalogue.Sku(path)


def test_a_floor_without_a_value_is_a_share_of_the_data_sheet_and_lists_leave_out_what_it_lacks(tmp_path):
    path = tmp_path / "a100.yml"
    text = (criteria.COLLECTION / "skus" / "a100.yml").read_text()
    path.write_text(text)
    found = {check.name: check for check in sku_catalogue.Sku(path).checks}
    assert found["diagnostics_memory_speed_a100"].value == 1.427e12  # 0.70 of 2,039 GB/s
    assert found["diagnostics_host_to_device_together_speed_a100"].value == 3.15e9  # a tenth of PCIe 4.0 x16
    assert found["facts_gpu_memory_a100"].value == 8e10
    assert "diagnostics_matmul_tf32_speed_a100" in found
    assert "diagnostics_matmul_fp8_speed_a100" not in found
    path.write_text(f"{text}  - like: diagnostics_matmul_fp8_speed\n")
    with pytest.raises(criteria.CriteriaError, match="diagnostics_matmul_fp8_speed_a100"):
        sku_catalogue.Sku(path)


def report_on(model="NVIDIA H200", *, sku="auto", gpus=8, gpu_count=None, checks=(), vendor="nvidia", profile="quick"):
    run = make_run(stages=["facts"], sku=sku, gpu_count=gpu_count, profile=profile)
    evidence = healthy(run)
    evidence.records["node-1"] = {"facts": facts_record(gpus=gpus, vendor=vendor)}
    models = [model] * gpus if isinstance(model, (str, type(None))) else model
    for gpu, name in zip(evidence.records["node-1"]["facts"]["environment"]["gpus"], models, strict=True):
        gpu["name"] = name
    return judge(run, evidence, list(checks))


def judged(*model, **fields):
    return report_on(*model, **fields)["nodes"][0]


def entries(node, *names):
    return {entry["name"]: entry["verdict"] for entry in node["checks"] if entry["name"] in names}


@pytest.mark.parametrize(
    ("fields", "expected", "verdict"),
    [
        ({}, {"sku": "pass", "sku_gpu_count": "pass"}, "PASS"),
        ({"sku": "h200"}, {"sku": "pass", "sku_gpu_count": "pass"}, "PASS"),
        ({"sku": "H200 SXM"}, {"sku": "pass", "sku_gpu_count": "pass"}, "PASS"),
        ({"sku": "h100"}, {"sku": "fail"}, "FAIL"),  # the wrong machine was delivered
        ({"sku": "h200", "model": "NVIDIA H200 NVL"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "h200", "model": ["NVIDIA H200"] * 7 + ["NVIDIA H100 80GB HBM3"]}, {"sku": "fail"}, "FAIL"),
        ({"model": ["NVIDIA H200"] * 7 + ["NVIDIA H100 80GB HBM3"]}, {"sku": "fail"}, "FAIL"),
        ({"model": ["NVIDIA H200"] * 7 + ["NVIDIA H200 NVL"]}, {"sku": "fail"}, "FAIL"),
        ({"sku": "mixed", "model": ["NVIDIA H200"] * 7 + ["NVIDIA H200 NVL"]}, {"sku": "warn"}, "PASS"),
        ({"sku": "our-own-name"}, {"sku": "pass", "sku_gpu_count": "pass"}, "PASS"),
        ({"sku": "h200-sxm"}, {"sku": "pass", "sku_gpu_count": "pass"}, "PASS"),
        ({"sku": "hgx-h200"}, {"sku": "pass", "sku_gpu_count": "pass"}, "PASS"),
        ({"sku": "h200-sxm", "model": "NVIDIA H100 80GB HBM3"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "hgx-h200", "model": "NVIDIA H100 80GB HBM3"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "hgx-h200", "model": "NVIDIA H900"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "h200-mixed", "model": ["NVIDIA H200"] * 7 + ["NVIDIA H200 NVL"]}, {"sku": "warn"}, "PASS"),
        ({"sku": "H200 141GB", "model": "NVIDIA H100 80GB HBM3"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "h100-80gb-hbm3"}, {"sku": "fail"}, "FAIL"),  # H200 was delivered
        # A name inside a name is another product.
        ({"sku": "gh200"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "h200-nvl"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "h100-pcie", "model": "NVIDIA H100 80GB HBM3"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "dgx-h100-pcie", "model": "NVIDIA H100 80GB HBM3"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "gb200-nvl72", "model": "NVIDIA B200"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "rack-gb200-7", "model": "NVIDIA B200"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "mi325x", "model": "AMD Instinct MI300X"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "8xh200"}, {"sku": "pass", "sku_gpu_count": "pass"}, "PASS"),
        ({"sku": "h100x8"}, {"sku": "fail"}, "FAIL"),
        ({"sku": "gb200-nvl72", "model": "NVIDIA GB200", "gpus": 4}, {"sku": "pass", "sku_gpu_count": "pass"}, "PASS"),
        ({"sku": "l40s", "model": "NVIDIA L40S", "gpus": 3}, {"sku": "pass"}, "PASS"),
        ({"sku": "hpc-purple"}, {"sku": "pass", "sku_gpu_count": "pass"}, "PASS"),
        ({"model": "Tesla V100-SXM2-32GB"}, {"sku": "warn"}, "PASS"),
        ({"model": None}, {"sku": "missing"}, "INCOMPLETE"),
        # A part of a node is what virtual machines are sold as; who ordered a node by its name ordered a whole one.
        ({"gpus": 4}, {"sku": "pass", "sku_gpu_count": "warn"}, "PASS"),
        ({"gpus": 4, "gpu_count": 4}, {"sku": "pass"}, "PASS"),
        ({"gpus": 4, "gpu_count": 4, "sku": "h200"}, {"sku": "pass"}, "PASS"),
        ({"gpus": 4, "sku": "h200"}, {"sku": "pass", "sku_gpu_count": "fail"}, "FAIL"),
        ({"gpus": 7}, {"sku": "pass", "sku_gpu_count": "fail"}, "FAIL"),
        ({"gpus": 7, "gpu_count": 7}, {"sku": "pass"}, "PASS"),
        ({"gpus": 0, "vendor": "cpu"}, {}, "PASS"),
        ({"sku": "cpu"}, {}, "PASS"),
    ],
)
def test_what_was_ordered_is_held_against_what_is_there(fields, expected, verdict):
    there = make_check("there", stage="facts", metric="gpu_count", kind="min", value=0)
    node = judged(**fields, checks=[there])
    assert entries(node, "sku", "sku_gpu_count") == expected
    assert node["verdict"] == verdict


@pytest.mark.parametrize("sku", ["auto", "nvidia"])
@pytest.mark.parametrize(
    ("profile", "verdict"),
    [("quick", "PASS"), ("standard", "INCOMPLETE"), ("burnin", "INCOMPLETE"), ("soak", "INCOMPLETE")],
)
def test_a_model_outside_the_catalogue_is_accepted_only_after_the_site_says_what_it_is(sku, profile, verdict):
    there = make_check("there", stage="facts", metric="gpu_count", kind="min", value=0)
    fields = {"model": "NVIDIA R900", "profile": profile, "checks": [there]}
    report = report_on(sku=sku, **fields)
    assert report["nodes"][0]["verdict"] == verdict
    line = "Model not in the catalogue: NVIDIA R900 on node-1; only the general criteria apply"
    assert any(line in text for text in report["summary"]) is (profile == "quick")
    declared = judged(sku="our-r900", **fields)
    assert (declared["verdict"], entries(declared, "sku")) == ("PASS", {"sku": "warn"})


def test_gpus_of_one_name_are_told_apart_by_their_peer_type():
    def of(peer_types, ordered=None):
        found = sku_catalogue.of_models(["NVIDIA GB200"] * 4, peer_types, sku_catalogue.by_name(ordered))
        return found.name

    assert of(["Direct Connected"] * 4) == "gb200nvl4"
    assert of(["Switch Connected"] * 4) == of([]) == of(["Direct Connected"] * 3) == "gb200"
    assert of(["Direct Connected"] * 3 + ["Switch Connected"]) == "gb200"
    assert of([], "gb200nvl4") == "gb200nvl4"
    assert of(["Switch Connected"] * 4, "gb200nvl4") == "gb200", "the wrong machine was delivered"
    assert sku_catalogue.named("GB200 NVL4").name == sku_catalogue.hinted("rack-gb200-nvl4").name == "gb200nvl4"
    assert sku_catalogue.hinted("gb200-nvl72-row-3").name == "gb200"


@pytest.mark.parametrize("declared", ["h201", "v100", "l20", "mi210", "b100", "a40", "gb10", "h900", "mi300"])
def test_no_remark_proposes_another_class_of_gpu(declared):
    assert "is it" not in sku_catalogue.remark(declared)


@pytest.mark.parametrize(
    "model",
    [
        *("NVIDIA H800 PCIe", "NVIDIA A100-SXM-64GB", "NVIDIA H100", "GRID A100-40C", "NVIDIA DGX Station GB300"),
        *("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA A800-SXM4-40GB"),
    ],
)
def test_a_model_outside_the_catalogue_may_be_declared_by_its_name(model):
    there = make_check("there", stage="facts", metric="gpu_count", kind="min", value=0)
    node = judged(sku=model, model=model, profile="standard", checks=[there])
    assert (node["verdict"], entries(node, "sku")) == ("PASS", {"sku": "warn"})


@pytest.mark.parametrize(
    "declared", ["h800-pcie", "rtx-pro-6000-ws", "rtx-pro-6000-max-q", "hgx-a100-40g", "hgx-h800-nvl"]
)
def test_a_name_of_another_form_or_size_is_no_hint(declared):
    assert sku_catalogue.hinted(declared) is None


def test_memory_that_the_test_leaves_free_fails_no_small_gpu():
    """3 GiB are left free, 1 GiB is for driver and libraries, and whole chunks of 1 GiB are tested."""
    floors = {
        sku.name: (sku.gpu["memory_bytes"] / 2**30, check.value)
        for sku in sku_catalogue.shipped()
        for check in sku.checks
        if check.metric == "diagnostics_memory_tested_ratio"
    }
    assert {"l4", "l40", "l40s", "a100sxm40", "a100pcie40", "h100"} <= set(floors)
    too_high = {name for name, (total, floor) in floors.items() if int(total - 3 - 1) / total < floor}
    assert too_high == set()


def test_a_remark_proposes_a_name_of_the_same_number():
    assert "is it h200?" in sku_catalogue.remark("hh200")


def test_criteria_of_a_sku_are_for_its_nodes_alone():
    found = {check.name: check for sku in sku_catalogue.shipped() for check in sku.checks}
    mine, other = found["facts_gpu_memory_h200"], found["facts_gpu_memory_b200"]
    node = judged(checks=[mine, other])
    assert entries(node, mine.name, other.name) == {mine.name: "missing"}
    assert node["catalogue_sku"] == "h200"
    # A check of one's own says where it does not apply, and replaces a shipped one by its name.
    own = dataclasses.replace(other, catalogue_sku=None)
    assert entries(judged(checks=[own]), own.name) == {own.name: "skipped"}


def test_a_smaller_gpu_is_found():
    check = next(one for one in sku_catalogue.named("h200").checks if one.name == "facts_gpu_memory_h200")
    run = make_run(stages=["facts"])
    evidence = healthy(run)
    facts = facts_record(gpus=2)
    facts["metrics"] += [
        {"name": "gpu_memory_bytes", "value": value, "unit": "bytes", "scope": f"gpu:{index}"}
        for index, value in enumerate((150_754_820_096, 85_520_809_984))
    ]
    evidence.records["node-1"] = {"facts": facts}
    node = judge(run, evidence, [check])["nodes"][0]
    (entry,) = [entry for entry in node["checks"] if entry["name"] == check.name]
    assert (entry["part"], entry["verdict"]) == ("gpu:1", "fail")


def test_the_page_has_the_floors_of_the_files():
    """A supplier whose node fails looks them up."""
    page = (Path(__file__).parents[3] / "docs" / "criteria.md").read_text()
    floors = {check.name: check.value for check in sku_catalogue.named("h200").checks}
    for name, scale, told in (
        ("diagnostics_matmul_bf16_speed_h200", 1, "| 617 TFLOP/s |"),
        ("diagnostics_matmul_fp16_speed_h200", 1, "| 597 / 327 / 1,147 TFLOP/s |"),
        ("diagnostics_host_to_device_speed_h200", 1e9, "| 44 GB/s |"),
        ("diagnostics_device_to_host_speed_h200", 1e9, "| 44 GB/s |"),
        ("diagnostics_memory_speed_h200", 1e9, "| 3,985 GB/s |"),
        ("diagnostics_peer_speed_h200", 1e9, "| 300 GB/s |"),
        ("diagnostics_all_gather_speed_h200", 1e9, "| 300 GB/s |"),
        ("diagnostics_all_reduce_speed_h200", 1e9, "| 348 GB/s |"),
        ("training_speed_h200", 1, "| 405 TFLOP/s |"),
    ):
        assert f"{floors[name] / scale:,.0f}" in told, name
        assert told in page, name


@pytest.mark.parametrize("mebibytes", [97_871, 146_831])
def test_both_sizes_of_the_gh200_are_plausible(mebibytes):
    sku = sku_catalogue.named("gh200")
    node = judged("NVIDIA GH200 480GB", sku="gh200", gpus=1)
    assert entries(node, "sku", "sku_gpu_count") == {"sku": "pass", "sku_gpu_count": "pass"}
    assert sku.gpu["memory_bytes"] <= mebibytes * 2**20 <= 1.6 * sku.gpu["memory_bytes"]


def test_a_node_does_not_leave_its_checks_by_another_vendor_or_model():
    def judged(vendor, model):
        run = make_run(stages=["facts"])
        evidence = RunEvidence(records={"node-1": {"facts": facts_record(vendor=vendor)}})
        for gpu in evidence.records["node-1"]["facts"]["environment"]["gpus"]:
            gpu["name"] = model
        (node,) = judge(run, evidence, [])["nodes"]
        (entry,) = [one for one in node["checks"] if one["name"] == "sku"]
        return entry["verdict"], entry["severity"], entry["reason"]

    assert judged("nvidia", "NVIDIA H200")[0] == "pass"
    assert judged("amd", "NVIDIA H200")[::2] == ("fail", "the facts report NVIDIA H200, and accelerators of amd")
    assert judged("nvidia", "NVIDIA X1")[:2] == ("warn", "advisory")
