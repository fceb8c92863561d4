"""Measures RDMA of a node by perftest: every port alone, pairs of ports, GPU memory."""
