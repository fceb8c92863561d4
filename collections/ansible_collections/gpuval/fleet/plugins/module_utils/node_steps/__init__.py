"""Node halves of the steps that work on nodes: each file has a function with the file's name."""
