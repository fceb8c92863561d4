"""What nodes are: vendors, SKUs, counts, versions, NICs, services, mounts, and figures that cannot be."""

from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units

from tests.kit.builders import SHIPPED, check, facts_record, healthy_records, metric, real_records
from tests.kit.h200 import STAGES, records, setups_of, telemetry
from tests.kit.judged_fleets.fleet import Fleet, fleet

MODELS = {
    "nvidia": ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA B200", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB",
               "NVIDIA L40S", "NVIDIA GH200 480GB", "NVIDIA H300"],
    "amd": ["AMD Instinct MI300X", "AMD Instinct MI355X", "AMD Instinct MI999"],
    "gaudi": ["HL-325L", "HL-225H", "HL-999"],
}  # fmt: skip


def _plain(name):
    return name.lower().replace(" ", "-")


@fleet
def accelerators(_folder):
    """Every vendor, with and without GPUs, drivers and declarations."""
    cases = {
        f"{vendor}-{hardware}-sku-{sku}-count-{count}": (vendor, hardware, sku, count)
        for vendor in ("nvidia", "amd", "gaudi", "cpu", "another")
        for hardware in (0, 8, None)
        for sku in ("auto", "cpu", "h200", "amd")
        for count in (None, 8)
    }
    documents = {}
    gpus = check("gpus", stage="facts", metric="gpu_count", kind="equal", value_from="gpu_count")
    for few in (True, False):
        chosen = {node: case for node, case in cases.items() if not few or case[0] not in ("nvidia", "amd")}
        kinds = Fleet([*chosen, "no-facts"], stages=["facts"], checks=[gpus])
        for node, (vendor, hardware, sku, count) in chosen.items():
            record = facts_record(node, vendor=vendor, gpus=0 if vendor == "cpu" else 8, hardware=hardware or 0)
            if hardware is None:
                record["metrics"] = [one for one in record["metrics"] if one["name"] != "gpu_hardware_count"]
            kinds.evidence.records[node]["facts"] = record
            kinds.node(node).update(sku=sku, gpu_count=count)
        kinds.drop("no-facts", "facts")
        documents["few_have_gpus" if few else "most_have_gpus"] = kinds.judged(alone=False)
    earlier = Fleet(["cpu-1", "cpu-2"], stages=["facts"], gpus=0, vendor="cpu")
    found = {("accelerator", "serial S-cpu-1"): {"run-0", "run-00"}}
    documents["lacked_before"] = earlier.judged(earlier=found, alone=False)
    return documents


@fleet
def skus(_folder):
    """Models beside what was ordered: of the catalogue, unknown, mixed, too few, of another vendor."""
    ordered = ("auto", "h200", "NVIDIA H200", "hgx-h200", "8xh100", "mi300x", "gaudi3", "nvidia", "my-machine", "cpu")
    cases = {
        f"{_plain(sku)}--{_plain(model)}": (sku, vendor, [model])
        for sku in ordered
        for vendor, models in MODELS.items()
        for model in models
    }
    cases |= {f"{_plain(sku)}--mixed": (sku, "nvidia", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]) for sku in ordered}
    cases |= {f"{_plain(sku)}--other-vendor": (sku, "amd", ["NVIDIA H200"]) for sku in ordered}
    cases |= {f"{_plain(sku)}--half-unknown": (sku, "nvidia", ["NVIDIA H200", "NVIDIA H300"]) for sku in ordered}
    cases |= {f"{_plain(sku)}--no-model": (sku, "nvidia", [None]) for sku in ordered}
    counts = {f"{_plain(sku)}--{count}-gpus": (sku, count) for sku in ("auto", "h200") for count in (1, 4, 7, 16, None)}
    known = Fleet([*cases, *counts, "no-facts", "declared"], stages=["facts"], checks=[])
    for node, (sku, vendor, models) in cases.items():
        known.node(node)["sku"] = sku
        known.facts(node)["accelerator"]["vendor"] = vendor
        for number, gpu in enumerate(known.facts(node)["gpus"]):
            gpu["name"] = models[number % len(models)]
    for node, (sku, count) in counts.items():
        known.node(node)["sku"] = sku
        known.evidence.records[node]["facts"] = facts_record(node, gpus=count or 8)
        if count is None:
            known.forget(node, "facts", "gpu_count")
    known.drop("no-facts", "facts")
    known.node("declared").update(sku="h200", gpu_count=4)
    return known.judged(alone=False)


@fleet
def orders(_folder):
    """NICs, versions, services and mounts as they are declared."""
    declared = {
        "nics": {"count": 2, "rate_bits_per_second": 4e11},
        "versions": {"driver": ["580.159.04", "580.*"], "kernel": ["6.8.0"], "vbios": ["96.00"],
                     "nic_firmware": ["28.4"], "bmc": ["1.0"]},
        "declared": {"services": ["chronyd", "nvidia-fabricmanager"], "mounts": ["/data"]},
    }  # fmt: skip
    nodes = ("fine", "nothing-told", "no-facts", "port-down", "port-slow", "one-nic", "odd-nics", "old-driver",
             "old-drivers", "driver-not-told", "two-firmwares", "old-kernel", "service-gone", "services-odd",
             "mount-gone", "automount", "automount-other", "container", "one-service", "undeclared")  # fmt: skip
    ordered = Fleet(nodes, stages=["facts"], checks=[])
    for name in nodes:
        facts = ordered.facts(name)
        facts["nics"] = [
            {"name": f"mlx5_{number}", "kind": "rdma", "firmware_version": "28.4", "board_id": "x", "ports": [
                {"port": 1, "state": "ACTIVE", "rate_bits_per_second": 4e11}
            ]} for number in range(2)
        ] + [{"name": "eth0", "kind": "ethernet"}]  # fmt: skip
        facts["os"] = {"kernel": "6.8.0"}
        facts["firmware"] = {"bmc_version": "1.0"}
        facts["services"] = {"active": ["chronyd", "nvidia-fabricmanager"], "mounts": ["/data", "/"], "automounts": []}
        for gpu in facts["gpus"]:
            gpu.update(driver_version="580.159.04", firmware_version="96.00")
        ordered.node(name).update(declared if name != "undeclared" else {})
    for key in ("nics", "os", "firmware", "services"):
        del ordered.facts("nothing-told")[key]
    ordered.facts("nothing-told")["gpus"] = []
    ordered.drop("no-facts", "facts")
    ordered.facts("port-down")["nics"][0]["ports"][0]["state"] = "DOWN"
    ordered.facts("port-slow")["nics"][1]["ports"][0]["rate_bits_per_second"] = 2e11
    del ordered.facts("one-nic")["nics"][0]
    ordered.node("one-nic")["nics"] = {"count": 2}
    ordered.facts("odd-nics")["nics"] = [
        None, {"kind": "rdma", "name": "a", "ports": {}}, {"kind": "rdma", "ports": [None, {"state": 7}]},
        {"kind": "rdma", "name": "b", "ports": [{"port": 1, "state": "ACTIVE", "rate_bits_per_second": "many"}]},
    ]  # fmt: skip
    ordered.facts("old-driver")["gpus"][3]["driver_version"] = "570.86.15"
    for gpu in ordered.facts("old-drivers")["gpus"]:
        gpu["driver_version"] = "570.86.15"
    del ordered.facts("driver-not-told")["gpus"][2]["driver_version"]
    for nic in ordered.facts("two-firmwares")["nics"][:2]:
        nic["firmware_version"] = "28.3"
    ordered.facts("old-kernel")["os"]["kernel"] = "5.15"
    ordered.facts("service-gone")["services"]["active"] = ["chronyd"]
    ordered.facts("services-odd")["services"] = ["chronyd"]
    ordered.facts("mount-gone")["services"]["mounts"] = ["/"]
    ordered.facts("automount")["services"].update(mounts=["/"], automounts=["/data"])
    ordered.facts("automount-other")["services"].update(mounts=["/"], automounts=["/home"])
    ordered.facts("container")["services"]["mounts"] = ["/"]
    ordered.facts("container")["os"]["container"] = "docker"
    ordered.node("one-service")["declared"] = {"services": ["chronyd"]}
    return ordered.judged()


@fleet
def impossible_figures(_folder):
    """Figures beyond what is physically possible, in right, other and wrong units, of nodes and of gangs."""
    cases = {
        "tflops": ("diagnostics_matmul_bf16_tflops", 1300, "TFLOP/s"),
        "tflops-in-gflops": ("diagnostics_matmul_bf16_tflops", 1.3e6, "GFLOP/s"),
        "memory-tb": ("diagnostics_memory_bytes_per_second", 4285, "TB/s"),
        "memory-unit": ("diagnostics_memory_bytes_per_second", 4.285e12, "bytes"),
        "no-unit": ("diagnostics_memory_bytes_per_second", 1.0, ""),
        "negative": ("diagnostics_memory_error_count", -1, "count"),
        "negative-time": ("diagnostics_launch_seconds", -4e-6, "seconds"),
        "hot": ("gpu_temperature_max_celsius", 6500, "celsius"),
        "huge": ("training_tokens_per_second", 1e300, "tokens/s"),
        "loss": ("training_loss_last", -1e300, "loss"),
        "unknown": ("score", -12, "points"),
        "unknown-huge": ("score", 1e300, "points"),
        "no-number": ("training_loss_last", None, "loss"),
    }
    nodes = [*cases, "many", "open", "of-gang", "of-no-gang", "other-sku", "cpu", "fine"]
    odd = Fleet(nodes, stages=["facts", "training"], checks=[])
    for node, (name, value, unit) in cases.items():
        odd.set(node, "training", name, value, "gpu:1", unit=unit)
    for number in range(20):
        odd.set("many", "training", f"made_up_{number}_count", -1)
        odd.set("of-gang", "training", f"made_up_{number}_count", -1)
    odd.record("open", "training", state="running", metrics=[metric("training_loss_last", -1e300, "loss")])
    for node in ("of-gang", "of-no-gang"):
        odd.node(node)["gang_stages"] = ["training"]
        odd.set(node, "training", "gang_all_reduce_bus_bytes_per_second", 1e300, unit="bytes/s")
    odd.record("of-gang", "training", environment={"gang": {"name": "all", "nodes": 2}})
    for gpu in odd.facts("other-sku")["gpus"]:
        gpu["name"] = "NVIDIA H300"
    odd.set("other-sku", "training", "diagnostics_matmul_bf16_tflops", 1e9, "gpu:1", unit="TFLOP/s")
    odd.evidence.records["cpu"] = healthy_records("cpu", gpus=0, vendor="cpu")
    odd.drop("cpu", "loading", "inference")
    odd.set("cpu", "training", "diagnostics_matmul_bf16_tflops", 1e9, "gpu:1", unit="TFLOP/s")
    return odd.judged(alone=False)


def _whole(nodes, *, vendor="nvidia", model="NVIDIA H200", gpus=8, **fields):
    """Nodes with the records of the shipped workloads, under the shipped criteria."""
    whole = Fleet(nodes, stages=STAGES, records=lambda name: records(name, gpus), checks=SHIPPED,
                  setups=setups_of(), **fields)  # fmt: skip
    for number, name in enumerate(nodes):
        for stage in ("diagnostics", "training"):
            for figure in whole.evidence.records[name][stage]["metrics"]:
                if units.is_timed(figure["unit"]):
                    figure["value"] *= 1 + number / 7000
        facts = whole.facts(name)
        facts["accelerator"]["vendor"] = vendor
        for index, gpu in enumerate(facts["gpus"]):
            gpu.update(name=model, serial=f"{name}/{index}", uuid=f"GPU-{name}-{index}")
    return whole


@fleet
def shipped_nvidia(_folder):
    """H200 under the shipped criteria, each with one thing wrong."""
    nodes = ["fine", "slow-gpu", "slow-link", "slow-all-reduce", "ecc", "xid", "lost", "hot", "no-telemetry",
             "no-kernel-log", "seven-gpus", "seven-hidden", "nvls", "other-setup", "not-compiled", "fingerprint",
             "no-fingerprint", "loss-rises", "loss-nan", "memory-errors", "fp8-left-out", "clock", "ecc-off",
             "driver", "few-samples", "crashed", "skipped", "retried"]  # fmt: skip
    whole = _whole(nodes)
    whole.scale("slow-gpu", "diagnostics", "diagnostics_matmul_bf16_tflops", 0.5, "gpu:3")
    whole.scale("slow-gpu", "training", "training_model_tflops", 0.5)
    whole.set("slow-gpu", "training", "training_compute_ratio", 2.0, "gpu:3")
    whole.scale("slow-link", "diagnostics", "diagnostics_peer_bytes_per_second", 0.3, "link:gpu1>gpu3")
    whole.scale("slow-all-reduce", "diagnostics", "diagnostics_all_reduce_bus_bytes_per_second", 0.5)
    whole.set("ecc", "training", "gpu_ecc_uncorrected_new_count", 1, "gpu:6")
    whole.set("xid", "diagnostics", "kernel_xid_critical_count", 1)
    whole.set("lost", "training", "gpu_lost_count", 1)
    whole.set("hot", "training", "gpu_throttle_thermal_ratio", 0.9, "gpu:2")
    for stage in ("diagnostics", "training", "fingerprint"):
        gone = {one["name"] for one in telemetry()}
        record = whole.evidence.records["no-telemetry"][stage]
        record["metrics"] = [one for one in record["metrics"] if one["name"] not in gone]
        record = whole.evidence.records["no-kernel-log"][stage]
        record["metrics"] = [
            one for one in record["metrics"] if "kernel_" not in one["name"] and "_xid" not in one["name"]
        ]
        record["environment"]["telemetry"] = {"absent": {"kernel_log": "not permitted"}}
    whole.set("seven-gpus", "facts", "gpu_count", 7)
    whole.set("seven-hidden", "diagnostics", "diagnostics_processes_count", 7)
    whole.record("nvls", "diagnostics", fingerprints={"diagnostics_transport": "SHM", "diagnostics_nvls": "on"})
    whole.record("other-setup", "training", fingerprints={"training_setup": "llama-1b 8x2048 bf16 compiled"})
    whole.record("not-compiled", "training", fingerprints={"training_setup": "llama-1b 8x2048 fp32 eager"})
    whole.set("not-compiled", "training", "training_compile_failed_count", 1)
    whole.evidence.records["fingerprint"]["fingerprint"]["fingerprints"]["fingerprint_training_sha256"] = "0" * 64
    whole.record("no-fingerprint", "fingerprint", fingerprints={})
    whole.set("loss-rises", "training", "training_loss_last", 11.0)
    whole.set("loss-nan", "training", "training_loss_last", None)
    whole.set("memory-errors", "diagnostics", "diagnostics_memory_error_count", 7, "gpu:5")
    for name in ("tflops", "error_ratio", "spread_ratio"):
        whole.forget("fp8-left-out", "diagnostics", f"diagnostics_matmul_fp8_{name}")
    whole.record("fp8-left-out", "diagnostics", environment={
        "torch": "2.11.0", "cpu_model": "Xeon", "left_out": {"fp8": "no fp8 product in this PyTorch", "x": 7},
        "absent_tools": ["fio", "rocm"], "not_run": {"dcgmi": ["memtest", "pcie"], "fio": ["fio"], "x": "y"},
    })  # fmt: skip
    whole.set("clock", "facts", "clock_synchronised", 0)
    whole.set("ecc-off", "facts", "gpu_ecc_off_count", 1)
    for gpu in whole.facts("driver")["gpus"]:
        gpu["driver_version"] = "570.1"
    whole.set("few-samples", "training", "telemetry_samples_count", 0)
    whole.replace("crashed", "training", state="crash", message="killed by SIGSEGV", signal="SIGSEGV", exit_code=None)
    whole.replace("skipped", "training", state="skipped", message="diagnostics failed", started_at=None)
    whole.attempt("retried", "training", state="crash", message="exit code 1", metrics=[])
    return whole.judged()


@fleet
def shipped_others(_folder):
    """MI300X, Gaudi 3, an unknown model, four GPUs, one GPU and CPU nodes under the shipped criteria."""
    documents = {}
    for case, options in {
        "mi300x": {"vendor": "amd", "model": "AMD Instinct MI300X"},
        "gaudi3": {"vendor": "gaudi", "model": "HL-325L"},
        "unknown": {"model": "NVIDIA H300"},
        "four": {"gpus": 4},
        "one": {"gpus": 1},
    }.items():
        whole = _whole(["node-1", "node-2", "slow"], **options)
        for stage, name in (("diagnostics", "diagnostics_matmul_bf16_tflops"), ("training", "training_model_tflops")):
            whole.scale("slow", stage, name, 0.3)
        if case != "unknown":
            whole.record("node-2", "diagnostics", environment={
                "left_out": {"fp8": "this chip has no fp8", "diagnostics": "it is off"},
            })  # fmt: skip
        documents[case] = whole.judged()
    cpu = Fleet(["cpu-1", "cpu-2", "cpu-3"], stages=["facts", "training", "loading", "inference"], checks=SHIPPED,
                gpus=0, vendor="cpu")  # fmt: skip
    cpu.node("cpu-1")["sku"] = "cpu"
    cpu.set("cpu-3", "inference", "inference_requests_failed_count", 3)
    documents["cpu"] = cpu.judged()
    return documents


@fleet
def shipped_real_h200(_folder):
    """What real H200 reported."""
    import json

    told = json.loads((Path(__file__).parents[2] / "data/h200/runs.json").read_text())
    names = {f"run-{number:02}": name for number, name in enumerate(told)}
    real = Fleet(names, stages=["facts"], checks=SHIPPED, gpu_count=2)
    for node, name in names.items():
        real.node(node)["stages"] = list(told[name])
        real.evidence.records[node] = real_records(node, told[name])
    return real.judged()


@fleet
def earlier_faults(_folder):
    """Faults that earlier runs found on the same machine or GPU, and identities that tell none apart."""
    ecc = check("training_gpu_ecc_uncorrected", metric="gpu_ecc_uncorrected_count", kind="max", scope="gpu", value=0,
                where_reported=True)  # fmt: skip
    nodes = ("first", "second", "third", "three-gpus", "no-serial", "job", "shared-1", "shared-2", "many", "no-gpus")
    faulty = Fleet(nodes, stages=["facts", "training", "my_job"], checks=[ecc])
    for name in nodes:
        for gpu in range(8):
            bad = gpu < 3 if name == "three-gpus" else gpu == 3
            faulty.set(name, "training", "gpu_ecc_uncorrected_count", int(bad and name != "job"), f"gpu:{gpu}")
        for gpu in faulty.facts(name)["gpus"]:
            gpu["serial"] = f"{name}-{gpu['index']}"
    for gpu in faulty.facts("no-serial")["gpus"]:
        del gpu["serial"]
    for name in ("shared-1", "shared-2"):
        faulty.facts(name)["identity"].update(serial="S-batch")
        faulty.facts(name)["gpus"][3]["serial"] = "G-batch"
    faulty.replace("job", "my_job", state="crash")
    del faulty.facts("no-gpus")["gpus"]
    for number in range(40):
        faulty.set("many", "training", f"made_up_{number}_count", -1)
    earlier = {
        (ecc.name, "serial second-3"): {"run-0"},
        (ecc.name, "serial third-3"): {"run-0", "run-00", "run-000", "run-0000"},
        ("my_job_crash", "serial S-job"): {f"run-{number}" for number in range(9)},
    }
    return faulty.judged(earlier=earlier)
