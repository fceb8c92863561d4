"""History: what the records in the bucket tell across runs, of a node, a part, a SKU or the fleet.

The bucket is the truth. ``sync`` brings what changed in it into a cache of Parquet files, a folder for each run, which
DuckDB reads; the cache may be deleted at any time.
"""

from __future__ import annotations

from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunError


class HistoryError(RunError):
    """The history cannot be told; the message says what to do."""
