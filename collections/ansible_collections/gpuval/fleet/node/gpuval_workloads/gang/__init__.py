"""Work that many nodes do as one: a program on each, with a line to the first that frees all when one is lost."""
