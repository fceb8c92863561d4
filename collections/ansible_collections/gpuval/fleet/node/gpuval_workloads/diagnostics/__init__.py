"""Matrix products, memory and collectives of all devices at once: ``python -m gpuval_workloads.diagnostics``."""
