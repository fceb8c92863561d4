"""What the workloads share: the result file, the choice of a device, statistics, one process per device."""
