"""What of a host explains a gang that is slow or fails: RDMA devices, their place on PCIe, the way to the others."""
