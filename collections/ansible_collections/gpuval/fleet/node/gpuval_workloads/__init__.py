"""The workloads that a node runs: training, loading, inference, diagnostics and more, and their common modules.

The package is sent to the node as one zip on ``PYTHONPATH``. It runs in any image with Python 3.9 or newer and the
workload's libraries (PyTorch for training and diagnostics). Start a workload as ``python -m gpuval_workloads.NAME``.
"""
