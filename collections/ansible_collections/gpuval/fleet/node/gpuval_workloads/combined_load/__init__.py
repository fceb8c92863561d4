"""Loads all parts of the node alone, then together: GPUs, processors, memory, disk, loopback, NICs."""
