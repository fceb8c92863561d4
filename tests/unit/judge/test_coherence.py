"""Evidence agrees with itself: lies put into real records are found, and healthy records contradict nothing."""

import copy
import hashlib
import json
import re
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import coherence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.subjects import subject_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence
from coherence_lies import NODE, consistent_lies, healthy, measure, rows, violated

from tests.kit.builders import SHIPPED, judge, make_record, make_run, metric, seconds_after

REAL = {node.name: node for node in healthy()}
H200, CPU, GANG = REAL["h200 quick"], REAL["cpu loaded"], REAL["h200 nvlink_zero_2"]
COLLECTIVE, CPU_SHARED, ONE_GPU = REAL["h200 tcp_collective"], REAL["cpu shared"], REAL["h200 one_gpu"]
ONE_GPU_LISTED = ONE_GPU.records["facts"]["environment"]["gpus"]


def with_tools(**counts):
    """The tools of vendors on the real node, of which one has failures that the stage does not count."""
    figures = [metric(f"vendor_tools_{name}_count", value) for name, value in
               {"run": 1, "failed": 0, "answered": 1}.items()]  # fmt: skip
    began = H200.records["inference"]["finished_at"]
    tools = make_record(
        NODE, "vendor_tools", started_at=began, metrics=[*figures, *(metric(*item) for item in counts.items())]
    )
    return {**H200.records, "vendor_tools": tools}


def changed(node, stage, *figures, **fields):
    """The records of a real node with other figures (name, value, scope) and fields in one stage."""
    records = copy.deepcopy(node.records)
    for name, value, *scope in figures:
        hits = [
            one
            for one in records[stage]["metrics"]
            if one["name"] == name and one["scope"] in (scope or [one["scope"]])
        ]
        assert hits, name
        for hit in hits:
            hit["value"] = value(hit["value"]) if callable(value) else value
    records[stage].update(fields)
    return records


def times(value):
    return lambda figure: figure * value


AGREEING = {
    "facts": {
        "accelerator": {"count": 2, "hardware_count": 2},
        "cpu": {"logical_count": 32},
        "memory": {"total_bytes": 270334464000},
    },
    "diagnostics": {"processes": 2, "numa_bytes_per_second": {"0": 93930719228}},
    "training": {"processes": 2, "batch_size_per_process": 8, "sequence_length": 2048, "parameters": 1100048384},
}


def end(record, seconds):
    return seconds_after(record["started_at"], seconds)


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_records_contradict_nothing(name):
    assert violated(REAL[name].records) == set()


@pytest.mark.parametrize("stage", AGREEING)
def test_what_programs_say_of_their_work_agrees_with_its_figures(stage):
    """The environments of two H200, of which the records of tests/data keep little."""
    figures = {
        "facts": [metric("cpu_logical_count", 32), metric("memory_bytes", 270334464000, "bytes")],
        "diagnostics": [metric("diagnostics_numa_memory_bytes_per_second", 93930719227.9, "bytes/s")],
    }.get(stage, [])
    names = {figure["name"] for figure in figures}
    others = [figure for figure in H200.records[stage]["metrics"] if figure["name"] not in names]
    environment = {**H200.records[stage]["environment"], **AGREEING[stage]}
    assert violated(changed(H200, stage, metrics=[*others, *figures], environment=environment)) == set()


IDLE = [("gpu_power_max_watts", 82.0), ("gpu_power_mean_watts", 80.0), ("gpu_power_p50_watts", 80.0),
        ("gpu_utilisation_mean_ratio", 0.01)]  # fmt: skip
H_TRAINING, C_TRAINING = H200.records["training"], CPU.records["training"]
FACTS = H200.records["facts"]["environment"]


NVML = {"telemetry": {"source": "nvml"}}


def with_gpus(gpus, node=H200):
    """The real facts with another list of GPUs."""
    return changed(node, "facts", environment={**node.records["facts"]["environment"], "gpus": gpus})


def with_load(*figures):
    """The real node, with a load of all parts beside."""
    began = H200.records["inference"]["finished_at"]
    return {**H200.records, "combined_load": make_record(NODE, "combined_load", started_at=began, metrics=figures)}


def with_copied_part(stage):
    """The real stage, in which gpu:1 has the figures of gpu:0."""
    metrics = H200.records[stage]["metrics"]
    own = [one for one in metrics if one["scope"] not in ("gpu:1", "rank:1")]
    copies = [{**one, "scope": one["scope"].replace("0", "1")} for one in own if one["scope"] in ("gpu:0", "rank:0")]
    return changed(H200, stage, metrics=[*own, *copies])


def with_digest(node, stage, name, content):
    """The real stage with the digest of this content."""
    digests = {**node.records[stage]["fingerprints"], name: hashlib.sha256(content).hexdigest()}
    return changed(node, stage, fingerprints=digests)


def asked(node, stage, option, number, *figures):
    """The real stage, of which the plan asked for more."""
    return changed(node, stage, *figures, command=["python", option, str(number)])


#: By what is lied about: the records, the stage, and the rule that contradicts it.
LIES = {
    "ended before it began": (
        changed(H200, "training", finished_at=end(H_TRAINING, -40)),
        "training",
        "span_is_duration",
    ),
    "updated before it ended": (
        changed(CPU, "training", updated_at=end(C_TRAINING, 10)),
        "training",
        "updated_after_end",
    ),
    "took 0.1 s": (
        changed(H200, "training", duration_seconds=0.1, finished_at=end(H_TRAINING, 0.1)),
        "training",
        "figures_fit_stage",
    ),
    "diagnostics of 0.1 s": (
        changed(H200, "diagnostics", duration_seconds=0.1, finished_at=end(H200.records["diagnostics"], 0.1)),
        "diagnostics",
        "stage_takes_planned_seconds",
    ),
    "300 s of work in 20 s": (
        changed(H200, "training", ("training_duration_seconds", 300.0)),
        "training",
        "figures_fit_stage",
    ),
    "300 s of requests in 40 s": (
        changed(H200, "inference", ("inference_running_seconds", 300.0)),
        "inference",
        "inference_fits_stage",
    ),
    "300 s of loading in 12 s": (
        changed(H200, "loading", ("loading_duration_seconds", 300.0)),
        "loading",
        "loading_fits_stage",
    ),
    "300 s of repeats in 20 s": (
        changed(H200, "fingerprint", ("fingerprint_repeats_count", 300)),
        "fingerprint",
        "repeats_fit_stage",
    ),
    "300 s of load in 30 s": (
        changed(CPU, "combined_load", ("combined_load_seconds", 300.0)),
        "combined_load",
        "load_fits_stage",
    ),
    "began inside another stage": (
        changed(H200, "inference", started_at=H200.records["facts"]["started_at"]),
        "inference",
        "overlap",
    ),
    "many samples": (changed(H200, "training", ("telemetry_samples_count", 300)), "training", "nvml_covers_stage"),
    "few samples of a CPU node": (
        changed(CPU, "inference", ("telemetry_samples_count", 1)),
        "inference",
        "host_covers_stage",
    ),
    "trained on idle GPUs, by power": (changed(H200, "training", *IDLE), "training", "training_power"),
    "trained on idle GPUs, by energy": (changed(H200, "training", *IDLE[1:3]), "training", "training_energy"),
    "trained on idle GPUs, by utilisation": (changed(H200, "training", IDLE[3]), "training", "training_utilisation"),
    "one GPU of two idle": (
        changed(H200, "training", *((name, value, "gpu:1") for name, value in IDLE)),
        "training",
        "training_power",
    ),
    "matrix products on an idle GPU": (changed(H200, "diagnostics", *IDLE[:3]), "diagnostics", "matmul_power"),
    "a thousandth of the tokens": (
        changed(H200, "training", ("training_tokens_per_second", times(1e-3))),
        "training",
        "tokens_make_tflops",
    ),
    "a thousandth of the tokens on a CPU": (
        changed(CPU, "training", ("training_tokens_per_second", times(1e-3))),
        "training",
        "tokens_make_tflops",
    ),
    "tokens of a group": (
        changed(GANG, "deepspeed", ("gang_ddp_tokens_per_second", times(1e-3))),
        "deepspeed",
        "ddp_tokens_make_tflops",
    ),
    "loss of 0": (changed(H200, "training", ("training_loss_last", 0)), "training", "loss_is_positive"),
    "loss below 0": (changed(CPU, "training", ("training_loss_last", -2.5)), "training", "loss_is_positive"),
    "first loss of 0": (changed(H200, "training", ("training_loss_first", 0)), "training", "first_loss"),
    "loss of 0 in a group": (changed(GANG, "deepspeed", ("gang_loss_last", 0)), "deepspeed", "gang_loss_is_positive"),
    "loading at two rates": (changed(H200, "loading", ("loading_bytes_per_second", 1e10)), "loading", "loading_rate"),
    "memory tested by ratio and by bytes": (
        changed(H200, "diagnostics", ("diagnostics_memory_tested_bytes", 2e9)),
        "diagnostics",
        "tested_memory",
    ),
    "5 million tokens/s": (
        changed(H200, "inference", ("inference_tokens_per_second", 5e6)),
        "inference",
        "inference_stream_rate",
    ),
    "5 million tokens/s, with as many tokens": (
        changed(
            H200, "inference", ("inference_tokens_per_second", 5e6), ("inference_generated_tokens_count", 5e6 * 16.2619)
        ),
        "inference",
        "inference_stream_rate",
    ),
    "one request": (
        changed(H200, "inference", ("inference_requests_done_count", 1)),
        "inference",
        "inference_requests_rate",
    ),
    "one request of the plan's": (
        asked(H200, "inference", "--requests", 500, ("inference_requests_done_count", 1)),
        "inference",
        "inference_requests_planned",
    ),
    "one step": (changed(H200, "training", ("training_steps_count", 1)), "training", "steps_make_tokens"),
    "one step of the plan's": (
        asked(H200, "training", "--steps", 500, ("training_steps_count", 1)),
        "training",
        "training_steps_planned",
    ),
    "one byte": (changed(H200, "loading", ("loading_bytes", 1)), "loading", "loading_rate"),
    "short training": (asked(H200, "training", "--seconds", 300), "training", "training_seconds_done"),
    "short inference": (asked(CPU, "inference", "--seconds", 300), "inference", "inference_seconds_done"),
    "short fingerprint": (asked(H200, "fingerprint", "--seconds", 300), "fingerprint", "fingerprint_seconds_done"),
    "short load": (asked(CPU, "combined_load", "--seconds", 300), "combined_load", "combined_load_seconds_done"),
    "short storage": (asked(CPU, "storage", "--seconds", 300), "storage", "storage_takes_planned_seconds"),
    "a ninth GPU": (
        changed(
            H200,
            "training",
            metrics=[*H_TRAINING["metrics"], metric("training_model_tflops", 450.0, "TFLOP/s", "gpu:2")],
        ),
        "training",
        "unknown_parts",
    ),
    "a GPU without a name": (with_gpus([{**gpu, "name": ""} for gpu in FACTS["gpus"]]), "facts", "unnamed_gpus"),
    "gpu:0 twice in the facts": (with_gpus(FACTS["gpus"][:1] * 2), "facts", "unnamed_gpus"),
    "more GPUs listed than counted": (changed(H200, "facts", ("gpu_count", 1)), "facts", "facts_list_their_gpus"),
    "the hash of nothing": (
        with_digest(H200, "fingerprint", "fingerprint_matmul_sha256", b""),
        "fingerprint",
        "empty_digests",
    ),
    "the hash of zeros": (
        with_digest(CPU, "fingerprint", "fingerprint_matmul_sha256", bytes(4096)),
        "fingerprint",
        "empty_digests",
    ),
    "the answer of nothing": (
        with_digest(H200, "inference", "inference_warm_up_answer", b""),
        "inference",
        "empty_digests",
    ),
    "one hash for all": (
        changed(
            CPU,
            "fingerprint",
            fingerprints={f"fingerprint_{name}_sha256": "ab" * 32 for name in ("training", "matmul")},
        ),
        "fingerprint",
        "empty_digests",
    ),
    "requests and bytes of storage": (
        changed(CPU, "storage", ("storage_random_read_bytes_per_second", times(3))),
        "storage",
        "storage_random_read_requests",
    ),
    "percentiles of storage": (
        changed(CPU, "storage", ("storage_mixed_p99_seconds", 1e-9)),
        "storage",
        "median_below_p99",
    ),
    "percentiles of inference": (
        changed(CPU, "inference", ("inference_ttft_p99_seconds", 1e-9)),
        "inference",
        "median_below_p99_of_node",
    ),
    "ratio of a group": (changed(GANG, "deepspeed", ("gang_scaling_ratio", 0.2)), "deepspeed", "scaling_ratio"),
    "GPUs of the accelerator": (
        changed(H200, "facts", environment={**FACTS, "accelerator": {"vendor": "nvidia", "count": 1}}),
        "facts",
        "facts_count_their_gpus",
    ),
    "GPU devices of the accelerator": (
        changed(H200, "facts", ("gpu_hardware_count", 8)),
        "facts",
        "facts_count_their_hardware",
    ),
    "processors of the list": (
        changed(H200, "facts", environment={**FACTS, "cpu": {"logical_count": 8}}),
        "facts",
        "facts_count_their_processors",
    ),
    "memory of the host": (
        changed(H200, "facts", environment={**FACTS, "memory": {"total_bytes": 64 << 30}}),
        "facts",
        "facts_count_their_memory",
    ),
    "the slowest NUMA node": (
        changed(
            H200,
            "diagnostics",
            metrics=[
                *H200.records["diagnostics"]["metrics"],
                metric("diagnostics_numa_memory_bytes_per_second", 1e11, "bytes/s"),
            ],
            environment={"numa_bytes_per_second": {"0": 9e10, "1": 1e11}},
        ),
        "diagnostics",
        "slowest_numa_node",
    ),
    **{
        f"one process of two in {stage}": (
            changed(H200, stage, environment={"processes": 1}),
            stage,
            "processes_of_program",
        )
        for stage in ("diagnostics", "fingerprint", "training")
    },
    "a smaller batch than the setup's": (
        changed(H200, "training", environment={"batch_size_per_process": 1, "sequence_length": 2048}),
        "training",
        "setup_of_batch",
    ),
    **{
        f"{what} in the list of GPUs": (
            with_gpus([{**one, **change} for one in ONE_GPU_LISTED], node=ONE_GPU),
            "facts",
            rule,
        )
        for what, change, rule in (
            ("other memory", {"memory_bytes": 80e9}, "facts_of_memory"),
            ("other power limit", {"power_limit_watts": 350.0}, "facts_of_power"),
            ("ECC errors", {"ecc_uncorrected_count": 4}, "facts_of_ecc"),
            ("other PCIe width", {"pcie_width": 8}, "facts_of_links"),
            ("a clock over its maximum", {"core_clock_hertz": 3e9}, "facts_core_clock"),
        )
    },
    **{
        f"two GPUs with one {key}": (
            with_gpus([FACTS["gpus"][0], {**FACTS["gpus"][1], key: FACTS["gpus"][0][key]}]),
            "facts",
            rule,
        )
        for key, rule in (
            ("serial", "gpus_have_their_own_serials"),
            ("pci_address", "gpus_have_their_own_addresses"),
        )
    },
    "two drivers": (
        with_gpus([FACTS["gpus"][0], {**FACTS["gpus"][1], "driver_version": "550.1"}]),
        "facts",
        "gpus_have_one_driver",
    ),
    "other UUIDs in the identity": (
        changed(H200, "facts", environment={**FACTS, "identity": {"gpu_uuids": ["GPU-00000000", "GPU-7"]}}),
        "facts",
        "uuids_of_identity",
    ),
    "fewer lanes than are counted": (
        changed(H200, "facts", ("gpu_pcie_width_count", 4, "gpu:1")),
        "facts",
        "facts_pcie_degraded",
    ),
    "a clock that no GPU has": (
        changed(ONE_GPU, "training", ("gpu_sm_clock_busy_mean_hertz", 5e9)),
        "training",
        "core_clock_seen",
    ),
    "trained at a third of the clock": (
        changed(ONE_GPU, "training", ("gpu_sm_clock_busy_mean_hertz", times(1 / 3))),
        "training",
        "training_clock",
    ),
    "ten times the power": (
        changed(H200, "diagnostics", ("gpu_power_max_watts", 2000.0)),
        "diagnostics",
        "power_below_limit",
    ),
    "a mean over the samples": (
        changed(H200, "loading", ("gpu_power_max_watts", 400.0)),
        "loading",
        "samples_make_mean_power",
    ),
    "a median over the mean": (
        changed(H200, "training", ("gpu_power_mean_watts", 300.0)),
        "training",
        "median_makes_mean_power",
    ),
    "a mean over the median": (
        changed(H200, "training", ("gpu_power_p50_watts", 100.0)),
        "training",
        "mean_power_of_median",
    ),
    "an event that is not counted": (
        changed(
            CPU_SHARED,
            "training",
            environment={
                **CPU_SHARED.records["training"]["environment"],
                "kernel_events": [{"kind": "aer", "count": 2}],
            },
        ),
        "training",
        "kernel_aers_listed",
    ),
    "a count without its event": (
        changed(CPU_SHARED, "training", ("kernel_mce_count", 5)),
        "training",
        "kernel_mces_listed",
    ),
    "one device for two processes": (
        changed(H200, "training", environment={**NVML, "devices": [{"index": 0, "uuid": "0"}], "processes": 2}),
        "training",
        "devices_of_processes",
    ),
    "one device twice": (
        changed(
            H200, "training", environment={**NVML, "devices": [{"index": index, "uuid": "0"} for index in range(2)]}
        ),
        "training",
        "devices_are_different",
    ),
    "a device of another memory": (
        changed(H200, "training", environment={**NVML, "devices": [{"index": 1, "memory_bytes": 80e9}]}),
        "training",
        "memory_of_devices",
    ),
    "more processes than GPUs": (
        changed(H200, "fingerprint", ("fingerprint_processes_count", 3)),
        "fingerprint",
        "processes_of_gpus",
    ),
    "a figure of one part only": (
        changed(
            H200,
            "diagnostics",
            metrics=[
                one
                for one in H200.records["diagnostics"]["metrics"]
                if (one["name"], one["scope"]) != ("diagnostics_matmul_fp16_tflops", "gpu:1")
            ],
        ),
        "diagnostics",
        "figures_of_matmul",
    ),
    **{
        f"parts of {factor} times the seconds": (
            changed(
                CPU_SHARED,
                "diagnostics",
                environment={
                    **CPU_SHARED.records["diagnostics"]["environment"],
                    "seconds_by_part": {"matrix products": 42.18 * factor},
                },
            ),
            "diagnostics",
            rule,
        )
        for factor, rule in ((3, "parts_fit_diagnostics"), (0.1, "parts_take_planned_seconds"))
    },
    "tiny collectives": (
        changed(H200, "diagnostics", ("diagnostics_collective_largest_bytes", 1e6)),
        "diagnostics",
        "largest_collective_of_memory",
    ),
    "huge collectives": (
        changed(H200, "diagnostics", ("diagnostics_collective_largest_bytes", 1e11)),
        "diagnostics",
        "largest_collective",
    ),
    "more exact than bf16": (
        changed(H200, "diagnostics", ("diagnostics_matmul_bf16_error_ratio", 1e-4)),
        "diagnostics",
        "bf16_rounds",
    ),
    **{
        name: (
            changed(
                H200,
                "diagnostics",
                metrics=[
                    {**one, "scope": one["scope"].replace("link:gpu1>gpu0", f"link:gpu1>{other}")}
                    for one in H200.records["diagnostics"]["metrics"]
                ],
            ),
            "diagnostics",
            "unknown_parts",
        )
        for name, other in (("a link of a GPU to itself", "gpu1"), ("a link to a GPU that is not there", "gpu5"))
    },
    **{
        f"a copied part in {stage}": (with_copied_part(stage), stage, "copied_parts")
        for stage in ("diagnostics", "training")
    },
    **{
        f"a setup that {what}": (
            changed(CPU_SHARED, "training", fingerprints={"training_setup": setup}),
            "training",
            rule,
        )
        for what, setup, rule in (
            ("nobody knows", "my model", "setup_is_known"),
            ("has another precision", "llama-tiny 16x128 bf16 eager", "setup_of_precision"),
            ("has another model", "llama-small 16x128 fp32 eager", "setup_of_parameters"),
            ("was compiled", "llama-tiny 16x128 fp32 compiled", "setup_is_compiled"),
        )
    },
    "a loss below the entropy": (
        changed(CPU_SHARED, "training", ("training_loss_last", 0.05)),
        "training",
        "loss_above_entropy",
    ),
    "no first answer": (changed(H200, "inference", fingerprints={}), "inference", "inference_answers"),
    "a first answer of nothing": (
        changed(H200, "inference", fingerprints={"inference_warm_up_answer": "n/a"}),
        "inference",
        "inference_answers",
    ),
    "prompts of another length": (
        changed(CPU_SHARED, "inference", ("inference_prompt_tokens_count", times(100))),
        "inference",
        "inference_prompts",
    ),
    "a digest of another kind": (
        changed(H200, "fingerprint", fingerprints={"fingerprint_matmul_sha256": "n/a"}),
        "fingerprint",
        "empty_digests",
    ),
    "a full queue of slow requests": (
        changed(CPU, "storage", ("storage_sequential_read_p50_seconds", times(3))),
        "storage",
        "storage_queue_is_full",
    ),
    "faster under load": (
        with_load(metric("combined_load_gpu_ratio", 3.0, "ratio", "gpu:1")),
        "combined_load",
        "load_is_no_faster",
    ),
    "weights that do not fit": (
        changed(H200, "training", ("training_peak_memory_bytes", 1e9, "gpu:1"), environment={"parameters": 1100048384}),
        "training",
        "weights_fit_peak_memory",
    ),
    "power limit": (changed(H200, "training", ("gpu_power_busy_ratio", 0.3)), "training", "busy_power_ratio"),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_lie_in_a_real_record_is_no_evidence(lie):
    records, stage, rule = LIES[lie]
    run = make_run((NODE,), stages=list(records))
    entries = coherence.checks(subject_of(run, NODE, RunEvidence(records={NODE: records})), stage)
    (entry,) = [one for one in entries if one["value"] == rule]
    assert (entry["name"], entry["verdict"], entry["kind"]) == (f"{stage}_coherent", "missing", "coherent")
    assert entry["reason"].startswith("contradiction: ")
    (node,) = judge(run, RunEvidence(records={NODE: records}), SHIPPED)["nodes"]
    assert node["verdict"] != "PASS"


#: Faults that one figure shows and another denies.
HIDDEN = {
    "failures of DCGM": (with_tools(dcgm_failed_count=1), "vendor_tools"),
    "failures of AGFHC": (with_tools(agfhc_failed_count=2), "vendor_tools"),
    "failures of RVS": (with_tools(rvs_failed_count=2), "vendor_tools"),
    "failures of hl_qual": (with_tools(hl_qual_failed_count=2), "vendor_tools"),
    "errors of nccl-tests": (with_tools(nccl_tests_error_count=2), "vendor_tools"),
    "XIDs of a GPU": (changed(H200, "training", ("gpu_xid_critical_count", 1, "gpu:1")), "training"),
    "XIDs of a GPU while loading": (changed(H200, "loading", ("gpu_xid_critical_count", 1, "gpu:1")), "loading"),
}


@pytest.mark.parametrize("fault", sorted(HIDDEN))
def test_a_fault_that_another_figure_denies_fails(fault):
    records, stage = HIDDEN[fault]
    run = make_run((NODE,), stages=list(records))
    evidence = RunEvidence(records={NODE: records})
    (entry,) = coherence.checks(subject_of(run, NODE, evidence), stage)
    assert (entry["name"], entry["verdict"]) == (f"{stage}_hidden_fault", "fail")
    (node,) = judge(run, evidence, SHIPPED)["nodes"]
    assert node["verdict"] == "FAIL"


def test_what_a_fault_explains_is_no_contradiction():
    records = changed(H200, "diagnostics", ("diagnostics_matmul_bf16_tflops", 100.0, "gpu:1"))
    run = make_run((NODE,), stages=list(records), gpu_count=2)
    (node,) = judge(run, RunEvidence(records={NODE: records}), SHIPPED)["nodes"]
    assert node["verdict"] == "FAIL"
    assert [check for check in node["checks"] if check["kind"] == "coherent"] == []


def test_absent_telemetry_is_no_contradiction():
    records = copy.deepcopy(H200.records)
    for record in records.values():
        record["metrics"] = [one for one in record["metrics"] if not one["name"].startswith(("gpu_power", "gpu_util"))]
        record["environment"]["telemetry"] = {"source": "amd-smi", "period_seconds": 1.0}
    assert violated(records) == set()


def test_a_group_is_named_and_no_member_fails():
    record = changed(GANG, "deepspeed", ("gang_loss_last", 0))["deepspeed"]
    record["metrics"].append(metric("gpu_xid_critical_count", 1, "count", "gpu:0"))
    record["metrics"] += [metric("kernel_xid_critical_count", 0)]
    subject = subject_of(
        make_run((NODE,), stages=["deepspeed"]), NODE, RunEvidence(records={NODE: {"deepspeed": record}})
    )
    entries = coherence.checks(subject, "deepspeed", of_gang=True)
    assert {entry["verdict"] for entry in entries} == {"missing"}
    assert len(entries) == 2
    assert all(entry["reason"].startswith("a gang: contradiction: ") for entry in entries)


@pytest.mark.parametrize("state", ["failure", "crash", "running"])
def test_work_that_did_not_succeed_is_not_held_against_itself(state):
    assert violated(changed(H200, "training", ("training_loss_last", 0), state=state)) == set()


def test_every_rule_is_read_and_has_limits_beyond_the_healthy_ratios():
    names = [rule.name for rule in coherence.rules()]
    assert len(names) == len(set(names))
    for entry in (entry for path in coherence.files() for entry in coherence.entries_of(path)):
        for ratio in entry["healthy"]:
            assert entry.get("low", ratio) <= ratio <= entry.get("high", ratio), entry["name"]


def test_the_documentation_has_the_limits_of_every_rule():
    page = (Path(__file__).parents[3] / "docs/design/coherence.md").read_text()
    for name, says, _, limits, *_ in rows({}):
        row = rf"^\| `{name}` \| {re.escape(says)} \| [^|]+ \| {re.escape(limits)} \|"
        assert re.search(row, page, re.MULTILINE), name


def test_lies_by_three_are_found_by_most_rules():
    table = measure()
    shares = {
        name: sum(of_rule.lies[3.0]) / len(of_rule.lies[3.0]) for name, of_rule in table.items() if of_rule.lies[3.0]
    }
    assert len(shares) > 70
    assert sum(share >= 0.95 for share in shares.values()) > 50


def test_a_careful_liar_contradicts_other_sources():
    caught = dict(consistent_lies(H200, 3.0))
    assert {"plausible", "training_below_matmul"} <= caught["training | speeds up"]
    assert "training_power" in caught["training | telemetry down"]
    assert "inference_fits_stage" in caught["inference | speeds down"]
    assert caught["loading | speeds up"] == set(), "peers find it"


def test_the_report_with_contradictions_follows_its_schema():
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas

    records, *_ = LIES["loss of 0"]
    report = judge(make_run((NODE,), stages=list(records)), RunEvidence(records={NODE: records}), SHIPPED)
    schemas.validate("report", json.loads(json.dumps(report)), what="report")
