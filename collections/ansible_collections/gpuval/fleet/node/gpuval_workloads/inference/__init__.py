"""Inference: starts a server, measures it under a set number of concurrent requests, and stops all its processes."""
