# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a run is watched, however its plans get to the nodes."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  run:
    description: The run, in check mode, where it is not written.
    type: dict
    default: {}
  poll_seconds:
    description: How often the store is asked what changed.
    type: float
    default: 2.0
  pull_seconds:
    description: How often a node that cannot reach the store is asked.
    type: float
    default: 15.0
  silence_seconds:
    description: How long a node may be silent before it is asked, on a cluster for the output of its pod.
    type: float
    default: 90.0
  lost_seconds:
    description: After how long without a sign a node that cannot be asked either is given up.
    type: float
    default: 1800.0
  retries:
    description: How often a stage is relaunched.
    type: int
    default: 1
  max_nodes_at_once:
    description: How many nodes work at once; V(0) is all of them.
    type: int
    default: 0
  max_transfers:
    description: How many nodes bring images at once; V(0) is all of them.
    type: int
    default: 16
"""
