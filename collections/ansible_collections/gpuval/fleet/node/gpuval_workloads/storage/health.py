"""Reads the health of the node's disks by ``nvme smart-log`` and ``smartctl``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuval_node.hardware.disks import disk_sectors
from gpuval_node.hardware.tools import toolbox
from gpuval_node.hardware.tree import Tree

from ..common.tool_output import dicts, json_object, number, plain, shortened, texts

TOOL_SECONDS = 20.0
MAX_DISKS = 64
#: SATA attributes of media errors: unreadable or pending sectors (197, 198), reported errors (187).
ATA_MEDIA_ERRORS = (187, 197, 198)


@dataclass(frozen=True)
class Health:
    """The health that a disk reports; None is not reported. ``warning``: why the disk counts as failing."""

    warning: str = ""
    media_errors: int | None = None
    unsafe_shutdowns: int | None = None
    used_ratio: float | None = None
    spare_ratio: float | None = None
    celsius: float | None = None


#: Meaning of each bit of an NVMe disk's critical warning (NVM Express base specification, SMART / Health Information).
CRITICAL = (
    "spare below its threshold",
    "temperature beyond its threshold",
    "reliability degraded by media or internal errors",
    "read-only",
    "backup of volatile memory failed",
    "persistent memory region read-only or unreliable",
)


def read_all() -> dict[str, tuple[Health | None, str]]:
    """Return, by the name of each disk, its health and an empty text, or None and why its health is unknown."""
    beyond = f"not asked: the node has more than {MAX_DISKS} disks"
    numbered = enumerate(disk_sectors(Tree()))
    return {name: read(name) if index < MAX_DISKS else (None, beyond) for index, name in numbered}


def read(name: str) -> tuple[Health | None, str]:
    """Return a disk's health, or None and why it is unknown. smartctl supports all kinds of disks, nvme only NVMe."""
    run, problems = toolbox(), []
    if name.startswith("nvme"):
        answer = run("nvme", "smart-log", f"/dev/{name}", "-o", "json", timeout=TOOL_SECONDS)
        health = parse_nvme(answer.stdout) if answer.ok else None
        if health:
            return health, ""
        if not answer.missing:
            complaint = shortened(plain(answer.complaint), 160)
            problems.append("nvme printed an incomplete log" if answer.ok else complaint)
    answer = run("smartctl", "-j", "-a", f"/dev/{name}", timeout=TOOL_SECONDS)
    health, problem = parse_smartctl(answer.stdout)
    if health:
        return health, ""
    if not answer.missing:
        problems.append(answer.complaint if answer.timed_out else f"smartctl {problem}")
    if not problems:
        package = "nvme-cli or smartmontools" if name.startswith("nvme") else "smartmontools"
        problems.append(f"install {package}")
    return None, "; ".join(problems)


def parse_nvme(text: str) -> Health | None:
    """Return the health in ``nvme smart-log -o json`` of nvme-cli 1 and 2; None for other text. Never raises."""
    log = json_object(plain(text), key="percent_used")
    if log is None:
        return None
    kelvin = number(log.get("temperature"))
    return _nvme(log, "percent_used", "avail_spare", None if kelvin is None else kelvin - 273)


def _nvme(log: dict, used: str, spare: str, celsius: float | None) -> Health | None:
    """Return the health in an NVMe log; None if a mandatory field is missing: neither healthy nor failing. ``used`` and
    ``spare`` are names of fields."""
    critical = log.get("critical_warning")
    if isinstance(critical, dict):  # from nvme-cli with -v, from some releases always
        critical = critical.get("value")
    bits, errors = _int(critical), _int(log.get("media_errors"))
    if bits is None or errors is None:
        return None
    named = [text for bit, text in enumerate(CRITICAL) if bits >> bit & 1]
    warning = ", ".join(named) or (f"critical warning {bits:#x}" if bits else "")
    unsafe = _int(log.get("unsafe_shutdowns"))
    return Health(warning, errors, unsafe, _ratio(log.get(used)), _ratio(log.get(spare)), celsius)


def parse_smartctl(text: str) -> tuple[Health | None, str]:
    """Return the health in ``smartctl -j -a`` of smartmontools 7 (NVMe, SATA, SAS), or None and why. Never raises."""
    document = json_object(plain(text), key="smartctl")
    if document is None:
        return None, "printed no JSON: version 7 or newer is needed"
    status = _dict(document, "smart_status").get("passed")
    messages = dicts(_dict(document, "smartctl").get("messages"))
    reported = "; ".join(line for message in messages for line in texts(message.get("string")))
    log = document.get("nvme_smart_health_information_log")
    celsius = number(_dict(document, "temperature").get("current"))
    if isinstance(log, dict):
        health = _nvme(log, "percentage_used", "available_spare", celsius)
        if status is False and not (health and health.warning):
            return replace(health or Health(), warning="SMART status: failed"), ""
        return health, "" if health else "printed a log without critical_warning or media_errors"
    if not isinstance(status, bool):
        return None, shortened(reported, 160) or "printed no SMART status: the disk has none, or a controller hides it"
    attributes = dicts(_dict(document, "ata_smart_attributes").get("table"))
    failing_now = [str(a.get("name")) for a in attributes if "now" in str(a.get("when_failed") or "").lower()]
    errors = [_int(_dict(a, "raw").get("value")) for a in attributes if number(a.get("id")) in ATA_MEDIA_ERRORS]
    counters = document.get("scsi_error_counter_log")
    if isinstance(counters, dict):
        errors += [_int(_dict(counters, side).get("total_uncorrected_errors")) for side in ("read", "write", "verify")]
    counts = [count for count in errors if count is not None]
    warning = "" if status else "SMART status: failed"
    if failing_now:
        warning = ", ".join([*filter(None, [warning]), f"{', '.join(failing_now)} below its threshold"])
    used = number(document.get("scsi_percentage_used_endurance_indicator"))
    return Health(warning, sum(counts) if counts else None, None, _ratio(used), None, celsius), ""


def _dict(value: dict, key: str) -> dict:
    mapping = value.get(key)
    return mapping if isinstance(mapping, dict) else {}


def _int(value: object) -> int | None:
    numeric = number(value)
    return None if numeric is None else int(numeric)


def _ratio(percent: object) -> float | None:
    numeric = number(percent)
    return None if numeric is None else numeric / 100
