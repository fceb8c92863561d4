"""What the GPUs, the host and the kernel say while a stage runs, sampled beside the work.

`monitor` is the stage's side. It starts a helper process (`child`) that does all that may hang in a driver: `nvml`,
`nvidia_smi`, `amd` and `gaudi` read the GPUs, `host` the machine, `kernel_log` and `events` the kernel's messages.
`summary` makes metrics and curves of what the helper tells.
"""
