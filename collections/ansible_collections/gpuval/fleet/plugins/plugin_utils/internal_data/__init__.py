"""Collects names, addresses and secrets of a site, replaces them in texts and documents, and searches for them."""
