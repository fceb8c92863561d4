"""The steps of a job on one node. Needs the standard library only, in whatever image."""
