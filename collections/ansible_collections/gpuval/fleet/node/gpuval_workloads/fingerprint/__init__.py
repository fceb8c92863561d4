"""Runs the same work on every GPU and compares it bit by bit: ``python -m gpuval_workloads.fingerprint``."""
