# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
name: network_environment
short_description: Environment of the workloads of a gang for the network between its nodes
version_added: 0.1.0
author: gpuval contributors (@gpuval)
description:
  - What the collectives' library is told of a network, from the files in C(networks/). Nothing for C(auto).
positional: sku
options:
  _input:
    description: C(auto), or the name of a network.
    type: str
    required: true
  sku:
    description: SKU of the nodes, as in C(gpuval_sku). Variables that only Gaudi reads are for Gaudi alone.
    type: str
    default: auto
"""

EXAMPLES = r"""
environment: "{{ 'tcp' | gpuval.fleet.network_environment('h200') }}"
"""

RETURN = r"""
_value:
  description: Variables with their values.
  type: dict
  sample: {NCCL_IB_DISABLE: "1", NCCL_NET: Socket}
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import networks


def network_environment(name: str, sku: str = networks.AUTO) -> dict[str, str]:
    try:
        return networks.environment(name, sku)
    except networks.NetworkError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self):
        return {"network_environment": network_environment}
