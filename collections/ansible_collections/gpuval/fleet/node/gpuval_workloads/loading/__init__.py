"""Loading: a model from the store into the node's model cache, timed, then every file held against ``SHA256SUMS``."""
