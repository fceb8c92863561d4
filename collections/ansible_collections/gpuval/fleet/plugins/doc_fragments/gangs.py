# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of actions that have nodes work together."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  port:
    description: Port of the rendezvous on the first member; the next one is that of the gang's control channel.
    type: int
    default: 29500
  ssh_port:
    description: Port of the SSH servers that members start for the work.
    type: int
    default: 3022
  round_seconds:
    description: How long the gangs' stages may take together.
    type: float
    default: 3600.0
  search:
    description: Whether to search for the node or link when a gang fails or is slow.
    type: bool
    default: true
  search_seconds:
    description:
      - How long a search may take, three times O(search_round_seconds) at least.
      - The role asks for more where there are many nodes, or where a round takes long.
    type: float
    default: 3060.0
  search_round_seconds:
    description: How long one round of a search may take.
    type: float
    default: 180.0
  expected_bytes_per_second:
    description:
      - Bus bandwidth of an all_reduce between two good nodes. V(0) is unknown.
      - Where all pairs are slower no node is accepted.
    type: float
    default: 0.0
  tapered:
    description: Pairs of nodes in different racks are slower by design.
    type: bool
    default: false
"""
