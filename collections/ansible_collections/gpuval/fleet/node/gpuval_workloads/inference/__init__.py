"""Inference: start a server, ask it streaming chat requests at a set concurrency, measure, stop all that was started."""
