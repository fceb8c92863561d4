"""How fast the node's file systems are, whether they keep what is written, and how its disks are."""
