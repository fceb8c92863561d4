# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the watch, the same for every placement."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  run:
    description: The run (gpuval.run/1), in check mode, where it is not written.
    type: dict
    default: {}
  poll_seconds:
    description: Interval between two reads of the store.
    type: float
    default: 2.0
  pull_seconds:
    description: Interval of fetching records from a node that cannot reach the store.
    type: float
    default: 15.0
  silence_seconds:
    description: Time without a heartbeat after which a node's records are fetched, on a cluster from its pod's output.
    type: float
    default: 90.0
  lost_seconds:
    description: Time without a heartbeat or an answer after which a node is given up.
    type: float
    default: 1800.0
  retries:
    description: Max retries of a stage.
    type: int
    default: 1
  wait_for_node:
    description: >-
      How long, in seconds, a launch is retried on a node that another run uses; V(0) refuses it. A second measurement
      waits as long for a scheduler, or for 600 where it is V(0).
    type: float
    default: 0.0
  max_nodes_at_once:
    description: Max nodes that work at once; V(0) is all.
    type: int
    default: 0
  max_transfers:
    description: Max nodes that load images at once; V(0) is all.
    type: int
    default: 16
"""
