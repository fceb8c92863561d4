"""Intel Gaudi devices: what hl-smi prints (`smi`), and sampling by it (`source`)."""
