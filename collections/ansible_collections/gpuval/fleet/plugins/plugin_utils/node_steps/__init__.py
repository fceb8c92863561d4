"""Controller halves of steps that work on nodes: each file has a function of its name, with options as parameters."""
