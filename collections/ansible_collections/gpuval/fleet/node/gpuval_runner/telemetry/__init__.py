"""Samples GPUs, host and kernel log while a stage works.

`monitor` is the stage's side. It starts a helper process (`child`) that does all that may hang in a driver: it reads
GPUs by `gpuval_node.hardware`, the machine, and by `kernel_log` and `events` the kernel's messages. `summary` and
`gpu_figures` make metrics and curves of its reports.
"""
