"""AMD GPUs: what amd-smi and rocm-smi print (`smi`), and sampling by the driver's files or these tools (`source`)."""
