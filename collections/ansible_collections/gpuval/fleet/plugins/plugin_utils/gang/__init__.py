"""A gang of nodes that work as one: which of them, or which link between them, holds it up."""
