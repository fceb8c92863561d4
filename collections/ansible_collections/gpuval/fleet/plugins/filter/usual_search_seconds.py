# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
name: usual_search_seconds
short_description: How long the search for the bad node of a gang may take by default
version_added: 0.1.0
author: gpuval contributors (@gpuval)
description:
  - What C(gpuval_gang_search_seconds) is unless it is given, and what other commands reckon with.
positional: round_seconds
options:
  _input:
    description: Number of nodes.
    type: int
    required: true
  round_seconds:
    description: What one round of the search may take; the search has six times as long at least.
    type: float
    default: 0.0
"""

EXAMPLES = r"""
seconds: "{{ 100 | gpuval.fleet.usual_search_seconds }}"
longer: "{{ 100 | gpuval.fleet.usual_search_seconds(890) }}"
"""

RETURN = r"""
_value:
  description: Seconds.
  type: float
  sample: 3560.0
"""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder


class FilterModule:
    def filters(self):
        return {"usual_search_seconds": folder.usual_search_seconds}
