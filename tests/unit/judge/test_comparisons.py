"""Every metric and fingerprint of every stage is compared between nodes, or there is a reason not to."""

import copy

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import comparisons
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.check import Informational
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.subjects import subjects_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.properties import NVLINK_STAGES

from tests.kit.builders import SHIPPED, metric
from tests.kit.peer_fleet import FAMILIES, FINGERPRINTS, healthy_fleet, judged, metrics_of, named, parts_of, spoil
from tests.kit.reported import ANYWHERE, REPORTED

BAD = "node-0007"
#: How many GPUs a node has decides what it is compared with: spoiled apart from all else.
IDENTITY = ("gpu_count", "gpu_hardware_count")
MAX_INFORMATIONAL = 40


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def healthy(family):
    run, evidence = healthy_fleet(family, seed=3)  # seeds 1 and 2 draw a healthy figure close to the limit
    return run, evidence, named(judged(run, evidence))


def informational_names():
    return {(one.stage, name) for one in SHIPPED.informational for name in one.metrics}


def compared_names(family, stage):
    listed = {name for listed_stage, name in informational_names() if listed_stage in (stage, "any")}
    no_gpus = {"gpu_count", "gpu_hardware_count"} if family == "cpu" else set()
    return [name for name in metrics_of(stage, family) if name not in listed | no_gpus]


@pytest.mark.parametrize("one_part", [True, False], ids=["one part", "whole node"])
def test_a_node_a_third_worse_is_named_for_every_metric(family, healthy, one_part):
    run, evidence, before = healthy
    stages = run["nodes"][BAD]["stages"]
    spoiled = {(stage, name) for stage in stages for name in compared_names(family, stage)}
    for group in (
        {pair for pair in spoiled if pair[1] not in IDENTITY},
        {pair for pair in spoiled if pair[1] in IDENTITY},
    ):
        changed = copy.copy(evidence)
        changed.records = {**evidence.records, BAD: copy.deepcopy(evidence.records[BAD])}
        for stage, name in group:
            parts = parts_of(stage, name, family)
            spoil(changed.records[BAD][stage], name, parts[1:2] or parts if one_part else parts)
        after = named(judged(run, changed))
        assert group - (after[BAD] - before[BAD]) == set()
        for node in after:
            assert node == BAD or after[node] <= before[node], node


def test_a_node_with_another_text_is_named_for_every_fingerprint(family, healthy):
    run, evidence, before = healthy
    stages = run["nodes"][BAD]["stages"]
    changed = copy.copy(evidence)
    changed.records = {**evidence.records, BAD: copy.deepcopy(evidence.records[BAD])}
    texts = {(stage, name) for stage in stages for name in FINGERPRINTS.get(stage, ())}
    if family == "cpu":  # another way between GPUs
        texts = {(stage, name) for stage, name in texts if stage not in ("diagnostics", "training")}
    texts -= {(stage, name) for stage, name in texts if name == "gang_shape" or name.endswith(("_asked", "_course"))}
    for stage, name in texts:
        changed.records[BAD][stage]["fingerprints"][name] = "another"
    after = named(judged(run, changed))
    assert texts - (after[BAD] - before[BAD]) == set()
    for node in after:
        assert node == BAD or after[node] <= before[node], node


def test_few_metrics_are_informational_and_none_of_them_is_a_speed_a_count_of_hardware_a_version_or_a_hash():
    names = informational_names()
    once = {(NVLINK_STAGES.get(stage, stage), name.replace("gang_nvlink_", "gang_")) for stage, name in names}
    assert len(once) <= MAX_INFORMATIONAL, "a collective over NVLink has the figures of one over the network"
    known = {(stage, name) for stage, listed in REPORTED.items() for name in listed} | {
        ("any", name) for name in ANYWHERE
    }
    for stage, name in names:
        assert "*" not in name
        assert (stage, name) in known or (stage == "any" and any(name in listed for listed in REPORTED.values()))
        assert not name.endswith(("_per_second", "_tflops", "_sha256", "_version", "_bytes_count"))
        assert not name.endswith("_count") or name == "gpu_pcie_generation_count"  # of an idle link


def figures_times(stage, factors, part=None):
    """Multiplies the figures of these names; of one part, or of all."""

    def fault(records):
        for figure in records[stage]["metrics"]:
            if figure["name"] in factors and part in (None, figure["scope"]):
                figure["value"] *= factors[figure["name"]]

    return fault


def figure_is(stage, name, value, part="node"):
    def fault(records):
        (figure,) = (one for one in records[stage]["metrics"] if (one["name"], one["scope"]) == (name, part))
        figure["value"] = value

    return fault


def environment_is(stage, **values):
    return lambda records: records[stage]["environment"].update(values)


def nics_are(change):
    return lambda records: change(records["facts"]["environment"]["nics"])


def without_ecc(records):
    facts = records["facts"]
    facts["metrics"] = [one for one in facts["metrics"] if not one["name"].startswith("gpu_ecc_")]
    facts["metrics"].append(metric("gpu_ecc_unknown_count", 8))


#: What no check saw before nodes were compared: the fault, and the metric of which the node is named.
FAULTS = {
    "another greedy answer": (
        lambda records: records["inference"]["fingerprints"].update(inference_warm_up_answer="0" * 64),
        "inference_warm_up_answer",
    ),
    "inference on the CPU": (
        environment_is("inference", accelerator="cpu", gpu_count=0, tensor_parallel_size=1), "inference_setup"
    ),
    "inference on one GPU of eight": (
        environment_is("inference", gpu_count=1, tensor_parallel_size=1), "inference_setup"
    ),
    "inference ten times slower": (
        figures_times("inference", {"inference_tokens_per_second": 0.1}), "inference_tokens_per_second"
    ),
    "loading ten times slower": (
        figures_times("loading", {"loading_bytes_per_second": 0.1}), "loading_bytes_per_second"
    ),
    "nccl-tests at a fortieth": (
        figures_times("vendor_tools", {"nccl_tests_all_reduce_bus_bytes_per_second": 0.025}),
        "nccl_tests_all_reduce_bus_bytes_per_second",
    ),
    "a GPU at a tenth in DCGM's PCIe test": (
        figures_times("vendor_tools", {"dcgm_pcie_gpu_to_host_bandwidth_bytes_per_second": 0.1}, "gpu:3"),
        "dcgm_pcie_gpu_to_host_bandwidth_bytes_per_second",
    ),
    "a loss 3 % over": (figures_times("training", {"training_loss_step_20": 1.03}), "training_loss_step_20"),
    "a loss 3 % under": (figures_times("training", {"training_loss_step_20": 0.97}), "training_loss_step_20"),
    "a later loss 30 % over": (figures_times("training", {"training_loss_step_80": 1.3}), "training_loss_step_80"),
    "half the memory": (figures_times("facts", {"memory_bytes": 0.5}), "memory_bytes"),
    "half the processors": (figures_times("facts", {"cpu_logical_count": 0.5}), "cpu_logical_count"),
    "a NIC is missing": (nics_are(lambda nics: nics.pop()), "interfaces"),
    "a NIC has no link": (nics_are(lambda nics: nics[-1].update(speed_bits_per_second=None)), "interfaces"),
    "a NIC at half rate": (nics_are(lambda nics: nics[-1].update(speed_bits_per_second=50_000_000_000)), "interfaces"),
    "an RDMA device is missing": (nics_are(lambda nics: nics.pop(0)), "nic_firmware_version"),
    "an RDMA port is down": (nics_are(lambda nics: nics[0]["ports"][0].update(state="DOWN")), "rdma_ports"),
    "an RDMA port at half rate": (
        nics_are(lambda nics: nics[0]["ports"][0].update(rate_bits_per_second=200_000_000_000)), "rdma_ports"
    ),
    "throttling in inference": (
        figure_is("inference", "gpu_throttle_thermal_ratio", 0.3, "gpu:3"), "gpu_throttle_thermal_ratio"
    ),
    "half the PCIe lanes in inference": (
        figure_is("inference", "gpu_pcie_width_min_count", 8, "gpu:3"), "gpu_pcie_width_min_count"
    ),
    "a machine check in loading": (figure_is("loading", "kernel_mce_count", 1), "kernel_mce_count"),
    "PCIe errors in loading": (figure_is("loading", "kernel_aer_count", 60), "kernel_aer_count"),
    "12 rows remapped in the past": (figure_is("facts", "gpu_row_remap_count", 12, "gpu:3"), "gpu_row_remap_count"),
    "no spare rows": (figure_is("facts", "gpu_row_remap_exhausted_count", 1, "gpu:3"), "gpu_row_remap_exhausted_count"),
    "an uncorrectable error in the past": (
        figure_is("facts", "gpu_ecc_uncorrected_aggregate_count", 1, "gpu:3"), "gpu_ecc_uncorrected_aggregate_count"
    ),
    "no mode and counters of ECC": (without_ecc, "gpu_ecc_unknown_count"),
    "another model of machine": (
        environment_is("facts", firmware={"product_name": "another", "bios_version": "1.2", "bmc_version": "3.4"}),
        "machine_model",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def h200():
    run, evidence = healthy_fleet("h200", stages=["facts", "training", "loading", "inference", "vendor_tools"])
    return run, evidence, named(judged(run, evidence))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_differs_on_one_node_alone_is_named_there(h200, fault):
    run, evidence, before = h200
    change, metric_name = FAULTS[fault]
    changed = copy.copy(evidence)
    changed.records = {**evidence.records, BAD: copy.deepcopy(evidence.records[BAD])}
    change(changed.records[BAD])
    after = named(judged(run, changed))
    assert metric_name in {name for _, name in after[BAD] - before[BAD]}
    for node in after:
        assert node == BAD or after[node] <= before[node], node


def test_a_loss_is_compared_only_between_nodes_that_train_alike(h200):
    run, evidence, before = h200
    changed = copy.copy(evidence)
    changed.records = copy.deepcopy(evidence.records)
    for number, name in enumerate(sorted(changed.records)):
        record = changed.records[name]["training"]
        record["fingerprints"]["training_course"] = f"seed {number % 2}"
        figures_times("training", {"training_loss_step_20": 1 + number % 2})(changed.records[name])
    assert named(judged(run, changed)) == before
    figures_times("training", {"training_loss_step_20": 1.03, "training_loss_step_80": 1.08})(changed.records[BAD])
    after = named(judged(run, changed))
    assert {node for node in after if after[node] - before[node]} == {BAD}
    assert after[BAD] - before[BAD] == {("training", "training_loss_step_20")}


def compared(run, evidence, informational=SHIPPED.informational):
    return comparisons.compare(list(subjects_of(run, evidence).values()), informational)


@pytest.mark.parametrize("tails", [0, 3])
def test_healthy_nodes_are_not_named(tails):
    for seed in range(3):
        run, evidence = healthy_fleet("h200", 16, seed, stages=["facts", "loading", "storage"], tails=tails)
        entries, (of_fleet,) = compared(run, evidence)
        assert entries == {}
        assert of_fleet["verdict"] == "pass"
        assert "comparisons of" in of_fleet["reason"]


def test_most_parts_of_a_node_alike_are_the_node():
    run, evidence = healthy_fleet("h200", stages=["facts", "training"])
    figures_times("training", {"training_model_tflops": 0.5})(evidence.records[BAD])
    entries, _ = compared(run, evidence)
    (entry,) = entries[BAD]
    assert entry["part"] == "node"
    assert entry["reason"].startswith("8 of 8 gpus, most gpu:")
    assert (entry["name"], entry["verdict"], entry["severity"]) == ("training_model_tflops_peers", "warn", "advisory")


def test_two_halves_name_no_node():
    run, evidence = healthy_fleet("h200", stages=["facts", "training"])
    for name in list(evidence.records)[:8]:
        figures_times("training", {"training_model_tflops": 0.5})(evidence.records[name])
    assert compared(run, evidence)[0] == {}


def test_what_a_user_lists_is_not_compared():
    run, evidence = healthy_fleet("h200", stages=["facts", "training"])
    figures_times("training", {"training_model_tflops": 0.5})(evidence.records[BAD])
    listed = [*SHIPPED.informational, Informational("training", ("*_tflops",), "mixed by design")]
    assert compared(run, evidence, listed)[0] == {}
