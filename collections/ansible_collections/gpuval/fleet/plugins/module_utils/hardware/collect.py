"""Collects all facts of a machine and judges them for the `facts` stage."""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional

from .. import engines
from . import (
    amd_gpus,
    cabling,
    clock,
    cpu,
    disks,
    gaudi_gpus,
    imex,
    memory,
    nics,
    nvlinks,
    nvml_gpus,
    optics,
    osinfo,
    pci,
    peer_access,
    services,
    topology,
    tuning,
)
from .gpu import Detection, Gpu, differing_fabrics
from .source import metric
from .tools import Run, toolbox
from .tree import Tree

DETECTORS = (gaudi_gpus.detect, amd_gpus.detect)
NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "gaudi": "Intel Gaudi"}
#: Boolean properties of ``Gpu``; how many of a node's GPUs have each is a metric.
FLAGS = ("faulty", "pcie_degraded", "ecc_off", "ecc_unknown", "partitioned", "fabric_not_ready")
#: State of a GPU that works on the host, but that this container, which has other GPUs, cannot use.
HIDDEN = "not given to this container"
REMEDIES = {
    "nvidia": "install or load the NVIDIA driver until nvidia-smi lists every GPU",
    "amd": "install or load the amdgpu driver until amd-smi list (or rocm-smi) lists every GPU",
    "gaudi": "install or load the habanalabs driver until hl-smi lists every device",
}


def collect(root: str = "/", run: Optional[Run] = None, *, with_cabling: bool = False) -> dict[str, Any]:
    """Return the facts of the machine whose file tree is at `root`, in base units; None for unknown values. `run`
    starts the vendors' tools; by default those on PATH, or only those below `root` when it is not `/`. `with_cabling`
    adds what the ports are connected to. Changes nothing, and raises nothing for hardware, tools or permissions that
    are missing."""
    tree = Tree(root)
    run = run or toolbox(root)
    # Another machine's tree has no driver that this process could load.
    nvidia = nvml_gpus.detect(run, nvml_gpus.LIBRARY if tree.is_real else None)
    detections = [nvidia, *(detect(run) for detect in DETECTORS)]
    nvlinks.read_nvlinks(run, nvidia.gpus)
    accelerator, gpus, hardware = _accelerators(tree, detections)
    firmware, slots = osinfo.firmware_facts(tree), pci.slots(tree)
    for gpu in gpus:
        gpu.slot = slots.get((gpu.pci_address or "").rpartition(".")[0])
    services_facts = services.facts(tree, run)
    network_ports = optics.facts(tree, run)
    untested = optics.untested(network_ports)
    return {
        "accelerator": accelerator,
        "identity": {
            "machine_id": osinfo.machine_id(tree),
            "serial": firmware["product_serial"] or firmware["board_serial"],
            "gpu_uuids": sorted({gpu.uuid for gpu in gpus if gpu.uuid}),
        },
        "gpus": [gpu.facts() for gpu in gpus],
        "cpu": cpu.facts(tree),
        "memory": memory.facts(tree),
        "tuning": tuning.facts(tree),
        "disks": disks.facts(tree),
        "nics": nics.facts(tree),
        "os": osinfo.os_facts(tree),
        "clock": clock.facts(tree, run),
        "engines": engines.facts(tree, run),
        "firmware": firmware,
        "pci_accelerators": hardware,
        "topology": topology.facts(run, accelerator["vendor"]) if gpus else [],
        "peer_access": peer_access.facts(tree, [gpu.pci_address for gpu in gpus if gpu.pci_address]),
        "services": services_facts,
        "imex": imex.facts(tree, run, services_facts),
        **({"cabling": cabling.facts(tree, run)} if with_cabling else {}),
        "network_ports": network_ports,
        **({"left_out": untested} if untested else {}),
    }


def facts_result(
    root: str = "/", accelerator: str = "auto", run: Optional[Run] = None, *, with_cabling: bool = False
) -> dict[str, Any]:
    """Collect the facts and return the result of the `facts` stage: state, message, metrics and environment.
    `accelerator`: what the node is declared to be, `auto`, `cpu`, `nvidia`, `amd` or `gaudi`."""
    return judge(collect(root, run, with_cabling=with_cabling), accelerator)


def judge(environment: dict[str, Any], accelerator: str = "auto") -> dict[str, Any]:
    """Return the result of the `facts` stage from the facts that `collect` returned: a failure for GPU hardware without
    a working driver, or no GPU of the declared vendor. A node declared `cpu` is tested as one: the environment then
    says `cpu`, and still lists GPU hardware."""

    def result(state: str, message: str) -> dict[str, Any]:
        message = "; ".join([message, *optics.in_words(environment["network_ports"])])
        return {"state": state, "message": message, "metrics": metrics, "environment": environment}

    metrics = _metrics(environment)
    if accelerator == "cpu":
        hardware_count = environment["accelerator"]["hardware_count"]
        note = f"; {hardware_count} GPU(s) of this node are not tested" if hardware_count else ""
        environment = {**environment, "accelerator": {**environment["accelerator"], "vendor": "cpu", "count": 0}}
        return result("success", f"declared as a CPU node{note}")

    failures = _driver_failures(environment)
    vendor = environment["accelerator"]["vendor"]
    if not failures and accelerator not in ("auto", vendor):
        declared = NAMES.get(accelerator, accelerator)
        missing = f"the node is declared {accelerator}, but no usable {declared} GPU was found (found: {vendor})"
        failures = [f"{missing}. Remedy: check that the GPUs are plugged in and powered, or correct gpuval_sku"]
    if failures:
        return result("failure", "; ".join(failures))
    return result("success", _summary(environment))


def _accelerators(tree: Tree, detections: list[Detection]) -> tuple[dict[str, Any], list[Gpu], list[dict[str, Any]]]:
    """Compare the accelerators that tools list with those on the PCI bus. Returns a summary, the GPUs, all devices."""
    usable = {(gpu.vendor, gpu.pci_address) for detection in detections for gpu in detection.gpus}
    in_container = osinfo.container(tree) is not None
    hardware = []
    for device in _hardware(tree, detections):
        state = "usable" if (device.vendor, device.address) in usable else "no driver"
        if state == "no driver":
            given_others = any(vendor == device.vendor for vendor, _address in usable)
            if in_container and given_others and pci.hidden_from_container(tree, device):
                state = HIDDEN
            elif not device.certain:
                continue
        hardware.append({**device.facts(), "state": state})

    # Without PCI addresses, as in some virtual machines, only the tool's count is known.
    unaddressed = [gpu for detection in detections for gpu in detection.gpus if gpu.pci_address is None]
    states = Counter(device["state"] for device in hardware)
    best = max(detections, key=lambda detection: len(detection.gpus))
    vendor, problem = (best.vendor, best.problem) if best.gpus else _vendor_without_gpus(hardware, detections)
    accelerator = {
        "vendor": vendor,
        "count": len(best.gpus),
        "hardware_count": max(states["usable"] + states["no driver"], len(best.gpus) + best.unlisted),
        "without_driver_count": max(0, states["no driver"] - len(unaddressed), best.unlisted),
        "problem": problem,
    }
    return accelerator, best.gpus, hardware


def _hardware(tree: Tree, detections: list[Detection]) -> list[pci.PciAccelerator]:
    """Return all accelerators known to the PCI bus, the vendors' tools or NVIDIA's kernel driver."""
    devices = {device.address: device for device in pci.accelerators(tree)}
    known = [(gpu.vendor, gpu.pci_address) for detection in detections for gpu in detection.gpus]
    known += [(detection.vendor, address) for detection in detections for address in detection.lost]
    known += [("nvidia", name.lower()) for name in tree.entries(pci.NVIDIA_GPUS)]
    for vendor, address in known:
        if address and address not in devices:
            devices[address] = pci.PciAccelerator(address, vendor)
    return [devices[address] for address in sorted(devices)]


def _vendor_without_gpus(hardware: list[dict[str, Any]], detections: list[Detection]) -> tuple[str, Optional[str]]:
    """Return the vendor of accelerators without a working driver, and its tool's complaint; `cpu` if there are none."""
    by_vendor = {detection.vendor: detection for detection in detections}
    counts = Counter(device["vendor"] for device in hardware)
    if counts:
        vendor = counts.most_common(1)[0][0]
        return vendor, by_vendor[vendor].problem
    # A tool that hangs, hangs in a driver (without one it reports so): there is hardware even if no PCI bus shows.
    broken = next((detection for detection in detections if detection.hung or detection.unclear), None)
    return (broken.vendor, broken.problem) if broken else ("cpu", None)


def _driver_failures(environment: dict[str, Any]) -> list[str]:
    accelerator = environment["accelerator"]
    broken: dict[str, list[str]] = {}
    for device in environment["pci_accelerators"] if accelerator["without_driver_count"] else ():
        if device["state"] == "no driver":
            driver = f"kernel driver {device['kernel_driver']}" if device["kernel_driver"] else "no kernel driver"
            broken.setdefault(device["vendor"], []).append(f"{device['address']} ({driver})")
    failures = []
    for vendor, devices in sorted(broken.items()):
        problem = f"; {accelerator['problem']}" if accelerator["vendor"] == vendor and accelerator["problem"] else ""
        failures.append(
            f"{len(devices)} {NAMES[vendor]} GPU(s) without a working driver: {', '.join(devices)}{problem}. "
            f"Remedy: {_remedy(vendor)}"
        )
    vendor = accelerator["vendor"]
    if not failures and accelerator["without_driver_count"]:
        failures.append(f"{accelerator['problem'] or 'GPUs without a working driver'}. Remedy: {_remedy(vendor)}")
    if not failures and vendor != "cpu" and accelerator["count"] == 0:
        failures.append(f"no usable {NAMES[vendor]} GPU: {accelerator['problem']}. Remedy: {_remedy(vendor)}")
    return failures + _duplicates(environment["gpus"])


def _duplicates(gpus: list[dict[str, Any]]) -> list[str]:
    """Return a message for each UUID or PCI address that several GPUs have; partitions of a GPU may share theirs."""
    whole = [gpu for gpu in gpus if not Gpu(**gpu).partitioned]
    failures = []
    for what, name in (("uuid", "UUID"), ("pci_address", "PCI address")):
        for identity, times in Counter(gpu[what] for gpu in whole if gpu[what]).items():
            if times > 1:
                places = ", ".join(f"gpu:{gpu['index']}" for gpu in whole if gpu[what] == identity)
                failures.append(
                    f"{places} have the same {name} ({identity}). Remedy: reboot; if it persists, ask the vendor"
                )
    return failures


def _remedy(vendor: str) -> str:
    return (
        f"{REMEDIES[vendor]}, reboot if it still does not (in a container: give it the devices),"
        " or set gpuval_sku=cpu if no GPU of this node is to be tested"
    )


def _summary(environment: dict[str, Any]) -> str:
    accelerator = environment["accelerator"]
    if accelerator["count"] == 0:
        return "no GPU hardware: tested as a CPU node"
    names = Counter(gpu["name"] or "GPU" for gpu in environment["gpus"])
    models = ", ".join(f"{number} x {name}" for name, number in names.items())
    driver = environment["gpus"][0]["driver_version"]
    hidden = sum(device["state"] == HIDDEN for device in environment["pci_accelerators"])
    gpus = [Gpu(**gpu) for gpu in environment["gpus"]]
    untested = f"{hidden} GPU(s) of this machine are not tested: {HIDDEN}" if hidden else ""
    parts = [
        models,
        f"driver {driver}" if driver else "",
        accelerator["problem"] or "",
        *_links_in_words(gpus),
        untested,
    ]
    return "; ".join(part for part in parts if part)


def _links_in_words(gpus: list[Gpu]) -> list[str]:
    """Return a message for each problem of an NVLink fabric or of single NVLinks, with the GPUs that have it."""
    differing = differing_fabrics(gpus)
    wrong: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus:
        if gpu.fabric_not_ready or gpu.is_outside_rack or gpu in differing:
            wrong.setdefault(("NVLink fabric", gpu.fabric), []).append(f"gpu:{gpu.index}")
        if gpu.nvlinks_up_count and gpu.nvlinks_down:
            wrong.setdefault(("down NVLinks", ", ".join(gpu.nvlinks_down)), []).append(f"gpu:{gpu.index}")
    return [f"{what} of {', '.join(names)}: {text}" for (what, text), names in list(wrong.items())[:8]]


def _metrics(environment: dict[str, Any]) -> list[dict[str, Any]]:
    accelerator = environment["accelerator"]
    cpu, memory_ = environment["cpu"], environment["memory"]
    gpus = [Gpu(**gpu) for gpu in environment["gpus"]]
    lists = {
        "gpu_iommu_translated_count": environment["peer_access"]["iommu_translated"],
        "acs_redirecting_count": environment["peer_access"]["acs_redirecting"],
        "services_failed_count": environment["services"]["failed"],
    }
    figures: dict[str, Any] = {
        "gpu_count": accelerator["count"],
        "gpu_hardware_count": accelerator["hardware_count"],
        "gpu_without_driver_count": accelerator["without_driver_count"],
        **{f"gpu_{flag}_count": sum(getattr(gpu, flag) for gpu in gpus) for flag in FLAGS},
        "imex_not_ready_count": imex.not_ready_count(environment["imex"]),
        "cpu_logical_count": cpu["logical_count"],
        "cpu_slow_governor_count": cpu["slow_governor_count"],
        "cpu_idle_latency_max_seconds": environment["tuning"]["idle_latency_max_seconds"],
        "memory_bytes": memory_["total_bytes"],
        "memory_ecc_corrected_count": memory_["ecc_corrected_count"],
        "memory_ecc_uncorrected_count": memory_["ecc_uncorrected_count"],
        "gpu_nic_far_count": topology.far_from_nics(environment["topology"]),
        **{name: None if entries is None else len(entries) for name, entries in lists.items()},
        "root_filesystem_used_ratio": disks.root_used_ratio(environment["disks"]),
    }
    states = {
        "clock_source_fast": tuning.clock_is_fast(environment["tuning"]),
        "clock_synchronised": environment["clock"]["synchronised"],
    }
    metrics = [metric(name, value) for name, value in figures.items() if value is not None]
    metrics += [metric(name, int(state), unit="ratio") for name, state in states.items() if state is not None]
    metrics += optics.metrics(environment["network_ports"])
    for gpu in gpus:
        metrics += gpu.metrics()
    fabrics = [gpu for gpu in gpus if gpu.vendor == "nvidia"]
    differing = differing_fabrics(fabrics)
    metrics += [metric("gpu_fabric_differs_count", int(gpu in differing), f"gpu:{gpu.index}") for gpu in fabrics]
    return metrics + [
        metric("gpu_links_count", gpu["links_count"], f"gpu:{gpu['index']}")
        for gpu in environment["topology"]
        if gpu["links_count"] is not None
    ]
