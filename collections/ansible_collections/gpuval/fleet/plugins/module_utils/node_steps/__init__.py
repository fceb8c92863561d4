"""The halves on nodes of the steps that run there: each file has a function of its name."""
