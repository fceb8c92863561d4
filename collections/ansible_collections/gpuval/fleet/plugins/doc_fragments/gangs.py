# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of actions that have nodes work together."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  port:
    description: Port of the rendezvous on the first member; the next one is for the gang's control channel.
    type: int
    default: 29500
  ssh_port:
    description: Port of the SSH server on each member.
    type: int
    default: 3022
  round_seconds:
    description: Time limit of one round of the gangs' stages.
    type: float
    default: 3600.0
  search:
    description: Search for the bad node or link when a gang fails or is slow.
    type: bool
    default: true
  search_seconds:
    description:
      - Time limit of a search, at least three times O(search_round_seconds).
      - The role sets more where there are many nodes or a round takes long.
    type: float
    default: 3060.0
  search_round_seconds:
    description: Time limit of one round of a search.
    type: float
    default: 180.0
  expected_bytes_per_second:
    description:
      - Bus bandwidth in bytes/s of an all_reduce between two good nodes. V(0) is unknown.
      - If all pairs are slower, no node is accepted.
    type: float
    default: 0.0
  tapered:
    description: Links between racks are slower by design.
    type: bool
    default: false
"""
