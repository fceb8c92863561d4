"""Common modules of the workloads: result file, devices, statistics, one process per device, vendors' programs."""
