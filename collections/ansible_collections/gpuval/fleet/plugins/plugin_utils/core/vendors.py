"""The vendors of GPUs that gpuval knows."""

from __future__ import annotations

from ...module_utils.hardware.pci import VENDORS

GPU_VENDORS = tuple(VENDORS.values())
