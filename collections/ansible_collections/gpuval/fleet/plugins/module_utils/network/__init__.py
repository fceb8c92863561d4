"""The network of a node: its state, its declaration, the changes between both, and their undoing."""
