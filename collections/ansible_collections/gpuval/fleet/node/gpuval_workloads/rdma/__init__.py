"""Measures RDMA by perftest: on one node (each port alone, pairs of ports, GPU memory), and between nodes."""
