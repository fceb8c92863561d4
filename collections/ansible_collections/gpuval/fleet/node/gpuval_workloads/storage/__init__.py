"""Measures speed and data integrity of the node's file systems, and reads the health of its disks."""
