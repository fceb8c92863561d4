"""NVIDIA GPUs: what nvidia-smi prints (`smi`), the driver's library (`nvml`), and sampling by either (`source`)."""
