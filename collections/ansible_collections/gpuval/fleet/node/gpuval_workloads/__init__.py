"""What a node runs: training, loading, inference and diagnostics, and what they share.

Travels to the node whole, as one zip on ``PYTHONPATH``, and runs in any image that has Python 3.9 or newer and what the
workload at hand needs (PyTorch for training and diagnostics). Start a workload as ``python -m gpuval_workloads.NAME``.
"""
