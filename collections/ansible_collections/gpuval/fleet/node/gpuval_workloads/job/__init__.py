"""Runs the steps of a job on a node. Needs only the standard library, in any image."""
