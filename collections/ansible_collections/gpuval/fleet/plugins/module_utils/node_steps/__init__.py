"""The parts of steps that run on nodes: each file has a function with the file's name."""
