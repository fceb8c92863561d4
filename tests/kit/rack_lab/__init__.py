"""Racks as data (racks.yml), their faults (faults.yml), and the machines and runs that they make."""
