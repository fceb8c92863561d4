"""Trains a model from scratch, one process per device: ``python -m gpuval_workloads.training``."""
