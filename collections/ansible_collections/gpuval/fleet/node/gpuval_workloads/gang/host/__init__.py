"""Checks of a host that explain a slow or failed gang: RDMA devices, their PCIe links, routes to other members."""
