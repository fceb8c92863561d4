"""The fleet's network: the pairs to measure, and findings from their answers."""
