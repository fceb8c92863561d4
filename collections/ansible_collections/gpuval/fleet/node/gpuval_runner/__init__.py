"""The runner: executes a plan on a node and reports what happened. Standard library only, Python 3.9 and newer."""
