# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
name: network_names
short_description: What NCCL's log calls the network between the nodes of a gang
version_added: 0.1.0
author: gpuval contributors (@gpuval)
description:
  - The names of a network in the log of the collectives' library, from the files in C(networks/). None for C(auto).
options:
  _input:
    description: C(auto), or the name of a network.
    type: str
    required: true
"""

EXAMPLES = r"""
names: "{{ 'infiniband' | gpuval.fleet.network_names }}"
"""

RETURN = r"""
_value:
  description: Names, C(*) for any text.
  type: list
  elements: str
  sample: [IB, IBext*]
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import networks


def network_names(name: str) -> list[str]:
    try:
        return networks.names(name)
    except networks.NetworkError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self):
        return {"network_names": network_names}
