"""What the workloads share: the result file, the choice of a device, statistics, one process per device, and other
people's programs with what they print."""
