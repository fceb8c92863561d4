"""The vendors' own test tools, where the node or the image has them: ``python -m gpuval_workloads.vendor_tools``."""
