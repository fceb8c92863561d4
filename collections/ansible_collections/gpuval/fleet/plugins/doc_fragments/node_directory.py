# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The folder of modules that work on nodes."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  directory:
    description:
      - Base folder of gpuval on the node.
      - Empty is C(/var/lib/gpuval) for root and C(/var/tmp/gpuval-USER) for others.
    type: str
    default: ''
"""
