"""What changed between the GPUs before and after a stage: error counters, topology, lost GPUs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

#: Counters that are compared before and after: metric and reading.
COUNTERS = (
    ("gpu_ecc_corrected_new_count", "ecc_corrected"),
    ("gpu_ecc_uncorrected_new_count", "ecc_uncorrected"),
    ("gpu_row_remap_new_count", "row_remaps"),
    ("gpu_link_error_new_count", "link_errors"),
    ("gpu_link_corrected_new_count", "link_corrected"),
    ("gpu_pcie_replay_new_count", "pcie_replays"),
)
#: What identifies a GPU.
IDENTITY = ("uuid", "pci_address")
#: What later stages need of a GPU that was seen, with its index then: errors between two stages count in the later one.
CARRIED = (*IDENTITY, *(reading for _, reading in COUNTERS))
SeenGpu = tuple[int, dict[str, Any]]


@dataclass
class TelemetryComparison:
    """What differs between before and after: new errors by GPU, GPUs that are lost, changes in words."""

    new: list[tuple[int, str, int]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    topology: int = 0
    changes: list[str] = field(default_factory=list)

    def change_topology(self, text: str) -> None:
        self.topology += 1
        self.changes.append(text)


def compare(
    before: dict[int, dict[str, Any]], after: dict[int, dict[str, Any]], earlier: Sequence[SeenGpu] = ()
) -> TelemetryComparison:
    """Compare counters and topology. A GPU is the same by its UUID, its PCI address or, without both, its index. A GPU
    that an earlier stage saw, or that the driver counts and has lost, is lost to this stage as well."""
    comparison = TelemetryComparison()
    counted = {identity_of(index, gpu): gpu for index, gpu in earlier}
    old = {identity_of(index, gpu): (index, gpu) for index, gpu in before.items() if not gpu.get("lost")}
    new = {identity_of(index, gpu): (index, gpu) for index, gpu in after.items() if not gpu.get("lost")}
    for identity, (index, gpu) in old.items():
        label = f"gpu:{index} ({gpu.get('pci_address') or identity})"
        if identity not in new:
            comparison.lost.append(index)
            comparison.change_topology(f"{label} is lost")
            continue
        counters = {name: value for name, value in counted.get(identity, {}).items() if name not in IDENTITY}
        _compare_gpu(comparison, index, label, {**gpu, **counters}, new[identity][1])
    for identity in new.keys() - old.keys():
        comparison.change_topology(f"gpu:{new[identity][0]} ({identity}) came")
    _lost_before(comparison, before, after, earlier)
    return comparison


def _lost_before(
    comparison: TelemetryComparison,
    before: dict[int, dict[str, Any]],
    after: dict[int, dict[str, Any]],
    earlier: Sequence[SeenGpu],
) -> None:
    """Add the GPUs that were lost when the stage began, and still are at its end."""
    present = [gpu for gpus in (before, after) for gpu in gpus.values() if not gpu.get("lost")]
    missing: list[int] = []
    names = {gpu.get(name) for gpu in present for name in IDENTITY} - {None}
    if all(any(gpu.get(name) for name in IDENTITY) for gpu in present):  # else it is unknown which one is missing
        for index, gpu in earlier:
            if not names & {gpu.get(name) for name in IDENTITY}:
                missing.append(index)
                name = gpu.get("pci_address") or gpu.get("uuid")
                comparison.change_topology(f"gpu:{index} ({name}) was lost before")
    lost_gpus = [
        index
        for index, gpu in before.items()
        if gpu.get("lost") and not gpu.get("refused") and after.get(index, {}).get("lost")
    ]
    # A lost GPU has no name any more: those that are known by name are these.
    unnamed = [index for index in lost_gpus if index not in missing][: max(0, len(lost_gpus) - len(missing))]
    comparison.lost += [*missing, *unnamed]
    comparison.changes += [f"gpu:{index} was lost before" for index in unnamed]


def _compare_gpu(
    comparison: TelemetryComparison, index: int, label: str, old: dict[str, Any], new: dict[str, Any]
) -> None:
    for name, reading in COUNTERS:
        if reading not in old or reading not in new:
            continue
        if isinstance(old[reading], dict) and isinstance(new[reading], dict):
            risen = {link: _risen(old[reading].get(link, 0), value) for link, value in new[reading].items()}
            comparison.changes += [f"{label} link {link}: {rise} new errors" for link, rise in risen.items() if rise]
            comparison.new.append((index, name, sum(risen.values())))
            continue
        rise = _risen(old[reading], new[reading])
        comparison.new.append((index, name, rise))
        if rise and reading != "link_corrected":  # rises all the time
            comparison.changes.append(f"{label} {reading}: {old[reading]} before, {new[reading]} after")
    for name in ("pci_address", "pcie_width"):
        if old.get(name) != new.get(name) and name in old and name in new:
            comparison.change_topology(f"{label} {name}: {old[name]} before, {new[name]} after")
    for name in ("row_remap_pending", "row_remap_failed"):
        if new.get(name) and not old.get(name):
            comparison.changes.append(f"{label} {name}")
    if "links_up" in old and "links_up" in new:
        was, now = set(old["links_up"]), set(new["links_up"])
        comparison.topology += len(was ^ now)
        comparison.changes += [f"{label} link {link} went down" for link in sorted(was - now)]
        comparison.changes += [f"{label} link {link} came up" for link in sorted(now - was)]


def _risen(old: Any, new: Any) -> int:
    """Return by how much a counter rose; one that is smaller than before was set back, by a reset of the GPU."""
    if not isinstance(old, int) or not isinstance(new, int):
        return 0
    return new - old if new >= old else new


def identity_of(index: int, gpu: dict[str, Any]) -> str:
    return str(gpu.get("uuid") or gpu.get("pci_address") or f"index {index}")
