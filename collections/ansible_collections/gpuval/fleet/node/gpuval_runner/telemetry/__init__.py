"""Samples GPUs, host and kernel log while a stage works. `monitor`, the stage's side, starts a helper process (`child`)
that does all that may hang in a driver; `summary` and `gpu_figures` make metrics and curves of its reports."""
