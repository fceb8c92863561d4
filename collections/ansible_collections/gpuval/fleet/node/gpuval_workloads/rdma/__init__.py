"""RDMA of a node by perftest: every port by itself, pairs of ports, memory of GPUs."""
