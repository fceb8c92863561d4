"""Loading: copies a model from the store into the node's model cache, timed, and checks files by ``SHA256SUMS``."""
