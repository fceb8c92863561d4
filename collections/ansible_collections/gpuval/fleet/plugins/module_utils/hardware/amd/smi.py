"""What `amd-smi` and the older `rocm-smi` print, for facts and telemetry."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Optional

from .. import values
from ..gpu import Detection, Gpu
from ..tools import VENDOR_TOOL_TIMEOUT_SECONDS, Run, ToolResult

VENDOR = "amd"
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
    if older.gpus or not newer.installed:
        return older
    return newer


def _detect_amd_smi(run: Run) -> Detection:
    answers: dict[str, Any] = {}
    problem = None
    for view in ("static", "list", "metric"):
        result = run("amd-smi", view, "--json", timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
        if result.missing:
            return Detection(VENDOR, problem=result.complaint, installed=False)
        if result.timed_out:
            return Detection(VENDOR, problem=result.complaint, hung=True)
        answers[view] = find_json(result.stdout)
        if answers[view] is None and view != "metric":
            problem = _unanswered(result, f"amd-smi {view} --json did not write JSON")
    version = find_json(run("amd-smi", "version", "--json").stdout)
    gpus = parse_amd_smi(answers["static"], answers["list"], answers["metric"], version)
    if not gpus:
        return Detection(VENDOR, problem=problem or "amd-smi lists no GPU")
    return Detection(VENDOR, gpus, problem)


def _detect_rocm_smi(run: Run) -> Detection:
    result = run("rocm-smi", *ROCM_SMI_ARGUMENTS, timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
    if result.missing:
        return Detection(VENDOR, problem="neither amd-smi nor rocm-smi is installed", installed=False)
    if result.timed_out:
        return Detection(VENDOR, problem=result.complaint, hung=True)
    gpus = parse_rocm_smi(find_json(result.stdout))  # rocm-smi ends with status 0 even when there is no driver
    return Detection(VENDOR, gpus, None if gpus else _unanswered(result, "rocm-smi lists no GPU"))


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
    by_view = [by_index(answer) for answer in (static, listing, metric)]
    release = version[0] if isinstance(version, list) and version else version
    rocm = values.text(_get(release, "rocm_version"))
    indices = sorted(set(by_view[0]) | set(by_view[1]))
    gpus = [_amd_smi_gpu(index, *(view.get(index, {}) for view in by_view)) for index in indices]
    for gpu in gpus:
        gpu.runtime_version = rocm
    return gpus


def _amd_smi_gpu(index: int, static: dict[str, Any], listed: dict[str, Any], metric: dict[str, Any]) -> Gpu:
    serial = values.identifier(_get(static, "board", "product_serial"))
    partition = values.text(_get(static, "partition", "compute_partition")) or values.text(
        _get(static, "partition", "accelerator_partition")
    )
    return Gpu(
        vendor=VENDOR,
        index=index,
        name=values.text(_get(static, "asic", "market_name")) or values.text(_get(static, "board", "product_name")),
        uuid=values.identifier(listed.get("uuid")) or values.identifier(_get(static, "asic", "asic_serial")),
        serial=serial or values.identifier(_get(static, "asic", "asic_serial")),
        pci_address=values.pci_address(_get(static, "bus", "bdf"))
        or values.pci_address(listed.get("bdf"))
        or values.pci_address(_get(metric, "bus", "bdf")),
        driver_version=values.text(_get(static, "driver", "version"))
        or values.text(_get(static, "driver", "driver_version")),
        firmware_version=_first(values.text, static, ("vbios", "version"), ("ifwi", "version"), ("vbios", "name")),
        memory_bytes=_first(_megabytes, metric, ("mem_usage", "total_vram"), ("vram", "total"))
        or _megabytes(_get(static, "vram", "size")),
        memory_used_bytes=_first(_megabytes, metric, ("mem_usage", "used_vram"), ("vram", "used")),
        # The hot spot is what AMD throttles by; Instinct parts have no edge sensor.
        temperature_celsius=_first(values.number, metric, ("temperature", "hotspot"), ("temperature", "edge")),
        memory_temperature_celsius=values.number(_get(metric, "temperature", "mem")),
        utilisation_ratio=values.ratio(_get(metric, "usage", "gfx_activity")),
        power_draw_watts=_first(
            values.number,
            metric,
            ("power", "socket_power"),
            ("power", "current_socket_power"),
            ("power", "average_socket_power"),
        ),
        power_limit_watts=_first(
            values.number,
            static,
            ("limit", "socket_power"),
            ("limit", "ppt0", "socket_power_limit"),
            ("limit", "max_power"),
            ("limit", "ppt0", "max_power_limit"),
        ),
        core_clock_hertz=_first(values.hertz, metric, ("clock", "gfx_0", "clk"), ("clock", "GFX_0", "clk")),
        core_clock_max_hertz=_first(values.hertz, metric, ("clock", "gfx_0", "max_clk"), ("clock", "GFX_0", "max_clk")),
        memory_clock_hertz=_first(values.hertz, metric, ("clock", "mem_0", "clk"), ("clock", "MEM_0", "clk")),
        # The counts start at zero when the driver loads, so they are this boot's.
        ecc_corrected_count=values.count(_get(metric, "ecc", "total_correctable_count")),
        ecc_uncorrected_count=values.count(_get(metric, "ecc", "total_uncorrectable_count")),
        pcie_generation=values.pcie_generation(_get(metric, "pcie", "speed")),
        pcie_generation_max=values.pcie_generation(_get(static, "bus", "max_pcie_speed")),
        pcie_width=values.count(_get(metric, "pcie", "width")),
        pcie_width_max=values.count(_get(static, "bus", "max_pcie_width")),
        pcie_replay_count=values.count(_get(metric, "pcie", "replay_count")),
        link_errors=xgmi_errors(metric.get("xgmi_err")),
        partition_mode=None if partition is None else partition.lower(),
        module_id=values.count(_get(static, "asic", "oam_id")),
    )


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
    driver = values.text(system.get("driver version"))
    gpus = []
    for name, card in answer.items():
        match = re.fullmatch(r"card(\d+)", name)
        if match is None or not isinstance(card, dict):
            continue
        facts = _lower_keys(card)
        gpu = _rocm_smi_gpu(int(match.group(1)), facts)
        gpu.driver_version = driver or values.text(facts.get("driver version"))
        gpus.append(gpu)
    return sorted(gpus, key=lambda gpu: gpu.index)


def _rocm_smi_gpu(index: int, card: dict[str, Any]) -> Gpu:
    unique = values.identifier(card.get("unique id"))
    return Gpu(
        vendor=VENDOR,
        index=index,
        name=values.text(card.get("card series")) or values.text(card.get("device name")),
        uuid=unique,
        serial=values.identifier(card.get("serial number")) or unique,
        pci_address=values.pci_address(card.get("pci bus")),
        firmware_version=values.text(card.get("vbios version")),
        memory_bytes=values.count(card.get("vram total memory (b)")),
        memory_used_bytes=values.count(card.get("vram total used memory (b)")),
        temperature_celsius=_first(
            values.number, card, ("temperature (sensor junction) (c)",), ("temperature (sensor edge) (c)",)
        ),
        power_draw_watts=_first(
            values.number,
            card,
            ("current socket graphics package power (w)",),
            ("average graphics package power (w)",),
        ),
        power_limit_watts=values.number(card.get("max graphics package power (w)")),
    )


def by_index(answer: Any) -> dict[int, dict[str, Any]]:
    """Rows of an answer by the index of their GPU."""
    if isinstance(answer, dict):
        answer = answer.get("gpu_data", [answer] if "gpu" in answer else [])
    rows = answer if isinstance(answer, list) else []
    return {row["gpu"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("gpu"), int)}


def _get(mapping: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(mapping, dict):
            return None
        mapping = mapping.get(key)
    return mapping


def _first(convert: Callable[[Any], Any], mapping: dict[str, Any], *paths: tuple[str, ...]) -> Any:
    """The first of the paths whose value `convert` can read."""
    for path in paths:
        found = convert(_get(mapping, *path))
        if found is not None:
            return found
    return None


def _megabytes(value: Any) -> Optional[int]:
    return values.size_bytes(value, "MB")


def _lower_keys(mapping: Any) -> dict[str, Any]:
    return {str(key).lower(): value for key, value in mapping.items()} if isinstance(mapping, dict) else {}
