"""The models that are trained, written out in plain PyTorch."""
