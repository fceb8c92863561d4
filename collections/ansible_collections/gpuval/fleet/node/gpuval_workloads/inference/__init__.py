"""Inference: a server is started, asked at a set concurrency, measured, and stopped with all it spawned."""
