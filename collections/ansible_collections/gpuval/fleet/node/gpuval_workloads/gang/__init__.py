"""Work of several nodes as a gang: a program on each node, connected to the first; if one is lost, all end."""
