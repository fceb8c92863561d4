"""History of a node, a GPU, a SKU or the fleet, from the reports of all runs in the bucket, which is authoritative.
``sync`` copies changed reports into a cache of Parquet files, which DuckDB reads; the cache may be deleted any time."""

from ..runs.folder import RunError


class HistoryError(RunError):
    """The history cannot be read; the message says what to do."""
