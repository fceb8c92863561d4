"""Runs the vendors' test tools that the node or the image has: ``python -m gpuval_workloads.vendor_tools``."""
