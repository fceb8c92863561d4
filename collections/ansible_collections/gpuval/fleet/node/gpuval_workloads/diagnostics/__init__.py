"""Tests matrix products, memory and collectives of all devices: ``python -m gpuval_workloads.diagnostics``."""
