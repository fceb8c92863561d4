"""The runner: carries a plan out on a node and reports what happened. Standard library only, Python 3.9 and newer."""
