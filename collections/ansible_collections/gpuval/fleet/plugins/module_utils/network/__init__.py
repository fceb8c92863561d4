"""The network of a node: what it is, what was declared, how to get there and back again."""
