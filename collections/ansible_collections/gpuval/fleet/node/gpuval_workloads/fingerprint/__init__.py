"""The same work on every GPU, compared bit for bit: ``python -m gpuval_workloads.fingerprint``."""
