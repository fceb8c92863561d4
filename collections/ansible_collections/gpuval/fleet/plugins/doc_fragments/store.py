# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The store, as the actions take it."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  store:
    description: The store as the role P(gpuval.fleet.gpuval#role) describes it.
    type: dict
    required: true
"""
