"""Multi-node tests by gangs (nodes that work as one), and the search for the node or link that is at fault."""
