"""Stages in containers.

`gpuval_node.engines` has the engines; `command` makes a stage's container, `stage` runs it; `images` brings images,
`brought` remembers them for clean.
"""
