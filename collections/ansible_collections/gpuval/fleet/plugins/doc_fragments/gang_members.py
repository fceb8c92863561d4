# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options that say which nodes make a gang."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  size:
    description: Nodes per gang, 2 or more; V(0) is all that are alike.
    type: int
    default: 0
  group_by:
    description: What all members of a gang share, V(sku) or labels of C(gpuval_labels).
    type: list
    elements: str
    default: [sku]
"""
