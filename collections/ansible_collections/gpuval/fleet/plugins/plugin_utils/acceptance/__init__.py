"""One acceptance of all expected nodes over several runs (``gpuval.acceptance/1``)."""
