"""What `amd-smi` and the older `rocm-smi` print, for facts and telemetry."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Optional

from .. import values
from ..gpu import Detection, Fields, Gpu, failed_detection, read_fields
from ..tools import VENDOR_TOOL_TIMEOUT_SECONDS, Run, ToolResult

VENDOR = "amd"
#: Partition mode of a GPU that is several cards, where its tool does not say which.
SEVERAL_CARDS = "cpx"
ROCM_SMI_ARGUMENTS = (
    "--showproductname",
    "--showuniqueid",
    "--showserial",
    "--showbus",
    "--showmeminfo",
    "vram",
    "--showdriverversion",
    "--showtemp",
    "--showpower",
    "--showmaxpower",
    "--showvbios",
    "--json",
)


def detect(run: Run) -> Detection:
    newer = _detect_amd_smi(run)
    if newer.gpus or newer.hung:
        return newer
    older = _detect_rocm_smi(run)
    return older if older.gpus or not newer.installed else newer


def _detect_amd_smi(run: Run) -> Detection:
    answers: dict[str, Any] = {}
    problem, unclear = None, False
    for view in ("static", "list", "metric"):
        result = run("amd-smi", view, "--json", timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
        if failed := failed_detection(VENDOR, result):
            return failed
        answers[view] = find_json(result.stdout)
        if answers[view] is None and view != "metric":
            problem = _unanswered(result, f"amd-smi {view} --json did not write JSON")
            unclear = result.ok  # without a driver it fails
    version = find_json(run("amd-smi", "version", "--json").stdout)
    gpus = parse_amd_smi(answers["static"], answers["list"], answers["metric"], version)
    if not gpus:
        return Detection(VENDOR, problem=problem or "amd-smi lists no GPU", unclear=unclear)
    return Detection(VENDOR, gpus, problem)


def _detect_rocm_smi(run: Run) -> Detection:
    result = run("rocm-smi", *ROCM_SMI_ARGUMENTS, timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
    if failed := failed_detection(VENDOR, result, "neither amd-smi nor rocm-smi is installed"):
        return failed
    answer = find_json(result.stdout)
    gpus = parse_rocm_smi(answer)  # rocm-smi ends with status 0 even when there is no driver
    parts = [gpu for gpu in gpus if gpu.partitioned]
    problem = f"{len(parts)} of {len(gpus)} GPUs are partitions or listed more than once" if parts else None
    return Detection(VENDOR, gpus, problem if gpus else _unanswered(result, "rocm-smi lists no GPU"))


def _unanswered(result: ToolResult, otherwise: str) -> str:
    return otherwise if result.ok else result.complaint


def find_json(output: str) -> Any:
    """The JSON document in a tool's output, after the warnings that some releases print first; None without one."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"^\s*[\[{]", output, re.MULTILINE):
        try:
            return decoder.raw_decode(output, match.end() - 1)[0]
        except ValueError:
            continue
    return None


def parse_amd_smi(static: Any, listing: Any, metric: Any, version: Any = None) -> list[Gpu]:
    """GPUs of `amd-smi static`, `list`, `metric` and `version --json`; any of them may be None.

    Releases differ: a list of GPUs at the top or below `gpu_data`, bare numbers or `{"value", "unit"}`.
    """
    views = {"static": by_index(static), "list": by_index(listing), "metric": by_index(metric)}
    release = version[0] if isinstance(version, list) and version else version
    rocm = values.version(_get(release, "rocm_version"))
    gpus = []
    for index in sorted({*views["static"], *views["list"]}):
        answers = {name: view.get(index) for name, view in views.items()}
        gpus.append(Gpu(VENDOR, index, runtime_version=rocm, **read_fields(AMD_SMI_FIELDS, partial(_get, answers))))
    return gpus


def xgmi_errors(value: Any) -> Optional[dict[str, int]]:
    """Return XGMI errors: 0 and more as text, or a state in words: releases differ."""
    if isinstance(value, dict):
        counts = [count for key, count in value.items() if "err" in str(key) and isinstance(count, int)]
        return {"xgmi": sum(counts)} if counts else None
    text = str(value).strip().lower()
    if text.isdigit():
        return {"xgmi": int(text)}
    if text in ("no_errors", "no errors detected", "amdsmi_xgmi_status_no_errors"):
        return {"xgmi": 0}
    return {"xgmi": 1} if "error" in text else None


def parse_rocm_smi(answer: Any) -> list[Gpu]:
    """GPUs of `rocm-smi ... --json`: one object per card, keys in the spelling of the release."""
    if not isinstance(answer, dict):
        return []
    system = _lower_keys(answer.get("system"))
    driver = values.version(system.get("driver version"))
    gpus: dict[str, Gpu] = {}
    for name, card in answer.items():
        match = re.fullmatch(r"card(\d+)", name)
        if match is None or not isinstance(card, dict):
            continue
        facts = _lower_keys(card)
        readings = read_fields(ROCM_SMI_FIELDS, facts.get)
        readings["driver_version"] = driver or values.version(facts.get("driver version"))
        gpu = Gpu(VENDOR, int(match.group(1)), **readings)
        # The partitions of a GPU are cards of their own, at one address and with one unique id.
        first = gpus.setdefault(gpu.pci_address or gpu.uuid or name, gpu)
        if first is not gpu:
            first.index = min(first.index, gpu.index)
            first.partition_mode = first.partition_mode or SEVERAL_CARDS
    return sorted(gpus.values(), key=lambda gpu: gpu.index)


def by_index(answer: Any) -> dict[int, dict[str, Any]]:
    """Rows of an answer by the index of their GPU."""
    if isinstance(answer, dict):
        answer = answer.get("gpu_data", [answer] if "gpu" in answer else [])
    rows = answer if isinstance(answer, list) else []
    return {row["gpu"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("gpu"), int)}


def _get(mapping: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(mapping, dict):
            return None
        mapping = mapping.get(key)
    return mapping


def _lower_keys(mapping: Any) -> dict[str, Any]:
    return {str(key).lower(): value for key, value in mapping.items()} if isinstance(mapping, dict) else {}


#: By paths in the answers to `amd-smi static`, `list` and `metric`.
AMD_SMI_FIELDS: Fields = (
    ("name", values.text, "static.asic.market_name", "static.board.product_name"),
    ("uuid", values.identifier, "list.uuid", "static.asic.asic_serial"),
    ("serial", values.identifier, "static.board.product_serial", "static.asic.asic_serial"),
    ("pci_address", values.pci_address, "static.bus.bdf", "list.bdf", "metric.bus.bdf"),
    ("driver_version", values.version, "static.driver.version", "static.driver.driver_version"),
    ("firmware_version", values.text, "static.vbios.version", "static.ifwi.version", "static.vbios.name"),
    ("memory_bytes", values.megabytes, "metric.mem_usage.total_vram", "metric.vram.total", "static.vram.size"),
    ("memory_used_bytes", values.megabytes, "metric.mem_usage.used_vram", "metric.vram.used"),
    # The hot spot is what AMD throttles by; Instinct parts have no edge sensor.
    ("temperature_celsius", values.number, "metric.temperature.hotspot", "metric.temperature.edge"),
    ("memory_temperature_celsius", values.number, "metric.temperature.mem"),
    ("utilisation_ratio", values.ratio, "metric.usage.gfx_activity"),
    (
        "power_draw_watts",
        values.watts,
        "metric.power.socket_power",
        "metric.power.current_socket_power",
        "metric.power.average_socket_power",
    ),
    (
        "power_limit_watts",
        values.watts,
        "static.limit.socket_power",
        "static.limit.ppt0.socket_power_limit",
        "static.limit.max_power",
        "static.limit.ppt0.max_power_limit",
    ),
    ("core_clock_hertz", values.hertz, "metric.clock.gfx_0.clk", "metric.clock.GFX_0.clk"),
    ("core_clock_max_hertz", values.hertz, "metric.clock.gfx_0.max_clk", "metric.clock.GFX_0.max_clk"),
    ("memory_clock_hertz", values.hertz, "metric.clock.mem_0.clk", "metric.clock.MEM_0.clk"),
    # The counts start at zero when the driver loads, so they are this boot's.
    ("ecc_corrected_count", values.count, "metric.ecc.total_correctable_count"),
    ("ecc_uncorrected_count", values.count, "metric.ecc.total_uncorrectable_count"),
    ("pcie_generation", values.pcie_generation, "metric.pcie.speed"),
    ("pcie_generation_max", values.pcie_generation, "static.bus.max_pcie_speed"),
    ("pcie_width", values.count, "metric.pcie.width"),
    ("pcie_width_max", values.count, "static.bus.max_pcie_width"),
    ("pcie_replay_count", values.count, "metric.pcie.replay_count"),
    ("link_errors", xgmi_errors, "metric.xgmi_err"),
    ("partition_mode", values.lower, "static.partition.compute_partition", "static.partition.accelerator_partition"),
    ("module_id", values.count, "static.asic.oam_id"),
)
#: By keys of a card, in small letters.
ROCM_SMI_FIELDS: Fields = (
    ("name", values.text, "card series", "device name"),
    ("uuid", values.identifier, "unique id"),
    ("serial", values.identifier, "serial number", "unique id"),
    ("pci_address", values.pci_address, "pci bus"),
    ("firmware_version", values.text, "vbios version"),
    ("memory_bytes", values.count, "vram total memory (b)"),
    ("memory_used_bytes", values.count, "vram total used memory (b)"),
    ("temperature_celsius", values.number, "temperature (sensor junction) (c)", "temperature (sensor edge) (c)"),
    (
        "power_draw_watts",
        values.watts,
        "current socket graphics package power (w)",
        "average graphics package power (w)",
    ),
    ("partition_mode", values.lower, "compute partition"),
    ("power_limit_watts", values.watts, "max graphics package power (w)"),
)
