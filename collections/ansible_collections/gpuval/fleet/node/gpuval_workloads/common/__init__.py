"""Common modules of the workloads: result file, choice of devices, statistics, one process per device, and running
other vendors' programs."""
