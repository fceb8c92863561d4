# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the watch, the same for every placement."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  run:
    description: The run, in check mode, where it is not written.
    type: dict
    default: {}
  poll_seconds:
    description: Interval between two looks at the store.
    type: float
    default: 2.0
  pull_seconds:
    description: Interval of fetching records from a node that cannot reach the store.
    type: float
    default: 15.0
  silence_seconds:
    description: How long a node may be silent before its records are fetched, on a cluster from its pod's output.
    type: float
    default: 90.0
  lost_seconds:
    description: After how long without a heartbeat or an answer a node is given up.
    type: float
    default: 1800.0
  retries:
    description: How often a stage is retried.
    type: int
    default: 1
  wait_for_node:
    description: How long a node on which another run is at work is tried again, in seconds. V(0) refuses it.
    type: float
    default: 0.0
  max_nodes_at_once:
    description: How many nodes work at once; V(0) is all of them.
    type: int
    default: 0
  max_transfers:
    description: How many nodes bring images at once; V(0) is all of them.
    type: int
    default: 16
"""
