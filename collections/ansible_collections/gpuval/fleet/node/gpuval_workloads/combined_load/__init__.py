"""All parts of the node loaded alone, then together: GPUs, processors, memory, disk, loopback, NICs."""
